"""Extracts chat instructions, applies them once, strips them.

Only the newest message that the user wrote is obeyed, and only once: its turn id (its index and its texts) is
stored with the state that it set. Tags are stripped from every user text, so that providers never see one.
Texts for `stopMessage` may be read from files below the user directory.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import stat
from collections.abc import Awaitable, Callable, Iterator, Sequence, Set
from hashlib import blake2b
from pathlib import Path, PurePosixPath

from msgspec import Struct
from msgspec.structs import replace

from routecodex.canon.errors import BadRequest, GatewayError
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
from routecodex.routing.state import SessionState, apply_instructions, dropped_disabled

MOST_BYTES = 64 * 1024

_MESSAGE_DIR = "stopMessage"
_TEXT_SUFFIXES = frozenset({".md", ".txt"})
_SHOW_INSTRUCTIONS = (ShowStatus, ShowHelp)
# Gemini CLI and Qwen Code put files named with @ into parts between these two lines.
_FILES_BEGIN = "--- Content from referenced files ---"
_FILES_END = "--- End of content ---"
_NO_SESSION = "no session id: this holds for this request only; send x-session-id to keep it"
_DISABLED_REPLACED = "a new <**#…**> replaces the list, name all in one message"
_CLOCK_CLEARED = "all clock tasks are cleared"


class ChatInstructions(Struct, frozen=True):
    """Instructions of the newest user message, and the request without them.

    `turn` identifies that message, `earlier` those before it. `alone`: the message holds nothing but
    instructions and is the last one.
    """

    stripped: WireRequest
    turn: str | None = None
    earlier: frozenset[str] = frozenset()
    instructions: tuple[Instruction, ...] = ()
    malformed: tuple[MalformedInstruction, ...] = ()
    alone: bool = False

    @property
    def for_gateway(self) -> bool:
        """Whether the gateway answers the message itself."""
        return self.alone or any(isinstance(one, _SHOW_INSTRUCTIONS) for one in self.instructions)


def extract_instructions(codec: Codec, request: WireRequest) -> ChatInstructions:
    """Parse the newest message that the user wrote, and strip the tags from all user texts."""
    messages = user_text.user_messages(request)
    authored = [message for message in messages if _is_user_written(message)]
    results = _parse_message(authored[-1], request) if authored else []
    stripped = _strip_tags(codec, request, messages)
    if not authored:
        return ChatInstructions(stripped)
    *before, newest = authored
    earlier = frozenset(_turn_id(message) for message in before if _may_hold_tags(message))
    if not any(result.instructions or result.malformed for result in results):
        return ChatInstructions(stripped, earlier=earlier)
    return ChatInstructions(
        stripped,
        turn=_turn_id(newest),
        earlier=earlier,
        instructions=tuple(one for result in results for one in result.instructions),
        malformed=tuple(one for result in results for one in result.malformed),
        alone=_holds_only_tags(newest) and _is_end(newest, messages, request),
    )


def _is_user_written(message: UserMessage) -> bool:
    """Return whether the user wrote it: not if it only holds tool results, or texts that an agent added."""
    if any(not is_machine_made(part.text) for part in message.texts):
        return True
    return not message.texts and message.has_other_parts and not message.has_results


def _parse_message(message: UserMessage, request: WireRequest) -> list[ParseResult]:
    """Parse every text of the message; refuse it if it holds more instructions than a user writes."""
    results: list[ParseResult] = []
    tags = 0
    for text in _authored_texts(message):
        result = parse(text)
        results.append(result)
        tags += len(result.instructions) + len(result.malformed)
        if tags > MOST_INSTRUCTIONS:
            field = user_text.message_path(request, message)
            raise BadRequest(
                f"{field}: a message may hold at most {MOST_INSTRUCTIONS} instructions <**…**>", param=field
            )
    return results


def _authored_texts(message: UserMessage) -> Iterator[str]:
    """Yield the texts of a message without the files that an agent quotes in parts of their own."""
    quoting = False
    for part in message.texts:
        text = part.text.strip()
        quoting = (quoting or text.startswith(_FILES_BEGIN)) and not text.startswith(_FILES_END)
        if not quoting:
            yield part.text


def _may_hold_tags(message: UserMessage) -> bool:
    return any("<**" in part.text for part in message.texts)


def _holds_only_tags(message: UserMessage) -> bool:
    """Return whether the user wrote only instructions in it; texts that agents add do not count."""
    return not message.has_other_parts and all(is_machine_made(strip(part.text)) for part in message.texts)


def _is_end(newest: UserMessage, messages: Sequence[UserMessage], request: WireRequest) -> bool:
    """Return whether it is the last message, apart from messages of an agent and a prefilled answer.

    Claude Code sends system messages between and behind the others; they are an agent's too.
    """
    after = [message for message in messages if message.index > newest.index]
    if any(message.has_other_parts for message in after):
        return False
    added = {message.index for message in after} | user_text.system_indices(request)
    end = _next_index(newest.index, added)
    return end == user_text.message_count(request) or user_text.prefill_index(request) == end


def _next_index(index: int, skipped: Set[int]) -> int:
    return next(after for after in itertools.count(index + 1) if after not in skipped)


def _turn_id(message: UserMessage) -> str:
    """Return an id for its texts at its index; texts that agents add come and go, and do not count."""
    texts = (part.text for part in message.texts if not is_machine_made(part.text))
    joined = "\0".join((str(message.index), *texts))
    return blake2b(joined.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()


def _strip_tags(codec: Codec, request: WireRequest, messages: Sequence[UserMessage]) -> WireRequest:
    """Return the request without tags, without the messages they leave empty and the replies to those."""
    texts: dict[tuple[int, int | None], str] = {}
    drop_parts: set[tuple[int, int]] = set()
    drop_messages: set[int] = set()
    alone: list[int] = []
    for message in messages:
        left = len(message.texts) + message.has_other_parts
        tagged = False
        for part in message.texts:
            stripped = strip(part.text)
            if stripped == part.text:
                continue
            tagged = True
            if not is_blank(stripped):
                texts[message.index, part.part] = stripped
                continue
            left -= 1
            if part.part is not None:
                drop_parts.add((message.index, part.part))
        if tagged and _holds_only_tags(message):
            alone.append(message.index)
        if tagged and not left:
            drop_messages.add(message.index)
    if alone:
        drop_messages |= _gateway_replies(request, messages, alone)
    # Also called without changes: it removes duplicate keys, which could hide a tag.
    body = user_text.rewrite_texts(request, texts=texts, drop_parts=drop_parts, drop_messages=drop_messages)
    if body is request.body:
        return request
    try:
        return codec.validate(body, model=request.model, stream=request.stream)
    except BadRequest:
        # Only instructions were sent: the rest is not a valid request, and no provider gets it.
        return request.with_body(body)


def _gateway_replies(request: WireRequest, messages: Sequence[UserMessage], alone: Sequence[int]) -> set[int]:
    """Return the indices of the gateway's replies to messages that held only instructions."""
    replies = {
        index for index, text in user_text.model_texts(request).items() if text.startswith(REPLY_PREFIX)
    }
    added = {
        message.index for message in messages if not _is_user_written(message) and not message.has_other_parts
    }
    added |= user_text.system_indices(request)
    return replies & {_next_index(at, added) for at in alone}


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
    ) -> SessionState:
        """Return the session's state after the message; an unknown name raises and changes nothing.

        Without `save` the state is computed but not stored.
        """
        notices.add(*ignored_notice(extracted.malformed))
        turn = extracted.turn
        commands: list[Instruction] = [
            one for one in extracted.instructions if not isinstance(one, _SHOW_INSTRUCTIONS)
        ]
        if turn is None or not commands:
            return await self._sessions.load(scope)
        known = self._sessions.peek(scope) or await self._sessions.load(scope)
        if known.applied == turn:
            return await self._sessions.renew_force(scope, known) if save else known
        commands = await self._with_files(commands, notices)
        if not scope.lasts and not all(isinstance(one, ForceTarget) for one in commands):
            notices.add(_NO_SESSION)

        def change(state: SessionState) -> SessionState:
            if state.applied == turn:
                return state
            fresh = replace(state, force=None)
            changed = apply_instructions(fresh, commands, registry=registry, turn=turn, now=self._clock())
            return replace(changed, applied=turn)

        # An unknown name raises here, before anything is saved.
        changed = change(known)
        dropped = dropped_disabled(known, commands, registry=registry)
        if dropped:
            notices.add(f"enabled again: {', '.join(dropped)}; {_DISABLED_REPLACED}")
        if not save:
            return changed
        if not scope.lasts:
            return changed
        changed = await self._sessions.change(scope, change)
        if any(isinstance(one, ClearClock) for one in commands):
            await self._clear_tasks(scope, known)
            notices.add(_CLOCK_CLEARED)
        return changed

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


