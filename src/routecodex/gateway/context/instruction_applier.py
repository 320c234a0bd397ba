"""Applies the instructions of a message to its session, once: its mark is stored with the state."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from routecodex.canon.errors import GatewayError
from routecodex.canon.notices import Notices
from routecodex.gateway.context.chat_instructions import SHOW_INSTRUCTIONS, ChatInstructions
from routecodex.gateway.context.gateway_replies import ignored_notices
from routecodex.gateway.context.identity import Scope
from routecodex.gateway.context.message_files import MessageFileError, read_message
from routecodex.gateway.context.message_marks import MessageMark, added
from routecodex.gateway.state.sessions import Sessions, StateNotSaved, is_same
from routecodex.routing.instructions import (
    ClearClock,
    ForceTarget,
    Instruction,
    SetStopMessage,
    SetStopMessageFromFile,
)
from routecodex.routing.registry import Registry
from routecodex.routing.state import NOTHING_SET, SessionState, apply_instructions, dropped_disabled

_NO_SESSION = "no session id: this holds for this request only; send x-session-id to keep it"
_DISABLED_REPLACED = "a new <**#…**> replaces the list, name all in one message"
_CLOCK_CLEARED = "all clock tasks are cleared"


def changes_state(extracted: ChatInstructions) -> bool:
    """Return whether the message is applied in one step, whatever the state was; else that must be known."""
    commands = _commands(extracted)
    return (
        extracted.mark is not None
        and len(commands) > 0
        and not any(isinstance(one, SetStopMessageFromFile) for one in commands)
    )


def _commands(extracted: ChatInstructions) -> list[Instruction]:
    return [one for one in extracted.instructions if not isinstance(one, SHOW_INSTRUCTIONS)]


class _MessageEdit:
    """The change that a message makes, once; `before` is the state that it was applied to last."""

    def __init__(
        self,
        mark: MessageMark,
        commands: Sequence[Instruction],
        *,
        registry: Registry,
        clock: Callable[[], float],
    ) -> None:
        self.before = NOTHING_SET
        self._mark = mark
        self._commands = commands
        self._registry = registry
        self._clock = clock

    def __call__(self, state: SessionState) -> SessionState:
        self.before = state
        mark = self._mark
        if mark.known(state.marks) is not None:
            return state
        changed = apply_instructions(
            replace(state, force=None),
            self._commands,
            registry=self._registry,
            turn=str(mark),
            now=self._clock(),
        )
        return replace(changed, marks=added(state.marks, mark))

    def taken_back(self, changed: SessionState, state: SessionState) -> SessionState:
        """Return a state without the message, which had `changed` it; what was set since stays.

        The message has no mark then, so that it is applied when the client sends it again.
        """
        if is_same(state, changed):
            return self.before
        mark = str(self._mark)
        return replace(state, marks=tuple(one for one in state.marks if one != mark))


class InstructionApplier:
    """Applies instructions to a session."""

    def __init__(
        self,
        sessions: Sessions,
        *,
        user_dir: Path,
        clock: Callable[[], float],
        clear_clock: Callable[[Scope], Awaitable[None]],
    ) -> None:
        self._sessions = sessions
        self._user_dir = user_dir
        self._clock = clock
        self._clear_clock = clear_clock

    async def apply(
        self,
        extracted: ChatInstructions,
        scope: Scope,
        *,
        known: SessionState | None,
        registry: Registry,
        notices: Notices,
        save: bool = True,
    ) -> tuple[SessionState, str | None]:
        """Return the session's state after the message, and the mark under which the message was applied.

        `known` is the state before; it may be None for a message that `changes_state`. An unknown name raises
        an error and changes nothing. Without `save` the state is computed but not stored.
        """
        notices.add(*ignored_notices(extracted.ignored, extracted.malformed))
        mark = extracted.mark
        if known is None:
            known = NOTHING_SET
        elif mark is None:
            return known, None
        else:
            applied = mark.known(known.marks)
            if applied is not None:
                return (await self._sessions.renew_force(scope, known) if save else known), applied
        assert mark is not None
        commands = _commands(extracted)
        if not commands:
            if save and scope.lasts and extracted.for_gateway and not known.marks:
                # A session that had a reply is searched for it when the client has dropped the question.
                with contextlib.suppress(GatewayError):
                    known = await self._sessions.change(
                        scope, lambda state: replace(state, marks=added(state.marks, mark))
                    )
            return known, str(mark)
        commands = await self._with_files(commands, notices)
        if not scope.lasts and not all(isinstance(one, ForceTarget) for one in commands):
            notices.add(_NO_SESSION)
        edit = _MessageEdit(mark, commands, registry=registry, clock=self._clock)
        changed = await self._change(scope, edit, known=known, save=save)
        applied = mark.known(edit.before.marks)
        if applied is not None:
            return await self._sessions.renew_force(scope, changed), applied
        dropped = dropped_disabled(edit.before, commands, registry=registry)
        if dropped:
            notices.add(f"enabled again: {', '.join(dropped)}; {_DISABLED_REPLACED}")
        if save and scope.lasts and any(isinstance(one, ClearClock) for one in commands):
            await self._clear_tasks(scope, edit, changed)
            notices.add(_CLOCK_CLEARED)
        return changed, str(mark) if not save else mark.known(changed.marks)

    async def _change(
        self, scope: Scope, edit: _MessageEdit, *, known: SessionState, save: bool
    ) -> SessionState:
        """Return the changed state, saved if it lasts; an unknown name raises an error in any case."""
        if not save or not scope.lasts:
            return edit(known)
        try:
            return await self._sessions.change(scope, edit)
        except StateNotSaved:
            edit(known)
            raise

    async def _clear_tasks(self, scope: Scope, edit: _MessageEdit, changed: SessionState) -> None:
        """Clear the clock of the session; if that fails, the message is not applied at all."""
        try:
            await self._clear_clock(scope)
            return
        except GatewayError as exc:
            failure = exc
        await self._sessions.take_back(scope, partial(edit.taken_back, changed))
        raise failure

    async def _with_files(self, instructions: Sequence[Instruction], notices: Notices) -> list[Instruction]:
        """Replace each `stopMessage` from a file by one with its text; drop it with a notice on failure."""
        resolved: list[Instruction] = []
        for instruction in instructions:
            if not isinstance(instruction, SetStopMessageFromFile):
                resolved.append(instruction)
                continue
            try:
                text = await asyncio.to_thread(read_message, instruction.path, user_dir=self._user_dir)
            except MessageFileError as exc:
                notices.add(f"stopMessage not set: {exc}")
                continue
            resolved.append(SetStopMessage(text, instruction.max_repeats, span=instruction.span))
        return resolved
