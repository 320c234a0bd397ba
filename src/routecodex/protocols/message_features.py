"""Reads author, user text, images and searches from messages.

Shared by the `features` of all codecs. A text is a `str`, or its JSON string (`Raw`); of a long one only the
ends are decoded. Agents add texts to user messages (`canon/agent_texts.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, TypeVar

import msgspec
from msgspec import Raw, Struct

from routecodex.canon.agent_texts import CLIENT_TEXTS, ENVELOPES, user_spans
from routecodex.canon.request import NewestRole, TextStart
from routecodex.protocols.codec import OpeningHeads
from routecodex.wire import json

TextValue = str | Raw

BEGINNING = 300
"""Characters of the beginning of a text that routing reads."""

TEXT_START = 160
"""Characters or bytes of a text by which the role of a request is known."""

EXCERPT_END = 2048
"""Characters at each end of a text that may have the user's request."""

_PEEK = 96
_ESCAPE = len(r"\u0000")
_BLANK = r"(?:\s|\\[nrt])*"

_MARKED = re.compile(
    rf'{_BLANK}(?:<(?:{"|".join(sorted(ENVELOPES))})\b|{"|".join(map(re.escape, CLIENT_TEXTS))}|\[|"?$)'
)
"""The beginning of an envelope or of a client's text, or an empty text: the text must be decoded."""
_FIRST = frozenset(["", *' \n\r\t\\"<[', *(text[0] for text in CLIENT_TEXTS)])
_FIRST_BYTES = frozenset(map(ord, _FIRST - {""}))
_HEADER = re.compile(r"\s*x-[a-z0-9-]*header:[^\n]*(?:\n|$)")
"""Claude Code's system text begins with a billing header that changes with every request."""
_HEADER_FIRST = frozenset("x \n\r\t")


def beginning(text: TextValue, limit: int = BEGINNING) -> str:
    """Return the beginning of a text."""
    if isinstance(text, str):
        return text[:limit]
    view = memoryview(text)
    if len(view) - 2 <= limit:
        piece = str(view[1:-1], "utf-8", "ignore")
        return _decoded(text) if "\\" in piece else piece
    piece = str(view[1 : 1 + limit], "utf-8", "ignore")
    return _unescape(_without_cut_escape(piece)) if "\\" in piece else piece


def opening_starts(texts: Iterable[TextValue], heads: OpeningHeads) -> tuple[TextStart, ...]:
    """Return the starts of those texts that may show a role, without decoding them."""
    starts: list[TextStart] = []
    for text in texts:
        if isinstance(text, str):
            if heads.admit(text):
                starts.append(text[:TEXT_START])
        else:
            start = bytes(memoryview(text)[:TEXT_START])
            if heads.admit_raw(start):
                starts.append(start)
    return tuple(starts)


def decoded_start(start: TextStart) -> str:
    """Return the decoded start of a text; its last byte is the closing quote, or cut."""
    if isinstance(start, str):
        return start
    piece = str(start[1:-1], "utf-8", "ignore")
    return _unescape(_without_cut_escape(piece)) if "\\" in piece else piece


def excerpt(text: TextValue, limit: int = EXCERPT_END) -> str:
    """Return both ends of a text, or all of a short one."""
    if isinstance(text, str):
        return text if len(text) <= 2 * limit else f"{text[:limit]}\n{text[-limit:]}"
    view = memoryview(text)
    if len(view) - 2 <= 2 * limit:
        return _decoded(text)
    start = len(view) - 1 - limit
    before = bytes(view[start - limit : start])
    # After an odd number of backslashes the first character belongs to an escape.
    start += (len(before) - len(before.rstrip(b"\\"))) % 2
    return f"{beginning(text, limit)}\n{_unescape(str(view[start:-1], 'utf-8', 'ignore'))}"


def full_text(text: TextValue) -> str:
    """Return all of a text."""
    return text if isinstance(text, str) else _decoded(text)


def _slice(text: Raw, limit: int) -> str:
    return str(memoryview(text)[1 : 1 + limit], "utf-8", "ignore")


def _decoded(text: Raw) -> str:
    try:
        value = json.decode_raw(text)
    except (msgspec.DecodeError, UnicodeError):
        return str(memoryview(text)[1:-1], "utf-8", "ignore")
    return value if isinstance(value, str) else ""


def _unescape(piece: str) -> str:
    """Decode a piece of a JSON string; half a surrogate pair at its end is dropped."""
    for end in (len(piece), -_ESCAPE):
        try:
            return str(json.decode(f'"{piece[:end]}"'))
        except ValueError:
            continue
    return piece


def _without_cut_escape(piece: str) -> str:
    """Return the piece without its last characters if they may be half an escape."""
    tail = piece.find("\\", max(len(piece) - _ESCAPE, 0))
    if tail < 0:
        return piece
    run = tail - len(piece[:tail].rstrip("\\"))
    return piece[: tail - run % 2]


def user_written(text: TextValue) -> TextValue | None:
    """Return the text that the user wrote, without texts of agents; None if there is none."""
    if isinstance(text, str):
        if text[:1] not in _FIRST:
            return text
        head = text[:_PEEK]
    else:
        if memoryview(text)[1] not in _FIRST_BYTES:
            return text
        head = _slice(text, _PEEK)
    if _MARKED.match(head) is None:
        return text
    decoded = full_text(text)
    pieces = (decoded[start:end].strip() for start, end in user_spans(decoded))
    return "\n".join(piece for piece in pieces if piece) or None


