"""`Persist`: saves a conversation in a store, so that it survives the process.

    persist = Persist("chats", "build")
    conversation = Conversation(url, model=model, plugins=[persist], initial_messages=await persist.load())

Every message is saved at once: user messages before the first request, other messages before they enter the
list (so before a tool runs), the answer again while it grows and when it is complete, a tool message when it
has its result, and all messages when the turn ends. A killed process loses at most the last seconds of an
answer.
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
"""Seconds between two writes of a growing answer."""


class SavedConversation(msgspec.Struct, omit_defaults=True):
    """The stored format of a conversation."""

    messages: list[dict[str, Any]]
    format: int = 1


class Persist:
    """Saves the messages of a conversation in a store, or in a directory, under a key.

    Put it before plugins whose changes at the end of a turn it must save: cleanups run last to first.
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
        self._last_value: bytes | None = None
        self._failing = False
        self._lock = asyncio.Lock()

    async def load(self) -> list[Message]:
        """Return the saved messages, ready to continue: calls without a result get one."""
        stored = await self._store.get(SPACE, self._key)
        if stored is None:
            self._version = 0
            return []
        self._version = stored.version
        saved = msgspec.json.decode(stored.value, type=SavedConversation)
        return repair([Message.of(message) for message in saved.messages], self._cancelled_text)

    async def close(self) -> None:
        """Close the store if this plugin opened it."""
        if self._owns_store:
            await self._store.close()

    async def on_turn_start(self, turn: ChatTurn) -> Callable[[], Awaitable[None]]:
        await self._save(turn)

        async def clean() -> None:
            # on_turn_end does not run after an error. A store error was raised already.
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
        """Save a tool result as soon as `ToolPlugin` reports it, so that the tool is not run again."""
        await self._save(turn)

    async def on_turn_end(self, turn: ChatTurn) -> None:
        await self._save(turn)

    async def _save(self, turn: ChatTurn, appended: Message | None = None) -> None:
        """Write the messages, with the one that is about to enter the list."""
        async with self._lock:
            turn.data_of(self)["saved"] = self._clock()
            messages = list(turn.messages)
            if appended is not None and not any(message is appended for message in messages):
                messages.append(appended)
            value = _encoded(messages)
            if value != self._last_value:
                await self._put(value)

    async def _put(self, value: bytes) -> None:
        expected, self._version, self._last_value, self._failing = self._version, None, None, True
        try:
            # A cancelled write may or may not have happened: the version is unknown afterwards.
            self._version = await self._store.put(SPACE, self._key, value, expected=expected)
        except Conflict as exc:
            self._version = expected
            raise Conflict(
                f"another conversation is stored under {self._key!r}; load() it first, or use another key"
            ) from exc
        except StoreError:
            self._version = expected
            raise
        except asyncio.CancelledError:
            self._failing = False
            raise
        self._last_value, self._failing = value, False


def repair(messages: list[Message], cancelled_text: str = call_pairing.CANCELLED) -> list[Message]:
    """Repair the messages of a conversation that was cut off anywhere, so that it can continue.

    A partial answer is kept and marked `metadata["partial"]`; an empty answer is dropped; calls without a
    result get one.
    """
    for message in _last_turn(messages):
        if message.role == "assistant" and "finish_reason" not in message.metadata:
            message.metadata["partial"] = True
            call_pairing.identify(message, messages)
    repaired = [message for message in messages if message.role != "assistant" or _has_content(message)]
    call_pairing.complete(repaired, cancelled_text, among=list(repaired))
    return repaired


def _last_turn(messages: list[Message]) -> list[Message]:
    """Return the messages after the last user message, the only ones that can be unfinished."""
    users = [at for at, message in enumerate(messages) if message.role == "user"]
    return messages[users[-1] + 1 if users else 0 :]


def _has_content(message: Message) -> bool:
    return any(value for name, value in message.as_dict().items() if name != "role")


def _encoded(messages: list[Message]) -> bytes:
    bodies = [
        {**message.as_dict(), **({"metadata": message.metadata} if message.metadata else {})}
        for message in messages
    ]
    return msgspec.json.encode(SavedConversation(bodies), enc_hook=str)
