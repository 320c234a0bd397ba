"""One Chromium for all tests; a page must log no error and violate no rule of its CSP."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

import pytest_asyncio
from playwright.async_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Page,
    Route,
    async_playwright,
    expect,
)

from tests.kit.browser import chromium
from tests.ui.fake_console import FakeConsole

OpenPage = Callable[..., Awaitable[Page]]
expect.set_options(timeout=10_000)

# Chromium reports an answer with an error status as a console error; those the tests provoke are expected.
_EXPECTED = ("Failed to load resource", "net::ERR_")


@pytest_asyncio.fixture(loop_scope="session")
async def fake() -> AsyncIterator[FakeConsole]:
    async with FakeConsole().served() as served:
        yield served


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    root = ["--no-sandbox"] if os.geteuid() == 0 else []
    async with async_playwright() as playwright:
        started = await playwright.chromium.launch(executable_path=chromium(), args=root)
        yield started
        await started.close()


@pytest_asyncio.fixture(loop_scope="session")
async def open_page(browser: Browser, fake: FakeConsole) -> AsyncIterator[OpenPage]:
    """Open a page of the console; afterwards nothing went wrong in it."""
    complaints: list[str] = []
    contexts: list[BrowserContext] = []

    def note(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning") and not message.text.startswith(_EXPECTED):
            complaints.append(message.text)

    async def opened(
        path: str = "",
        *,
        width: int = 1440,
        language: str = "en",
        theme: str = "light",
        clock: bool = False,
        routes: Mapping[str, Callable[[Route], Awaitable[None]]] | None = None,
    ) -> Page:
        context = await browser.new_context(
            viewport={"width": width, "height": 900},
            locale=language,
            color_scheme="dark" if theme == "dark" else "light",
        )
        contexts.append(context)
        page = await context.new_page()
        page.on("console", note)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        if clock:
            await page.clock.install()
        for pattern, answer in (routes or {}).items():
            await page.route(pattern, answer)
        await page.goto(f"{fake.origin}/ui/{path}")
        return page

    yield opened
    for context in contexts:
        await context.close()
    assert complaints == []
