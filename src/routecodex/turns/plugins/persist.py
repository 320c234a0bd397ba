"""`Persist`: a conversation in a store, so that it survives the process.

    persist = Persist("chats", "build")
    conversation = Conversation(url, model=model, plugins=[persist], initial_messages=await persist.load())

Every message is written through: what the person said before the first request, every other message before it
enters the list, which is before a tool runs; the answer again as it grows and when it is complete, a tool's
message when it has its result, and everything when the turn ends. A process that is killed loses at most the
last seconds of an answer under way.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec

from routecodex.stores.file import FileStore
from routecodex.stores.store import Conflict, Store, StoreError
from routecodex.turns.chat_host import ChatTurn
from routecodex.turns.message import Message
from routecodex.turns.plugins import call_pairing

SPACE = "conversations"

INTERVAL = 1.0
"""How often an answer is written while it grows, in seconds."""


class SavedConversation(msgspec.Struct, omit_defaults=True):
    """A conversation as it stands in the store."""

    messages: list[dict[str, Any]]
    format: int = 1


class Persist:
    """Keeps the messages of a conversation in a store, or in a directory, under a key.

    Put it before plugins whose changes at the end of a turn it shall see: cleanups run last to first.
    """

    def __init__(
        self,
        store: Store | str | os.PathLike[str],
        key: str,
        *,
        interval: float = INTERVAL,
        cancelled_text: str = call_pairing.CANCELLED,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._owns_store = isinstance(store, str | os.PathLike)
        self._store: Store = (
            FileStore(Path(store).expanduser()) if isinstance(store, str | os.PathLike) else store
        )
        self._key = key
        self._interval = interval
        self._cancelled_text = cancelled_text
        self._clock = clock
        self._version: int | None = 0
        self._last: bytes | None = None
        self._failing = False
        self._lock = asyncio.Lock()

    async def load(self) -> list[Message]:
        """The messages as they were, fit to go on with: calls without a result have one afterwards."""
        stored = await self._store.get(SPACE, self._key)
        if stored is None:
            self._version = 0
            return []
        self._version = stored.version
        saved = msgspec.json.decode(stored.value, type=SavedConversation)
        return mended([Message.of(message) for message in saved.messages], self._cancelled_text)

    async def close(self) -> None:
        """Lets go of the store, if it was opened here."""
        if self._owns_store:
            await self._store.close()

    async def on_turn_start(self, turn: ChatTurn) -> Callable[[], Awaitable[None]]:
        await self._save(turn)

        async def clean() -> None:
            # A turn that failed or was cancelled has no other end; if the store is why, that was told.
            if not self._failing:
                await self._save(turn)

        return clean

    async def on_message_append(self, turn: ChatTurn) -> None:
        await self._save(turn, turn.current_message)

    def on_stream_data(self, turn: ChatTurn) -> Awaitable[None] | None:
        data, now = turn.plugin_data, self._clock()
        if now - data.get("saved", now) < self._interval:
            data.setdefault("saved", now)
            return None
        return self._save(turn)

    async def on_after_request(self, turn: ChatTurn) -> None:
        await self._save(turn)

    async def on_tool_end(self, turn: ChatTurn, message: Message) -> None:
        """Is told by tool plugins: a tool that has run shall not be taken for one that has not."""
        await self._save(turn)

    async def on_turn_end(self, turn: ChatTurn) -> None:
        await self._save(turn)

    async def _save(self, turn: ChatTurn, coming: Message | None = None) -> None:
        """Writes the messages as they are, with the one that is about to enter the list."""
        async with self._lock:
            turn.data_of(self)["saved"] = self._clock()
            messages = list(turn.messages)
            if coming is not None and not any(message is coming for message in messages):
                messages.append(coming)
            value = _encoded(messages)
            if value != self._last:
                await self._put(value)

    async def _put(self, value: bytes) -> None:
        expected, self._version, self._last, self._failing = self._version, None, None, True
        try:
            # When this is cancelled it may have happened or not: then the version is not known any more.
            self._version = await self._store.put(SPACE, self._key, value, expected=expected)
        except Conflict as exc:
            self._version = expected
            raise Conflict(
                f"another conversation is kept under {self._key!r}; load() it first, or take another key"
            ) from exc
        except StoreError:
            self._version = expected
            raise
        except asyncio.CancelledError:
            self._failing = False
            raise
        self._last, self._failing = value, False


def mended(messages: list[Message], cancelled_text: str = call_pairing.CANCELLED) -> list[Message]:
    """Messages of a conversation that may have been cut off anywhere, as ones to go on with.

    What an answer said up to there is kept and marked `metadata["partial"]`; an answer that had said nothing
    is left out; calls without a result get one.
    """
    for message in _last_turn(messages):
        if message.role == "assistant" and "finish_reason" not in message.metadata:
            message.metadata["partial"] = True
            call_pairing.identify(message, messages)
    kept = [message for message in messages if message.role != "assistant" or _says_something(message)]
    call_pairing.complete(kept, cancelled_text, among=list(kept))
    return kept


def _last_turn(messages: list[Message]) -> list[Message]:
    """What came after the last thing the person said: only there can something be unfinished."""
    asked = [at for at, message in enumerate(messages) if message.role == "user"]
    return messages[asked[-1] + 1 if asked else 0 :]


def _says_something(message: Message) -> bool:
    return any(value for name, value in message.as_dict().items() if name != "role")


def _encoded(messages: list[Message]) -> bytes:
    shown = [
        {**message.as_dict(), **({"metadata": message.metadata} if message.metadata else {})}
        for message in messages
    ]
    return msgspec.json.encode(SavedConversation(shown), enc_hook=str)
