"""`Conversation`: a message list, a model to speak with, and one turn at a time."""

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
    """Speaks with a model at `base_url` in the given protocol, or through a `sender` of your own.

    One turn runs at a time. Everything is called on the event loop, `abort` included.
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
            messages=[Message.of(given) for given in initial_messages],
            sender=sender,
            model=model,
            # A sender may want back what its own answers carry besides.
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
        """idle before the first turn, processing during one, then how the last one ended."""
        return "idle" if self._run is None else self._run.request_state

    @property
    def processing_state(self) -> str | None:
        """What the turn under way is doing; None between turns."""
        return None if self._run is None else self._run.processing_state

    @property
    def usage(self) -> dict[str, Any]:
        """The usage of all requests of all turns, summed field by field."""
        return add_usage(self._usage, {} if self._host is None else self._host.usage)

    async def send(self, *messages: str | Message | Mapping[str, Any]) -> Message | None:
        """Runs a turn and returns the last answer, or as much as there is of it when aborted, or None."""
        await self._leftover()
        run, _ = self._begin(messages)
        await self._carry(run)
        return run.answer

    def stream(self, *messages: str | Message | Mapping[str, Any]) -> TurnStream:
        """The events of a turn that begins with the first step of the iteration."""

        async def start(feed: EventFeed) -> RunningTurn:
            await self._leftover()
            run, host = self._begin(messages, feed)
            started = RunningTurn(run, host, work=self._carry(run), abandon=self._abandon)
            self._task = started.task  # the loop itself keeps tasks weakly
            return started

        return TurnStream(start)

    def abort(self) -> None:
        """Aborts the turn under way; without one nothing happens."""
        if self._run is not None:
            self._run.abort()

    async def close(self) -> None:
        """Aborts the turn under way, waits for its cleanups and lets go of the connection."""
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

    async def _leftover(self) -> None:
        """Waits for a turn whose reader went away: nobody else would."""
        if self._abandoned and not self._is_inside():
            await self._idle.wait()

    def _is_inside(self) -> bool:
        """Whether the caller is part of the turn under way, which would wait for itself."""
        return self._run is not None and self._run.runs_in(asyncio.current_task())

    def _begin(
        self, given: Iterable[str | Message | Mapping[str, Any]], listener: EventListener | None = None
    ) -> tuple[ChatRun, ChatHost]:
        if self._closed:
            raise ConversationClosed("the conversation is closed")
        if not self._idle.is_set():
            raise ConversationBusy("a turn is under way; wait for its end or abort it")
        queued = [_said(one) for one in given]
        self.messages.extend(queued)
        self._usage = self.usage
        self._host = ChatHost(self._setting, listener)
        self._run = self._engine.begin(self._host, queued)
        self._idle.clear()
        return self._run, self._host

    async def _carry(self, run: ChatRun) -> None:
        try:
            await run.run()
        finally:
            self._task = None
            self._abandoned = False
            self._idle.set()

    def _abandon(self) -> None:
        self._abandoned = True


def _said(given: str | Message | Mapping[str, Any]) -> Message:
    return Message("user", given) if isinstance(given, str) else Message.of(given)


def _open_sender(base_url: str | None, protocol: str, api_key: str | None) -> Sender:
    """A sender over HTTP; its code is loaded only by those who need it."""
    if base_url is None:
        raise TypeError("a conversation needs a base_url or a sender")
    opened: Sender = importlib.import_module("routecodex.turns.http_sender").open_sender(
        base_url, protocol, api_key
    )
    return opened
