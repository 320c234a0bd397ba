"""Limits by `routecodex keys`: made, shown, raised and reset, with a server of two workers and without."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from tests.cli.process import running, serve
from tests.cli.test_keys import CONFIG, command, status
from tests.kit.raw_client import call


async def limit_rows(folder: Path, name: str, *where: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = (await command(folder, "show", name, *where))["client"]["limits"]
    return rows


async def used(folder: Path, name: str, *where: str) -> list[tuple[str, float, float, float]]:
    return [
        (row["limit"], row["used"], row["reserved"], row["remaining"])
        for row in await limit_rows(folder, name, *where)
    ]


async def statuses(port: int, key: str, count: int) -> list[int]:
    return [await status(port, key) for _ in range(count)]


async def test_a_limit_holds_on_all_workers_until_it_is_raised_or_reset(tmp_path: Path) -> None:
    async with serve(tmp_path, CONFIG, "--workers", "2") as server:
        port = await server.port()
        key = (await command(tmp_path, "add", "ci", "--limit", "3 requests/day"))["key"]
        assert await statuses(port, key, 6) == [200, 200, 200, 429, 429, 429]
        assert await used(tmp_path, "ci") == [("3 requests/day", 3, 0, 0)]
        await command(tmp_path, "set", "ci", "--clear-limits", "--limit", "4 requests/day")
        assert await statuses(port, key, 3) == [200, 429, 429]
        row = (await command(tmp_path, "reset", "ci"))["client"]["limits"][0]
        assert (row["used"], row["remaining"]) == (0, 4)
        assert await statuses(port, key, 5) == [200, 200, 200, 200, 429]


async def test_windows_are_shown_and_reset_without_a_server(tmp_path: Path) -> None:
    where = ("--config", str(tmp_path / "gateway.toml"))
    async with serve(tmp_path, CONFIG) as server:
        port = await server.port()
        key = (await command(tmp_path, "add", "ci", "--limit", "2 requests/day", "--team", "core"))["key"]
        assert await statuses(port, key, 3) == [200, 200, 429]
        server.signal()
        await server.ended()
    expected = [("2 requests/day", 2, 0, 0), ("$200/month", 0, 0, 200)]
    assert await used(tmp_path, "ci", *where) == expected
    async with running(tmp_path, "keys", "show", "ci", *where) as shown:
        assert await shown.ended() == 0
    line = r"^limit +2 requests/day of client:ci, 2 used, 0 left, resets 20..-..-..T00:00:00Z$"
    assert re.search(line, "\n".join(shown.out), re.MULTILINE)
    await command(tmp_path, "reset", "ci", *where)
    assert await used(tmp_path, "ci", *where) == [("2 requests/day", 0, 0, 2), ("$200/month", 0, 0, 200)]
    async with serve(tmp_path, CONFIG) as server:
        port = await server.port()
        assert await statuses(port, key, 3) == [200, 200, 429]


async def test_a_limit_that_is_new_begins_with_what_the_ledger_knows(tmp_path: Path) -> None:
    async with serve(tmp_path, CONFIG) as server:
        port = await server.port()
        key = (await command(tmp_path, "add", "ci"))["key"]
        assert await statuses(port, key, 3) == [200, 200, 200]
        # A question to the server waits until all that ended is in the ledger.
        admin = {"authorization": "Bearer operator"}
        assert (await call(port, "/admin/usage", method="GET", headers=admin)).json["total"]["requests"] == 3
        await command(tmp_path, "set", "ci", "--limit", "4 requests/day")
        assert await statuses(port, key, 2) == [200, 429]
