"""[server_tools.*]: tools that the gateway runs itself, between model calls."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from routecodex.config.values import DAY_MS, YEAR_HOURS, YEAR_MS, Secret


class StopMessageConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """stopMessage: sends a follow-up message when the model stops."""

    enabled: Annotated[
        bool, Meta(description="Apply `<**stopMessage:…**>`; when off, the tags are still removed.")
    ] = True
    include_answer: Annotated[
        bool, Meta(description="Send the last answer along with the follow-up message.")
    ] = True
    compaction_sentinels: Annotated[
        tuple[str, ...],
        Meta(
            description="A request with a system text, or a text of the newest user message, that starts "
            "with one of these has the role `compaction`. They add to the openings that the gateway knows."
        ),
    ] = ("Context checkpoint compaction", "Handoff summary for another LLM")


class NtpConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Time from the network, so that due times do not depend on this machine's clock."""

    enabled: Annotated[
        bool, Meta(description="Query the servers; `ROUTECODEX_CLOCK_NTP=0` turns it off.")
    ] = True
    servers: Annotated[tuple[str, ...], Meta(description="Time servers, as `host:port`.")] = (
        "pool.ntp.org:123",
    )
    timeout_ms: Annotated[int, Meta(description="Timeout of a server.", ge=1, le=DAY_MS)] = 800


class ClockConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """clock: time and alarms for a session."""

    enabled: Annotated[bool, Meta(description="Offer the tool `clock` to every model.")] = False
    due_window_ms: Annotated[
        int,
        Meta(description="Longest time before its due time that a task may be delivered.", ge=0, le=DAY_MS),
    ] = 60_000
    retention_ms: Annotated[
        int, Meta(description="Time that a task is kept after its due time.", ge=0, le=YEAR_MS)
    ] = 1_200_000
    hold_max_ms: Annotated[
        int,
        Meta(description="Longest time an answer is held open for a due task.", ge=0, le=DAY_MS),
    ] = 60_000
    hold_non_streaming: Annotated[bool, Meta(description="Hold answers that do not stream too.")] = True
    lease_ms: Annotated[
        int,
        Meta(
            description="Time that a task stays reserved for a request whose gateway died before it was "
            "delivered.",
            ge=100,
            le=DAY_MS,
        ),
    ] = 60_000
    tick_ms: Annotated[
        int, Meta(description="Interval at which expired tasks are deleted.", ge=1000, le=DAY_MS)
    ] = 60_000
    time_tag: Annotated[
        Literal["always", "with_tasks", "off"],
        Meta(description="When the current time is added to a request, as its last user message."),
    ] = "always"
    complete_tools: Annotated[
        Literal["session", "off"],
        Meta(
            description="`session`: a request that gets a reminder and lacks functions which its session "
            "declared last gets them too. The client can run them."
        ),
    ] = "session"
    subagents: Annotated[
        bool, Meta(description="Give the clock to sub-agents too, not to the main conversation only.")
    ] = False
    ntp: Annotated[NtpConfig, Meta(description="Time from the network.")] = NtpConfig()


class VisionAutoConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """vision_auto: replaces images by descriptions for models without vision."""

    enabled: Annotated[
        bool,
        Meta(
            description="Images for a model with `vision = false` are described by a model of the "
            "route `vision` and sent as text."
        ),
    ] = True
    timeout_ms: Annotated[
        int, Meta(description="Timeout of the description of one image.", ge=1, le=DAY_MS)
    ] = 60_000
    max_tokens: Annotated[int, Meta(description="Longest description, thinking included.", ge=16)] = 2000
    max_images: Annotated[
        int, Meta(description="Most images described for one request; older ones are omitted.", ge=0)
    ] = 20
    cache_hours: Annotated[
        int,
        Meta(
            description="Time that a description is cached; at most a day for images by URL.",
            ge=1,
            le=YEAR_HOURS,
        ),
    ] = 720


class EmptyReplyConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """empty_reply_continue: repeats a request after an empty or truncated answer."""

    enabled: Annotated[
        bool,
        Meta(
            description="Send the request once more if an answer is empty; in turns with server tools, "
            "also let the model continue a truncated answer."
        ),
    ] = True


Address = Annotated[str, Meta(pattern=r"^https?://[^/]")]


class WebSearchHttpConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A search API that answers in JSON, such as SearXNG."""

    url: Annotated[
        Address | None,
        Meta(
            description="URL of the search; `{query}` and `{key}` are inserted, as in "
            "`https://search.example/search?q={query}&format=json`."
        ),
    ] = None
    key: Annotated[Secret | None, Meta(description="Its key, best as `${NAME}`.")] = None
    headers: Annotated[
        dict[str, str], Meta(description="Headers to send; `{key}` is inserted, as in `Bearer {key}`.")
    ] = field(default_factory=dict)
    body: Annotated[
        str | None,
        Meta(description="JSON body for an API with POST; `{query}` and `{key}` inside quotes are inserted."),
    ] = None
    results: Annotated[str, Meta(description="Dotted path of the list of results.")] = "results"
    title: Annotated[str, Meta(description="Field of a result with its title.")] = "title"
    link: Annotated[str, Meta(description="Field of a result with its URL.")] = "url"
    text: Annotated[str, Meta(description="Field of a result with its excerpt.")] = "content"
    timeout_ms: Annotated[int, Meta(description="Longest silence of the API.", ge=1, le=DAY_MS)] = 10_000


class WebSearchConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """web_search: a search for upstreams without one of their own."""

    enabled: Annotated[
        bool,
        Meta(
            description="Offer the gateway's own search if a client declares a hosted one and the "
            "upstream has none; without a search backend, the model is informed."
        ),
    ] = True
    provider: Annotated[
        Literal["auto", "http", "route"],
        Meta(
            description="Search backend: the API under `http`, or a model of the route `web_search` with "
            "its own search. `auto` is `http` if it has a `url`, else the route."
        ),
    ] = "auto"
    max_uses: Annotated[int, Meta(description="Most searches for one answer.", ge=1)] = 5
    max_results: Annotated[int, Meta(description="Most results of one search sent to the model.", ge=1)] = 8
    route_timeout_ms: Annotated[
        int, Meta(description="Timeout of a model of the route `web_search`.", ge=1, le=DAY_MS)
    ] = 90_000
    http: Annotated[WebSearchHttpConfig, Meta(description="A search API that answers in JSON.")] = (
        WebSearchHttpConfig()
    )


class ServerToolsConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Tools that the gateway runs itself, between model calls."""

    visible_rounds: Annotated[
        Literal["all", "last"], Meta(description="Rounds of an answer with follow-ups that the client sees.")
    ] = "all"
    max_turn_ms: Annotated[
        int, Meta(description="Longest time for all rounds of one request.", ge=1000, le=DAY_MS)
    ] = 900_000
    installed: Annotated[
        tuple[str, ...],
        Meta(
            description="Server tools of other packages that may be loaded, by the names of their entry "
            "points; `*` matches any text, an empty list allows none."
        ),
    ] = ("*",)
    stop_message: Annotated[StopMessageConfig, Meta(description="Automatic continuation.")] = (
        StopMessageConfig()
    )
    clock: Annotated[ClockConfig, Meta(description="Time and alarms.")] = ClockConfig()
    vision_auto: Annotated[VisionAutoConfig, Meta(description="Images for models without vision.")] = (
        VisionAutoConfig()
    )
    empty_reply_continue: Annotated[EmptyReplyConfig, Meta(description="Empty and truncated answers.")] = (
        EmptyReplyConfig()
    )
    web_search: Annotated[WebSearchConfig, Meta(description="Web search.")] = WebSearchConfig()
