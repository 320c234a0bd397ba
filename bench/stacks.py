"""Sampled stacks: read as py-spy folds them, named without paths, and told apart by stage.

A stack is the labels of its frames, outermost first, as `module:function`. It begins with what the event loop
called: the stack of the loop itself, and of what it does in C, is empty.
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
    """A part of the work: the frames it is made of, as patterns of their labels below our package."""

    name: str
    colour: str
    frames: tuple[str, ...] = ()


STAGES = (
    Stage(
        "records, logs, metrics",
        "#9d79bc",
        (
            "server.access_log:*",
            "server.figures:*",
            "server.logs:*",
            "server.metrics:*",
            "server.request_log:*",
        ),
    ),
    Stage("HTTP server, in and out", "#3a7ca5", ("server.*",)),
    Stage("HTTP client", "#81a88d", ("providers.http.*",)),
    Stage(
        "identity, steering, course, plan",
        "#e9c46a",
        (
            "gateway.course:*",
            "gateway.courses:*",
            "gateway.draws:*",
            "gateway.gateway:*plan*",
            "gateway.gateway:Gateway._route",
            "gateway.identity:*",
            "gateway.orders:*",
            "gateway.scope:*",
            "gateway.sessions:*",
            "gateway.steering:*",
            "gateway.toolbox:*",
            "protocols.controls:*",
            "protocols.person.*",
            "routing.*",
            "stores.*",
        ),
    ),
    Stage("attempts and exchange", "#d1495b", ("gateway.*", "providers.*", "server_tools.*", "turns.*")),
    Stage(
        "request read, checked, rewritten",
        "#b08968",
        (
            "protocols.*.content:*",
            "protocols.*.contents:*",
            "protocols.*.conversation:*",
            "protocols.*.incoming:*",
            "protocols.*.look:*",
            "protocols.*.outgoing:*",
            "protocols.*.request_*:*",
            "protocols.*.requests:*",
            "protocols.*.rewrite:*",
            "protocols.*.rewriting:*",
            "protocols.*.schema:*",
            "protocols.chat.passing:*",
            "protocols.*.reading:*",
            "protocols.glance:*",
            "protocols.splice:*",
            "protocols.words:*",
        ),
    ),
    Stage("answer relayed or translated", "#f4a261", ("protocols.*",)),
)
"""In the order in which they are tried: a later one has what the earlier ones left."""
LOOP = Stage("event loop and system calls", "#c9ccd1")
OTHER = Stage("other", "#7d8597", ("*",))
# What everybody uses goes to whoever called it.
SHARED = ("wire.*", "canon.*", "protocols.messages.blocks:*")
SHOWN = (
    "HTTP server, in and out",
    "request read, checked, rewritten",
    "identity, steering, course, plan",
    "attempts and exchange",
    "HTTP client",
    "answer relayed or translated",
    "records, logs, metrics",
    LOOP.name,
    OTHER.name,
)
"""The names of all stages, in the order of a request's way."""
BY_NAME = {stage.name: stage for stage in (*STAGES, LOOP, OTHER)}


def label(frame: str) -> str:
    """A frame of py-spy's as `module:function`; nothing of where the files lie stays."""
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
    """The stage of a frame by itself; None where its caller decides."""
    if not name.startswith(OURS):
        return None
    below = name.removeprefix(OURS)
    if any(fnmatchcase(below, pattern) for pattern in SHARED):
        return None
    return next(stage for stage in (*STAGES, OTHER) if any(fnmatchcase(below, p) for p in stage.frames))


def stages_along(stack: Stack) -> Iterator[Stage]:
    """The stage of each frame, outermost first: its own, or that of whoever called it."""
    current = LOOP
    for name in stack:
        current = stage_of_frame(name) or current
        yield current


def shares(stacks: Stacks) -> dict[str, float]:
    """The part of the time that each stage took by itself, by its name."""
    total = sum(stacks.values())
    counts: Counter[str] = Counter()
    for stack, count in stacks.items():
        *_, last = LOOP, *stages_along(stack)
        counts[last.name] += count
    return {name: counts[name] / total if total else 0.0 for name in SHOWN}
