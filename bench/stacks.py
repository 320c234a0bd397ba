"""Sampled stacks: parses the folded stacks of py-spy, and assigns frames to stages.

A stack is the labels of its frames, outermost first, as `module:function`. It starts below the event loop:
the stack of the loop itself, and of its work in C, is empty.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache

Stack = tuple[str, ...]
Stacks = Mapping[Stack, int]

OURS = "routecodex."
# "name (file)" or "name (file:line)"; the file of a frozen module is "<frozen name>".
FRAME = re.compile(r"(?P<function>.+) \((?:<frozen )?(?P<file>[^()]*?)>?(?::\d+)?\)")
# Where the names of modules begin in a path.
ROOTS = re.compile(r".*/(?:site-packages|src|python3\.\d+)/|.*/(?=routecodex/)|^/.*/")
RUNNERS = ("asyncio.", "uvloop", "threading:", "concurrent.futures.thread:")
# The sampler stops the process: a thread it wakes counts as busy until it waits again.
WAITING = frozenset({"concurrent.futures.thread:_worker", "selectors:EpollSelector.select"})


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage of the work: patterns for the labels of its frames below `routecodex`."""

    name: str
    colour: str
    frames: tuple[str, ...] = ()


STAGES = (
    Stage(
        "records, logs, metrics",
        "#9d79bc",
        (
            "server.access_log:*",
            "server.log_numbers:*",
            "server.logs:*",
            "server.metrics:*",
            "server.request_log:*",
        ),
    ),
    Stage("HTTP server, in and out", "#3a7ca5", ("server.*",)),
    Stage("HTTP client", "#81a88d", ("providers.http.*",)),
    Stage(
        "session, instructions, plan",
        "#e9c46a",
        (
            "gateway.context.*",
            "gateway.gateway:*plan*",
            "gateway.gateway:Gateway._route",
            "gateway.internal.tool_set:*",
            "gateway.state.operator_state:*",
            "gateway.state.sessions:*",
            "protocols.control_fields:*",
            "protocols.large_body:may_hold_tags",
            "protocols.user_text:*",
            "routing.*",
            "stores.*",
        ),
    ),
    Stage("attempts and answers", "#d1495b", ("gateway.*", "providers.*", "server_tools.*", "turns.*")),
    Stage(
        "request read, checked, rewritten",
        "#b08968",
        (
            "protocols.*.content:*",
            "protocols.*.decode_request:*",
            "protocols.*.encode_messages:*",
            "protocols.*.encode_request:*",
            "protocols.*.fast_validate:*",
            "protocols.*.features:*",
            "protocols.*.rewrite:*",
            "protocols.*.schema:*",
            "protocols.*.validate:*",
            "protocols.large_body:*",
            "protocols.message_features:*",
        ),
    ),
    Stage("answer relayed or translated", "#f4a261", ("protocols.*",)),
)
"""In the order of matching: the first stage with a matching pattern counts."""
LOOP = Stage("event loop and system calls", "#c9ccd1")
OTHER = Stage("other", "#7d8597", ("*",))
# Shared code belongs to the stage of its caller.
SHARED = ("wire.*", "canon.*", "protocols.messages.content:*")
SHOWN = (
    "HTTP server, in and out",
    "request read, checked, rewritten",
    "session, instructions, plan",
    "attempts and answers",
    "HTTP client",
    "answer relayed or translated",
    "records, logs, metrics",
    LOOP.name,
    OTHER.name,
)
"""The names of all stages, in the order of a request."""
BY_NAME = {stage.name: stage for stage in (*STAGES, LOOP, OTHER)}


def label(frame: str) -> str:
    """Return a frame of py-spy as `module:function`, without paths."""
    match = FRAME.fullmatch(frame)
    if match is None:
        return frame
    module = ROOTS.sub("", match["file"]).removesuffix(".py").replace("/", ".").removesuffix(".__init__")
    return f"{module}:{match['function'].replace('.<locals>', '')}"


def _above_the_loop(frames: Stack) -> Stack:
    first = next((at for at, frame in enumerate(frames) if frame.startswith(RUNNERS)), None)
    if first is None:
        return frames
    for at in range(first, len(frames)):
        if not frames[at].startswith(RUNNERS):
            return frames[at:]
    return ()


def read(folded: str) -> Counter[Stack]:
    """How often each stack was seen, without threads that only wait."""
    found: Counter[Stack] = Counter()
    for line in folded.splitlines():
        frames, _, count = line.rpartition(" ")
        stack = tuple(map(label, frames.split(";")))
        if stack[-1] not in WAITING:
            found[_above_the_loop(stack)] += int(count)
    return found


@cache
def stage_of_frame(name: str) -> Stage | None:
    """Return the stage of a frame; None if its caller decides."""
    if not name.startswith(OURS):
        return None
    below = name.removeprefix(OURS)
    if any(fnmatchcase(below, pattern) for pattern in SHARED):
        return None
    return next(stage for stage in (*STAGES, OTHER) if any(fnmatchcase(below, p) for p in stage.frames))


def stages_along(stack: Stack) -> Iterator[Stage]:
    """Yield the stage of each frame, outermost first: its own, or that of its caller."""
    current = LOOP
    for name in stack:
        current = stage_of_frame(name) or current
        yield current


def shares(stacks: Stacks) -> dict[str, float]:
    """Return the share of the time of each stage, by name."""
    total = sum(stacks.values())
    counts: Counter[str] = Counter()
    for stack, count in stacks.items():
        *_, last = LOOP, *stages_along(stack)
        counts[last.name] += count
    return {name: counts[name] / total if total else 0.0 for name in SHOWN}
