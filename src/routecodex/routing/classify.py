"""Picks the route class of a request; the first matching signal wins.

compaction    the role is compaction, and this route is configured
vision        an image or a video in the user's newest message
longcontext   at least `longcontext_tokens` tokens
subagent      the role is subagent, and this route is configured
background    the role is utility, or the model is a small one of the client
web_search    the request demands a web search, or declares a search tool and the user asks for a search
thinking      the newest message is the user's, or the last turn read files
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

from routecodex.canon.request import RequestFeatures, RoleName
from routecodex.routing.tool_kinds import Kind, kind_of

SEARCH_PHRASES = (
    # English
    *("search the web", "search the internet", "search the net", "search on the web"),
    *("search on the internet", "search online", "search google", "search on google", "searching the web"),
    *("searching online", "web search", "web-search", "websearch", "internet search", "online search"),
    *("google search", "google it", "google this", "google that", "google for", "google how"),
    *("google what", "just google", "look online", "look up online", "look it up online"),
    *("look this up online", "look that up online", "look them up online", "look on the web"),
    *("look on the internet", "check online", "check the web", "check the internet", "find online"),
    *("find on the web", "find on the internet", "browse the web", "browse the internet", "latest news"),
    *("recent news", "current news", "breaking news", "today's news", "news about", "current weather"),
    *("today's weather", "weather today", "current exchange rate", "current stock price"),
    # Chinese
    *("联网", "聯網", "上网查", "上网搜", "上網查", "上網搜", "网上查", "网上搜", "网上找", "網上搜"),
    *("网络搜索", "網路搜尋", "网页搜索", "互联网上", "百度一下", "谷歌一下", "用谷歌", "最新新闻"),
    *("最新的新闻", "最新消息", "最新资讯", "今天的新闻", "今天天气"),
    # Japanese
    *("ウェブで", "ウェブ検索", "web検索", "ネットで", "ネット検索", "ググって", "最新ニュース"),
    *("最新のニュース",),
    # Korean
    *("웹 검색", "웹검색", "웹에서", "인터넷에서", "인터넷 검색", "구글링", "최신 뉴스"),
    # Spanish, Portuguese, Italian
    *("busca en internet", "busca en la web", "busca en google", "buscar en internet"),
    *("búscalo en internet", "últimas noticias", "pesquise na internet", "pesquise na web"),
    *("pesquisar na internet", "procure na internet", "últimas notícias", "cerca su internet"),
    *("cerca in rete", "cerca sul web", "ultime notizie"),
    # French
    *("cherche sur internet", "cherche sur le web", "cherche sur google", "recherche sur internet"),
    *("recherche web", "dernières nouvelles"),
    # German
    *("im internet suchen", "suche im internet", "such im internet", "suche im web", "im netz suchen"),
    *("im internet nach", "websuche", "googel mal", "google mal", "aktuelle nachrichten"),
    # Russian
    *("найди в интернете", "поищи в интернете", "поиск в интернете", "погугли", "последние новости"),
)
"""Phrases of users who want a web search, in lower case; `search` alone is not one."""

SEARCH_WORDS = (
    *("web", "online", "internet", "goog", " net", "news", "weather", "exchange rate", "stock price"),
    *(" rete", "notizie", "nachrichten"),
)
"""Every ASCII phrase contains one of these: a text without them need not be compared with each phrase."""

VAGUE_PHRASES = ("搜索", "搜一下", "搜一搜", "搜搜", "搜尋", "查一下", "查一查", "검색해", "検索して")
"""Phrases that mean a web search, unless `LOCAL_WORDS` are near."""

LOCAL_WORDS = (
    *("代码", "代碼", "文件", "檔案", "函数", "函數", "目录", "目錄", "仓库", "项目", "專案", "日志", "变量"),
    *("方法", "接口", "配置", "报错", "错误", "问题", "原因", "这个", "コード", "ファイル", "코드", "파일"),
    *("bug", "log", "file", "code", "git", "repo", "src", "`", "/"),
)
"""Words near a vague phrase that refers to files."""


class ClassifierOptions(Struct, frozen=True, kw_only=True):
    """Settings of the classifier; phrases add to the table above.

    `role_routes` are the configured ones of the routes subagent, compaction and web_search: without its route
    a role does not count, and utility work that searches the web goes to background.
    """

    longcontext_tokens: int = 180_000
    background_models: tuple[str, ...] = ("*haiku*",)
    search_phrases: tuple[str, ...] = ()
    role_routes: frozenset[str] = frozenset()


class RouteClass(Struct, frozen=True):
    """A route, and the reason as text."""

    route: str
    reason: str


DEFAULTS = ClassifierOptions()
_USER_TURN = RouteClass("thinking", "the newest message is the user's")
_VISION = RouteClass("vision", "the newest message has an image or a video")
_COMPACTION = RouteClass("compaction", "the request has the role compaction")
_SUBAGENT = RouteClass("subagent", "the request has the role subagent")
_UTILITY = RouteClass("background", "the request has the role utility")
_SEARCH_REQUESTED = RouteClass("web_search", "the request asks for a web search")
_SEARCH_INTENT = RouteClass("web_search", "the user asks for a web search and a search tool is declared")
_UNKNOWN_TOOLS = RouteClass("tools", "the newest message has tool results")
_DEFAULT = RouteClass("default", "no other class matches")

_BY_KIND: dict[Kind, tuple[str, str]] = {
    "write": ("coding", "the last turn wrote files"),
    "read": ("thinking", "the last turn read files"),
    "search": ("search", "the last turn searched"),
    "web": ("search", "the last turn went to the web"),
    "other": ("tools", "the last turn used a tool"),
}
"""Route and reason after a turn with calls of a kind; of several kinds the first here counts."""
_ENGLISH = tuple(phrase for phrase in SEARCH_PHRASES if phrase.isascii())
_FOREIGN = tuple(phrase for phrase in SEARCH_PHRASES if not phrase.isascii())
_LONGEST_NAME = 64
_MOST_CALLS = 32
_NEAR = 16


def classify(
    features: RequestFeatures,
    *,
    model: str,
    tokens: int,
    role: RoleName = "main",
    options: ClassifierOptions = DEFAULTS,
) -> RouteClass:
    """Return the route of a request and the reason."""
    if role == "compaction" and role in options.role_routes:
        return _COMPACTION
    if features.has_media:
        return _VISION
    if tokens >= options.longcontext_tokens:
        return RouteClass(
            "longcontext", f"about {tokens} tokens, {options.longcontext_tokens} or more are long context"
        )
    if role == "subagent" and role in options.role_routes:
        return _SUBAGENT
    # Claude Code searches the web in a request of its own, which a small model may not be able to answer.
    if role == "utility" and not (features.asks_search and "web_search" in options.role_routes):
        return _UTILITY
    if _glob_pattern(options.background_models).match(model):
        return RouteClass("background", f"{model[:_LONGEST_NAME]} is a model for background work")
    if features.asks_search:
        return _SEARCH_REQUESTED
    if features.newest == "user":
        searches = features.offers_search and wants_search(features.text, options.search_phrases)
        return _SEARCH_INTENT if searches else _USER_TURN
    if features.calls:
        return _by_calls(features)
    return _UNKNOWN_TOOLS if features.newest == "tool" else _DEFAULT


def rules(options: ClassifierOptions = DEFAULTS) -> tuple[RouteClass, ...]:
    """Return the rules in the order in which they are tried, as people read them."""
    tokens, models = options.longcontext_tokens, ", ".join(options.background_models)
    by_role = [rule for rule in (_COMPACTION, _SUBAGENT) if rule.route in options.role_routes]
    background = [RouteClass("background", f"the model is one of {models}")] if models else []
    return (
        *by_role[: _COMPACTION in by_role],
        _VISION,
        RouteClass("longcontext", f"the request has {tokens} tokens or more"),
        *by_role[_COMPACTION in by_role :],
        _UTILITY,
        *background,
        _SEARCH_REQUESTED,
        _SEARCH_INTENT,
        _USER_TURN,
        *(RouteClass(route, reason) for route, reason in _BY_KIND.values()),
        _UNKNOWN_TOOLS,
        _DEFAULT,
    )


def wants_search(text: str, phrases: tuple[str, ...] = ()) -> bool:
    """Return whether the user wants a web search; `phrases` add to the known ones."""
    plain = text.lower()
    if _contains_any(plain, _lower(phrases)) or (
        _contains_any(plain, SEARCH_WORDS) and _contains_any(plain, _ENGLISH)
    ):
        return True
    if plain.isascii():
        return False
    return _contains_any(plain, _FOREIGN) or any(
        _means_web(plain, phrase) for phrase in VAGUE_PHRASES if phrase in plain
    )


def _contains_any(text: str, phrases: tuple[str, ...]) -> bool:
    return any(map(text.__contains__, phrases))


def _means_web(text: str, phrase: str) -> bool:
    at = text.find(phrase)
    return not _contains_any(text[max(at - _NEAR, 0) : at + len(phrase) + _NEAR], LOCAL_WORDS)


def _by_calls(features: RequestFeatures) -> RouteClass:
    kinds: dict[Kind, str] = {}
    for call in features.calls[:_MOST_CALLS]:
        kinds.setdefault(kind_of(call), call.name)
    for kind, (route, reason) in _BY_KIND.items():
        if kind in kinds:
            return RouteClass(route, f"{reason} ({kinds[kind][:_LONGEST_NAME]})")
    return _UNKNOWN_TOOLS


@lru_cache(maxsize=64)
def _glob_pattern(patterns: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(map(translate, patterns)) or r"(?!)", re.IGNORECASE)


@lru_cache(maxsize=64)
def _lower(phrases: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(phrase.lower() for phrase in phrases if phrase.strip())
