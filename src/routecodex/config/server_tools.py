"""[server_tools.*]: what the gateway does by itself between model calls."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

__all__ = ["Clock", "EmptyReplyContinue", "Ntp", "ServerTools", "StopMessage", "VisionAuto", "WebSearch"]


class StopMessage(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
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
    ] = ("Context checkpoint compaction", "Handoff summary for another LLM")


class Ntp(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Time from the network, so that due times do not depend on this machine's clock."""

    enabled: Annotated[bool, Meta(description="Ask the servers; `ROUTECODEX_CLOCK_NTP=0` turns it off.")] = (
        True
    )
    servers: Annotated[tuple[str, ...], Meta(description="Servers to ask, as `host:port`.")] = (
        "pool.ntp.org:123",
    )
    timeout_ms: Annotated[int, Meta(description="How long a server may take.", ge=1)] = 800


class Clock(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """clock: time and alarms for a session."""

    enabled: Annotated[bool, Meta(description="Offer the tool `clock` to every model.")] = False
    due_window_ms: Annotated[
        int, Meta(description="How long before its time a task may be delivered.", ge=0)
    ] = 60_000
    retention_ms: Annotated[int, Meta(description="How long after its time a task is kept.", ge=0)] = (
        1_200_000
    )
    hold_max_ms: Annotated[
        int, Meta(description="Longest time an answer is held open for a task that comes due.", ge=0)
    ] = 60_000
    hold_non_streaming: Annotated[bool, Meta(description="Hold answers that do not stream too.")] = True
    tick_ms: Annotated[int, Meta(description="How often expired tasks are removed.", ge=1000)] = 60_000
    time_tag: Annotated[
        Literal["always", "with_tasks", "off"],
        Meta(description="When the model is told the time, as a last user message."),
    ] = "always"
    ntp: Annotated[Ntp, Meta(description="Time from the network.")] = Ntp()


class VisionAuto(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """vision_auto: images for a model that cannot see are described by one that can."""

    enabled: Annotated[bool, Meta(description="Describe images through the route `vision`.")] = True


class EmptyReplyContinue(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """empty_reply_continue: an empty or cut-off answer is continued once."""

    enabled: Annotated[bool, Meta(description="Continue such answers.")] = False


class WebSearch(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """web_search: a hosted web-search tool for upstreams that have none."""

    enabled: Annotated[bool, Meta(description="Search through the route `web_search`.")] = False


class ServerTools(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the gateway does by itself between model calls."""

    visible_rounds: Annotated[
        Literal["all", "last"], Meta(description="Which rounds of a followed-up answer the client sees.")
    ] = "all"
    max_turn_ms: Annotated[int, Meta(description="Longest time for all rounds of one request.", ge=1000)] = (
        900_000
    )
    stop_message: Annotated[StopMessage, Meta(description="Automatic continuation.")] = StopMessage()
    clock: Annotated[Clock, Meta(description="Time and alarms.")] = Clock()
    vision_auto: Annotated[VisionAuto, Meta(description="Images for models that cannot see.")] = VisionAuto()
    empty_reply_continue: Annotated[EmptyReplyContinue, Meta(description="Empty and cut-off answers.")] = (
        EmptyReplyContinue()
    )
    web_search: Annotated[WebSearch, Meta(description="Web search.")] = WebSearch()
