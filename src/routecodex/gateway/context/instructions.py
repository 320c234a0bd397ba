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
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence, Set
from pathlib import Path, PurePosixPath
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from routecodex.canon.agent_texts import user_spans
from routecodex.canon.errors import BadRequest, GatewayError
from routecodex.canon.notices import Notices
from routecodex.gateway.context.gateway_replies import ignored_notices, is_gateway_reply
from routecodex.gateway.context.identity import Scope
from routecodex.gateway.context.message_marks import MessageMark, added, message_mark
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
    SetStopMessage,
    SetStopMessageFromFile,
    ShowHelp,
    ShowStatus,
    count_tags,
    is_blank,
    is_machine_made,
    parse,
    strip,
)
from routecodex.routing.registry import Registry
from routecodex.routing.roles import MAIN, RequestRole
from routecodex.routing.state import SessionState, apply_instructions, dropped_disabled

MOST_BYTES = 64 * 1024

_MESSAGE_DIR = "stopMessage"
_TEXT_SUFFIXES = frozenset({".md", ".txt"})
_SHOW_INSTRUCTIONS = (ShowStatus, ShowHelp)

Where = Literal["anywhere", "first_line", "own_message", "off"]
"""Places of a message where tags count."""

_QUOTED, _WHERE = "quoted", "where"
"""Reasons why a tag is ignored: it is quoted, or stands where the configuration does not allow tags."""

# Gemini CLI and Qwen Code put files named with @ into parts between these two lines.
_FILES_BEGIN = "--- Content from referenced files ---"
_FILES_END = "--- End of content ---"
_NO_SESSION = "no session id: this holds for this request only; send x-session-id to keep it"
_DISABLED_REPLACED = "a new <**#…**> replaces the list, name all in one message"
_CLOCK_CLEARED = "all clock tasks are cleared"


class ChatInstructions(Struct, frozen=True, kw_only=True):
    """Instructions of the newest user message, and the request without them.

    `mark` identifies that message, `earlier` those with tags before it. `alone`: the message holds nothing
    but instructions and is the last one. `ignored` states why tags of the newest message are not applied.
    """

    stripped: WireRequest
    mark: MessageMark | None = None
    earlier: tuple[MessageMark, ...] = ()
    instructions: tuple[Instruction, ...] = ()
    malformed: tuple[MalformedInstruction, ...] = ()
    alone: bool = False
    ignored: tuple[str, ...] = ()

    @property
    def for_gateway(self) -> bool:
        """Whether the gateway answers the message itself."""
        return self.alone or any(isinstance(one, _SHOW_INSTRUCTIONS) for one in self.instructions)


class TextRules(Struct, frozen=True):
    """Rules by which texts of a user message may act: where tags count, which texts are prompts of agents."""

    where: Where = "anywhere"
    is_prompt: Callable[[str], bool] = lambda text: False


_ANY_TEXT = TextRules()


def extract_instructions(
    codec: Codec, request: WireRequest, *, role: RequestRole = MAIN, rules: TextRules = _ANY_TEXT
) -> ChatInstructions:
    """Parse the newest message that the user wrote, and strip the tags from all user texts.

    Only the instructions of the main conversation are returned; in another role they are ignored.
    """
    messages = user_text.user_messages(request)
    stripped = _strip_tags(codec, request, messages)
    if not messages:
        return ChatInstructions(stripped=stripped)
    authored = _authored(messages, role, rules)
    last = next((message for message in reversed(messages) if message.texts), messages[-1])
    ignored = _reasons(last, authored, role)
    if role.name in ("subagent", "utility"):
        return ChatInstructions(stripped=stripped, alone=_is_alone(messages, request), ignored=ignored)
    if not authored:
        return ChatInstructions(stripped=stripped, ignored=ignored)
    *before, newest = authored
    texts = [_person_text(message) for message in before]
    mark = message_mark(
        _person_text(newest),
        texts,
        turn=role.turn,
        passed_over=any(message.index > newest.index and message.texts for message in messages),
    )
    earlier = tuple(
        message_mark(text, texts[:at])
        for at, (message, text) in enumerate(zip(before, texts, strict=True))
        if _may_hold_tags(message)
    )
    if role.name != "main":
        return ChatInstructions(stripped=stripped, mark=mark, earlier=earlier, ignored=ignored)
    found = _parse_message(newest, request, rules)
    for reason in ignored:
        found.ignore(reason)
    return ChatInstructions(
        stripped=stripped,
        mark=mark if _may_hold_tags(newest) else None,
        earlier=earlier,
        instructions=tuple(found.instructions),
        malformed=tuple(found.malformed),
        alone=_is_alone(messages, request, newest),
        ignored=tuple(found.ignored),
    )


