"""The other pages of the console: what they show, what their controls send; accessibility of all."""

from __future__ import annotations

import pytest
from playwright.async_api import expect

from tests.ui.console_pages import OpenPage
from tests.ui.fake_console import FakeConsole

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_overview_shows_figures_of_the_range(open_page: OpenPage, fake: FakeConsole) -> None:
    page = await open_page()
    requests = page.get_by_test_id("kpi-requests")
    await expect(requests).to_have_attribute("data-count", "41864")
    assert float(await requests.get_attribute("data-value") or "") == pytest.approx(41864 / 3600)
    for name in ("tokens", "cost", "cache", "errors", "ttft"):
        assert float(await page.get_by_test_id(f"kpi-{name}").get_attribute("data-value") or "") > 0
    await expect(page.get_by_role("img", name="Requests by provider")).to_be_visible()
    await page.locator("[data-range='24h']").click()
    await expect(page.locator("[data-range='24h']")).to_have_attribute("aria-pressed", "true")
    assert page.url.endswith("range=24h")


async def test_overview_names_what_needs_attention(open_page: OpenPage, fake: FakeConsole) -> None:
    page = await open_page()
    items = page.get_by_test_id("attention").locator("li")
    await expect(items).to_have_count(4)
    kinds = [await items.nth(n).get_attribute("data-kind") for n in range(4)]
    assert kinds == ["config", "cooling", "refused", "budget"]
    await page.locator("[data-kind=cooling] button").click()
    await expect(page.get_by_test_id("toast")).to_have_attribute("data-kind", "ok")
    assert fake.writes == [("health/reset", {"target": "claude.backup"})]
    await expect(page.locator("[data-kind=cooling]")).to_have_count(0)


async def test_drag_on_a_plot_zooms(open_page: OpenPage) -> None:
    page = await open_page()
    plot = page.get_by_test_id("plot-requests")
    await expect(plot.locator("path").first).to_be_attached()
    await expect(page.get_by_test_id("key-row").first).to_be_visible()
    box = await plot.bounding_box()
    assert box is not None
    await page.mouse.move(box["x"] + 200, box["y"] + 80)
    await page.mouse.down()
    await page.mouse.move(box["x"] + 400, box["y"] + 80)
    await page.mouse.up()
    await expect(page.get_by_role("button", name="Zoom out")).to_be_visible()
    assert "since=" in page.url


async def test_clear_of_sticky_keeps_the_other_settings(open_page: OpenPage, fake: FakeConsole) -> None:
    page = await open_page("sessions?id=conv_0b17a2")
    await page.get_by_test_id("set-sticky-clear").click()
    await expect(page.get_by_test_id("toast")).to_be_visible()
    expected = {"clear": True, "allow": ["claude", "glm"], "disable": ["claude.backup"]}
    assert fake.writes == [("routing", {"session": "conv_0b17a2", "client": "laptop-bo"} | expected)]


async def test_playground_completes_instructions(open_page: OpenPage) -> None:
    page = await open_page("playground")
    await expect(page.get_by_test_id("play-model")).not_to_have_value("")
    await page.get_by_test_id("play-text").press_sequentially("use <**!glm.g")
    await expect(page.get_by_role("listbox", name="Instructions").get_by_role("option").first).to_have_text(
        "<**!glm.glm-4.7**>"
    )
    await page.keyboard.press("Enter")
    await expect(page.get_by_test_id("play-text")).to_have_value("use <**!glm.glm-4.7**> ")


async def test_inspector_says_how_to_turn_capture_on(open_page: OpenPage, fake: FakeConsole) -> None:
    fake.capture = "off"
    page = await open_page("inspector?id=req_000000000000018a")
    await expect(page.get_by_test_id("capture-off")).to_contain_text('mode = "all"')


async def test_config_marks_problems_and_checks_a_text(open_page: OpenPage, fake: FakeConsole) -> None:
    page = await open_page("config")
    await expect(page.get_by_test_id("config-problem").first).to_have_attribute("data-line", "10")
    await expect(page.locator("[data-key='server.port']")).to_have_attribute("data-source", "file")
    await page.get_by_test_id("config-draft").fill("[server]\nport = 1")
    await page.get_by_test_id("config-check").click()
    await expect(page.get_by_text("No problems.")).to_be_visible()
    await expect(page.locator(".diff .add").first).to_contain_text("port = 1")
    await expect(page.get_by_test_id("config-change")).to_have_text("server.port55205521")
    await page.get_by_test_id("config-reload").click()
    await expect(page.get_by_test_id("toast")).to_have_attribute("data-kind", "error")
    assert [name for name, _ in fake.writes] == ["config/check", "reload"]
