"""[server_tools.*]: what the gateway does by itself between model calls."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from routecodex.config.values import DAY_MS, YEAR_HOURS, YEAR_MS, Secret

__all__ = [
    "ClockConfig",
    "EmptyReplyConfig",
    "NtpConfig",
    "ServerToolsConfig",
    "StopMessageConfig",
    "VisionAutoConfig",
    "WebSearchConfig",
    "WebSearchHttpConfig",
]


class StopMessageConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """stopMessage: going on by itself when the model stops."""

    enabled: Annotated[
        bool, Meta(description="Follow `<**stopMessage:…**>`; when off the tags are still removed.")
    ] = True
    include_answer: Annotated[
        bool, Meta(description="Send the answer just given along with the follow-up message.")
    ] = True
    compaction_sentinels: Annotated[
        tuple[str, ...],
        Meta(
            description="A request with a text that starts with one of these is a compaction: no follow-up."
        ),
    ] = (
        "Context checkpoint compaction",
        "You are performing a context checkpoint compaction",
        "Handoff summary for another LLM",
        "Your task is to create a detailed summary of the conversation",
    )


class NtpConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Time from the network, so that due times do not depend on this machine's clock."""

    enabled: Annotated[bool, Meta(description="Ask the servers; `ROUTECODEX_CLOCK_NTP=0` turns it off.")] = (
        True
    )
    servers: Annotated[tuple[str, ...], Meta(description="Servers to ask, as `host:port`.")] = (
        "pool.ntp.org:123",
    )
    timeout_ms: Annotated[int, Meta(description="How long a server may take.", ge=1, le=DAY_MS)] = 800


class ClockConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """clock: time and alarms for a session."""

    enabled: Annotated[bool, Meta(description="Offer the tool `clock` to every model.")] = False
    due_window_ms: Annotated[
        int, Meta(description="How long before its time a task may be delivered.", ge=0, le=DAY_MS)
    ] = 60_000
    retention_ms: Annotated[
        int, Meta(description="How long after its time a task is kept.", ge=0, le=YEAR_MS)
    ] = 1_200_000
    hold_max_ms: Annotated[
        int,
        Meta(description="Longest time an answer is held open for a task that comes due.", ge=0, le=DAY_MS),
    ] = 60_000
    hold_non_streaming: Annotated[bool, Meta(description="Hold answers that do not stream too.")] = True
    lease_ms: Annotated[
        int,
        Meta(
            description="How long a task stays reserved for a request that was to deliver it and whose "
            "gateway has died.",
            ge=100,
            le=DAY_MS,
        ),
    ] = 60_000
    tick_ms: Annotated[int, Meta(description="How often expired tasks are removed.", ge=1000, le=DAY_MS)] = (
        60_000
    )
    time_tag: Annotated[
        Literal["always", "with_tasks", "off"],
        Meta(description="When the model is told the time, as a last user message."),
    ] = "always"
    ntp: Annotated[NtpConfig, Meta(description="Time from the network.")] = NtpConfig()


class VisionAutoConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """vision_auto: images for a model that cannot see are described by one that can."""

    enabled: Annotated[
        bool,
        Meta(
            description="Images bound for a model with `vision = false` are described by a model of the "
            "route `vision` and go on as text."
        ),
    ] = True
    timeout_ms: Annotated[
        int, Meta(description="How long the description of one image may take.", ge=1, le=DAY_MS)
    ] = 60_000
    max_tokens: Annotated[int, Meta(description="Longest description, thinking included.", ge=16)] = 2000
    max_images: Annotated[
        int, Meta(description="Most images described for one request; older ones are left out.", ge=0)
    ] = 20
    cache_hours: Annotated[
        int,
        Meta(
            description="How long a description is kept; at most a day for images by URL.",
            ge=1,
            le=YEAR_HOURS,
        ),
    ] = 720


class EmptyReplyConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """empty_reply_continue: an empty or cut-off answer gets one more chance."""

    enabled: Annotated[
        bool,
        Meta(
            description="Ask once more when an answer ends without a word; where a server tool is at work, "
            "also let the model go on with an answer that was cut off."
        ),
    ] = True


Address = Annotated[str, Meta(pattern=r"^https?://[^/]")]


class WebSearchHttpConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A search API that answers in JSON, such as SearXNG."""

    url: Annotated[
        Address | None,
        Meta(
            description="Where to search; `{query}` and `{key}` are filled in, as in "
            "`https://search.example/search?q={query}&format=json`."
        ),
    ] = None
    key: Annotated[Secret | None, Meta(description="Its key, best as `${NAME}`.")] = None
    headers: Annotated[
        dict[str, str], Meta(description="Headers to send; `{key}` is filled in, as in `Bearer {key}`.")
    ] = field(default_factory=dict)
    body: Annotated[
        str | None,
        Meta(
            description="A JSON body for an API that is asked with POST; `{query}` and `{key}` inside quotes "
            "are filled in."
        ),
    ] = None
    results: Annotated[str, Meta(description="Where the list of results stands, as a dotted path.")] = (
        "results"
    )
    title: Annotated[str, Meta(description="Where a result has its title.")] = "title"
    link: Annotated[str, Meta(description="Where a result has its address.")] = "url"
    text: Annotated[str, Meta(description="Where a result has its excerpt.")] = "content"
    timeout_ms: Annotated[int, Meta(description="How long it may be silent.", ge=1, le=DAY_MS)] = 10_000


class WebSearchConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """web_search: a search for upstreams that have none of their own."""

    enabled: Annotated[
        bool,
        Meta(
            description="Offer a search of the gateway's own where a client declares a hosted one and the "
            "upstream has none; with nobody to search, the model is told so."
        ),
    ] = True
    provider: Annotated[
        Literal["auto", "http", "route"],
        Meta(
            description="Who searches: the API under `http`, or a model of the route `web_search` that "
            "searches by itself. `auto` is `http` where it has a `url`, else the route."
        ),
    ] = "auto"
    max_uses: Annotated[int, Meta(description="Most searches for one answer.", ge=1)] = 5
    max_results: Annotated[int, Meta(description="Most results told to the model for one search.", ge=1)] = 8
    route_timeout_ms: Annotated[
        int, Meta(description="How long a model of the route `web_search` may take.", ge=1, le=DAY_MS)
    ] = 90_000
    http: Annotated[WebSearchHttpConfig, Meta(description="A search API that answers in JSON.")] = (
        WebSearchHttpConfig()
    )


class ServerToolsConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the gateway does by itself between model calls."""

    visible_rounds: Annotated[
        Literal["all", "last"], Meta(description="Which rounds of a followed-up answer the client sees.")
    ] = "all"
    max_turn_ms: Annotated[
        int, Meta(description="Longest time for all rounds of one request.", ge=1000, le=DAY_MS)
    ] = 900_000
    stop_message: Annotated[StopMessageConfig, Meta(description="Automatic continuation.")] = (
        StopMessageConfig()
    )
    clock: Annotated[ClockConfig, Meta(description="Time and alarms.")] = ClockConfig()
    vision_auto: Annotated[VisionAutoConfig, Meta(description="Images for models that cannot see.")] = (
        VisionAutoConfig()
    )
    empty_reply_continue: Annotated[EmptyReplyConfig, Meta(description="Empty and cut-off answers.")] = (
        EmptyReplyConfig()
    )
    web_search: Annotated[WebSearchConfig, Meta(description="Web search.")] = WebSearchConfig()
