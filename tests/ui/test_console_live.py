"""The event stream of the console, its servers and roles, and the texts it shows."""

from __future__ import annotations

import asyncio
import json

import pytest
from playwright.async_api import Page, Route, expect

from routecodex.console import console_files
from tests.ui.console_pages import OpenPage
from tests.ui.fake_console import FakeConsole

pytestmark = pytest.mark.asyncio(loop_scope="session")

HIDE = """hidden => {
  Object.defineProperty(document, "hidden", {value: hidden, configurable: true});
  document.dispatchEvent(new Event("visibilitychange"));
}"""
FOREIGN = """() => {
  const own = "time, code, kbd, noscript, textarea, option, svg, [translate=no], [aria-hidden=true]";
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const found = [];
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const rest = node.data.replace(/⟦[^⟧]*⟧/g, "").replace(/p(50|95)|\\b[kMG]\\b/g, "");
    if (/\\p{L}/u.test(rest) && !node.parentElement.closest(own)) found.push(node.data);
  }
  return found;
}"""
VIEWS = {
    "": "key-row",
    "requests?id=req_000000000000018a": "timing",
    "requests?group=session": "requests",
    "sessions?id=7f3c02d4-58c1-4d0e-9a1f-2b6a7c4e91ab": "turns",
    "providers": "key-row",
    "keys": "client-row",
    "routing": "route",
    "playground": "play-text",
    "inspector?id=req_000000000000018a": "capture-diff",
    "inspector": "live",
    "config": "config-key",
}
"""Pages, and a part of each that is there when its data is."""


async def expect_live(page: Page) -> None:
    await expect(page.get_by_test_id("live")).to_have_attribute("data-state", "live")


def calls(fake: FakeConsole, path: str) -> int:
    return sum(call.startswith(f"GET {path}") for call in fake.calls)


async def test_hidden_tab_closes_its_stream_and_resumes_when_seen(
    open_page: OpenPage, fake: FakeConsole
) -> None:
    page = await open_page("requests", clock=True)
    await expect_live(page)
    row = fake.start_request(70_001)
    await expect(page.locator(f"[role=row][data-request-id={row['request']}]")).to_have_count(1)
    await page.evaluate(HIDE, True)
    await page.clock.fast_forward(59_000)
    assert fake.subscribers == 1
    await page.clock.fast_forward(2_000)
    await fake.until_subscribers(0)
    missed = fake.start_request(70_002)
    await page.evaluate(HIDE, False)
    await expect(page.locator(f"[role=row][data-request-id={missed['request']}]")).to_have_count(1)
    assert any("last_event_id=1.1" in call for call in fake.calls)


async def test_page_that_was_too_slow_fetches_again(open_page: OpenPage, fake: FakeConsole) -> None:
    page = await open_page("requests")
    await expect_live(page)
    missed = fake.rows[0] | {"request": "req_feed", "time": "2199-01-01T00:00:00Z"}
    fake.rows.append(missed)
    fake.send("lag", {"dropped": 7})
    await expect(page.locator("[data-request-id=req_feed]")).to_have_count(1)


async def test_shutdown_that_is_announced_leads_to_a_new_stream(
    open_page: OpenPage, fake: FakeConsole
) -> None:
    page = await open_page("requests")
    await expect_live(page)
    fake.send("bye", {"reason": "drain"})
    await expect(page.get_by_test_id("live")).to_have_attribute("data-state", "reconnecting")
    await expect_live(page)
    assert calls(fake, "/admin/events") == 2


async def test_browser_that_is_offline_says_so_and_returns_by_itself(
    open_page: OpenPage, fake: FakeConsole
) -> None:
    page = await open_page("requests")
    await expect_live(page)
    await expect(page.get_by_test_id("request-row").first).to_be_visible()
    await page.context.set_offline(True)
    await expect(page.get_by_test_id("live")).to_have_attribute("data-state", "offline")
    await expect(page.get_by_test_id("request-row").first).to_be_visible()
    await page.context.set_offline(False)
    await expect_live(page)


