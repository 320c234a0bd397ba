"""References to items of earlier answers: resolved for any provider, or refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kit import answers, asking
from tests.kit.gateway import one_target, provider, serving
from tests.kit.raw_client import Answer, call
from tests.kit.steps import Json
from tests.kit.upstream import Upstream

PATH = "/v1/responses"
CALL = {"id": "fc_up", "type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
RESULT = {"type": "function_call_output", "call_id": "c1", "output": "21"}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def reference(item: str) -> dict[str, Any]:
    return {"type": "item_reference", "id": item}


async def send(port: int, *items: dict[str, Any], model: str = "up.m", **more: Any) -> Answer:
    return await call(port, PATH, {"model": model, "input": list(items), **more})


def native(response_id: str, *output: dict[str, Any]) -> Json:
    """Return an answer of a responses provider with its own ids."""
    body = answers.text("responses", "x", False)
    assert isinstance(body, Json)
    return Json(200, {**body.body, "id": response_id, "output": list(output)})


def message(item_id: str, text: str) -> dict[str, Any]:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {"id": item_id, "type": "message", "role": "assistant", "status": "completed", "content": content}


def two_providers(first: Upstream, second: Upstream) -> str:
    return (
        "[server]\nport = 0\n"
        + provider("up", "responses", first)
        + provider("other", "chat", second)
        + '[routing]\ndefault = ["up.m", "other.m"]\n'
    )


async def test_a_reference_to_a_message_is_resolved() -> None:
    async with Upstream() as up:
        up.queue(answers.text("chat", "42", False), answers.text("chat", "ok", False))
        async with serving(one_target("chat", up)) as gateway:
            created = await send(gateway.port, user("q1"))
            item = reference(created.json["output"][0]["id"])
            answer = await send(gateway.port, user("q1"), item, user("q2"))
        asking.check("responses", answer, stream=False)
        assert up.requests[1].json["messages"] == [
            {"role": "user", "content": "q1"},
            {"role": "assistant", "content": "42"},
            {"role": "user", "content": "q2"},
        ]


@pytest.mark.parametrize("upstream", ["chat", "messages", "gemini"])
async def test_references_to_reasoning_and_calls_are_resolved(upstream: str) -> None:
    async with Upstream() as up:
        up.queue(
            answers.tool_call(upstream, "get_weather", {"city": "Bern"}, "call_9", stream=False),
            answers.text(upstream, "Rainy.", False),
        )
        async with serving(one_target(upstream, up)) as gateway:
            body = asking.body("responses", "Weather?", stream=False, tools=True)
            created = (await call(gateway.port, PATH, body)).json["output"]
            (called,) = [item for item in created if item["type"] == "function_call"]
            output = {"type": "function_call_output", "call_id": called["call_id"], "output": "rain"}
            items = [user("Weather?"), *[reference(item["id"]) for item in created], output]
            answer = await call(gateway.port, PATH, {**body, "input": items})
        asking.check("responses", answer, stream=False)
        assert b'"Bern' in up.requests[1].body or b'\\"Bern' in up.requests[1].body
        assert b"rain" in up.requests[1].body


async def test_a_custom_call_is_found_by_its_id() -> None:
    tools = [{"type": "custom", "name": "patch"}]
    async with Upstream() as up:
        up.queue(
            answers.tool_call("chat", "patch", {"input": "*** Begin"}, "call_1", stream=False),
            answers.text("chat", "ok", False),
        )
        async with serving(one_target("chat", up)) as gateway:
            (item,) = (await send(gateway.port, user("q"), tools=tools)).json["output"]
            output = {"type": "custom_tool_call_output", "call_id": item["call_id"], "output": "done"}
            answer = await send(gateway.port, user("q"), reference(item["id"]), output, tools=tools)
        assert item["id"].startswith("ctc_")
        assert answer.status == 200
        assert [message["role"] for message in up.requests[1].json["messages"]] == [
            "user",
            "assistant",
            "tool",
        ]


async def test_references_to_items_of_a_responses_provider_are_resolved_for_another_provider() -> None:
    async with Upstream() as up, Upstream() as other:
        up.queue(native("resp_up", message("msg_up", "Calling."), CALL))
        other.queue(answers.text("chat", "ok", False))
        async with serving(two_providers(up, other)) as gateway:
            await send(gateway.port, user("q1"))
            items = (user("q1"), reference("msg_up"), reference("fc_up"), RESULT)
            answer = await send(gateway.port, *items, model="other.m")
        assert answer.status == 200
        (restored_call,) = other.requests[0].json["messages"][1]["tool_calls"]
        assert restored_call["function"] == {"name": "f", "arguments": "{}"}
        assert other.requests[0].json["messages"][1]["content"] == "Calling."
        assert other.requests[0].json["messages"][2]["content"] == "21"


async def test_references_are_passed_on_to_the_provider_that_created_the_items() -> None:
    async with Upstream() as up:
        up.queue(native("resp_up", message("msg_up", "One.")), answers.text("responses", "Two.", False))
        async with serving(one_target("responses", up)) as gateway:
            await send(gateway.port, user("1"))
            await send(gateway.port, user("1"), reference("msg_up"), user("2"))
        assert up.requests[1].json["input"] == [user("1"), reference("msg_up"), user("2")]


async def test_references_to_items_of_another_provider_are_resolved_for_a_responses_provider() -> None:
    async with Upstream() as up, Upstream() as other:
        up.queue(answers.text("responses", "Two.", False))
        other.queue(answers.text("chat", "One.", False))
        async with serving(two_providers(up, other)) as gateway:
            created = await send(gateway.port, user("1"), model="other.m")
            item = created.json["output"][0]
            await send(gateway.port, user("1"), reference(item["id"]), user("2"))
        assert up.requests[0].json["input"] == [user("1"), item, user("2")]


async def test_references_of_earlier_turns_are_resolved() -> None:
    async with Upstream() as up:
        up.queue(*[answers.text("chat", text, False) for text in ("One.", "Two.", "Three.")])
        async with serving(one_target("chat", up)) as gateway:
            first = await send(gateway.port, user("1"))
            item = reference(first.json["output"][0]["id"])
            second = await send(gateway.port, user("1"), item, user("2"))
            listed = await call(
                gateway.port, f"{PATH}/{second.json['id']}/input_items?order=asc", method="GET"
            )
            await send(gateway.port, user("3"), previous_response_id=second.json["id"])
        contents = [message["content"] for message in up.requests[2].json["messages"]]
        assert contents == ["1", "One.", "2", "Two.", "3"]
        assert listed.json["data"][1] == first.json["output"][0]


@pytest.mark.parametrize("created", ["msg_0a1b_0", "msg_of_somebody"])
async def test_an_unknown_reference_is_a_clear_error(created: str) -> None:
    async with Upstream() as up:
        async with serving(one_target("chat", up)) as gateway:
            answer = await send(gateway.port, user("1"), reference(created), user("2"))
        assert up.requests == []
    assert (answer.status, answer.json["error"]["param"]) == (400, "input[1].id")
    assert answer.json["error"]["code"] == "item_not_found"
    assert created in answer.json["error"]["message"]


async def test_an_unknown_reference_is_passed_on_to_a_provider_that_may_hold_it() -> None:
    async with Upstream() as up:
        up.queue(answers.text("responses", "ok", False))
        async with serving(one_target("responses", up)) as gateway:
            answer = await send(gateway.port, reference("msg_older"), user("<**up.m**>2"))
        assert answer.status == 200
        assert up.requests[0].json["input"] == [reference("msg_older"), user("2")]


async def test_items_of_an_answer_that_was_not_stored_are_unknown() -> None:
    async with Upstream() as up:
        up.queue(answers.text("chat", "One.", False))
        async with serving(one_target("chat", up)) as gateway:
            created = await send(gateway.port, user("1"), store=False)
            answer = await send(gateway.port, reference(created.json["output"][0]["id"]), user("2"))
    assert (answer.status, answer.json["error"]["param"]) == (400, "input[0].id")


async def test_a_reference_without_an_id_is_refused() -> None:
    async with Upstream() as up, serving(one_target("chat", up)) as gateway:
        answer = await send(gateway.port, {"type": "item_reference"}, user("2"))
    assert (answer.status, answer.json["error"]["param"]) == (400, "input[0].id")


async def test_a_deleted_answer_is_gone_even_if_its_provider_stores_it() -> None:
    async with Upstream() as up:
        up.queue(native("resp_up", message("msg_up", "One.")))
        async with serving(one_target("responses", up)) as gateway:
            await send(gateway.port, user("1"))
            where = f"{PATH}/resp_up"
            deleted = await call(gateway.port, where, method="DELETE")
            again = [await call(gateway.port, where, method=method) for method in ("GET", "DELETE")]
            continued = await send(gateway.port, user("2"), previous_response_id="resp_up")
            referred = await send(gateway.port, reference("msg_up"), user("2"))
        assert len(up.requests) == 1
    assert deleted.json["deleted"] is True
    assert [answer.status for answer in again] == [404, 404]
    assert (continued.status, continued.json["code"]) == (400, "previous_response_not_found")
    assert (referred.status, referred.json["code"]) == (400, "item_not_found")
