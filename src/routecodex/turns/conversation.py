"""`Conversation`: a message list, a model, and one turn at a time."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from routecodex.turns.chat_host import ChatEngine, ChatHost, ChatRun, EventListener, Sender, Setting
from routecodex.turns.errors import ConversationBusy, ConversationClosed
from routecodex.turns.message import Message, add_usage
from routecodex.turns.stream import EventFeed, RunningTurn, TurnStream
from routecodex.turns.turn import RequestState

REQUEST_MESSAGE_FIELDS = ("role", "content", "tool_calls", "tool_call_id")


class Conversation:
    """A conversation with the model at `base_url` in the given protocol, or through a custom `sender`.

    One turn runs at a time. Call every method on the event loop, `abort` included.
    """

    def __init__(
        self,
        base_url: str | None = None,
        *,
        model: str,
        protocol: str = "chat",
        api_key: str | None = None,
        plugins: Iterable[object] = (),
        initial_messages: Iterable[Message | Mapping[str, Any]] = (),
        request_message_fields: Collection[str] = REQUEST_MESSAGE_FIELDS,
        sender: Sender | None = None,
        max_requests: int | None = 50,
    ) -> None:
        self._engine = ChatEngine(plugins, max_requests=max_requests)
        self._owns_sender = sender is None
        sender = _open_sender(base_url, protocol, api_key) if sender is None else sender
        self._setting = Setting(
            messages=[Message.of(message) for message in initial_messages],
            sender=sender,
            model=model,
            # HttpSender needs the field in which preserved_parts keeps signatures.
            fields=frozenset((*request_message_fields, *getattr(sender, "message_fields", ()))),
        )
        self._run: ChatRun | None = None
        self._host: ChatHost | None = None
        self._task: asyncio.Task[Any] | None = None
        self._usage: dict[str, Any] = {}
        self._abandoned = self._closed = False
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def messages(self) -> list[Message]:
        """All messages, the live list."""
        return self._setting.messages

    @property
    def request_state(self) -> RequestState:
        """`idle` before the first turn, `processing` during one, then the end state of the last one."""
        return "idle" if self._run is None else self._run.request_state

    @property
    def processing_state(self) -> str | None:
        """The phase of the running turn; None between turns."""
        return None if self._run is None else self._run.processing_state

    @property
    def usage(self) -> dict[str, Any]:
        """The usage of all requests of all turns, summed field by field."""
        return add_usage(self._usage, {} if self._host is None else self._host.usage)

    async def send(self, *messages: str | Message | Mapping[str, Any]) -> Message | None:
        """Run a turn and return its last answer; after an abort the partial answer or None."""
        await self._wait_abandoned()
        run, _ = self._begin(messages)
        await self._run_turn(run)
        return run.answer

    def stream(self, *messages: str | Message | Mapping[str, Any]) -> TurnStream:
        """Return the events of a turn, which starts with the first step of the iteration."""

        async def start(feed: EventFeed) -> RunningTurn:
            await self._wait_abandoned()
            run, host = self._begin(messages, feed)
            started = RunningTurn(run, host, work=self._run_turn(run), abandon=self._abandon)
            self._task = started.task  # asyncio holds only weak references to tasks
            return started

        return TurnStream(start)

    def abort(self) -> None:
        """Abort the running turn, if there is one."""
        if self._run is not None:
            self._run.abort()

    async def close(self) -> None:
        """Abort the running turn, wait for its cleanups and close the connection."""
        self._closed = True
        self.abort()
        if not self._is_inside():
            await self._idle.wait()
        aclose = getattr(self._setting.sender, "aclose", None)
        if self._owns_sender and aclose is not None:
            await aclose()

    async def __aenter__(self) -> Conversation:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _wait_abandoned(self) -> None:
        """Wait for a turn whose reader left its stream; only this conversation still knows it."""
        if self._abandoned and not self._is_inside():
            await self._idle.wait()

    def _is_inside(self) -> bool:
        """Return whether the caller is part of the running turn and must not wait for its end."""
        return self._run is not None and self._run.runs_in(asyncio.current_task())

    def _begin(
        self, messages: Iterable[str | Message | Mapping[str, Any]], listener: EventListener | None = None
    ) -> tuple[ChatRun, ChatHost]:
        if self._closed:
            raise ConversationClosed("the conversation is closed; create a new Conversation")
        if not self._idle.is_set():
            raise ConversationBusy("a turn is running; wait for its end or abort it")
        queued = [_user_message(message) for message in messages]
        self.messages.extend(queued)
        self._usage = self.usage
        self._host = ChatHost(self._setting, listener)
        self._run = self._engine.begin(self._host, queued)
        self._idle.clear()
        return self._run, self._host

    async def _run_turn(self, run: ChatRun) -> None:
        try:
            await run.run()
        finally:
            self._task = None
            self._abandoned = False
            self._idle.set()

    def _abandon(self) -> None:
        self._abandoned = True


def _user_message(message: str | Message | Mapping[str, Any]) -> Message:
    return Message("user", message) if isinstance(message, str) else Message.of(message)


def _open_sender(base_url: str | None, protocol: str, api_key: str | None) -> Sender:
    """Open a sender over HTTP; importing it here keeps the codecs out of programs with their own sender."""
    if base_url is None:
        raise TypeError("Conversation needs a base_url or a sender")
    opened: Sender = importlib.import_module("routecodex.turns.http_sender").open_sender(
        base_url, protocol, api_key
    )
    return opened
