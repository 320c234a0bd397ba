"""Extracts chat instructions, applies them once, strips them.

The texts people keep in files for `stopMessage`: read below the user dir, and nowhere else.

What the person says to the gateway inside the chat: found, applied to the session, and taken out.

Only the newest message the person wrote is obeyed, and only once: the mark of a message (its place in the
conversation and its words) is kept with what it set. Every tag is taken out of every user text, so that no
provider ever sees one.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import stat
from collections.abc import Awaitable, Callable, Iterator, Sequence
from hashlib import blake2b
from pathlib import Path, PurePosixPath

from msgspec import Struct
from msgspec.structs import replace

from routecodex.canon.errors import BadRequest
from routecodex.canon.notices import Notices
from routecodex.gateway.context.gateway_replies import REPLY_PREFIX, ignored_notice
from routecodex.gateway.context.identity import Scope
from routecodex.gateway.state.sessions import Sessions
from routecodex.protocols import user_text
from routecodex.protocols.codec import Codec, WireRequest
from routecodex.protocols.user_text import UserMessage
from routecodex.routing.instructions import (
    MOST_INSTRUCTIONS,
    ClearClock,
    ForceTarget,
    Instruction,
    MalformedInstruction,
    ParseResult,
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
from routecodex.routing.state import SessionState, apply_instructions

MOST_BYTES = 64 * 1024

_HOME = "stopMessage"
_TEXTS = frozenset({".md", ".txt"})


class MessageFileError(Exception):
    """The file cannot be used; the message says why, on one line."""


def read_message(path: str, *, user_dir: Path) -> str:
    """The text of a file below the user dir, without white space at its end."""
    _check_name(path)
    content = _content(path, _inside(path, user_dir))
    if len(content) > MOST_BYTES:
        raise _refusal(path, f"is larger than {MOST_BYTES // 1024} KB")
    try:
        text = content.decode("utf-8-sig").rstrip()
    except UnicodeDecodeError:
        raise _refusal(path, "is not UTF-8 text") from None
    if not text:
        raise _refusal(path, "is empty")
    return text


def _refusal(path: str, why: str) -> MessageFileError:
    shown = path if len(path) <= 120 else f"{path[:120]}…"
    return MessageFileError(f"the message file {shown!r} {why}")


def _check_name(path: str) -> None:
    if not path.isprintable():
        raise _refusal(path, "has a name with control characters")
    parts = path.replace("\\", "/").split("/")
    if not path or parts[0] == "" or parts[0].endswith(":") or path.startswith("~"):
        raise _refusal(path, "must be named by a path below the user dir, not an absolute one")
    if ".." in parts:
        raise _refusal(path, "must lie below the user dir: '..' is not allowed")


def _inside(path: str, user_dir: Path) -> Path:
    """Where the file really is, once every symlink is followed."""
    try:
        root = user_dir.resolve(strict=True)
        found = (root / path).resolve(strict=True)
    except FileNotFoundError:
        raise _refusal(path, "does not exist below the user dir") from None
    except (OSError, RuntimeError) as exc:
        raise _refusal(path, f"cannot be read: {_reason(exc)}") from exc
    if not found.is_relative_to(root):
        raise _refusal(path, "leaves the user dir by a symlink")
    below = PurePosixPath(found.relative_to(root))
    # The user dir also holds the configuration with its keys, and what is said goes to a model.
    if below.parts[:1] != (_HOME,) and below.suffix.lower() not in _TEXTS:
        raise _refusal(path, f"must lie in {_HOME}/, or be a .md or .txt file")
    return found


def _content(path: str, found: Path) -> bytes:
    """At most one byte more than allowed; nothing that would wait for a writer is opened."""
    try:
        if not stat.S_ISREG(found.stat().st_mode):
            raise _refusal(path, "is not a regular file")
        descriptor = os.open(found, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
        with open(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise _refusal(path, "is not a regular file")
            return file.read(MOST_BYTES + 1)
    except OSError as exc:
        raise _refusal(path, f"cannot be read: {_reason(exc)}") from exc


def _reason(exc: OSError | RuntimeError) -> str:
    return (exc.strerror if isinstance(exc, OSError) else None) or "its symlinks go in a circle"


_SHOWS = (ShowStatus, ShowHelp)
_FILES_BEGIN = "--- Content from referenced files ---"
_NO_SESSION = "no session id: this holds for this request only; send x-session-id to keep it"
_FILES_END = "--- End of content ---"
_CLOCK_CLEARED = "all clock tasks are cleared"


class ChatInstructions(Struct, frozen=True):
    """What a request says to the gateway: the instructions of its newest message, and what is left of it.

    `turn` marks that message, `earlier` those before it. `alone` is True when the person says nothing else in
    it, and nothing comes after it.
    """

    stripped: WireRequest
    turn: str | None = None
    earlier: frozenset[str] = frozenset()
    instructions: tuple[Instruction, ...] = ()
    malformed: tuple[MalformedInstruction, ...] = ()
    alone: bool = False

    @property
    def wants_own_answer(self) -> bool:
        """Whether the gateway answers by itself."""
        return self.alone or any(isinstance(said, _SHOWS) for said in self.instructions)


def extract_instructions(codec: Codec, inbound: WireRequest) -> ChatInstructions:
    """Reads the newest message of the person and takes the tags out of all user texts."""
    messages = user_text.user_messages(inbound)
    written = [message for message in messages if _is_of_a_person(message)]
    found = _found(written[-1], inbound) if written else []
    stripped = _without_tags(codec, inbound, messages)
    if not written:
        return ChatInstructions(stripped)
    *before, newest = written
    earlier = frozenset(_mark(message) for message in before if _may_speak_to_us(message))
    if not any(parsed.instructions or parsed.malformed for parsed in found):
        return ChatInstructions(stripped, earlier=earlier)
    return ChatInstructions(
        stripped,
        turn=_mark(newest),
        earlier=earlier,
        instructions=tuple(said for parsed in found for said in parsed.instructions),
        malformed=tuple(said for parsed in found for said in parsed.malformed),
        alone=_is_for_us_alone(newest) and _is_end(newest, messages, inbound),
    )


def _found(newest: UserMessage, inbound: WireRequest) -> list[ParseResult]:
    """What every text of the message says; refused where that is more than a person writes."""
    found: list[ParseResult] = []
    tags = 0
    for text in _written(newest):
        parsed = parse(text)
        found.append(parsed)
        tags += len(parsed.instructions) + len(parsed.malformed)
        if tags > MOST_INSTRUCTIONS:
            field = user_text.message_path(inbound, newest)
            raise BadRequest(
                f"{field}: a message may hold {MOST_INSTRUCTIONS} instructions <**…**>, not more", param=field
            )
    return found


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


def _may_speak_to_us(message: UserMessage) -> bool:
    return any("<**" in written.text for written in message.texts)


def _is_for_us_alone(message: UserMessage) -> bool:
    """Whether the person says nothing in it but instructions; what agents add are no words of the person."""
    return not message.holds_more and all(is_machine_made(strip(written.text)) for written in message.texts)


def _is_end(newest: UserMessage, messages: Sequence[UserMessage], inbound: WireRequest) -> bool:
    """Whether nothing comes after it, but for messages of an agent and the answer as the client begins it."""
    after = [message for message in messages if message.index > newest.index]
    last = newest.index + len(after)
    if any(message.holds_more for message in after) or messages[-1].index != last:
        return False
    return messages[-1].is_last or user_text.prefill_index(inbound) == last + 1


def _mark(message: UserMessage) -> str:
    """The same for the same words at the same place; what agents add comes and goes."""
    texts = (written.text for written in message.texts if not is_machine_made(written.text))
    words = "\0".join((str(message.index), *texts))
    return blake2b(words.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()


def _without_tags(codec: Codec, inbound: WireRequest, messages: Sequence[UserMessage]) -> WireRequest:
    texts: dict[tuple[int, int | None], str] = {}
    parts: set[tuple[int, int]] = set()
    gone: set[int] = set()
    alone: list[int] = []
    for message in messages:
        left = len(message.texts) + message.holds_more
        heard = False
        for written in message.texts:
            said = strip(written.text)
            if said == written.text:
                continue
            heard = True
            if not is_blank(said):
                texts[message.index, written.part] = said
                continue
            left -= 1
            if written.part is not None:
                parts.add((message.index, written.part))
        if heard and _is_for_us_alone(message):
            alone.append(message.index)
        if heard and not left:
            gone.add(message.index)
    if alone:
        gone |= _answered_by_us(inbound, messages, alone)
    # Asked for even when nothing is to be done: it also leaves out what a key said twice hides.
    body = user_text.rewrite_texts(inbound, texts=texts, drop_parts=parts, drop_messages=gone)
    if body is inbound.body:
        return inbound
    try:
        return codec.validate(body, model=inbound.model, stream=inbound.stream)
    except BadRequest:
        # Nothing was said but instructions: what is left is no request, and nobody is going to send it.
        return inbound.with_body(body)


def _answered_by_us(inbound: WireRequest, messages: Sequence[UserMessage], alone: Sequence[int]) -> set[int]:
    """Where the gateway's own answers stand to the messages that were nothing but instructions."""
    ours = {place for place, said in user_text.model_texts(inbound).items() if said.startswith(REPLY_PREFIX)}
    added = {message.index for message in messages if not _is_of_a_person(message) and not message.holds_more}
    found: set[int] = set()
    for place in alone:
        after = next(after for after in itertools.count(place + 1) if after not in added)
        found |= ours & {after}
    return found


