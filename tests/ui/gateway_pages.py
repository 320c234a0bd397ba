"""Pages of the console in Chromium, in front of a real gateway, logged in; nothing may go wrong in them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, BrowserContext, ConsoleMessage, Page, expect

from tests.ui.console_gateway import ConsoleGateway, console_gateway

OpenConsole = Callable[..., Awaitable[Page]]

# Chromium reports an answer with an error status as a console error; tests of refusals expect those.
_REFUSALS = ("Failed to load resource", "net::ERR_")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def gateway(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ConsoleGateway]:
    """Run one gateway for all tests of a module."""
    async with console_gateway(tmp_path_factory.mktemp("gateway")) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def login(browser: Browser, gateway: ConsoleGateway) -> Any:
    """Log in by a one-time code, once for all tests of a module; return the cookies."""
    context = await browser.new_context()
    page = await context.new_page()
    await page.goto(await gateway.login_url())
    await expect(page.get_by_test_id("kpi-requests")).to_be_visible()
    state = await context.storage_state()
    await context.close()
    return state


@pytest_asyncio.fixture(loop_scope="session")
async def open_console(browser: Browser, gateway: ConsoleGateway, login: Any) -> AsyncIterator[OpenConsole]:
    """Open a page of the console, logged in unless told otherwise; afterwards it has logged no error."""
    complaints: list[str] = []
    contexts: list[BrowserContext] = []

    def watch(page: Page, refusals: bool) -> None:
        def note(message: ConsoleMessage) -> None:
            known = refusals and message.text.startswith(_REFUSALS)
            if message.type in ("error", "warning") and not known:
                complaints.append(message.text)

        page.on("console", note)
        page.on("pageerror", lambda error: complaints.append(str(error)))

    async def opened(
        path: str = "",
        *,
        width: int = 1440,
        language: str = "en",
        theme: str = "light",
        logged_in: bool = True,
        refusals: bool = False,
    ) -> Page:
        context = await browser.new_context(
            viewport={"width": width, "height": 900},
            locale=language,
            color_scheme="dark" if theme == "dark" else "light",
            storage_state=login if logged_in else None,
        )
        contexts.append(context)
        page = await context.new_page()
        watch(page, refusals or not logged_in)
        await page.goto(f"{gateway.origin}/ui/{path}")
        return page

    yield opened
    for context in contexts:
        await context.close()
    assert complaints == []


async def expect_live(page: Page) -> None:
    """Wait until the page has its event stream."""
    await expect(page.get_by_test_id("live")).to_have_attribute("data-state", "live")


async def expect_done(page: Page, *, kind: str = "ok") -> None:
    """Wait for the message about the last action, and close it."""
    toast = page.get_by_test_id("toast")
    await expect(toast).to_have_attribute("data-kind", kind)
    await toast.get_by_role("button").click()
    await expect(toast).to_have_count(0)
