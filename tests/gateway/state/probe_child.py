"""A process that requests a probe and prints yes or no: `python probe_child.py <directory> <seconds>`."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path

from routecodex.gateway.state.key_health import KeyHealth
from routecodex.routing.registry import Target
from routecodex.stores.file import FileStore

TARGET = Target("glm", "primary", "glm-4.7")


async def main(directory: str, ahead: str) -> None:
    health = KeyHealth(FileStore(Path(directory)), clock=lambda: time.time() + float(ahead))
    await health.load()
    os.write(1, b"ready\n")
    await asyncio.to_thread(sys.stdin.readline)
    may = await health.probe(TARGET, time.time() + float(ahead))
    os.write(1, b"yes\n" if may else b"no\n")
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
