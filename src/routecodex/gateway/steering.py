"""What the person says to the gateway inside the chat: found, applied to the session, and taken out.

Only the newest message the person wrote is obeyed, and only once: the mark of a message (its place in the
conversation and its words) is kept with what it set. Every tag is taken out of every user text, so that no
provider ever sees one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from routecodex.canon.errors import BadRequest
from routecodex.gateway.identity import Scope
from routecodex.gateway.message_files import MessageFileError, read_message
from routecodex.gateway.own_words import MARK
from routecodex.gateway.sessions import Sessions
from routecodex.protocols import person
from routecodex.protocols.codec import Codec, Inbound
from routecodex.protocols.person import UserMessage
from routecodex.routing.apply import apply_all
from routecodex.routing.instructions import (
    Instruction,
    Malformed,
    SetStopMessage,
    SetStopMessageFromFile,
    ShowHelp,
    ShowStatus,
    is_blank,
    is_machine_made,
    parse,
    strip,
)
from routecodex.routing.registry import Registry
from routecodex.routing.state import SessionState

_SHOWS = (ShowStatus, ShowHelp)
_FILES_BEGIN = "--- Content from referenced files ---"
_FILES_END = "--- End of content ---"


class Spoken(Struct, frozen=True):
    """What a request says to the gateway: the instructions of its newest message, and what is left of it.

    `alone` is True when that message holds nothing else, and nothing comes after it.
    """

    stripped: Inbound
    turn: str | None = None
    at: int = -1
    instructions: tuple[Instruction, ...] = ()
    malformed: tuple[Malformed, ...] = ()
    alone: bool = False

    @property
    def wants_own_answer(self) -> bool:
        """Whether the gateway answers by itself."""
        return self.alone or any(isinstance(said, _SHOWS) for said in self.instructions)


def listen(codec: Codec, inbound: Inbound) -> Spoken:
    """Reads the newest message of the person and takes the tags out of all user texts."""
    messages = person.user_messages(inbound)
    stripped = _without_tags(codec, inbound, messages)
    newest = next((message for message in reversed(messages) if _is_of_a_person(message)), None)
    if newest is None:
        return Spoken(stripped)
    texts = list(_written(newest))
    found = [parse(text) for text in texts]
    if not any(parsed.instructions or parsed.malformed for parsed in found):
        return Spoken(stripped)
    return Spoken(
        stripped,
        turn=_mark(newest),
        at=newest.index,
        instructions=tuple(said for parsed in found for said in parsed.instructions),
        malformed=tuple(said for parsed in found for said in parsed.malformed),
        alone=newest.is_last and _is_empty(newest),
    )


def newest_place(inbound: Inbound) -> int:
    """Where the newest message of the person stands; -1 when there is none."""
    found = (message.index for message in reversed(person.user_messages(inbound)) if _is_of_a_person(message))
    return next(found, -1)


def _is_of_a_person(message: UserMessage) -> bool:
    """Not one that only brings results of tools, or what an agent put there."""
    if any(not is_machine_made(written.text) for written in message.texts):
        return True
    return not message.texts and message.holds_more and not message.brings_results


def _written(message: UserMessage) -> Iterator[str]:
    """The texts of a message that the person wrote; some agents quote files in parts of their own."""
    quoting = False
    for written in message.texts:
        begins = written.text.strip()
        quoting = (quoting or begins.startswith(_FILES_BEGIN)) and not begins.startswith(_FILES_END)
        if not quoting:
            yield written.text


def _is_empty(message: UserMessage) -> bool:
    return not message.holds_more and all(is_blank(strip(written.text)) for written in message.texts)


def _mark(message: UserMessage) -> str:
    words = "\0".join((str(message.index), *(written.text for written in message.texts)))
    return blake2b(words.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()


def _without_tags(codec: Codec, inbound: Inbound, messages: Sequence[UserMessage]) -> Inbound:
    texts: dict[tuple[int, int | None], str] = {}
    parts: set[tuple[int, int]] = set()
    gone: set[int] = set()
    for message in messages:
        left = len(message.texts) + message.holds_more
        for written in message.texts:
            said = strip(written.text)
            if said == written.text:
                continue
            if not is_blank(said):
                texts[message.index, written.part] = said
                continue
            left -= 1
            if written.part is not None:
                parts.add((message.index, written.part))
        if not left:
            gone |= {message.index, *_answered_by_us(inbound, message)}
    # Asked for even when nothing is to be done: it also leaves out what a key said twice hides.
    body = person.retold(inbound, texts=texts, drop_parts=parts, drop_messages=gone)
    if body is inbound.body:
        return inbound
    try:
        return codec.read(body, model=inbound.model, stream=inbound.stream)
    except BadRequest:
        # Nothing was said but instructions: what is left is no request, and nobody is going to send it.
        return replace(inbound, body=body)


def _answered_by_us(inbound: Inbound, message: UserMessage) -> set[int]:
    """The gateway's own answer to a message that was nothing but instructions goes with it."""
    answer = person.plain_answer(inbound, message.index + 1)
    return {message.index + 1} if answer is not None and answer.startswith(MARK) else set()


class Steering:
    """Applies what was said to the session it was said in."""

    def __init__(self, sessions: Sessions, *, user_dir: Path, clock: Callable[[], float]) -> None:
        self._sessions = sessions
        self._user_dir = user_dir
        self._clock = clock

    async def apply(
        self, spoken: Spoken, scope: Scope, *, registry: Registry, notices: list[str], save: bool = True
    ) -> SessionState:
        """The session's state after the message; an unknown name raises and changes nothing.

        Without `save` the state is only what it would be.
        """
        notices.extend(f"ignored {said.raw}: {said.reason}" for said in spoken.malformed)
        turn, at = spoken.turn, spoken.at
        wanted: list[Instruction] = [said for said in spoken.instructions if not isinstance(said, _SHOWS)]
        if turn is None or not wanted:
            return await self._sessions.load(scope)
        known = self._sessions.peek(scope) or await self._sessions.load(scope)
        if known.applied == turn:
            return known
        wanted = await self._with_files(wanted, notices)

        def change(state: SessionState) -> SessionState:
            if state.applied == turn:
                return state
            fresh = replace(state, force=None)
            changed = apply_all(fresh, wanted, registry=registry, turn=turn, now=self._clock())
            force = changed.force
            return replace(changed, applied=turn, force=replace(force, at=at) if force is not None else None)

        if not save:
            return change(known)
        return await self._sessions.change(scope, change)

    async def _with_files(self, said: Sequence[Instruction], notices: list[str]) -> list[Instruction]:
        ready: list[Instruction] = []
        for instruction in said:
            if not isinstance(instruction, SetStopMessageFromFile):
                ready.append(instruction)
                continue
            try:
                text = await asyncio.to_thread(read_message, instruction.path, user_dir=self._user_dir)
            except MessageFileError as exc:
                notices.append(f"stopMessage not set: {exc}")
                continue
            ready.append(SetStopMessage(text, instruction.max_repeats, span=instruction.span))
        return ready