def _reasons(last: UserMessage, authored: Sequence[UserMessage], role: RequestRole) -> tuple[str, ...]:
    """Return why the tags of the last text cannot act, before they are parsed."""
    if not _quotes_tags(last):
        return ()
    if role.name != "main":
        return (f"role {role.name}",)
    return () if authored and authored[-1] is last else (_QUOTED,)


def has_user_message(request: WireRequest, *, role: RequestRole = MAIN, rules: TextRules = _ANY_TEXT) -> bool:
    """Return whether the user wrote one of the messages: after a compaction the client wrote them all."""
    return bool(_authored(user_text.user_messages(request), role, rules))


def _authored(messages: Sequence[UserMessage], role: RequestRole, rules: TextRules) -> list[UserMessage]:
    """Return the messages that the user wrote; the newest one of a compaction is the client's prompt."""
    listed = messages[:-1] if role.name == "compaction" else messages
    return [message for message in listed if _is_user_written(message, rules)]


def _is_user_written(message: UserMessage, rules: TextRules = _ANY_TEXT) -> bool:
    """Return whether the user wrote it: not if it only holds tool results, or texts that an agent added."""
    if any(not is_machine_made(part.text) and not rules.is_prompt(part.text) for part in message.texts):
        return True
    return not message.texts and message.has_other_parts and not message.has_results


class _Found:
    """Instructions of one message while its texts are read."""

    def __init__(self) -> None:
        self.instructions: list[Instruction] = []
        self.malformed: list[MalformedInstruction] = []
        self.ignored: list[str] = []

    def ignore(self, reason: str) -> None:
        if reason not in self.ignored:
            self.ignored.append(reason)


def _parse_message(message: UserMessage, request: WireRequest, rules: TextRules) -> _Found:
    """Parse every text of the message; refuse it if it holds more instructions than a user writes."""
    found = _Found()
    tags = 0
    first = True
    for text, authored in _texts(message):
        if not authored or rules.is_prompt(text):
            if count_tags(text):
                found.ignore(_QUOTED)
            continue
        result = parse(text)
        tags += len(result.instructions) + len(result.malformed)
        if tags > MOST_INSTRUCTIONS:
            field = user_text.message_path(request, message)
            raise BadRequest(
                f"{field}: a message may hold at most {MOST_INSTRUCTIONS} instructions <**…**>", param=field
            )
        if result.quoted:
            found.ignore(_QUOTED)
        end = _allowed_end(message, text, rules.where, first=first)
        first = first and is_machine_made(text)
        for row in result.instructions:
            found.instructions.append(row) if row.span[0] < end else found.ignore(_WHERE)
        for wrong in result.malformed:
            found.malformed.append(wrong) if wrong.span[0] < end else found.ignore(_WHERE)
    return found


def _allowed_end(message: UserMessage, text: str, where: Where, *, first: bool) -> int:
    """Return the position in a text before which tags count; `first`: it is the first text of the user."""
    if where == "anywhere" or (where == "own_message" and _holds_only_tags(message)):
        return len(text)
    if where != "first_line" or not first:
        return 0
    start = next((at for at, end in user_spans(text) if not is_blank(text[at:end])), 0)
    start += len(text[start:]) - len(text[start:].lstrip())
    line_end = text.find("\n", start)
    return len(text) if line_end < 0 else line_end


