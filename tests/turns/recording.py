"""Plugins that log their hooks and run actions of a test in them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from inspect import isawaitable
from types import SimpleNamespace
from typing import Any

from routecodex.turns import ChatTurn, Conversation, ScriptedSender

HOOKS = (
    "on_turn_start",
    "on_before_request",
    "on_message_append",
    "on_stream_data",
    "on_after_request",
    "on_turn_end",
)

Action = Callable[[ChatTurn], Any]


def recording(log: list[str], name: str, *, is_async: bool = False, **actions: Any) -> SimpleNamespace:
    """A plugin with every hook, sync or async; each logs `name.hook`, then does what `actions` has for it.

    The cleanup of `on_turn_start` logs `name.cleanup`, and does what `actions` has for `cleanup`.
    """

    def cleanup() -> Any:
        log.append(f"{name}.cleanup")
        return actions["cleanup"](None) if "cleanup" in actions else None

    def hook(called: str) -> Callable[[ChatTurn], Any]:
        def act(turn: ChatTurn) -> Any:
            log.append(f"{name}.{called}")
            result = actions[called](turn) if called in actions else None
            return cleanup if called == "on_turn_start" and result is None else result

        async def act_async(turn: ChatTurn) -> Any:
            await asyncio.sleep(0)
            result = act(turn)
            return await result if isawaitable(result) else result

        return act_async if is_async else act

    return SimpleNamespace(**{called: hook(called) for called in HOOKS})


def raising(error: BaseException) -> Action:
    def act(turn: ChatTurn) -> None:
        raise error

    return act


def texts(conversation: Conversation) -> list[tuple[str, Any]]:
    return [(message.role, message.content) for message in conversation.messages]


@asynccontextmanager
async def nothing_left(sender: ScriptedSender) -> AsyncIterator[None]:
    """Fails when a task or a stream outlives what happens inside."""
    before = asyncio.all_tasks()
    yield
    assert asyncio.all_tasks() <= before
    assert sender.open_streams == 0


def conversation_with(
    *plugins: object, answers: Any = ("hello",), **options: Any
) -> tuple[Conversation, ScriptedSender]:
    sender = ScriptedSender(answers)
    return Conversation(model="any", sender=sender, plugins=plugins, **options), sender


def once(text: str) -> Any:
    """Return an `on_after_request` that requests once more, after the first request."""

    def act(turn: ChatTurn) -> None:
        if turn.requests == 1:
            turn.append_and_request({"role": "user", "content": text})

    return act
