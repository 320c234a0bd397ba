"""`Conversation`: a message list, a model, and one turn at a time."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeAlias, TypeVar, overload

from routecodex.turns.blocking import BlockingCalls
from routecodex.turns.chat_host import ChatEngine, ChatHost, ChatRun, EventListener, Sender, Setting
from routecodex.turns.errors import ConversationBusy, ConversationClosed
from routecodex.turns.message import Message, add_usage
from routecodex.turns.retrying_sender import RetryingSender
from routecodex.turns.stream import EventFeed, RunningTurn, TurnStream
from routecodex.turns.structured_output import OutputCheck, OutputSchema
from routecodex.turns.turn import RequestState

T = TypeVar("T")
Sendable: TypeAlias = str | Message | Mapping[str, Any]

REQUEST_MESSAGE_FIELDS = ("role", "content", "tool_calls", "tool_call_id")
MAX_RETRIES = 2
"""Retries of a failed request, as in the SDKs of OpenAI and Anthropic."""

_OWN_PARAMETERS = {
    "model": "set the model of the Conversation",
    "messages": "pass the messages to send",
    "stream": "every request streams; use send or stream",
}
"""Request fields that are not parameters, and the way to set them."""


class Conversation:
    """A conversation with the model at `base_url` in the given protocol, or through a custom `sender`.

    `system` and `parameters` (chat-shaped: `temperature`, `max_tokens`, …) are part of every request.
    `session_id` is sent as `x-session-id`; one is generated if it is missing. `max_retries` repeats failed
    requests: 2 with a `base_url`, none with a `sender` unless it is given. `output_retries` is the number of
    corrections an answer with an `output_type` may get.

    One turn runs at a time. Call every method on the event loop, `abort` included; the methods that end with
    `_sync` are for programs without one.
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
        system: str | None = None,
        parameters: Mapping[str, Any] | None = None,
        session_id: str | None = None,
        max_retries: int | None = None,
        output_retries: int = 2,
    ) -> None:
        self._engine = ChatEngine(plugins, max_requests=max_requests)
        self._owns_sender = sender is None
        if sender is None:
            sender = _open_sender(base_url, protocol, api_key, session_id)
            max_retries = MAX_RETRIES if max_retries is None else max_retries
        elif session_id is not None:
            raise TypeError("session_id is for a base_url; open the sender with the header x-session-id")
        if max_retries is not None:
            sender = RetryingSender(sender, max_retries)
        if output_retries < 0:
            raise ValueError(f"output_retries is {output_retries!r}; it must not be negative")
        self._output_retries = output_retries
        self._setting = Setting(
            messages=[Message.of(message) for message in initial_messages],
            sender=sender,
            model=model,
            # HttpSender needs the field in which preserved_parts keeps signatures.
            fields=frozenset((*request_message_fields, *getattr(sender, "message_fields", ()))),
            system=system,
            parameters=_checked_parameters(parameters),
        )
        self._run: ChatRun | None = None
        self._host: ChatHost | None = None
        self._task: asyncio.Task[Any] | None = None
        self._usage: dict[str, Any] = {}
        self._abandoned = self._closed = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._blocking = BlockingCalls()

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

    @property
    def session_id(self) -> str | None:
        """The session of the requests at the gateway; None with a custom sender that has no session."""
        return getattr(self._setting.sender, "session", None)

    @overload
    async def send(
        self, *messages: Sendable, parameters: Mapping[str, Any] | None = None
    ) -> Message | None: ...
    @overload
    async def send(
        self, *messages: Sendable, output_type: type[T], parameters: Mapping[str, Any] | None = None
    ) -> T | None: ...
    async def send(
        self,
        *messages: Sendable,
        output_type: type[Any] | None = None,
        parameters: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run a turn and return its last answer; after an abort the partial answer or None.

        With an `output_type` it returns the answer as a value of that type; after an abort None. `parameters`
        are added to those of the conversation for this turn; a None removes one.
        """
        setting, check = self._turn_setting(parameters, output_type)
        await self._wait_abandoned()
        run, _ = self._begin(messages, setting=setting, check=check)
        await self._run_turn(run)
        return run.answer if check is None else check.output

    @overload
    def send_sync(
        self, *messages: Sendable, parameters: Mapping[str, Any] | None = None
    ) -> Message | None: ...
    @overload
    def send_sync(
        self, *messages: Sendable, output_type: type[T], parameters: Mapping[str, Any] | None = None
    ) -> T | None: ...
    def send_sync(self, *messages: Sendable, **options: Any) -> Any:
        """Do as `send` and wait, in a program without an event loop; close with `close_sync` or `with`."""
        return self._blocking.run("send", lambda: self.send(*messages, **options))

    def stream(
        self,
        *messages: Sendable,
        output_type: type[Any] | None = None,
        parameters: Mapping[str, Any] | None = None,
    ) -> TurnStream:
        """Return the events of a turn, which starts with the first step of the iteration."""
        setting, check = self._turn_setting(parameters, output_type)

        async def start(feed: EventFeed) -> RunningTurn:
            await self._wait_abandoned()
            run, host = self._begin(messages, feed, setting=setting, check=check)
            work = self._run_turn(run)
            started = RunningTurn(run, host, work=work, abandon=self._abandon, check=check)
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

    def close_sync(self) -> None:
        """Close a conversation that was used with `send_sync`."""
        self._blocking.run("close", self.close)
        self._blocking.close()

    def __enter__(self) -> Conversation:
        return self

    def __exit__(self, *_: object) -> None:
        self.close_sync()

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

    def _turn_setting(
        self, parameters: Mapping[str, Any] | None, output_type: type[Any] | None
    ) -> tuple[Setting, OutputCheck[Any] | None]:
        """Return the settings of one turn and the check of its output."""
        setting = self._setting
        if parameters:
            merged = {**setting.parameters, **_checked_parameters(parameters)}
            setting = replace(setting, parameters={k: v for k, v in merged.items() if v is not None})
        if output_type is None:
            return setting, None
        if "response_format" in setting.parameters:
            raise TypeError("output_type sets response_format; remove it from the parameters")
        return setting, OutputCheck(OutputSchema(output_type), max_retries=self._output_retries)

    def _begin(
        self,
        messages: Iterable[Sendable],
        listener: EventListener | None = None,
        *,
        setting: Setting,
        check: OutputCheck[Any] | None,
    ) -> tuple[ChatRun, ChatHost]:
        if self._closed:
            raise ConversationClosed("the conversation is closed; create a new Conversation")
        if not self._idle.is_set():
            raise ConversationBusy("a turn is running; wait for its end or abort it")
        queued = [_user_message(message) for message in messages]
        self.messages.extend(queued)
        self._usage = self.usage
        self._host = ChatHost(setting, listener)
        self._run = (self._engine if check is None else self._engine.with_plugin(check)).begin(
            self._host, queued
        )
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


def _user_message(message: Sendable) -> Message:
    return Message("user", message) if isinstance(message, str) else Message.of(message)


def _checked_parameters(parameters: Mapping[str, Any] | None) -> dict[str, Any]:
    for name, way in _OWN_PARAMETERS.items():
        if name in (parameters or {}):
            raise TypeError(f"{name!r} is not a request parameter: {way}")
    return dict(parameters or {})


def _open_sender(base_url: str | None, protocol: str, api_key: str | None, session_id: str | None) -> Sender:
    """Open a sender over HTTP; importing it here keeps the codecs out of programs with their own sender."""
    if base_url is None:
        raise TypeError("Conversation needs a base_url or a sender")
    module = importlib.import_module("routecodex.turns.http_sender")
    headers = {} if session_id is None else {module.SESSION_HEADER: session_id}
    opened: Sender = module.open_sender(base_url, protocol, api_key, headers=headers)
    return opened
