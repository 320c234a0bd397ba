"""The shell of the console: pages, login, language, theme, keyboard, and broken connections."""

from __future__ import annotations

import re

import pytest
from playwright.async_api import Browser, Page, expect

from tests.ui.console_pages import OpenPage
from tests.ui.fake_console import FakeConsole

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def _live(page: Page) -> None:
    await expect(page.get_by_test_id("live")).to_have_attribute("data-state", "live")


async def test_language_and_theme_are_kept(open_page: OpenPage) -> None:
    page = await open_page()
    await page.get_by_test_id("language").select_option("zh-CN")
    await expect(page.get_by_role("heading", level=1)).to_have_text("概览")
    await page.get_by_test_id("theme").select_option("dark")
    assert await page.evaluate("document.documentElement.dataset.theme") == "dark"
    await page.reload()
    await expect(page.get_by_role("heading", level=1)).to_have_text("概览")
    kept = await page.evaluate("JSON.stringify(Object.entries(localStorage).sort())")
    assert kept == '[["routecodex.lang","zh-CN"],["routecodex.theme","dark"]]'
    assert await page.evaluate("document.documentElement.dataset.theme") == "dark"


async def test_phone_has_the_settings_behind_more(open_page: OpenPage) -> None:
    page = await open_page(width=390)
    await page.get_by_test_id("more").click()
    await page.get_by_test_id("more").get_by_test_id("language").select_option("zh-CN")
    await expect(page.get_by_role("heading", level=1)).to_have_text("概览")


async def test_missed_requests_arrive_after_a_break(open_page: OpenPage, fake: FakeConsole) -> None:
    page = await open_page("requests?id=req_000000000000018a")
    await _live(page)
    fake.start_request(70_001)
    await expect(page.locator("[data-request-id=req_0000000000011171]")).to_have_count(1)
    await fake.down()
    await expect(page.get_by_test_id("live")).to_have_attribute("data-state", "reconnecting")
    await expect(page.get_by_test_id("live")).to_contain_text(re.compile(r"data from \d\d:\d\d:\d\d"))
    await expect(page.get_by_test_id("request-row").first).to_be_visible()
    fake.start_request(70_002)
    await fake.up()
    await _live(page)
    await expect(page.locator("[role=row][data-request-id=req_0000000000011172]")).to_have_count(1)
    await expect(page.locator("[role=row][data-request-id=req_0000000000011171]")).to_have_count(1)
    await expect(page.get_by_test_id("request-detail")).to_be_visible()
    assert any("last_event_id=1.1" in call for call in fake.calls)


async def test_other_version_of_the_files_offers_to_reload(open_page: OpenPage, fake: FakeConsole) -> None:
    page = await open_page()
    await _live(page)
    await fake.down()
    fake.ui_version = "ui-2"
    await fake.up()
    await expect(page.get_by_text("The gateway was upgraded.")).to_be_visible()


async def test_one_stream_per_tab(open_page: OpenPage, fake: FakeConsole) -> None:
    page = await open_page()
    await _live(page)
    for name in ("Requests", "Sessions", "Overview"):
        await page.get_by_role("navigation").get_by_role("link", name=name, exact=True).click()
        await expect(page.get_by_role("heading", level=1)).to_have_text(name)
    assert fake.subscribers == 1


async def test_help_opens_by_its_key_and_not_while_typing(open_page: OpenPage) -> None:
    page = await open_page("requests")
    await expect(page.get_by_test_id("request-row").first).to_be_visible()
    await page.keyboard.press("/")
    await expect(page.get_by_test_id("search")).to_be_focused()
    await page.keyboard.press("?")
    await expect(page.get_by_test_id("help")).to_have_count(0)
    await page.keyboard.press("Escape")
    await page.keyboard.press("?")
    await expect(page.get_by_test_id("help")).to_be_visible()
    await page.keyboard.press("Escape")
    await expect(page.get_by_test_id("help")).to_have_count(0)


async def test_without_javascript_the_page_says_so(browser: Browser, fake: FakeConsole) -> None:
    context = await browser.new_context(java_script_enabled=False)
    page = await context.new_page()
    await page.goto(f"{fake.origin}/ui/")
    await expect(page.locator("noscript p").first).to_be_visible()