def _texts(message: UserMessage) -> Iterator[tuple[str, bool]]:
    """Yield the texts of a message; False beside those in which an agent quotes files."""
    quoting = False
    for part in message.texts:
        text = part.text.strip()
        quoting = (quoting or text.startswith(_FILES_BEGIN)) and not text.startswith(_FILES_END)
        yield part.text, not quoting


def _may_hold_tags(message: UserMessage) -> bool:
    return any("<**" in part.text for part in message.texts)


def _quotes_tags(message: UserMessage) -> bool:
    return any(count_tags(part.text) for part in message.texts)


def _holds_only_tags(message: UserMessage) -> bool:
    """Return whether the user wrote only instructions in it; texts that agents add do not count."""
    return not message.has_other_parts and all(is_machine_made(_left(part.text)) for part in message.texts)


def _left(text: str) -> str:
    """Return a text without its tags; opencode puts the text of its command line in quotation marks."""
    left = strip(text)
    return "" if left.strip() == '""' and text.strip() != '""' else left


def _is_alone(
    messages: Sequence[UserMessage], request: WireRequest, newest: UserMessage | None = None
) -> bool:
    newest = messages[-1] if newest is None else newest
    return _may_hold_tags(newest) and _holds_only_tags(newest) and _is_end(newest, messages, request)


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


def _person_text(message: UserMessage) -> str:
    """Return the user's own text of a message; texts that agents add come and go, and do not count."""
    pieces = (part.text[start:end].strip() for part in message.texts for start, end in user_spans(part.text))
    return "\0".join(piece for piece in pieces if piece)


def _strip_tags(codec: Codec, request: WireRequest, messages: Sequence[UserMessage]) -> WireRequest:
    """Return the request without tags, without the messages they leave empty, and without our own replies."""
    texts: dict[tuple[int, int | None], str] = {}
    drop_parts: set[tuple[int, int]] = set()
    drop_messages: set[int] = _gateway_replies(request)
    for message in messages:
        left = len(message.texts) + message.has_other_parts
        tagged = False
        for part in message.texts:
            stripped = _left(part.text)
            if stripped == part.text:
                continue
            tagged = True
            if not is_blank(stripped):
                texts[message.index, part.part] = stripped
                continue
            left -= 1
            if part.part is not None:
                drop_parts.add((message.index, part.part))
        if tagged and not left:
            drop_messages.add(message.index)
    for position, text in user_text.agent_texts(request).items():
        if (stripped := strip(text)) != text:
            texts[position] = stripped
    return _rewritten(codec, request, texts, drop_parts=drop_parts, drop_messages=drop_messages)


def drop_gateway_replies(codec: Codec, request: WireRequest) -> WireRequest:
    """Return the request without the gateway's own replies, whose questions the client has dropped."""
    return _rewritten(codec, request, {}, drop_parts=set(), drop_messages=_gateway_replies(request))


def _rewritten(
    codec: Codec,
    request: WireRequest,
    texts: Mapping[tuple[int, int | None], str],
    *,
    drop_parts: Set[tuple[int, int]],
    drop_messages: Set[int],
) -> WireRequest:
    # Also called without changes: it removes duplicate keys, which could hide a tag.
    body = user_text.rewrite_texts(request, texts=texts, drop_parts=drop_parts, drop_messages=drop_messages)
    if body is request.body:
        return request
    try:
        return codec.validate(body, model=request.model, stream=request.stream)
    except BadRequest:
        # Only instructions were sent: the rest is not a valid request, and no provider gets it.
        return request.with_body(body)


def _gateway_replies(request: WireRequest) -> set[int]:
    """Return the indices of the gateway's own replies."""
    return {index for index, text in user_text.model_texts(request).items() if is_gateway_reply(text)}


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
            one for one in extracted.instructions if not isinstance(one, _SHOW_INSTRUCTIONS)
        ]
        known = self._sessions.peek(scope) or await self._sessions.load(scope)
        if mark is None:
            return known, None
        applied = mark.known(known.marks)
        if applied is not None:
            return (await self._sessions.renew_force(scope, known) if save else known), applied
        if not commands:
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
