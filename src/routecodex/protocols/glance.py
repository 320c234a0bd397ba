"""What the `look` of every codec has in common: finding the newest message, and tools that search the web."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Literal, TypeVar

from msgspec import Struct

from routecodex.canon.look import NewestRole
from routecodex.protocols.words import TextValue, beginning, excerpt, user_written

T = TypeVar("T")

Author = Literal["user", "assistant", "tool", "system", "reminder"]
"""Whose a message is; a `reminder` stands in the user's name and holds nothing that a person wrote."""

ARGUMENTS_KEPT = 2048
"""Characters of a call's arguments that are kept."""

SHORT_CONVERSATION = 4
"""Messages up to which a request with tools may still be one for a title."""

HOSTED_SEARCH_TYPES = frozenset(
    ["google_search", "google_search_retrieval", "openrouter:web_search", "browser_search", "$web_search"]
)
"""Types of tools that search the web upstream, besides those that begin with `web_search`."""

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
    """Whether a tool of this name searches the web; one of an MCP server is judged by its last part."""
    if name is None:
        return False
    return name in SEARCH_TOOL_NAMES or ("__" in name and name.rpartition("__")[2] in SEARCH_TOOL_NAMES)


def is_hosted_search(kind: str) -> bool:
    """Whether a tool of this type searches the web upstream."""
    return kind.startswith("web_search") or kind in HOSTED_SEARCH_TYPES


class MessageFeatures(Struct, gc=False):
    """One message: whose it is, what a person wrote in it, and whether it shows an image or a film."""

    kind: Author
    texts: Sequence[TextValue] = ()
    media: bool = False


ASSISTANT = MessageFeatures("assistant")
SYSTEM = MessageFeatures("system")
TOOL = MessageFeatures("tool")
REMINDER = MessageFeatures("reminder")


def user_message(
    texts: Iterable[TextValue], *, results: bool = False, shown: bool = False, media: bool = False
) -> MessageFeatures:
    """A message in the user's name; `results` of tools or something `shown` may be in it besides texts."""
    own = [words for text in texts if (words := user_written(text)) is not None]
    if own:
        return MessageFeatures("user", own, media)
    if results:
        return TOOL
    return MessageFeatures("user", own, media) if shown or media else REMINDER


def text_message(words: TextValue) -> MessageFeatures:
    """A message in the user's name that is one text."""
    own = user_written(words)
    return REMINDER if own is None else MessageFeatures("user", (own,))


def newest_message(
    messages: Sequence[T], glimpse: Callable[[T], MessageFeatures]
) -> tuple[NewestRole, MessageFeatures]:
    """Whose the newest message is, and that message; system messages and reminders are looked through."""
    reminded = False
    for message in reversed(messages):
        seen = glimpse(message)
        kind = seen.kind
        if kind == "reminder":
            reminded = True
        elif kind == "assistant" and reminded:
            break
        elif kind != "system":
            return kind, seen
    return ("user" if reminded else "system"), SYSTEM


def user_excerpt(seen: MessageFeatures, *, fully: bool) -> str:
    """What a person wrote: how it begins, or (`fully`) both ends of the first and the last text."""
    own = seen.texts
    if not own:
        return ""
    if not fully:
        return beginning(own[0])
    return excerpt(own[0]) if len(own) == 1 else f"{excerpt(own[0])}\n{excerpt(own[-1])}"


def first_user_texts(messages: Iterable[T], glimpse: Callable[[T], MessageFeatures]) -> Sequence[TextValue]:
    """The first that a person wrote; reminders before it may differ from request to request."""
    for message in messages:
        seen = glimpse(message)
        if seen.kind == "user":
            return seen.texts
    return ()
