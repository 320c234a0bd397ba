"""Makes the pictures of docs/console.md: `python -m tests.ui.screenshots DIRECTORY`.

They show a real gateway with two workers and the demo's traffic. Its requests are sent at once; then their
times are spread over the last hour in the ledger, because plots of a gateway that just started are empty.
"""

from __future__ import annotations

import asyncio
import os
import random
import sqlite3
import sys
import tempfile
import time
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace
from playwright.async_api import Browser, Page, async_playwright, expect

from routecodex.cli.demo_traffic import SCRIPT, TrafficRequest, request_of
from tests.kit.browser import chromium
from tests.kit.raw_client import call
from tests.ui.console_gateway import KEYS, ConsoleGateway, console_gateway

_HOUR_MS = 3_600_000
_ROUNDS = 30
_KNOWN = tuple(one for one in SCRIPT if one.model != "spare.spare-small")
_CALM = tuple(one for one in _KNOWN if "demo:error" not in one.text and "cutoff" not in one.text)
PICTURES: Final = (
    ("overview", "", "key-row", 1440, "light", "en"),
    ("overview-dark", "", "key-row", 1440, "dark", "en"),
    ("request", "requests?id={request}", "usage", 1440, "light", "en"),
    ("session", "sessions?id=laptop-1", "turns", 1440, "dark", "en"),
    ("keys", "keys", "client-row", 1440, "light", "en"),
    ("phone", "", "key-row", 390, "light", "zh-CN"),
    ("phone-request", "requests?id={request}", "usage", 390, "dark", "en"),
)
"""Names and paths of the pictures, the part that is there when the data is, widths, themes, languages."""


async def _send(gateway: ConsoleGateway, one: TrafficRequest, client: str, session: str) -> str:
    path, body = request_of(one)
    headers = {"authorization": f"Bearer {KEYS[client]}", "x-session-id": session}
    return (await call(gateway.port, path, body, headers=headers)).headers.get("x-request-id", "")


async def _traffic(gateway: ConsoleGateway) -> None:
    """Send the demo's requests as three clients at once, most of them those that succeed."""

    async def send_all(client: str, seed: int) -> None:
        chosen = random.Random(seed)  # the rhythm of a demo
        for number in range(_ROUNDS):
            one = chosen.choice(_KNOWN if chosen.random() < 0.3 else _CALM)
            model = "spare.spare-1" if chosen.random() < 0.3 else one.model
            text = one.text.replace("demo:slow 1", "demo:slow 0.3").replace("demo:slow 2", "demo:slow 0.5")
            await _send(gateway, replace(one, text=text, model=model), client, f"{client}-{number // 10 + 1}")

    clients = ("laptop", "laptop", "ci", "steerer", "ci", "laptop")
    await asyncio.gather(*(send_all(client, seed) for seed, client in enumerate(clients)))


def _spread(ledger: Path) -> None:
    """Give the requests of a ledger times of the last hour, in their order."""
    with closing(sqlite3.connect(ledger)) as connection, connection:
        ids = [one for (one,) in connection.execute("select id from requests order by time")]
        now = int(time.time() * 1000)
        chosen = random.Random(11)  # see above
        times = sorted(now - int(chosen.random() * 0.97 * _HOUR_MS) - 20_000 for _ in ids)
        connection.executemany(
            "update requests set time = ? where id = ?", list(zip(times, ids, strict=True))
        )


async def _prepare(gateway: ConsoleGateway, home: Path) -> str:
    """Fill a gateway; return the id of a request with several rounds."""
    await _traffic(gateway)
    await gateway.stop()
    _spread(home / "user" / "usage" / "main.sqlite")
    await gateway.start()
    await gateway.post("routing", {"session": "laptop-1", "client": "laptop", "sticky": "demo.demo-1"})
    session = {"session": "laptop-1", "client": "laptop"}
    await gateway.post("sessions/stop_message", {**session, "text": "Run the tests too", "max_repeats": 3})
    due = datetime.now(UTC) + timedelta(hours=2)
    await gateway.post("clock/add", {**session, "task": "check the nightly build", "dueAt": due.isoformat()})
    await gateway.post(
        "clients", {"name": "tablet", "limits": ["$5/day", "200 requests/hour"], "team": "core"}
    )
    await gateway.ask("demo:error 401", model="spare.spare-1", session="refused", client="ci")
    answer = await gateway.ask("Write a test for it. demo:long 60", protocol="messages", session="laptop-1")
    await gateway.until_row(lambda row: row["request"] == answer.headers["x-request-id"])
    return str(answer.headers["x-request-id"])


async def _settle(page: Page, part: str) -> None:
    await page.get_by_test_id(part).first.wait_for()
    await page.locator("[data-testid=live][data-state=live]").wait_for()
    await expect(page.locator(".skeleton")).to_have_count(0)
    await page.wait_for_load_state("load")
    await page.evaluate("document.fonts.ready")


async def _shoot(
    browser: Browser, gateway: ConsoleGateway, login: Any, directory: Path, request: str
) -> None:
    for name, path, part, width, theme, language in PICTURES:
        context = await browser.new_context(
            viewport={"width": width, "height": 844 if width < 720 else 820},
            locale=language,
            color_scheme="dark" if theme == "dark" else "light",
            reduced_motion="reduce",
            storage_state=login,
        )
        page = await context.new_page()
        await page.goto(f"{gateway.origin}/ui/{path.format(request=request)}")
        await _settle(page, part)
        await page.screenshot(path=directory / f"{name}.png")
        await context.close()


async def main(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    root = ["--no-sandbox"] if os.geteuid() == 0 else []
    with tempfile.TemporaryDirectory() as folder:
        async with console_gateway(Path(folder), pace=0.3) as gateway, async_playwright() as playwright:
            request = await _prepare(gateway, Path(folder))
            browser = await playwright.chromium.launch(executable_path=chromium(), args=root)
            context = await browser.new_context()
            page = await context.new_page()
            await page.goto(await gateway.login_url())
            await expect(page.get_by_test_id("kpi-requests")).to_be_visible()
            login = await context.storage_state()
            await _shoot(browser, gateway, login, directory, request)
            await browser.close()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