def system_opening(texts: Sequence[TextValue]) -> str:
    """Return the beginning of a system text without its client header."""
    opening = ""
    for text in texts:
        piece = beginning(text)
        if piece[:1] in _HEADER_FIRST:
            piece = strip_client_header(piece)
        opening = f"{opening}\n{piece}" if opening else piece
        if len(opening) >= BEGINNING:
            break
    return opening


def strip_client_header(text: str) -> str:
    """Return the text without the header lines that it begins with."""
    while (header := _HEADER.match(text)) is not None:
        text = text[header.end() :]
    return text


def conversation_fingerprint(system: Iterable[TextValue], first: Iterable[TextValue]) -> bytes:
    """Return bytes that stay the same for a whole conversation: its system text and first user texts."""
    stripped = [strip_client_header(full_text(text)).strip() for text in system]
    return "\0".join([*filter(None, stripped), "\0", *map(full_text, first)]).encode("utf-8", "surrogatepass")


T = TypeVar("T")

Author = Literal["user", "assistant", "tool", "system", "reminder"]
"""Author of a message; a `reminder` has the user's role, but only texts that an agent added."""

ARGUMENTS_KEPT = 2048
"""Characters of a call's arguments that routing reads."""

SHORT_CONVERSATION = 4
"""Messages up to which a request with tools may be a title request of an agent."""

HOSTED_SEARCH_TYPES = frozenset(
    ["google_search", "google_search_retrieval", "openrouter:web_search", "browser_search", "$web_search"]
)
"""Types of tools that search the web at the provider, besides those that begin with `web_search`."""

SEARCH_TOOL_NAMES = frozenset(
    [
        "WebSearch",
        "webSearch",
        "websearch",
        "web_search",
        "web-search",
        "search_web",
        "searchWeb",
        "search_the_web",
        "internet_search",
        "search_internet",
        "google_web_search",
        "google_search",
        "GoogleSearch",
        "brave_web_search",
        "brave_search",
        "bing_search",
        "bing_web_search",
        "baidu_search",
        "duckduckgo_search",
        "duckduckgo_web_search",
        "kagi_search",
        "kagi_search_fetch",
        "perplexity_search",
        "perplexity_search_web",
        "serper_search",
        "searxng_web_search",
        "tavily_search",
        "tavily-search",
        "tavily_web_search",
        "exa_search",
        "web_search_exa",
        "firecrawl_search",
        "web_search_prime",
        "webSearchPrime",
        "web_search_tool",
        "builtin_web_search",
        "$web_search",
    ]
)
"""Names of tools that search the web."""


def is_search_tool(name: str | None) -> bool:
    """Whether a tool of this name searches the web; names of MCP tools end in the tool's own name."""
    if name is None:
        return False
    return name in SEARCH_TOOL_NAMES or ("__" in name and name.rpartition("__")[2] in SEARCH_TOOL_NAMES)


def is_hosted_search(kind: str) -> bool:
    """Whether a tool of this type searches the web at the provider."""
    return kind.startswith("web_search") or kind in HOSTED_SEARCH_TYPES


class MessageFeatures(Struct, gc=False):
    """Author and user-written texts of one message, and whether it has an image or a video."""

    author: Author
    texts: Sequence[TextValue] = ()
    media: bool = False


ASSISTANT = MessageFeatures("assistant")
SYSTEM = MessageFeatures("system")
TOOL = MessageFeatures("tool")
REMINDER = MessageFeatures("reminder")


def user_message(
    texts: Iterable[TextValue], *, results: bool = False, attachments: bool = False, media: bool = False
) -> MessageFeatures:
    """Return the features of a message with the user's role: texts, tool `results` and `attachments`."""
    written = [own for text in texts if (own := user_written(text)) is not None]
    if written:
        return MessageFeatures("user", written, media)
    if results:
        return TOOL
    return MessageFeatures("user", written, media) if attachments or media else REMINDER


def text_message(text: TextValue) -> MessageFeatures:
    """Return the features of a message with the user's role that is one text."""
    written = user_written(text)
    return REMINDER if written is None else MessageFeatures("user", (written,))


def newest_message(
    messages: Sequence[T], read: Callable[[T], MessageFeatures]
) -> tuple[NewestRole, MessageFeatures]:
    """Return the newest message and its role, past system messages and reminders."""
    reminded = False
    for message in reversed(messages):
        features = read(message)
        author = features.author
        if author == "reminder":
            reminded = True
        elif author == "assistant" and reminded:
            break
        elif author != "system":
            return author, features
    return ("user" if reminded else "system"), SYSTEM


def user_excerpt(message: MessageFeatures, *, fully: bool) -> str:
    """Return the beginning of the user's text, or (`fully`) both ends of the first and the last text."""
    texts = message.texts
    if not texts:
        return ""
    if not fully:
        return beginning(texts[0])
    return excerpt(texts[0]) if len(texts) == 1 else f"{excerpt(texts[0])}\n{excerpt(texts[-1])}"


def first_user_texts(messages: Iterable[T], read: Callable[[T], MessageFeatures]) -> Sequence[TextValue]:
    """Return the texts of the first user message; reminders before it differ between requests."""
    for message in messages:
        features = read(message)
        if features.author == "user":
            return features.texts
    return ()


def last_index(messages: Sequence[T], matches: Callable[[T], bool]) -> int:
    """Return the index of the last message that matches; -1 if there is none."""
    for at in range(len(messages) - 1, -1, -1):
        if matches(messages[at]):
            return at
    return -1
