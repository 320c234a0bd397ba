"""The pages of the console in front of a real gateway with two workers: real data, live, in all looks."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from playwright.async_api import Page, expect

from tests.ui.console_gateway import HOSTILE, ConsoleGateway
from tests.ui.gateway_pages import OpenConsole, expect_live

pytestmark = pytest.mark.asyncio(loop_scope="session")

AXE = Path(__file__).parent / "node_modules" / "axe-core" / "axe.min.js"
NAMES = {
    "": ("Overview", "概览", "key-row"),
    "requests": ("Requests", "请求", "request-row"),
    "inspector": ("Inspector", "检查器", "live"),
    "sessions": ("Sessions", "会话", "session-row"),
    "providers": ("Providers", "提供商", "key-row"),
    "routing": ("Routing", "路由", "route"),
    "playground": ("Playground", "试验台", "play-text"),
    "keys": ("Keys & budgets", "密钥与预算", "client-row"),
    "config": ("Config", "配置", "config-key"),
}
"""Paths, the name of each in both languages, and a part of it that is there when its data is."""
SMALL = """[...document.querySelectorAll("button, select, input:not(.sr), summary, nav a")]
  .filter(one => one.checkVisibility() && one.type !== "checkbox")
  .filter(one => Math.min(one.offsetWidth, one.offsetHeight) < 24)
  .map(one => `small: ${one.dataset.testid ?? one.textContent}`)"""
"""Controls that are too small for a finger: WCAG 2.2 AA asks for 24 pixels."""
LOOKS = [(language, width) for language in ("en", "zh-CN") for width in (390, 1440)]


async def seed(gateway: ConsoleGateway) -> str:
    """Send a request in each protocol, and some that fail; return the id of one that succeeded."""
    for protocol in ("chat", "messages", "responses", "gemini"):
        await gateway.target(protocol=protocol, model="gpt-5", session="seed")
    await gateway.ask("demo:error 400", session="seed")
    answer = await gateway.ask(session="seed", client="ci")
    await gateway.until_row(lambda row: row["request"] == answer.headers["x-request-id"])
    return answer.headers["x-request-id"]


async def axe(page: Page) -> list[Any]:
    """Return what axe finds in the page that is serious or critical."""
    # Over the DevTools protocol, because the CSP of the page forbids other scripts.
    if not await page.evaluate("'axe' in window"):
        await page.evaluate(AXE.read_text(encoding="utf-8") + "; undefined")
    found = await page.evaluate(
        "axe.run(document, {resultTypes: ['violations']}).then(one => one.violations)"
    )
    serious = [one for one in found if one["impact"] in ("serious", "critical")]
    return [(one["id"], [node["html"][:160] for node in one["nodes"][:3]]) for one in serious]


async def findings(page: Page, place: str) -> dict[str, Any]:
    """Return what is wrong with a page in either theme: what axe finds, and a page wider than its window."""
    found: dict[str, Any] = {}
    for theme in ("light", "dark"):
        await page.emulate_media(color_scheme="dark" if theme == "dark" else "light")
        await page.wait_for_function("theme => document.documentElement.dataset.theme === theme", arg=theme)
        wide = not await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        small = await page.evaluate(SMALL) if theme == "light" else []
        found |= {f"{place} {theme}": [*(await axe(page)), *small, *(["too wide"] if wide else [])]}
    return {name: wrong for name, wrong in found.items() if wrong}


async def look_over(
    open_console: OpenConsole, gateway: ConsoleGateway, *, language: str, width: int, request: str
) -> dict[str, Any]:
    """Open every page, details and dialogs in one language and width; return what is wrong in a theme."""
    page = await open_console(logged_in=False, language=language, width=width, refusals=True)
    await page.get_by_test_id("login-token").fill("wrong")
    await page.get_by_test_id("login-submit").click()
    await expect(page.get_by_test_id("login-error")).to_be_visible()
    wrong = await findings(page, "login")

    page = await open_console(language=language, width=width)
    details = {"requests": f"?id={request}", "sessions": "?id=seed", "inspector": f"?id={request}"}
    shown = {"requests": "usage", "sessions": "turns", "inspector": "capture-diff"}
    for path, (english, chinese, part) in NAMES.items():
        for query in ("", *filter(None, [details.get(path)])):
            await page.goto(f"{gateway.origin}/ui/{path}{query}")
            await expect(page.get_by_role("heading", level=1)).to_have_text(
                english if language == "en" else chinese
            )
            await expect(page.get_by_test_id(shown[path] if query else part).first).to_be_visible()
            await expect(page.locator(".skeleton")).to_have_count(0)
            await expect(page.get_by_role("alert")).to_have_count(0)
            await expect_live(page)
            wrong |= await findings(page, path + query)
    if width == 390:
        await page.get_by_test_id("more").locator("summary").click()
        await expect(page.get_by_test_id("server")).to_be_visible()
        wrong |= await findings(page, "more")
    await page.keyboard.press("Escape")
    await page.keyboard.press("?")
    await expect(page.get_by_test_id("help")).to_be_visible()
    return wrong | await findings(page, "help")


@pytest.mark.skipif(not AXE.exists(), reason="axe is not installed: make tests/ui/node_modules/.installed")
async def test_every_page_is_accessible_in_both_languages_themes_and_widths(
    open_console: OpenConsole, gateway: ConsoleGateway
) -> None:
    request = await seed(gateway)
    found = await asyncio.gather(
        *(
            look_over(open_console, gateway, language=language, width=width, request=request)
            for language, width in LOOKS
        )
    )
    wrong = {look: one for look, one in zip(LOOKS, found, strict=True) if one}
    assert wrong == {}


async def test_figures_and_rows_are_those_of_the_admin_api(
    open_console: OpenConsole, gateway: ConsoleGateway
) -> None:
    await seed(gateway)
    page = await open_console()
    total = (await gateway.get("requests?limit=1"))["total"]
    await expect(page.get_by_test_id("kpi-requests")).to_have_attribute("data-count", str(total))
    for name in ("requests", "tokens", "cost", "errors", "ttft"):
        assert float(await page.get_by_test_id(f"kpi-{name}").get_attribute("data-value") or "") > 0
    await page.get_by_test_id("kpi-errors").get_by_role("link").click()
    await expect(page).to_have_url(re.compile("status=error"))
    errors = (await gateway.get("requests?status=error&limit=1"))["total"]
    await expect(page.get_by_test_id("requests")).to_have_attribute("aria-rowcount", str(errors))


async def test_rows_appear_as_requests_pass_on_either_worker_in_their_order(
    open_console: OpenConsole, gateway: ConsoleGateway
) -> None:
    page = await open_console("requests?session=live")
    await expect(page.get_by_test_id("empty")).to_be_visible()
    await expect_live(page)
    ids = [(await gateway.ask(session="live")).headers["x-request-id"] for _ in range(6)]
    rows = page.get_by_test_id("request-row")
    await expect(rows).to_have_count(6)
    shown = [await rows.nth(n).get_attribute("data-request-id") for n in range(6)]
    assert sorted(map(str, shown)) == sorted(ids)
    await expect(rows.first.locator("[data-col=cost]")).to_have_text(re.compile(r"^<?\$0\.0"))


async def test_request_under_way_is_a_row_before_it_ends(
    open_console: OpenConsole, gateway: ConsoleGateway
) -> None:
    page = await open_console("requests?session=slow")
    await expect_live(page)
    answer = gateway.slow_request(3, session="slow")
    row = page.get_by_test_id("request-row")
    await expect(row).to_have_attribute("data-status", "active")
    assert not answer.done()
    await row.click()
    request = (await answer).headers["x-request-id"]
    await expect(row).to_have_attribute("data-request-id", request)
    await expect(row).to_have_attribute("data-status", "200")
    detail = page.get_by_test_id("request-detail")
    await expect(detail.get_by_test_id("attempt")).to_have_attribute("data-target", re.compile(r"^demo\."))
    await expect(detail.get_by_test_id("usage")).to_contain_text("Output")


async def test_overview_counts_requests_while_it_is_open(
    open_console: OpenConsole, gateway: ConsoleGateway
) -> None:
    page = await open_console()
    await expect_live(page)
    kpi = page.get_by_test_id("kpi-requests")
    before = int(await kpi.get_attribute("data-count") or "")
    await gateway.target(session="counted")
    await expect(kpi).to_have_attribute("data-count", str(before + 1))


async def test_hostile_texts_are_shown_as_text(open_console: OpenConsole, gateway: ConsoleGateway) -> None:
    await gateway.ask(f"demo:say {HOSTILE}", session=HOSTILE, model=HOSTILE)
    await gateway.ask(HOSTILE, session=HOSTILE, model=f"demo.{HOSTILE}")
    await gateway.post("sessions/stop_message", {"session": HOSTILE, "client": "laptop", "text": HOSTILE})
    await gateway.until_row(lambda row: row["model"] == f"demo.{HOSTILE}")
    page = await open_console(f"requests?session={quote(HOSTILE)}")
    await expect(page.get_by_test_id("request-row")).to_have_count(2)
    await expect(page.locator("[data-col=model]").filter(has_text=HOSTILE)).to_have_count(2)
    await page.get_by_test_id("request-row").first.click()
    await expect(page.get_by_test_id("request-detail").locator(".note.err")).to_contain_text(HOSTILE)
    await page.goto(f"{gateway.origin}/ui/sessions?id={quote(HOSTILE)}")
    await expect(page.get_by_test_id("session-detail").locator("h2").first).to_have_text(HOSTILE)
    await expect(page.get_by_test_id("stop-text")).to_have_value(HOSTILE)
    assert await page.locator("img").count() == 0


async def test_typed_text_detail_and_filter_survive_live_updates(
    open_console: OpenConsole, gateway: ConsoleGateway
) -> None:
    await gateway.target(session="typing")
    page = await open_console("sessions?id=typing")
    await expect_live(page)
    await page.get_by_test_id("set-sticky").fill("half typed")
    requests = page.get_by_test_id("session-detail").get_by_role("link", name="2 requests")
    await gateway.target(session="typing")
    await expect(requests).to_be_visible()
    await expect(page.get_by_test_id("set-sticky")).to_have_value("half typed")


async def test_groups_lead_to_the_requests_of_a_session(
    open_console: OpenConsole, gateway: ConsoleGateway
) -> None:
    for client in ("laptop", "ci", "laptop"):
        await gateway.target(session="shared name", client=client)
    page = await open_console("requests?group=session&q=shared+name")
    groups = page.locator("[data-session-id='shared name']")
    await expect(groups).to_have_count(2)
    await groups.filter(has_text="laptop").get_by_role("link").click()
    await expect(page.get_by_test_id("requests")).to_have_attribute("aria-rowcount", "2")
    await expect(page).to_have_url(
        re.compile("session=shared.name.*client=laptop|client=laptop.*session=shared")
    )


async def test_keyboard_walks_the_list(open_console: OpenConsole, gateway: ConsoleGateway) -> None:
    for _ in range(3):
        await gateway.target(session="walked")
    page = await open_console("requests?session=walked")
    rows = page.get_by_test_id("request-row")
    await expect(rows).to_have_count(3)
    await page.keyboard.press("j")
    await page.keyboard.press("j")
    await expect(rows.nth(1)).to_have_attribute("aria-selected", "true")
    await page.keyboard.press("Enter")
    second = await rows.nth(1).get_attribute("data-request-id") or ""
    await expect(page.get_by_test_id("request-detail")).to_have_attribute("data-request-id", second)
    await expect(page).to_have_url(re.compile(second))
    await page.keyboard.press("Escape")
    await expect(page.get_by_test_id("request-detail")).to_be_hidden()


async def test_sessions_of_two_clients_with_one_id_are_two(
    open_console: OpenConsole, gateway: ConsoleGateway
) -> None:
    for client in ("laptop", "ci", "ci"):
        await gateway.target(session="same id", client=client)
    page = await open_console("sessions?q=same+id")
    rows = page.get_by_test_id("session-row")
    await expect(rows).to_have_count(2)
    for client, count in (("laptop", "1 request"), ("ci", "2 requests")):
        await rows.filter(has_text=client).click()
        await expect(page.get_by_test_id("session-detail").get_by_role("link", name=count)).to_be_visible()
        await expect(page.locator("[data-testid=session-row][aria-current]")).to_have_count(1)
        assert f"client={client}" in page.url
    await gateway.post("routing", {"session": "same id", "client": "ci", "sticky": "spare.spare-1"})
    await expect(page.get_by_test_id("set-sticky")).to_have_value("spare.spare-1")
    await rows.filter(has_text="laptop").click()
    await expect(page.get_by_test_id("set-sticky")).to_have_value("")