async def test_server_is_chosen_in_the_address_and_for_every_call(
    open_page: OpenPage, fake: FakeConsole
) -> None:
    fake.servers.append({"id": "other", "url": "http://127.0.0.1:1", "version": "1.0", "alive": True})
    page = await open_page("requests")
    await expect_live(page)
    choice = page.get_by_test_id("server")
    await expect(choice.locator("option")).to_have_text(["main", "other", "All servers"])
    await choice.select_option("other")
    await expect(page.get_by_test_id("request-row").first).to_be_visible()
    assert page.url.endswith("/ui/requests?server=other")
    await page.get_by_role("link", name="Providers").click()
    await expect(page.get_by_test_id("key-row").first).to_be_visible()
    assert page.url.endswith("/ui/providers?server=other")
    await expect(choice).to_have_value("other")
    assert calls(fake, "/admin/providers?server=other") == 1
    assert any(call.startswith("GET /admin/events") and "server=other" in call for call in fake.calls)


async def test_an_event_of_one_server_makes_the_view_of_all_read_again(
    open_page: OpenPage, fake: FakeConsole
) -> None:
    fake.servers.append({"id": "other", "url": "http://127.0.0.1:1", "version": "1.0", "alive": True})
    page = await open_page("requests?server=all")
    await expect_live(page)
    await expect(page.get_by_test_id("request-row").first).to_be_visible()
    before = sum("/admin/requests?" in call and "server=all" in call for call in fake.calls)
    fake.send("stats", {"at": "2026-11-18T10:00:00Z", "requests": 1})
    await until_more(fake, before)


async def until_more(fake: FakeConsole, before: int) -> None:
    """Wait until the page has read the requests of all servers once more."""
    async with asyncio.timeout(20):
        while sum("/admin/requests?" in call and "server=all" in call for call in fake.calls) <= before:
            await asyncio.sleep(0.05)


CONTROLS = {
    "providers": {"key-disable": "operator", "key-test": "operator", "key-reset": "operator"},
    "sessions?id=conv_0b17a2": {
        "set-sticky-apply": "operator",
        "stop-clear": "operator",
        "task-add": "operator",
    },
    "keys": {
        "client-new": "admin",
        "client-rotate": "admin",
        "client-block": "admin",
        "client-revoke": "admin",
    },
    "config": {"config-check": "viewer", "config-reload": "admin"},
    "routing": {"explain-run": "viewer"},
    "inspector?id=req_000000000000018a": {"replay-run": "admin"},
}
RANKS = ("viewer", "operator", "admin")


@pytest.mark.parametrize("role", RANKS)
async def test_controls_are_there_for_those_who_may_use_them(
    open_page: OpenPage, fake: FakeConsole, role: str
) -> None:
    fake.role = role
    for path, controls in CONTROLS.items():
        page = await open_page(path)
        await expect_live(page)
        await expect(page.locator(".skeleton")).to_have_count(0)
        for test, needed in controls.items():
            allowed = RANKS.index(role) >= RANKS.index(needed)
            shown = page.get_by_test_id(test).first
            await (expect(shown).to_be_visible() if allowed else expect(shown).to_have_count(0))


@pytest.mark.parametrize("path", VIEWS)
async def test_every_text_of_the_page_comes_from_the_files_of_texts(open_page: OpenPage, path: str) -> None:
    texts = json.loads(console_files()["i18n/en.json"].read_text(encoding="utf-8"))

    async def marked(route: Route) -> None:
        await route.fulfill(json={key: f"⟦{text}⟧" for key, text in texts.items()})

    page = await open_page(path, routes={"**/i18n/en.json": marked})
    await expect_live(page)
    await expect(page.get_by_test_id(VIEWS[path]).first).to_be_attached()
    await expect(page.locator(".skeleton")).to_have_count(0)
    assert await page.evaluate(FOREIGN) == []


async def test_first_page_needs_few_requests_for_files(open_page: OpenPage, fake: FakeConsole) -> None:
    page = await open_page()
    await expect_live(page)
    await expect(page.get_by_test_id("key-row").first).to_be_visible()
    assert calls(fake, "/ui/") <= 14
