"""Extracts chat instructions and strips them.

Only the newest message that the user wrote in the main conversation is obeyed. Tags are stripped from every
user text, so that providers never see one.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Final

from msgspec.structs import replace

from routecodex.canon.agent_texts import user_spans
from routecodex.canon.errors import BadRequest
from routecodex.gateway.context.chat_instructions import (
    ChatInstructions,
    TextRules,
    Where,
)
from routecodex.gateway.context.gateway_replies import is_gateway_reply
from routecodex.gateway.context.message_marks import equals_before, message_mark
from routecodex.protocols import user_text
from routecodex.protocols.codec import Codec, WireRequest
from routecodex.protocols.message_shapes import UserMessage
from routecodex.routing.instructions import (
    INSTRUCTION_KINDS,
    MOST_INSTRUCTIONS,
    Instruction,
    MalformedInstruction,
    count_tags,
    is_blank,
    is_machine_made,
    parse,
    strip,
)
from routecodex.routing.request_role import MAIN, RequestRole

_QUOTED, _WHERE, _NOT_ALLOWED = "quoted", "where", "not allowed"
"""Reasons why a tag is ignored: it is quoted, stands where the configuration does not allow tags, or is of a
kind that the client may not use."""

# Gemini CLI and Qwen Code put files named with @ into parts between these two lines.
_FILES_BEGIN = "--- Content from referenced files ---"
_FILES_END = "--- End of content ---"


_ANY_TEXT: Final = TextRules()


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
    # Without its tags such a message would leave nothing to send.
    alone = role.name != "main" and _is_alone(messages, request)
    if role.name in ("subagent", "utility") or not authored:
        return ChatInstructions(stripped=stripped, alone=alone, ignored=ignored)
    newest = authored[-1]
    texts = [_person_text(message) for message in authored]
    counts = equals_before(texts)
    mark = message_mark(
        texts[-1],
        counts[-1],
        turn=role.turn,
        passed_over=any(message.index > newest.index and message.texts for message in messages),
    )
    earlier = tuple(
        message_mark(text, count)
        for message, text, count in zip(authored[:-1], texts, counts, strict=False)
        if _may_hold_tags(message)
    )
    if role.name != "main":
        return ChatInstructions(stripped=stripped, mark=mark, earlier=earlier, alone=alone, ignored=ignored)
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


def permitted(found: ChatInstructions, kinds: Set[str]) -> ChatInstructions:
    """Return the instructions of these kinds; others are ignored, and with no kind malformed ones too."""
    kept = tuple(one for one in found.instructions if INSTRUCTION_KINDS[type(one)] in kinds)
    malformed = found.malformed if kinds else ()
    if len(kept) == len(found.instructions) and len(malformed) == len(found.malformed):
        return found
    ignored = (*found.ignored, _NOT_ALLOWED)
    return replace(found, instructions=kept, malformed=malformed, ignored=ignored)


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
