"""Every action of the console against a real gateway: its effect in the admin API and on the next request."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest
from playwright.async_api import Locator, Page, Route, expect

from tests.kit.raw_client import call
from tests.ui.console_gateway import ConsoleGateway
from tests.ui.gateway_pages import OpenConsole, expect_done, expect_live

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def session_page(open_console: OpenConsole, gateway: ConsoleGateway, session: str) -> Page:
    """Open the page of a session that has one request."""
    await gateway.target(session=session)
    page = await open_console(f"sessions?id={session}")
    await expect(page.get_by_test_id("turns").locator("svg")).to_be_visible()
    await expect_live(page)
    return page


async def apply(page: Page, name: str, text: str) -> None:
    await page.get_by_test_id(name).fill(text)
    await page.get_by_test_id(f"{name}-apply").click()
    await expect_done(page)


async def state_of(gateway: ConsoleGateway, session: str) -> Any:
    return (await gateway.get(f"sessions?id={session}"))["session"]


async def test_sticky_target_of_a_session_gets_its_next_request(
    open_console: OpenConsole, gateway: ConsoleGateway
) -> None:
    page = await session_page(open_console, gateway, "sticky")
    await apply(page, "set-sticky", "spare.spare-1")
    assert (await state_of(gateway, "sticky"))["sticky"] == "spare.spare-1"
    assert await gateway.target(session="sticky") == "spare.key1.spare-1"
    assert (await gateway.target(session="not sticky")).startswith("demo.")
    await page.get_by_test_id("set-sticky-clear").click()
    await expect_done(page)
    await expect(page.get_by_test_id("set-sticky")).to_have_value("")
    assert (await state_of(gateway, "sticky"))["sticky"] is None


async def test_allowed_and_disabled_providers_of_a_session_hold_for_its_next_request(
    open_console: OpenConsole, gateway: ConsoleGateway
) -> None:
    page = await session_page(open_console, gateway, "allow")
    await apply(page, "set-allow", "spare")
    assert await gateway.target(session="allow") == "spare.key1.spare-1"
    await page.get_by_test_id("set-allow-clear").click()
    await expect_done(page)
    await apply(page, "set-disable", "spare")
    assert (await state_of(gateway, "allow"))["disable"] == ["spare"]
    assert (await gateway.target(session="allow")).startswith("demo.")
    await apply(page, "set-disable", "demo.primary, demo.backup")
    assert await gateway.target(session="allow") == "spare.key1.spare-1"
    await page.get_by_test_id("set-disable-clear").click()
    await expect_done(page)
    assert (await state_of(gateway, "allow"))["disable"] == []


async def test_unknown_target_is_refused_in_place(open_console: OpenConsole, gateway: ConsoleGateway) -> None:
    await gateway.target(session="wrong")
    page = await open_console("sessions?id=wrong", refusals=True)
    await page.get_by_test_id("set-sticky").fill("nobody.knows")
    await page.get_by_test_id("set-sticky-apply").click()
    await expect(page.get_by_test_id("toast")).to_contain_text("nobody.knows")
    await expect(page.get_by_test_id("toast")).to_have_attribute("data-kind", "error")
    await expect(page.get_by_test_id("set-sticky")).to_have_value("nobody.knows")


async def test_stop_message_continues_the_next_request_and_its_use_is_counted(
    open_console: OpenConsole, gateway: ConsoleGateway
) -> None:
    page = await session_page(open_console, gateway, "stopped")
    await page.get_by_test_id("stop-text").fill("go on")
    await page.get_by_test_id("stop-max").fill("3")
    await page.get_by_test_id("stop-apply").click()
    await expect_done(page)
    await expect(page.get_by_test_id("stop-used")).to_have_text("0 of 3 used")
    await gateway.target(session="stopped")
    used = (await state_of(gateway, "stopped"))["stop_message"]["used"]
    assert used > 0
    await gateway.until_row(lambda row: (row["session"], row.get("rounds")) == ("stopped", used + 1))
    await expect(page.get_by_test_id("stop-used")).to_have_text(f"{used} of 3 used")
    await page.get_by_test_id("stop-clear").click()
    await expect_done(page)
    assert (await state_of(gateway, "stopped"))["stop_message"] is None


async def test_tasks_of_the_clock_are_added_and_cancelled(
    open_console: OpenConsole, gateway: ConsoleGateway
) -> None:
    page = await session_page(open_console, gateway, "clock")
    await page.get_by_test_id("task-text").fill("look again")
    await page.get_by_test_id("task-due").fill("2099-01-02T03:04")
    await page.get_by_test_id("task-add").click()
    await expect_done(page)
    await expect(page.get_by_test_id("task-row")).to_contain_text("look again")
    tasks = (await state_of(gateway, "clock"))["tasks"]
    assert [(one["task"], one["dueAt"][:7]) for one in tasks] == [("look again", "2099-01")]
    await expect(page.get_by_test_id("task-row")).to_have_attribute("data-task-id", tasks[0]["taskId"])
    await page.get_by_test_id("task-cancel").click()
    await expect(page.get_by_test_id("task-row")).to_have_count(0)
    assert (await state_of(gateway, "clock"))["tasks"] == []


def key_row(page: Page, name: str) -> Locator:
    return page.locator(f"[data-key='{name}']")


async def test_disabled_key_gets_no_request_until_it_is_enabled(
    open_console: OpenConsole, gateway: ConsoleGateway
) -> None:
    page = await open_console("providers")
    for key in ("demo.primary", "demo.backup"):
        await key_row(page, key).get_by_test_id("key-disable").click()
        await expect_done(page)
        await expect(key_row(page, key)).to_have_attribute("data-state", "disabled")
    assert await gateway.target(session="keys off") == "spare.key1.spare-1"
    await key_row(page, "demo.backup").get_by_test_id("key-enable").click()
    await expect_done(page)
    assert await gateway.target(session="one key on") == "demo.backup.demo-1"
    await key_row(page, "demo.primary").get_by_test_id("key-enable").click()
    await expect(key_row(page, "demo.primary")).to_have_attribute("data-state", "ok")


async def test_refused_key_is_shown_and_its_reset_ends_the_cooldown(
    open_console: OpenConsole, gateway: ConsoleGateway
) -> None:
    page = await open_console("providers")
    await expect_live(page)
    row = key_row(page, "spare.key1")
    await expect(row).to_have_attribute("data-state", "ok")
    await gateway.ask("demo:error 401", model="spare.spare-1", session="refused")
    await expect(row).not_to_have_attribute("data-state", "ok")
    await row.get_by_test_id("key-reset").click()
    await expect_done(page)
    await expect(row).to_have_attribute("data-state", "ok")
    assert await gateway.target(model="spare.spare-1", session="again") == "spare.key1.spare-1"


async def test_key_is_tested_with_one_request(open_console: OpenConsole, gateway: ConsoleGateway) -> None:
    page = await open_console("providers")
    await key_row(page, "demo.backup").get_by_test_id("key-test").click()
    await expect(page.get_by_test_id("test-result")).to_have_attribute("data-ok", "true")


async def models_status(gateway: ConsoleGateway, key: str) -> int:
    headers = {"authorization": f"Bearer {key}"}
    return (await call(gateway.port, "/v1/models", method="GET", headers=headers)).status


async def test_key_of_a_new_client_works_until_it_is_blocked_or_revoked(
    open_console: OpenConsole, gateway: ConsoleGateway
) -> None:
    page = await open_console("keys")
    await page.get_by_test_id("client-new").click()
    await page.get_by_test_id("client-name").fill("tablet")
    await page.get_by_test_id("client-limit").fill("2 requests/day")
    await page.get_by_test_id("client-create").click()
    await expect_done(page)
    key = await page.get_by_test_id("client-key").inner_text()
    row = page.locator("[data-client=tablet]")
    await expect(row).to_contain_text("2 requests/day")
    statuses = [(await gateway.ask(key=key)).status for _ in range(3)]
    assert statuses == [200, 200, 429]

    await row.get_by_test_id("client-edit").click()
    await page.get_by_test_id("client-limit").fill("100 requests/day")
    await page.get_by_test_id("client-create").click()
    await expect_done(page)
    await expect(row).to_contain_text("100 requests/day")
    assert (await gateway.ask(key=key)).status == 200

    await row.get_by_test_id("client-block").click()
    await expect_done(page)
    await expect(row).to_contain_text("blocked")
    assert await models_status(gateway, key) == 403
    await row.get_by_test_id("client-block").click()
    await expect_done(page)
    assert await models_status(gateway, key) == 200

    await row.get_by_test_id("client-rotate").click()
    await page.get_by_test_id("confirm-yes").click()
    await expect_done(page)
    newer = await page.get_by_test_id("client-key").inner_text()
    assert newer != key
    assert [await models_status(gateway, one) for one in (newer, key)] == [200, 200]
    await row.get_by_test_id("client-revoke").click()
    await page.get_by_test_id("confirm").get_by_role("button", name="Cancel").click()
    assert await models_status(gateway, newer) == 200
    await row.get_by_test_id("client-revoke").click()
    await page.get_by_test_id("confirm-yes").click()
    await expect(row).to_have_count(0)
    assert [await models_status(gateway, one) for one in (newer, key)] == [401, 401]


async def test_reload_uses_the_file_and_a_wrong_one_leaves_all_as_it_was(
    open_console: OpenConsole, gateway: ConsoleGateway
) -> None:
    page = await open_console("config")
    await expect(page.locator("[data-key='server.id']")).to_have_attribute("data-source", "file")
    text = gateway.file.read_text("utf-8")
    await expect(page.get_by_test_id("config-text")).to_contain_text('admin_token = "…"')
    try:
        gateway.file.write_text(text + "\n[aliases]\n", "utf-8")
        await page.get_by_test_id("config-reload").click()
        await expect_done(page, kind="error")
        await expect(page.get_by_test_id("config-problem").first).to_contain_text("aliases")
        gateway.file.write_text(
            text.replace('["demo.demo-1", "spare.spare-1"]', '["spare.spare-1"]'), "utf-8"
        )
        await page.get_by_test_id("config-reload").click()
        await expect_done(page)
        await expect(page.get_by_test_id("config-problem")).to_have_count(0)
        assert await gateway.targets() == {"spare"}
    finally:
        gateway.file.write_text(text, "utf-8")
        await gateway.post("reload")
    assert await gateway.targets() == {"demo"}


async def test_text_of_a_configuration_is_checked(open_console: OpenConsole, gateway: ConsoleGateway) -> None:
    page = await open_console("config")
    draft = page.get_by_test_id("config-draft")
    await expect(draft).not_to_have_value("")
    await draft.fill(await draft.input_value() + "\n[console]\nsession_hours = -1\n")
    await page.get_by_test_id("config-check").click()
    problem = page.get_by_test_id("config-problem")
    await expect(problem).to_contain_text("console.session_hours")
    lines = gateway.file.read_text("utf-8").count("\n")
    await expect(problem).to_have_attribute("data-line", str(lines + 3))


async def test_explain_shows_the_plan_of_a_body_of_a_recent_request_and_of_another_configuration(
    open_console: OpenConsole, gateway: ConsoleGateway
) -> None:
    await gateway.target(session="explained")
    last = (await gateway.until_row(lambda row: row["session"] == "explained"))["request"]
    page = await open_console("routing")
    await expect(page.locator("[data-route=coding] [data-testid=target]")).to_have_count(3)
    result = page.get_by_test_id("explain-result")
    for protocol in ("messages", "responses", "chat", "gemini"):
        await page.get_by_test_id("explain-protocol").select_option(protocol)
        await page.get_by_test_id("explain-run").click()
        await expect_done(page)
        await expect(result.get_by_test_id("plan-step").filter(has_text="demo-1").first).to_be_visible()
    text = gateway.file.read_text("utf-8").replace('["demo.demo-1", "spare.spare-1"]', '["spare.spare-1"]')
    await page.get_by_test_id("explain-request").select_option(last)
    await page.get_by_test_id("explain-config").fill(text)
    await page.get_by_test_id("explain-run").click()
    await expect_done(page)
    await expect(result.get_by_test_id("plan-step").last).to_contain_text("spare.key1.spare-1")
    assert (await gateway.target(session="explained later")).startswith("demo.")


@pytest.mark.parametrize("protocol", ["messages", "responses", "chat", "gemini"])
async def test_playground_streams_in_every_protocol(
    open_console: OpenConsole, gateway: ConsoleGateway, protocol: str
) -> None:
    page = await open_console("playground")
    await page.get_by_test_id("play-protocol").select_option(protocol)
    await page.get_by_test_id("play-model").fill("gpt-5")
    await page.get_by_test_id("play-session").fill(f"play {protocol}")
    await page.get_by_test_id("play-text").fill("demo:say <b>bold</b> words")
    await page.get_by_test_id("play-send").click()
    answer = page.get_by_test_id("play-answer")
    await expect(answer).to_have_attribute("data-state", "done")
    await expect(answer).to_contain_text("<b>bold</b> words")
    await expect(page.get_by_test_id("play-plan").get_by_test_id("plan-step").last).to_contain_text("demo-1")
    await expect(page.get_by_test_id("play-wire")).to_contain_text("data: {")
    row = await gateway.until_row(lambda row: row["session"] == f"play {protocol}")
    assert (row["protocol"], row["client"], row["status"]) == (protocol, "console", 200)


async def test_playground_model_that_is_typed_replaces_the_first_one_that_arrives_meanwhile(
    open_console: OpenConsole, gateway: ConsoleGateway
) -> None:
    page = await open_console()
    begun = asyncio.Event()

    async def later(route: Route) -> None:
        await begun.wait()
        await route.continue_()

    await page.route(re.compile(r"/admin/.*providers"), later)
    await page.goto(f"{gateway.origin}/ui/playground")
    model = page.get_by_test_id("play-model")
    await model.focus()
    begun.set()
    await expect(model).to_have_value("demo.demo-1")
    await page.keyboard.type("gpt-5")
    await expect(model).to_have_value("gpt-5")


async def test_playground_shows_the_error_of_a_provider(
    open_console: OpenConsole, gateway: ConsoleGateway
) -> None:
    page = await open_console("playground", refusals=True)
    await page.get_by_test_id("play-model").fill("spare.spare-1")
    await page.get_by_test_id("play-text").fill("demo:error 400")
    await page.get_by_test_id("play-send").click()
    await expect(page.get_by_test_id("play-answer")).to_have_attribute("data-state", "error")
    await expect(page.get_by_test_id("play-answer")).to_contain_text("fail with 400")


async def test_inspector_shows_a_captured_request_and_replays_it_to_another_target(
    open_console: OpenConsole, gateway: ConsoleGateway
) -> None:
    answer = await gateway.ask("demo:say inspect me", protocol="messages", session="inspected")
    request = answer.headers["x-request-id"]
    page = await open_console(f"requests?id={request}")
    await page.get_by_test_id("request-detail").get_by_role("link", name="Inspector").click()
    await expect(page.get_by_test_id("capture-client")).to_contain_text("demo:say inspect me")
    await expect(page.get_by_test_id("capture-client")).to_contain_text("POST /v1/messages")
    await expect(page.get_by_test_id("capture-upstream")).to_contain_text("demo-1")
    await expect(page.get_by_test_id("capture-diff").locator(".del").first).to_contain_text("auto")
    await expect(page.get_by_test_id("capture-frames").locator("li").first).to_be_visible()
    await page.get_by_test_id("replay-target").fill("spare.spare-1")
    await page.get_by_test_id("replay-run").click()
    await expect_done(page)
    row = await gateway.until_row(lambda row: row["session"].endswith(request))
    assert (row["client"], row["target"], row["protocol"]) == ("console", "spare.key1.spare-1", "messages")
    await expect(page.locator("pre").last).to_contain_text("inspect")
