"""The context hooks are given: one object per plugin and turn, sealed when the turn is over.

What the engine needs of its host: requests, messages and chunks mean something there only.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeVar

from routecodex.turns.errors import NotInThisHook, TurnAborted, TurnOver

if TYPE_CHECKING:
    from routecodex.turns.append_queue import PendingAppend
    from routecodex.turns.engine import TurnRun
    from routecodex.turns.hooks import Hooked

RequestT = TypeVar("RequestT")
MessageT = TypeVar("MessageT")
ChunkT = TypeVar("ChunkT")


class Host(Protocol[RequestT, MessageT, ChunkT]):
    """Host of a turn: it keeps the messages, speaks to the model and merges what comes back."""

    @property
    def messages(self) -> list[MessageT]:
        """The live list; plugins may edit it."""

    def build_request(self) -> RequestT:
        """A fresh request from the messages as they are now; editing it changes no message."""

    def with_messages(self, request: RequestT, messages: Sequence[object]) -> RequestT:
        """The request with these messages in place of its own; the same object where it can be edited."""

    def send(self, request: RequestT) -> AsyncIterator[ChunkT]:
        """The chunks of the answer; the engine closes what has `aclose`, however the stream ends."""

    def new_message(self) -> MessageT:
        """An empty response for chunks to be merged into."""

    def merge(self, message: MessageT, chunk: ChunkT) -> bool:
        """Merges the chunk; whether it held something of the message (a usage report, say, does not)."""

    def place(self, message: MessageT) -> None:
        """Appends the message to `messages`."""

    def as_message(self, given: object) -> MessageT:
        """A message from whatever plugins may hand over."""

    def processing(self, state: str) -> None:
        """Is told of every new processing state."""


RequestState = Literal["idle", "processing", "completed", "aborted", "error"]


class Append(Generic[MessageT]):
    """One message on its way into the list and the hooks that have not seen it yet."""

    __slots__ = ("left", "message", "minding", "prevented")

    def __init__(self, message: MessageT, hooks: Hooked) -> None:
        self.message = message
        self.left: Iterator[Any] = iter(hooks)
        self.prevented = False
        self.minding = False


class Turn(Generic[RequestT, MessageT, ChunkT]):
    """A turn as one plugin sees it."""

    __slots__ = ("_append", "_place", "_run", "minding")

    def __init__(
        self,
        run: TurnRun[RequestT, MessageT, ChunkT],
        place: int,
        *,
        append: Append[MessageT] | None = None,
    ) -> None:
        self._run = run
        self._place = place
        self._append = append
        self.minding = False

    @property
    def messages(self) -> list[MessageT]:
        """All messages, the live list."""
        return self._run.host.messages

    @property
    def current_turn(self) -> list[MessageT]:
        """The messages of this turn: what was sent, the responses, what plugins appended."""
        return self._run.current_turn

    @property
    def plugins(self) -> tuple[object, ...]:
        """All plugins, in order."""
        return self._run.hooks.plugins

    @property
    def plugin_data(self) -> dict[str, Any]:
        """A place for this plugin's own data, empty at the start of every turn."""
        return self._run.data_of(self._place)

    def data_of(self, plugin: object) -> dict[str, Any]:
        """Another plugin's data of this turn."""
        for place, candidate in enumerate(self.plugins):
            if candidate is plugin:
                return self._run.data_of(place)
        raise LookupError(f"{plugin!r} is no plugin of this turn")

    @property
    def request_state(self) -> RequestState:
        return self._run.request_state

    @property
    def processing_state(self) -> str | None:
        """requesting, streaming, or what a plugin has set; None when the turn is over."""
        return self._run.processing_state

    def set_processing_state(self, state: str) -> None:
        """Tells what the turn is doing, such as `calling-tools`."""
        self._open()
        self._run.set_processing_state(state)

    @property
    def requests(self) -> int:
        """Number of requests that the turn has made so far."""
        return self._run.requests

    @property
    def over(self) -> bool:
        """Whether the turn has ended, cleanups included; then calls raise TurnOver."""
        return self._run.over

    @property
    def aborted(self) -> bool:
        return self._run.aborted

    def abort(self) -> None:
        """Aborts the turn, from a hook or from anywhere on the loop."""
        self._run.abort()

    def raise_if_aborted(self) -> None:
        """Leaves the hook when the turn was aborted."""
        if self._run.aborted:
            raise TurnAborted("the turn was aborted")

    def wait_aborted(self) -> Coroutine[Any, Any, None]:
        """Returns when the turn is aborted, raises TurnOver when it ends otherwise.

        A hook that has called this minds the abort itself: it is not interrupted and ends in its own way.
        Any other hook that is waiting for something when the abort comes gets a CancelledError there.
        """
        (self._append or self).minding = True
        return self._run.wait_aborted()

    @property
    def request_body(self) -> RequestT:
        """The request about to be made, or made last; edited or set in `on_before_request`."""
        if self._run.request is None:
            raise NotInThisHook("there is no request_body before the first on_before_request")
        return self._run.request

    @request_body.setter
    def request_body(self, request: RequestT) -> None:
        self._only_in("request_body = …", "on_before_request")
        self._run.request = request

    def set_request_messages(self, messages: list[Any] | tuple[Any, ...]) -> None:
        """Sends these messages in this request, reduced to the fields that may be sent."""
        self._only_in("set_request_messages", "on_before_request")
        self._run.request = self._run.host.with_messages(self.request_body, messages)

    @property
    def current_message(self) -> MessageT:
        """The message about to be appended, in `on_message_append`; elsewhere the response being built."""
        if self._append is not None:
            return self._append.message
        if self._run.message is None:
            raise NotInThisHook("there is no current_message before the first request")
        return self._run.message

    @property
    def data(self) -> ChunkT:
        """The chunk that was merged just now."""
        self._only_in("data", "on_stream_data")
        chunk = self._run.chunk
        assert chunk is not None
        return chunk

    @property
    def last_choice_chunk(self) -> ChunkT | None:
        """The last chunk of the response that held something of the message."""
        return self._run.last_choice_chunk

    def prevent_default(self) -> None:
        """Keeps the message from being appended: placing it is the plugin's business now."""
        self._open()
        if self._append is None:
            raise NotInThisHook("prevent_default belongs in on_message_append")
        self._append.prevented = True

    def append_message(
        self, message: Any, *, request: bool = False, priority: float = 0, deferred: bool = False
    ) -> PendingAppend:
        """Appends a message or a list of them, and asks for another request if `request` is set.

        Immediate messages are appended in the order of the calls. Deferred ones wait until every plugin is
        done and then follow by priority, the highest first. The result may be awaited, and matters only
        when an async `on_message_append` holds the message up.
        """
        self._open()
        if self._append is not None:
            raise NotInThisHook("append_message cannot be called in on_message_append")
        hook = "on_after_request" if request or deferred else "on_turn_end"
        self._only_in("append_message", "on_after_request", hook)
        many = message if isinstance(message, list | tuple) else (message,)
        messages = [self._run.host.as_message(one) for one in many]
        if request:
            self._run.again = True
        return self._run.add(messages, self._place, priority=priority if deferred else None)

    def append_and_request(
        self, message: Any, *, priority: float = 0, deferred: bool = False
    ) -> PendingAppend:
        """Appends as `append_message` does and asks for another request."""
        return self.append_message(message, request=True, priority=priority, deferred=deferred)

    def extend_message(self, message: MessageT) -> None:
        """Makes the next response go on in this message, which is in the list already."""
        self._only_in("extend_message", "on_after_request")
        self._run.extended = message

    @property
    def will_request(self) -> bool:
        """Whether a plugin has asked for another request already."""
        self._only_in("will_request", "on_after_request")
        return self._run.again

    def tell(self, event: Any) -> None:
        """Tells whoever follows the turn; nothing happens when nobody does."""
        self._open()
        tell = getattr(self._run.host, "tell", None)
        if tell is not None:
            tell(event)

    def _open(self) -> None:
        if self._run.over:
            raise TurnOver("the turn is over; nothing can be changed in it any more")

    def _only_in(self, what: str, *hooks: str) -> None:
        self._open()
        if self._run.phase not in hooks:
            raise NotInThisHook(f"{what} belongs in {' or '.join(dict.fromkeys(hooks))}")
