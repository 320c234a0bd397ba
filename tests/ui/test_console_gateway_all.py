"""The console with the servers of this machine merged: two real gateways, one of which ends."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import Page, expect

from tests.ui.console_gateway import ConsoleGateway, console_gateway
from tests.ui.gateway_pages import OpenConsole, expect_live

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest_asyncio.fixture(loop_scope="session")
async def servers(
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[tuple[ConsoleGateway, ConsoleGateway]]:
    """Run two servers of one user dir, each with its own ledger."""
    folder, other = tmp_path_factory.mktemp("main"), tmp_path_factory.mktemp("other")
    home = folder / "home"
    async with (
        console_gateway(folder, home=home) as one,
        console_gateway(other, home=home, id="other", workers=1) as two,
    ):
        yield one, two


async def opened(open_console: OpenConsole, server: ConsoleGateway, path: str) -> Page:
    """Log in at a server and open a page with all of them."""
    page = await open_console(logged_in=False)
    await page.goto(await server.login_url())
    await expect(page.get_by_test_id("kpi-requests")).to_be_visible()
    await page.goto(f"{server.origin}/ui/{path}")
    await expect_live(page)
    return page


async def test_requests_of_every_server_appear_and_one_that_is_gone_is_said(
    open_console: OpenConsole, servers: tuple[ConsoleGateway, ConsoleGateway]
) -> None:
    one, two = servers
    page = await opened(open_console, one, "requests?server=all")
    await expect(page.get_by_test_id("live")).to_contain_text("every 3 s")
    await expect(page.get_by_test_id("missing")).to_have_count(0)
    for number, server in enumerate((two, one, two)):
        id = (await server.ask(session=f"all-{number}")).headers["x-request-id"]
        await expect(page.locator(f"[role=row][data-request-id={id}]")).to_have_count(1)
    await page.get_by_test_id("pause").click()
    held = (await two.ask(session="all-held")).headers["x-request-id"]
    await expect(page.get_by_test_id("new-count")).to_have_text("1 new")
    await expect(page.locator(f"[role=row][data-request-id={held}]")).to_have_count(0)
    await page.get_by_test_id("new-count").click()
    await expect(page.locator(f"[role=row][data-request-id={held}]")).to_have_count(1)

    assert two.command is not None
    two.command.signal(signal.SIGKILL)
    await two.command.ended()
    await expect(page.get_by_test_id("missing")).to_have_text(
        "No answer from 1 server, whose data is missing here: other"
    )
    await expect(page.locator(f"[role=row][data-request-id={held}]")).to_have_count(1)
    await page.get_by_test_id("server").select_option("main")
    await expect(page.get_by_test_id("missing")).to_have_count(0)
    await expect(page.locator(f"[role=row][data-request-id={held}]")).to_have_count(0)


async def test_figures_are_those_of_all_servers(
    open_console: OpenConsole, servers: tuple[ConsoleGateway, ConsoleGateway]
) -> None:
    one, two = servers
    page = await opened(open_console, one, "?server=all")
    kpi = page.get_by_test_id("kpi-requests")
    await expect(kpi).to_have_attribute("data-count", "0")
    await two.target()
    await expect(kpi).to_have_attribute("data-count", "1")
    await one.target()
    await expect(kpi).to_have_attribute("data-count", "2")