class MessageFileError(Exception):
    """The file cannot be used; the message states the reason on one line."""


def read_message(path: str, *, user_dir: Path) -> str:
    """Return the text of a file below the user directory, without trailing white space."""
    _check_name(path)
    content = _read_bytes(path, _resolve(path, user_dir))
    if len(content) > MOST_BYTES:
        raise _file_error(path, f"is larger than {MOST_BYTES // 1024} KB")
    try:
        text = content.decode("utf-8-sig").rstrip()
    except UnicodeDecodeError:
        raise _file_error(path, "is not UTF-8 text") from None
    if not text:
        raise _file_error(path, "is empty")
    return text


def _file_error(path: str, why: str) -> MessageFileError:
    shown = path if len(path) <= 120 else f"{path[:120]}…"
    return MessageFileError(f"the message file {shown!r} {why}")


def _check_name(path: str) -> None:
    if not path.isprintable():
        raise _file_error(path, "has a name with control characters")
    parts = path.replace("\\", "/").split("/")
    if not path or parts[0] == "" or parts[0].endswith(":") or path.startswith("~"):
        raise _file_error(path, "must be named by a path below the user dir, not an absolute one")
    if ".." in parts:
        raise _file_error(path, "must lie below the user dir: '..' is not allowed")


def _resolve(path: str, user_dir: Path) -> Path:
    """Return the file with every symlink followed."""
    try:
        root = user_dir.resolve(strict=True)
        file_path = (root / path).resolve(strict=True)
    except FileNotFoundError:
        raise _file_error(path, "does not exist below the user dir") from None
    except (OSError, RuntimeError) as exc:
        raise _file_error(path, f"cannot be read: {_reason(exc)}") from exc
    if not file_path.is_relative_to(root):
        raise _file_error(path, "leaves the user dir by a symlink")
    below = PurePosixPath(file_path.relative_to(root))
    # The user directory also holds the configuration with its keys, and the text is sent to a model.
    if below.parts[:1] != (_MESSAGE_DIR,) and below.suffix.lower() not in _TEXT_SUFFIXES:
        raise _file_error(path, f"must lie in {_MESSAGE_DIR}/, or be a .md or .txt file")
    return file_path


def _read_bytes(path: str, file_path: Path) -> bytes:
    """Read at most one byte more than allowed; a pipe, which would wait for its writer, is not opened."""
    try:
        if not stat.S_ISREG(file_path.stat().st_mode):
            raise _file_error(path, "is not a regular file")
        descriptor = os.open(file_path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
        with open(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise _file_error(path, "is not a regular file")
            return file.read(MOST_BYTES + 1)
    except OSError as exc:
        raise _file_error(path, f"cannot be read: {_reason(exc)}") from exc


def _reason(exc: OSError | RuntimeError) -> str:
    return (exc.strerror if isinstance(exc, OSError) else None) or "its symlinks form a loop"
