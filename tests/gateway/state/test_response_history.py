"""The Responses API stores conversations for upstreams of every protocol."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest

from routecodex.protocols import grammar
from tests.kit import answers, asking
from tests.kit.gateway import one_target, provider, serving
from tests.kit.raw_client import Answer, call
from tests.kit.upstream import Upstream

PROTOCOLS = ("chat", "responses", "messages", "gemini")
PATH = "/v1/responses"


def final(answer: Answer, *, stream: bool) -> Any:
    if not stream:
        return answer.json
    last = answer.body.rstrip().rpartition(b"data: ")[2]
    return Answer(200, {}, last).json["response"]


def texts(protocol: str, sent: Any) -> list[str]:
    """Return the texts of the conversation that an upstream received."""
    match protocol:
        case "chat":
            return [_flat(message["content"]) for message in sent["messages"]]
        case "messages":
            return [_flat(message["content"]) for message in sent["messages"]]
        case "gemini":
            return [
                "".join(part.get("text", "") for part in content["parts"]) for content in sent["contents"]
            ]
        case _:
            return [_flat(item["content"]) for item in sent["input"] if "content" in item]


def _flat(content: Any) -> str:
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("upstream", ["chat", "messages", "gemini"])
async def test_a_conversation_goes_on_from_a_previous_response(upstream: str, stream: bool) -> None:
    async with Upstream() as up:
        for text in ("I am well.", "Still well.", "Goodbye."):
            up.queue(answers.text(upstream, text, stream))
        async with serving(one_target(upstream, up)) as gateway:
            previous = None
            for question in ("How are you?", "And now?", "Bye"):
                body = asking.body("responses", question, stream=stream)
                if previous:
                    body["previous_response_id"] = previous
                answer = await call(gateway.port, PATH, body)
                asking.check("responses", answer, stream=stream)
                response = final(answer, stream=stream)
                assert response["previous_response_id"] == previous
                previous = response["id"]
        assert texts(upstream, up.requests[2].json) == [
            "How are you?",
            "I am well.",
            "And now?",
            "Still well.",
            "Bye",
        ]
        assert b"previous_response_id" not in up.requests[2].body


async def test_a_provider_that_stores_conversations_gets_the_previous_id() -> None:
    async with Upstream() as up:
        up.queue(answers.text("responses", "One.", False), answers.text("responses", "Two.", False))
        async with serving(one_target("responses", up)) as gateway:
            first = await call(gateway.port, PATH, asking.body("responses", "1", stream=False))
            body = {**asking.body("responses", "2", stream=False), "previous_response_id": first.json["id"]}
            await call(gateway.port, PATH, body)
        assert up.requests[1].json["previous_response_id"] == first.json["id"]
        assert up.requests[1].json["input"] == "2"


async def test_another_provider_gets_the_whole_conversation_when_the_first_is_down() -> None:
    async with Upstream() as holder, Upstream() as other:
        holder.queue(answers.text("responses", "One.", False), answers.error("responses", 500))
        other.queue(answers.text("chat", "Two.", False))
        text = (
            "[server]\nport = 0\n"
            + provider("holder", "responses", holder)
            + provider("other", "chat", other)
            + '[routing]\ndefault = [{ mode = "priority", targets = ["holder.m", "other.m"] }]\n'
        )
        async with serving(text) as gateway:
            first = await call(gateway.port, PATH, asking.body("responses", "1", stream=False, model="x"))
            body = {
                **asking.body("responses", "2", stream=False, model="x"),
                "previous_response_id": first.json["id"],
            }
            second = await call(gateway.port, PATH, body)
        assert second.status == 200
        assert texts("chat", other.requests[0].json) == ["1", "One.", "2"]


async def test_a_stored_response_can_be_fetched_listed_and_deleted() -> None:
    async with Upstream() as up:
        up.queue(answers.text("chat", "Kept.", False))
        async with serving(one_target("chat", up)) as gateway:
            created = await call(gateway.port, PATH, asking.body("responses", "Keep this", stream=False))
            where = f"{PATH}/{created.json['id']}"
            assert (await call(gateway.port, where, method="GET")).json == created.json
            items = await call(gateway.port, f"{where}/input_items", method="GET")
            assert items.json["data"][0]["content"][0]["text"] == "Keep this"
            gone = await call(gateway.port, where, method="DELETE")
            assert gone.json == {"id": created.json["id"], "object": "response", "deleted": True}
            missing = await call(gateway.port, where, method="GET")
    assert missing.status == 404
    grammar.check_error("responses", 404, missing.body)


async def test_the_input_of_a_stored_response_is_listed_in_pages() -> None:
    async with Upstream() as up:
        up.queue(answers.text("chat", "Kept.", False))
        async with serving(one_target("chat", up)) as gateway:
            items = [{"role": "user", "content": text} for text in "abc"]
            created = await call(gateway.port, PATH, {"model": "up.m", "input": items})
            where = f"{PATH}/{created.json['id']}/input_items"
            newest = (await call(gateway.port, f"{where}?limit=2", method="GET")).json
            rest = (await call(gateway.port, f"{where}?limit=2&after={newest['last_id']}", method="GET")).json
            wrong = await call(gateway.port, f"{where}?limit=many", method="GET")
    assert [[item["content"][0]["text"] for item in page["data"]] for page in (newest, rest)] == [
        ["c", "b"],
        ["a"],
    ]
    assert (newest["has_more"], rest["has_more"]) == (True, False)
    assert (wrong.status, wrong.json["error"]["param"]) == (400, "limit")


async def test_a_stored_response_is_not_streamed() -> None:
    async with Upstream() as up:
        up.queue(answers.text("chat", "Kept.", False))
        async with serving(one_target("chat", up)) as gateway:
            created = await call(gateway.port, PATH, asking.body("responses", stream=False))
            where = f"{PATH}/{created.json['id']}"
            streamed = await call(gateway.port, f"{where}?stream=true", method="GET")
            whole = await call(gateway.port, f"{where}?stream=false", method="GET")
    assert (streamed.status, streamed.json["error"]["param"]) == (400, "stream")
    assert whole.json == created.json


async def test_store_false_stores_nothing() -> None:
    async with Upstream() as up:
        up.queue(answers.text("chat", "Forgotten.", False))
        async with serving(one_target("chat", up)) as gateway:
            body = {**asking.body("responses", stream=False), "store": False}
            created = await call(gateway.port, PATH, body)
            assert (await call(gateway.port, f"{PATH}/{created.json['id']}", method="GET")).status == 404


async def test_an_unknown_previous_response_is_a_clear_error() -> None:
    async with Upstream() as up:
        async with serving(one_target("chat", up)) as gateway:
            body = {**asking.body("responses", stream=True), "previous_response_id": "resp_never"}
            answer = await call(gateway.port, PATH, body)
        assert up.requests == []
    assert answer.status == 400
    assert answer.json["error"]["param"] == "previous_response_id"
    assert answer.json["error"]["code"] == "previous_response_not_found"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("upstream", PROTOCOLS)
async def test_submitted_tool_outputs_continue_the_turn(upstream: str, stream: bool) -> None:
    async with Upstream() as up:
        up.queue(
            answers.tool_call(upstream, "get_weather", {"city": "Bern"}, "call_9", stream=False),
            answers.text(upstream, "Rainy.", stream),
        )
        async with serving(one_target(upstream, up)) as gateway:
            created = await call(
                gateway.port, PATH, asking.body("responses", "Weather?", stream=False, tools=True)
            )
            (call_item,) = [item for item in created.json["output"] if item["type"] == "function_call"]
            outputs = [{"tool_call_id": call_item["call_id"], "output": "rain, 9 degrees"}]
            where = f"{PATH}/{created.json['id']}/submit_tool_outputs"
            answer = await call(gateway.port, where, {"tool_outputs": outputs, "stream": stream})
        asking.check("responses", answer, stream=stream)
        assert b"rain, 9 degrees" in up.requests[1].body
        assert b"get_weather" in up.requests[1].body
    assert b"Rainy." in answer.body


async def test_submitting_for_an_unknown_call_names_it() -> None:
    async with Upstream() as up:
        up.queue(answers.text("chat", "No calls.", False))
        async with serving(one_target("chat", up)) as gateway:
            created = await call(gateway.port, PATH, asking.body("responses", stream=False))
            where = f"{PATH}/{created.json['id']}/submit_tool_outputs"
            answer = await call(
                gateway.port, where, {"tool_outputs": [{"tool_call_id": "nope", "output": "x"}]}
            )
    assert answer.status == 400
    assert "nope" in answer.json["error"]["message"]


async def test_history_survives_a_restart_in_the_file_store(tmp_path: pathlib.Path) -> None:
    async with Upstream() as up:
        up.queue(answers.text("chat", "One.", False), answers.text("chat", "Two.", False))
        text = one_target("chat", up) + f'[store]\nurl = "file:{tmp_path}"\n'
        async with serving(text) as gateway:
            first = await call(gateway.port, PATH, asking.body("responses", "1", stream=False))
        async with serving(text) as gateway:
            body = {**asking.body("responses", "2", stream=False), "previous_response_id": first.json["id"]}
            second = await call(gateway.port, PATH, body)
        assert second.status == 200
        assert texts("chat", up.requests[1].json) == ["1", "One.", "2"]


async def test_the_oldest_answers_are_deleted_when_there_are_too_many() -> None:
    async with Upstream() as up:
        up.answer_with(lambda request: answers.text("chat", "Word.", False))
        text = one_target("chat", up) + '[store]\nurl = "memory:"\nresponses_max_entries = 5\n'
        async with serving(text) as gateway:
            ids = []
            for _ in range(64):
                created = await call(gateway.port, PATH, asking.body("responses", stream=False))
                ids.append(created.json["id"])
            first = await call(gateway.port, f"{PATH}/{ids[0]}", method="GET")
            last = await call(gateway.port, f"{PATH}/{ids[-1]}", method="GET")
    assert (first.status, last.status) == (404, 200)


async def test_a_conversation_continues_with_the_key_that_stores_it() -> None:
    """Accounts do not see each other's responses: another key gets the whole conversation instead."""
    async with Upstream() as up:
        up.queue(
            answers.error("responses", 500),
            answers.text("responses", "One.", False),
            answers.text("responses", "Two.", False),
            answers.error("responses", 500),
            answers.text("responses", "Three.", False),
        )
        more = 'auth = [{ alias = "a", value = "key-a" }, { alias = "b", value = "key-b" }]'
        text = one_target("responses", up).replace(
            'auth = [{ alias = "primary", value = "secret-up" }]', more
        )
        async with serving(text) as gateway:
            previous = None
            for question in ("1", "2", "3"):
                body = asking.body("responses", question, stream=False)
                if previous:
                    body["previous_response_id"] = previous
                previous = (await call(gateway.port, PATH, body)).json["id"]
        keys = [request.headers["authorization"].removeprefix("Bearer key-") for request in up.requests]
        first, then = keys[:2]
        assert {first, then} == {"a", "b"}
        assert keys == [first, then, then, then, first]
        assert [("previous_response_id" in request.json) for request in up.requests] == [
            *(False, False, True),
            *(True, False),
        ]
        assert texts("responses", up.requests[4].json) == ["1", "One.", "2", "Two.", "3"]
