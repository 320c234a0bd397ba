"""Runs targets: by time, or for a number of inputs; an input is made of the seed, the target and a number."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tests.fuzz.processes import is_built
from tests.fuzz.request_targets import ComparedHeads, ComparedRequests, Requests
from tests.fuzz.state_target import StateFiles
from tests.fuzz.stream_targets import Answers, ComparedAnswers, Http, Instructions, Sse
from tests.fuzz.target import Target

_COMPARED: tuple[type[Target], ...] = (ComparedRequests, ComparedHeads, ComparedAnswers)
_ALONE: tuple[type[Target], ...] = (Requests, Sse, Answers, Instructions, Http, StateFiles)
TARGETS: dict[str, type[Target]] = {target.name: target for target in (*_ALONE, *_COMPARED)}
NEED_BUILD = frozenset(target.name for target in _COMPARED)


class Found(AssertionError):
    """An input for which something does not hold."""

    def __init__(self, target: str, data: bytes, number: int) -> None:
        super().__init__(f"{target}: input {number} breaks a rule:\n{data[:4000]!r}")
        self.data = data


@dataclass
class Run:
    """One run of a target; `number` counts its inputs."""

    target: Target
    seed: int
    number: int = 0

    async def once(self) -> None:
        """Make and check the next input."""
        data = self.target.make(Random(f"{self.seed}/{self.target.name}/{self.number}"))
        try:
            await self.target.check(data)
        except Exception as exc:
            raise Found(self.target.name, data, self.number) from exc
        self.number += 1


def available(names: Sequence[str] = ()) -> list[str]:
    """Return the targets of these names, or all; those that compare need a build of the sources."""
    return [name for name in names or TARGETS if is_built() or name not in NEED_BUILD]


async def run(name: str, *, seed: int, seconds: float = 0.0, inputs: int = 0, first: int = 0) -> int:
    """Run a target for some seconds, or for a number of inputs; return how many there were."""
    async with AsyncExitStack() as stack:
        target = TARGETS[name]()
        target.stack = stack
        await target.open()
        running = Run(target, seed, first)
        end = time.monotonic() + seconds
        while time.monotonic() < end or running.number < first + inputs:
            await running.once()
        return running.number - first


async def replay(name: str) -> int:
    """Check every input of a target's corpus."""
    async with AsyncExitStack() as stack:
        target = TARGETS[name]()
        target.stack = stack
        await target.open()
        kept = target.corpus()
        for file, data in kept.items():
            try:
                await target.check(data)
            except Exception as exc:
                raise AssertionError(f"{name}: the input {file} breaks a rule") from exc
        return len(kept)


def save(found: Found, name: str, folder: Path) -> Path:
    """Write the input of a finding to a file."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{name}-{abs(hash(found.data)) % 10**8}"
    file.write_bytes(found.data)
    return file
