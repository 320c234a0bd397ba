"""The list of requests: live rows, filters, pause, walking, the detail beside it, and many rows."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.async_api import Locator, Page, expect

from tests.ui import made_up_data as data
from tests.ui.console_pages import OpenPage
from tests.ui.fake_console import FakeConsole

pytestmark = pytest.mark.asyncio(loop_scope="session")


def row(page: Page, request: str) -> Locator:
    return page.locator(f"[role=row][data-request-id={request}]")


async def opened(open_page: OpenPage, path: str = "requests", **options: Any) -> Page:
    page = await open_page(path, **options)
    await expect(page.get_by_test_id("request-row").first).to_be_visible()
    await expect(page.get_by_test_id("live")).to_have_attribute("data-state", "live")
    return page


async def test_request_appears_while_it_runs_and_ends_in_place(
    open_page: OpenPage, fake: FakeConsole
) -> None:
    page = await opened(open_page)
    started = fake.start_request(70_001)
    live = row(page, started["request"])
    await expect(live).to_have_attribute("data-status", "active")
    await expect(live.locator("[data-col=status]")).to_have_text("streaming")
    await expect(live.locator("[data-col=cost]")).to_have_text("—")
    fake.finish_request(started)
    await expect(live).to_have_attribute("data-status", "200")
    await expect(live.locator("[data-col=cost]")).to_have_text("$0.0123")
    await expect(live.locator("[data-col=total]")).to_have_text("1.25s")
    await expect(page.get_by_test_id("requests")).to_have_attribute("aria-rowcount", "401")


async def test_pause_holds_new_rows_and_counts_them(open_page: OpenPage, fake: FakeConsole) -> None:
    page = await opened(open_page)
    await page.keyboard.press("p")
    await expect(page.get_by_test_id("pause")).to_have_attribute("aria-pressed", "true")
    await expect(page.get_by_test_id("live")).to_have_attribute("data-state", "paused")
    started = [fake.start_request(70_001 + n) for n in range(3)]
    await expect(page.get_by_test_id("new-count")).to_have_text("3 new")
    await expect(row(page, started[0]["request"])).to_have_count(0)
    await page.get_by_test_id("new-count").click()
    await expect(row(page, started[0]["request"])).to_have_count(1)
    await expect(page.get_by_test_id("new-count")).to_be_hidden()


async def test_filter_is_in_the_address_and_holds_for_live_rows(
    open_page: OpenPage, fake: FakeConsole
) -> None:
    page = await opened(open_page)
    await page.locator("summary", has_text="Client").click()
    await page.get_by_role("button", name="ci-runner", exact=True).click()
    await expect(page).to_have_url(re.compile(r"client=ci-runner"))
    expected = sum(one["client"] == "ci-runner" for one in fake.rows)
    await expect(page.get_by_test_id("requests")).to_have_attribute("aria-rowcount", str(expected))
    other, ours = fake.start_request(70_002), fake.start_request(70_001)
    assert (other["client"], ours["client"]) == ("laptop-bo", "ci-runner")
    await expect(row(page, ours["request"])).to_have_count(1)
    await expect(row(page, other["request"])).to_have_count(0)
    again = await opened(open_page, page.url.split("/ui/")[1])
    await expect(again.get_by_test_id("requests")).to_have_attribute("aria-rowcount", str(expected + 1))


async def test_search_asks_the_server_and_keeps_the_typed_text(
    open_page: OpenPage, fake: FakeConsole
) -> None:
    page = await opened(open_page)
    await page.get_by_test_id("search").fill("no such request")
    await expect(page.get_by_test_id("empty")).to_contain_text("Nothing matches")
    fake.start_request(70_001)
    await expect(page.get_by_test_id("search")).to_have_value("no such request")
    assert any("q=no+such+request" in call for call in fake.calls)


async def test_detail_shows_timing_plan_attempts_usage_and_notices(
    open_page: OpenPage, fake: FakeConsole
) -> None:
    page = await opened(open_page)
    await page.get_by_test_id("request-row").nth(2).click()
    detail = page.get_by_test_id("request-detail")
    await expect(detail.get_by_test_id("plan-step")).to_have_count(6)
    await expect(detail.get_by_test_id("attempt")).to_have_count(3)
    await expect(detail.get_by_test_id("attempt").first).to_have_attribute(
        "data-target", "claude.backup.claude-sonnet-4-5"
    )
    await expect(detail.get_by_test_id("timing")).to_contain_text("claude.backup 429")
    await expect(detail.get_by_test_id("usage")).to_contain_text("82,176")
    await expect(detail.get_by_test_id("notices")).to_contain_text("context_management")
    assert f"id={fake.rows[-3]['request']}" in page.url


async def test_keys_walk_the_list_and_escape_returns_to_it(open_page: OpenPage, fake: FakeConsole) -> None:
    page = await opened(open_page)
    for key in "jj":
        await page.keyboard.press(key)
    second = row(page, fake.rows[-2]["request"])
    await expect(second).to_have_attribute("aria-selected", "true")
    await page.keyboard.press("Enter")
    await expect(page.get_by_test_id("request-detail")).to_have_attribute(
        "data-request-id", fake.rows[-2]["request"]
    )
    await page.keyboard.press("j")
    await expect(page.get_by_test_id("request-detail")).to_have_attribute(
        "data-request-id", fake.rows[-3]["request"]
    )
    await page.get_by_test_id("detail-prev").click()
    await expect(page.get_by_test_id("request-detail")).to_have_attribute(
        "data-request-id", fake.rows[-2]["request"]
    )
    await page.keyboard.press("Escape")
    await expect(page.get_by_test_id("request-detail")).to_be_hidden()
    assert page.url.endswith("/ui/requests")


async def test_detail_follows_a_request_to_its_end(open_page: OpenPage, fake: FakeConsole) -> None:
    started = fake.start_request(70_001)
    page = await opened(open_page, f"requests?id={started['request']}")
    await expect(page.get_by_test_id("request-detail").locator("header")).to_contain_text("streaming")
    fake.finish_request(started)
    await expect(page.get_by_test_id("request-detail").locator("header")).to_contain_text("200")


async def test_unknown_request_is_said_in_place(open_page: OpenPage) -> None:
    page = await opened(open_page, "requests?id=req_unknown")
    await expect(page.get_by_test_id("request-detail")).to_contain_text("unknown_request")
    await page.get_by_test_id("detail-close").click()
    await expect(page.get_by_test_id("request-detail")).to_be_hidden()


async def test_rows_left_out_by_the_stream_are_fetched(open_page: OpenPage, fake: FakeConsole) -> None:
    page = await opened(open_page)
    missed = data.request_row(70_009, fake.now.replace(year=2199))
    fake.rows.append(missed)
    fake.send("requests", {"started": [], "finished": [], "skipped": {"started": 1, "finished": 1}})
    await expect(row(page, missed["request"])).to_have_count(1)
    await expect(page.locator(".figures")).to_contain_text("1 too fast")


async def test_thousands_of_requests_leave_the_page_light(open_page: OpenPage, fake: FakeConsole) -> None:
    page = await opened(open_page)
    for batch in range(100):
        rows = [data.request_row(80_000 + batch * 100 + n, fake.now.replace(year=2150)) for n in range(100)]
        fake.send("requests", {"started": [], "finished": rows, "skipped": {"started": 0, "finished": 0}})
    await expect(page.get_by_test_id("requests")).to_have_attribute("aria-rowcount", "10400")
    await expect(page.locator(".figures")).to_contain_text("showing the newest 2,000")
    assert await page.evaluate("document.querySelectorAll('*').length") < 4000


async def test_phone_shows_the_detail_over_the_whole_screen(open_page: OpenPage) -> None:
    page = await opened(open_page, width=390)
    await page.get_by_test_id("request-row").nth(1).click()
    await expect(page.get_by_test_id("request-detail")).to_be_visible()
    await expect(page.get_by_test_id("requests")).to_be_hidden()
