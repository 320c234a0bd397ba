"""Parses instruction tags: one user text in, typed instructions out.

Only the syntax is checked; the registry resolves names.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator
from itertools import islice

from routecodex.canon.agent_texts import user_spans
from routecodex.routing.instructions.tags import (
    GAP,
    MARKS,
    QUOTES,
    WHITE,
    QuotedRegions,
    TagScanner,
    count_tags,
    is_blank,
)
from routecodex.routing.instructions.values import (
    AllowProviders,
    ClearClock,
    ClearRouting,
    ClearStopMessage,
    DisableTarget,
    EnableTarget,
    ForceTarget,
    Instruction,
    MalformedInstruction,
    ParseResult,
    SetStopMessage,
    SetStopMessageFromFile,
    ShowHelp,
    ShowStatus,
    SteerAgents,
    StickToTarget,
)

Span = tuple[int, int]

MOST_INSTRUCTIONS = 20_000
"""Most tags in one message; of a text one more is read, to detect the excess."""
_MAX_NAME = 512
_MAX_REPEATS = 2**63 - 1
_NAME_PUNCTUATION = frozenset("_-./:@+~")
_COMMA = re.compile("[,，]")
_KEYED = re.compile(f"(stopMessage|clock|agents){GAP}[:：]", re.IGNORECASE)
_TEXT = {
    begin: re.compile(rf"{begin}((?:[^\\{end}]++|\\.)*+){end}", re.DOTALL) for begin, end in QUOTES.items()
}
_FILE = re.compile(f"<{GAP}file://([^<>]*)>", re.IGNORECASE)
_ESCAPED = re.compile(rf"\\([\\{''.join({*QUOTES, *QUOTES.values()})}])")
_NO_INSTRUCTIONS = ParseResult()
_NO_SPAN = (0, 0)
_AGENTS_FORMS = (
    "agents takes one of !p.model, !p, #p, @p and clear, like agents:!p.model, agents:#p or agents:clear"
)


class _Mistake(Exception):
    """A mistake in an instruction, with a message for the user."""


def parse(text: str) -> ParseResult:
    """Return the instructions of one user text, left to right, and the malformed ones; count the quoted.

    Parsing stops after one more than `MOST_INSTRUCTIONS`.
    """
    if "<**" not in text:
        return _NO_INSTRUCTIONS
    instructions: list[Instruction] = []
    malformed: list[MalformedInstruction] = []
    for start, end in islice(_instruction_spans(text), MOST_INSTRUCTIONS + 1):
        try:
            instructions.append(_read(text[start + 3 : end - 3].strip(WHITE), (start, end)))
        except _Mistake as mistake:
            malformed.append(MalformedInstruction(_short(text[start:end]), str(mistake), span=(start, end)))
    parsed = len(instructions) + len(malformed)
    # Most texts have no other opening, so that their tags need not be counted.
    quoted = count_tags(text) - parsed if text.count("<**") > parsed else 0
    return ParseResult(tuple(instructions), tuple(malformed), max(quoted, 0))


def _instruction_spans(text: str) -> Iterator[Span]:
    """Yield the spans of the tags that the user wrote, outside code and quoted lines."""
    for begin, end in user_spans(text):
        yield from ((begin + start, begin + stop) for start, stop in _unquoted_spans(text[begin:end]))


def _unquoted_spans(text: str) -> Iterator[Span]:
    tags, regions, at, last = TagScanner(text), QuotedRegions(text), 0, text.rfind("**>")
    while (mark := MARKS.search(text, at)) and mark.start() < last:
        if mark.lastgroup != "tag":
            at = regions.end_of(mark)
            continue
        start = mark.end() - 3
        end = tags.end_of(start)
        at = mark.end() if end is None else end
        if end is not None:
            yield start, end


def _read(body: str, span: Span) -> Instruction:
    keyed = _KEYED.match(body)
    if keyed:
        return _KEYED_READERS[keyed[1].lower()](body[keyed.end() :].strip(WHITE), span)
    signed = _SIGNED_READERS.get(body[:1])
    if signed:
        return signed(_names(body[1:]), span)
    word = _KEYWORDS.get(body.lower())
    return word(span) if word else _unsigned(body, span)


def _unsigned(body: str, span: Span) -> Instruction:
    if not body:
        raise _Mistake("the instruction is empty")
    if body.lower() in _KEYED_READERS:
        raise _Mistake(f"{body} needs a colon and an action, for example {body}:clear")
    names = _names(body)
    if len(names) > 1:
        raise _Mistake("only one target can be forced; a list needs ! (allow), # (disable) or @ (enable)")
    return ForceTarget(names[0], span=span) if "." in names[0] else AllowProviders(names, span=span)


def _sticky_or_allow(names: tuple[str, ...], span: Span) -> Instruction:
    dotted = [name for name in names if "." in name]
    if not dotted:
        return AllowProviders(names, span=span)
    if len(names) > 1:
        raise _Mistake(
            f"a list after ! takes providers only, and {_short(dotted[0])} is a target; "
            "a sticky target must be alone"
        )
    return StickToTarget(names[0], span=span)


def _names(listed: str) -> tuple[str, ...]:
    names = [_name(name.strip(WHITE)) for name in _COMMA.split(listed)]
    return tuple(dict.fromkeys(names))


def _name(name: str) -> str:
    if not name:
        raise _Mistake("a name is missing")
    if len(name) > _MAX_NAME:
        raise _Mistake(f"a name of {len(name)} characters is too long")
    wrong = next((character for character in name if not _is_name_character(character)), None)
    if wrong is not None:
        shown = "white space" if wrong in WHITE else repr(wrong)
        raise _Mistake(f"{_short(name)!r} is not a valid name: it contains {shown}")
    if name[0] == "." or name[-1] == "." or ".." in name:
        raise _Mistake(f"{_short(name)!r} is not a valid name: a part next to a dot is empty")
    return name


def _is_name_character(character: str) -> bool:
    return (
        character.isalnum()
        or character in _NAME_PUNCTUATION
        or unicodedata.category(character).startswith("M")
    )


def _stop_message(value: str, span: Span) -> Instruction:
    if value.lower() == "clear":
        return ClearStopMessage(span=span)
    if value.startswith('\\"'):
        # `opencode run` (1.18) escapes the quotes of a prompt that has spaces.
        value = value.replace('\\"', '"')
    if value[:1] in _TEXT:
        return _stop_text(value, span)
    file = _FILE.match(value)
    if not file:
        raise _Mistake('stopMessage needs a text in quotes, like stopMessage:"go on", a <file://…>, or clear')
    path = file[1].strip(WHITE)
    if not path:
        raise _Mistake("file:// needs a path, like file://stopMessage/message1.md")
    return SetStopMessageFromFile(path, _repeats(value[file.end() :]), span=span)


def _stop_text(value: str, span: Span) -> Instruction:
    quoted = _TEXT[value[0]].match(value)
    if not quoted:
        raise _Mistake("the text of stopMessage has no closing quote")
    repeats = _repeats(value[quoted.end() :])
    text = _ESCAPED.sub(r"\1", quoted[1])
    if is_blank(text):
        raise _Mistake("the text of stopMessage is empty")
    return SetStopMessage(text, repeats, span=span)


def _repeats(tail: str) -> int:
    """Return the number after the comma, 10 without one."""
    tail = tail.strip(WHITE)
    if not tail:
        return 10
    if not _COMMA.match(tail):
        raise _Mistake('only a comma and a number may follow; quotes inside the text are written \\"')
    number = tail[1:].strip(WHITE)
    digits = number.lstrip("0０")
    # `int` takes quadratic time: a million digits would take minutes.
    repeats = int(digits) if digits.isdecimal() and len(digits) <= 19 and number.isdecimal() else 0
    if not 1 <= repeats <= _MAX_REPEATS:
        raise _Mistake(f"the number of repeats must be a whole number of at least 1, not {_short(number)!r}")
    return repeats


def _clock(value: str, span: Span) -> Instruction:
    if value.lower() != "clear":
        raise _Mistake(f"clock takes clear only, not {_short(value)!r}")
    return ClearClock(span=span)


def _agents(value: str, span: Span) -> Instruction:
    """Read one instruction for the sub-agents of the session."""
    if value.lower() == "clear":
        return SteerAgents(ClearRouting(), span=span)
    signed = _SIGNED_READERS.get(value[:1])
    if signed is None:
        raise _Mistake(_AGENTS_FORMS)
    inner = signed(_names(value[1:]), _NO_SPAN)
    assert isinstance(inner, AllowProviders | StickToTarget | DisableTarget | EnableTarget)
    return SteerAgents(inner, span=span)


def _short(text: str, length: int = 60) -> str:
    """Return the text on one line, shortened."""
    line = " ".join(text[: length * 4].split())
    return line if len(line) <= length and len(text) <= length * 4 else f"{line[:length]}…"


_KEYED_READERS: dict[str, Callable[[str, Span], Instruction]] = {
    "stopmessage": _stop_message,
    "clock": _clock,
    "agents": _agents,
}
_SIGNED_READERS: dict[str, Callable[[tuple[str, ...], Span], Instruction]] = {
    mark: reader
    for marks, reader in (
        ("!！", _sticky_or_allow),
        ("#＃", lambda names, span: DisableTarget(names, span=span)),
        ("@＠", lambda names, span: EnableTarget(names, span=span)),
    )
    for mark in marks
}
_KEYWORDS: dict[str, Callable[[Span], Instruction]] = {
    "clear": lambda span: ClearRouting(span=span),
    "status": lambda span: ShowStatus(span=span),
    "help": lambda span: ShowHelp(span=span),
}
