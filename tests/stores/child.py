"""A process that works on a file store: `python child.py <command> <directory>`; reports in JSON."""

from __future__ import annotations

import asyncio
import os
import resource
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec

from routecodex.stores.file import FileStore
from routecodex.stores.store import StoreError

NOBODY = 65534


def report(what: Any) -> None:
    os.write(1, msgspec.json.encode(what) + b"\n")


def add_one(value: bytes | None) -> bytes:
    return msgspec.json.encode(msgspec.json.decode(value or b"0", type=int) + 1)


def temporaries(directory: Path) -> list[str]:
    return [path.name for path in directory.rglob("*.tmp")]


async def refusal(attempt: Awaitable[Any]) -> str | None:
    try:
        await attempt
    except StoreError as exc:
        return str(exc)
    return None


async def count(store: FileStore) -> None:
    """Adds one to the same key 200 times."""
    for _ in range(200):
        await store.update("clock", "count", add_one)


async def spread(store: FileStore) -> None:
    """Writes 200 keys, one after the other."""
    for number in range(200):
        await store.put("clock", f"key-{number:03}", b"1")


async def scribble(store: FileStore) -> None:
    """Write the same few keys until killed, and report each write."""
    number = 0
    while True:
        number += 1
        text = msgspec.json.encode([number, str(number % 10) * (number % 7 * 500_000)])
        await store.put("clock", f"key-{number % 3}", text)
        report(number)


async def fill(store: FileStore) -> None:
    """Writes until the disk is full, then makes room."""
    await store.put("clock", "small", b"1")
    written = 0
    message = None
    while message is None:
        message = await refusal(store.put("clock", f"key-{written}", msgspec.json.encode("x" * 5000)))
        written += message is None
    kept = [await store.get("clock", key) for key in await store.keys("clock")]
    over = await refusal(store.put("clock", "small", msgspec.json.encode("x" * 50_000)))
    small = await store.get("clock", "small")
    leftovers = temporaries(store.directory)
    deleted = await store.delete("clock", "key-0")
    again = await refusal(store.put("clock", "small", b"2"))
    report(
        {
            "message": message,
            "all_kept": len(kept) == written + 1 and None not in kept,
            "over_refused": over is not None,
            "small": small is not None and small.value.decode(),
            "leftovers": leftovers,
            "deleted": deleted,
            "again": again,
        }
    )


async def limited(store: FileStore) -> None:
    """Writes a value past the size a file may have."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, 30_000))
    await store.put("clock", "small", b"1")
    message = await refusal(store.put("clock", "small", msgspec.json.encode("x" * 50_000)))
    small = await store.get("clock", "small")
    value = small is not None and small.value.decode()
    report({"message": message, "small": value, "leftovers": temporaries(store.directory)})


async def forbidden(store: FileStore) -> None:
    """Writes to a directory of somebody else."""
    if os.geteuid() == 0:
        os.seteuid(NOBODY)
    report({"message": await refusal(store.put("clock", "small", b"2"))})


COMMANDS: dict[str, Callable[[FileStore], Awaitable[None]]] = {
    command.__name__: command for command in (count, spread, scribble, fill, limited, forbidden)
}


async def main(command: str, directory: str) -> None:
    store = FileStore(Path(directory))
    await COMMANDS[command](store)
    await store.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
