"""Which route a request takes by what stands in it: the first signal that is there decides.

vision        an image or a film in the user's newest message
longcontext   as many tokens as `longcontext_tokens`
background    the client's small work: its small models, and requests for titles and summaries
web_search    the request searches the web by itself, or may and the user wants it to
thinking      the user's turn, or the last turn read files
coding        the last turn wrote files
search        the last turn searched
tools         the last turn used another tool
default       everything else
"""

from __future__ import annotations

import re
from fnmatch import translate
from functools import lru_cache

from msgspec import Struct

from routecodex.canon.look import RequestFeatures
from routecodex.routing.intents import AT_HAND, SEARCH_PHRASES, SEARCH_WORDS, TITLE_BEGINNINGS, VAGUE_PHRASES
from routecodex.routing.shell_commands import Kind
from routecodex.routing.tool_kinds import kind_of


class ClassifierOptions(Struct, frozen=True, kw_only=True):
    """What may be set; the tables here add to those of intents.py."""

    longcontext_tokens: int = 180_000
    background_models: tuple[str, ...] = ("*haiku*",)
    background_openings: tuple[str, ...] = ()
    search_phrases: tuple[str, ...] = ()


class RouteClass(Struct, frozen=True):
    """A route, and why, in words."""

    route: str
    reason: str


DEFAULTS = ClassifierOptions()
_FRESH = RouteClass("thinking", "the newest message is the user's")
_VISION = RouteClass("vision", "an image or a film is in the newest message")
_TITLE = RouteClass("background", "the client asks for a title or a summary")
_ASKED = RouteClass("web_search", "the request asks for a web search")
_WANTED = RouteClass("web_search", "the user wants the web searched, and a tool can")
_UNKNOWN_TOOLS = RouteClass("tools", "the newest message brings results of tools")
_ELSE = RouteClass("default", "nothing else fits")

_BY_KIND: dict[Kind, tuple[str, str]] = {
    "write": ("coding", "the last turn wrote files"),
    "read": ("thinking", "the last turn read files"),
    "search": ("search", "the last turn searched"),
    "web": ("search", "the last turn went to the web"),
    "other": ("tools", "the last turn used a tool"),
}
"""What a turn's calls make of the next request; of several kinds the first here counts."""
_TITLES = tuple(beginning.lower() for beginning in TITLE_BEGINNINGS)
_ENGLISH = tuple(phrase for phrase in SEARCH_PHRASES if phrase.isascii())
_FOREIGN = tuple(phrase for phrase in SEARCH_PHRASES if not phrase.isascii())
_LONGEST_NAME = 64
_MOST_CALLS = 32
_BEGINNING = 600
_LINES = 6
_NEAR = 16


def classify(
    look: RequestFeatures, *, model: str, tokens: int, options: ClassifierOptions = DEFAULTS
) -> RouteClass:
    """The route of a request, and why."""
    if look.has_media:
        return _VISION
    if tokens >= options.longcontext_tokens:
        return RouteClass(
            "longcontext", f"about {tokens} tokens, {options.longcontext_tokens} or more are long"
        )
    if _globs(options.background_models).match(model):
        return RouteClass("background", f"{model[:_LONGEST_NAME]} is a model for background work")
    if is_title_request(look, options.background_openings):
        return _TITLE
    if look.asks_search:
        return _ASKED
    if look.newest == "user":
        wanted = look.offers_search and wants_search(look.text, options.search_phrases)
        return _WANTED if wanted else _FRESH
    if look.calls:
        return _by_calls(look)
    return _UNKNOWN_TOOLS if look.newest == "tool" else _ELSE


def is_title_request(look: RequestFeatures, beginnings: tuple[str, ...] = ()) -> bool:
    """Whether a client asks for a title, a topic or a summary, not for its user; `beginnings` are more."""
    known = _TITLES + _lower(beginnings)
    # A conversation that is to be summarised may keep its system text: what is asked comes last.
    return _begins(look.opening, known) or _begins(look.text, known)


def wants_search(text: str, phrases: tuple[str, ...] = ()) -> bool:
    """Whether a person wants the web searched; `phrases` are more ways to say it."""
    plain = text.lower()
    if _holds(plain, _lower(phrases)) or (_holds(plain, SEARCH_WORDS) and _holds(plain, _ENGLISH)):
        return True
    if plain.isascii():
        return False
    return _holds(plain, _FOREIGN) or any(
        _means_web(plain, phrase) for phrase in VAGUE_PHRASES if phrase in plain
    )


def _holds(text: str, phrases: tuple[str, ...]) -> bool:
    return any(map(text.__contains__, phrases))


def _means_web(text: str, phrase: str) -> bool:
    at = text.find(phrase)
    return not _holds(text[max(at - _NEAR, 0) : at + len(phrase) + _NEAR], AT_HAND)


def _begins(text: str, beginnings: tuple[str, ...]) -> bool:
    """Whether one of the first lines begins so: some clients put a line of their own before it."""
    if not text:
        return False
    lines = text[:_BEGINNING].lower().split("\n", _LINES)[:_LINES]
    return any(line.lstrip().startswith(beginnings) for line in lines)


def _by_calls(look: RequestFeatures) -> RouteClass:
    kinds: dict[Kind, str] = {}
    for call in look.calls[:_MOST_CALLS]:
        kinds.setdefault(kind_of(call), call.name)
    for kind, (route, reason) in _BY_KIND.items():
        if kind in kinds:
            return RouteClass(route, f"{reason} ({kinds[kind][:_LONGEST_NAME]})")
    return _UNKNOWN_TOOLS


@lru_cache(maxsize=64)
def _globs(patterns: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(map(translate, patterns)) or r"(?!)", re.IGNORECASE)


@lru_cache(maxsize=64)
def _lower(phrases: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(phrase.lower() for phrase in phrases if phrase.strip())