class InstructionApplier:
    """Applies what was said to the session it was said in."""

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
        spoken: ChatInstructions,
        scope: Scope,
        *,
        registry: Registry,
        notices: Notices,
        save: bool = True,
    ) -> SessionState:
        """The session's state after the message; an unknown name raises and changes nothing.

        Without `save` the state is only what it would be.
        """
        notices.add(*ignored_notice(spoken.malformed))
        turn = spoken.turn
        wanted: list[Instruction] = [said for said in spoken.instructions if not isinstance(said, _SHOWS)]
        if turn is None or not wanted:
            return await self._sessions.load(scope)
        known = self._sessions.peek(scope) or await self._sessions.load(scope)
        if known.applied == turn:
            return await self._sessions.go_on(scope, known) if save else known
        wanted = await self._with_files(wanted, notices)
        if not scope.lasts and not all(isinstance(said, ForceTarget) for said in wanted):
            notices.add(_NO_SESSION)

        def change(state: SessionState) -> SessionState:
            if state.applied == turn:
                return state
            fresh = replace(state, force=None)
            changed = apply_instructions(fresh, wanted, registry=registry, turn=turn, now=self._clock())
            return replace(changed, applied=turn)

        if not save:
            return change(known)
        # First what must be known of, then what cannot be undone: a name that is wrong changes nothing.
        changed = change(known)
        if scope.lasts and any(isinstance(said, ClearClock) for said in wanted):
            await self._clear_clock(scope)
            notices.add(_CLOCK_CLEARED)
        if not scope.lasts:
            return changed
        return await self._sessions.change(scope, change)

    async def _with_files(self, said: Sequence[Instruction], notices: Notices) -> list[Instruction]:
        ready: list[Instruction] = []
        for instruction in said:
            if not isinstance(instruction, SetStopMessageFromFile):
                ready.append(instruction)
                continue
            try:
                text = await asyncio.to_thread(read_message, instruction.path, user_dir=self._user_dir)
            except MessageFileError as exc:
                notices.add(f"stopMessage not set: {exc}")
                continue
            ready.append(SetStopMessage(text, instruction.max_repeats, span=instruction.span))
        return ready
