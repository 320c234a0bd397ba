"""Applies the instructions of a message to its session, once: its mark is stored with the state."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from msgspec.structs import replace

from routecodex.canon.errors import GatewayError
from routecodex.canon.notices import Notices
from routecodex.gateway.context.gateway_replies import ignored_notices
from routecodex.gateway.context.identity import Scope
from routecodex.gateway.context.instructions import SHOW_INSTRUCTIONS, ChatInstructions
from routecodex.gateway.context.message_files import MessageFileError, read_message
from routecodex.gateway.context.message_marks import added
from routecodex.gateway.state.sessions import Sessions
from routecodex.routing.instructions import (
    ClearClock,
    ForceTarget,
    Instruction,
    SetStopMessage,
    SetStopMessageFromFile,
)
from routecodex.routing.registry import Registry
from routecodex.routing.state import SessionState, apply_instructions, dropped_disabled

_NO_SESSION = "no session id: this holds for this request only; send x-session-id to keep it"
_DISABLED_REPLACED = "a new <**#…**> replaces the list, name all in one message"
_CLOCK_CLEARED = "all clock tasks are cleared"


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
        registry: Registry,
        notices: Notices,
        save: bool = True,
    ) -> tuple[SessionState, str | None]:
        """Return the session's state after the message, and the mark under which the message was applied.

        An unknown name raises an error and changes nothing. Without `save` the state is computed but not
        stored.
        """
        notices.add(*ignored_notices(extracted.ignored, extracted.malformed))
        mark = extracted.mark
        commands: list[Instruction] = [
            one for one in extracted.instructions if not isinstance(one, SHOW_INSTRUCTIONS)
        ]
        known = self._sessions.peek(scope) or await self._sessions.load(scope)
        if mark is None:
            return known, None
        applied = mark.known(known.marks)
        if applied is not None:
            return (await self._sessions.renew_force(scope, known) if save else known), applied
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

        def change(state: SessionState) -> SessionState:
            if mark.known(state.marks) is not None:
                return state
            fresh = replace(state, force=None)
            changed = apply_instructions(
                fresh, commands, registry=registry, turn=str(mark), now=self._clock()
            )
            return replace(changed, marks=added(state.marks, mark))

        # An unknown name raises here, before anything is saved.
        changed = change(known)
        dropped = dropped_disabled(known, commands, registry=registry)
        if dropped:
            notices.add(f"enabled again: {', '.join(dropped)}; {_DISABLED_REPLACED}")
        if not save:
            return changed, str(mark)
        if scope.lasts:
            changed = await self._sessions.change(scope, change)
            if any(isinstance(one, ClearClock) for one in commands):
                await self._clear_tasks(scope, known)
                notices.add(_CLOCK_CLEARED)
        return changed, mark.known(changed.marks)

    async def _clear_tasks(self, scope: Scope, before: SessionState) -> None:
        """Clear the clock of the session; if that fails, the session is as it was before the message."""
        try:
            await self._clear_clock(scope)
        except GatewayError:
            with contextlib.suppress(GatewayError):
                await self._sessions.change(scope, lambda _: before)
            raise

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
