"""Instructions are removed from the texts that reach a provider, and nothing else is."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings

from routecodex.protocols import grammar
from routecodex.routing.instructions import MOST_INSTRUCTIONS
from tests.gateway.instruction_gateway import (
    DEFAULT_TARGET,
    PROTOCOLS,
    SESSION_HEADER,
    answer_text,
    client_messages,
    instruction_gateway,
    routing_headers,
    target,
    upstream_messages,
    user_turns,
)
from tests.kit import asking
from tests.kit.raw_client import call
from tests.kit.steps import Json
from tests.routing.instruction_texts import Step, wire_request

protocols = pytest.mark.parametrize("protocol", PROTOCOLS)
streams = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])

AIR_B = {("key-glm-b", "air")}
TAGS = "<**!glm.2**>"
LEFT = "a `x <**nope**>` b\n```\n<**nope**>\n```\n<system-reminder><**nope**></system-reminder> <** open"
CLEAN = "a `x ` b\n```\n\n```\n<system-reminder></system-reminder> <** open"


@pytest.mark.parametrize("upstream", ["", "chat", "messages"], ids=["same", "to-chat", "to-messages"])
@protocols
async def test_tags_are_taken_out_of_user_texts_and_of_nothing_else(protocol: str, upstream: str) -> None:
    unchanged = f"kept {TAGS} as it is"
    steps: list[Step] = [
        ("user", LEFT),
        ("assistant", unchanged),
        ("call", "Read", {"path": unchanged}),
        ("result", unchanged),
        ("user", f"{TAGS}hi"),
    ]
    stripped: list[Step] = [("user", CLEAN), *steps[1:4], ("user", "hi")]
    async with instruction_gateway(protocol, upstream=upstream) as harness:
        answer = await harness.send(*steps, system=unchanged, tools=["Read"])
        assert answer.status == 200, answer.body
        await harness.send(*stripped, system=unchanged, tools=["Read"])
        with_tags, without = (request.body for request in harness.requests)
    assert with_tags == without
    assert with_tags.count(b"<**!glm.2**>") == 4


def parted(protocol: str, *texts: str) -> dict[str, Any]:
    """Return one user message in several parts."""
    body: dict[str, Any] = msgspec.json.decode(wire_request(protocol, ("user", "x")).body)
    kind = "input_text" if protocol == "responses" else "text"
    parts: list[dict[str, Any]] = [{"type": kind, "text": text} for text in texts]
    match protocol:
        case "gemini":
            body["contents"] = [{"role": "user", "parts": [{"text": text} for text in texts]}]
        case "responses":
            body["input"] = [{"role": "user", "content": parts}]
        case _:
            body["messages"] = [{"role": "user", "content": parts}]
    return body


def parts_of(protocol: str, request: Any) -> list[str]:
    (message,) = upstream_messages(protocol, request)
    return [part["text"] for part in message["parts" if protocol == "gemini" else "content"]]


@protocols
async def test_a_tag_split_over_parts_is_text_and_an_empty_part_is_dropped(protocol: str) -> None:
    async with instruction_gateway(protocol) as harness:
        await harness.post(parted(protocol, "a <**!gl", "m.2**> b"))
        assert (parts_of(protocol, harness.requests[0]), harness.last_target) == (
            ["a <**!gl", "m.2**> b"],
            DEFAULT_TARGET,
        )
        await harness.post(parted(protocol, "<**!glm.2**>", "hi", " <**#eye**> "))
        assert (parts_of(protocol, harness.requests[1]), harness.last_target in AIR_B) == (["hi"], True)
        assert await harness.session_state() == {"sticky": "glm.2", "disable": ["eye"]}


ODD: dict[str, tuple[str, bytes, bytes]] = {
    "a bare input": (
        "responses",
        b'{"model":"auto", "input":"<**!glm.2**> hi"}',
        b'{"model":"air", "input":" hi"}',
    ),
    "escaped": (
        "chat",
        rb'{"model":"auto","messages":[{"role":"user","content":"\u003c\u002a*!glm.2**\u003e hi"}]}',
        b'{"model":"air","messages":[{"role":"user","content":" hi"}]}',
    ),
    "hidden by a duplicate key": (
        "chat",
        b'{"model":"auto","messages":[{"role":"user","content":"<**#glm**>","content":"<**!glm.2**> hi"}]}',
        b'{"model":"air","messages":[{"role":"user","content":" hi"}]}',
    ),
}


@pytest.mark.parametrize(("protocol", "body", "expected"), ODD.values(), ids=ODD.keys())
async def test_a_tag_is_found_however_the_body_is_written(
    protocol: str, body: bytes, expected: bytes
) -> None:
    async with instruction_gateway(protocol) as harness:
        await harness.post(body)
        assert (await harness.session_state(), harness.requests[0].body) == ({"sticky": "glm.2"}, expected)


@protocols
async def test_tags_in_code_and_envelopes_are_not_applied(protocol: str) -> None:
    async with instruction_gateway(protocol) as harness:
        await harness.send("<environment_context><**!glm.2**></environment_context>\n`<**!glm.2**>` ok?")
        assert (harness.last_target, await harness.session_state()) == (DEFAULT_TARGET, {})


@streams
@protocols
async def test_malformed_tags_are_stripped_with_a_notice_and_not_applied(protocol: str, stream: bool) -> None:
    async with instruction_gateway(protocol) as harness:
        answer = await harness.send("<**stopMessage:3**> hi <**#gpt**>", stream=stream)
        asking.check(protocol, answer, stream=stream)
        assert routing_headers(answer)["notice"] == (
            "instruction ignored: <**stopMessage:3**>: "
            'stopMessage needs a text in quotes, like stopMessage:"go on", '
            "a <file://%E2%80%A6>, or clear"
        )
        assert upstream_messages(protocol, harness.requests[0]) == client_messages(protocol, ("user", " hi "))
        assert await harness.session_state() == {"disable": ["gpt"]}


@protocols
async def test_a_notice_is_percent_encoded_in_its_header(protocol: str) -> None:
    plain = "instruction ignored: <**转到 glm**>: '转到 glm' is not a valid name: it contains white space"
    async with instruction_gateway(protocol) as harness:
        answer = await harness.send("<**转到 glm**> hi")
        refused = await harness.send(("user", "<**转到 glm**><**nobody.m**> hi"))
    assert (answer.status, refused.status) == (200, 404)
    notices = [routing_headers(one)["notice"] for one in (answer, refused)]
    assert [unquote(notice) for notice in notices] == [plain, plain]
    assert notices[0].startswith("instruction ignored: <**%E8%BD%AC%E5%88%B0 glm**>: ")


@protocols
async def test_metadata_for_the_gateway_never_reaches_a_provider(protocol: str) -> None:
    home = "labels" if protocol == "gemini" else "metadata"
    metadata = {
        "sessionId": "s-9",
        "conversationId": "c",
        "routeHint": "coding",
        "disableStickyRoutes": "true",
    }
    async with instruction_gateway(protocol) as harness:
        fields: dict[str, Any] = {home: metadata}
        answer = await harness.send("hi", headers={}, **fields)
        assert target(answer).endswith(".glm-4.7")
        (request,) = harness.requests
    assert home not in request.json
    assert not any(name.encode() in request.body for name in metadata)


PIECES = (
    *(
        "<**",
        "**>",
        "<*",
        "*>",
        "*",
        "`",
        "```\n",
        "\n",
        "glm.2",
        "!",
        "#gpt",
        '"',
        "\\",
        "clear",
        "é",
        "继续",
    ),
    *("<**!glm.1**>", "<**clear**>", '<**stopMessage:"', "<system-reminder>", "</system-reminder>", "h"),
)


@pytest.mark.parametrize("upstream", ["", "messages"], ids=["same", "to-messages"])
@protocols
async def test_no_instruction_ever_reaches_a_provider(protocol: str, upstream: str) -> None:
    texts = st.lists(st.lists(st.sampled_from(PIECES), max_size=12).map("".join), min_size=1, max_size=4)
    found: list[list[str]] = []

    @settings(max_examples=25, suppress_health_check=list(HealthCheck), database=None)
    @given(texts)
    def collect(example: list[str]) -> None:
        found.append(example)

    collect()
    async with instruction_gateway(protocol, upstream=upstream) as harness:
        for example in found:
            answer = await harness.send(*user_turns(*(text or " " for text in example)), headers={})
            assert answer.status in (200, 400, 404), answer.body
    for request in harness.requests:
        for text in user_texts(upstream or protocol, request.json):
            opening = text.find("<**")
            assert opening < 0 or text.find("**>", opening + 3) < 0, text


def user_texts(protocol: str, body: dict[str, Any]) -> list[str]:
    listed = body[{"responses": "input", "gemini": "contents"}.get(protocol, "messages")]
    if isinstance(listed, str):
        return [listed]
    contents = [item.get("content", item.get("parts")) for item in listed if item.get("role") == "user"]
    texts = [
        [content] if isinstance(content, str) else [part["text"] for part in content] for content in contents
    ]
    return [text for inner in texts for text in inner]


@protocols
async def test_ten_thousand_tags_are_applied_left_to_right(protocol: str) -> None:
    many = "<**#gpt**><**@gpt**>" * 5000
    async with instruction_gateway(protocol) as harness:
        answer = await harness.send(f"{many}<**!glm.2**> hi")
        assert (answer.status, harness.last_target in AIR_B, await harness.session_state()) == (
            200,
            True,
            {"sticky": "glm.2"},
        )
        assert upstream_messages(protocol, harness.requests[0]) == client_messages(protocol, ("user", " hi"))


@protocols
async def test_ten_thousand_malformed_tags_make_a_short_notice(protocol: str) -> None:
    async with instruction_gateway(protocol) as harness:
        answer = await harness.send("<** **>" * 10_000)
        lines = answer_text(protocol, answer, stream=False).splitlines()
    assert (len(lines), lines[-1]) == (12, "- and 9990 more")
    assert len(routing_headers(answer)["notice"]) < 2000


@protocols
@pytest.mark.parametrize("tag", ["<**!glm.2**>", "<** **>"])
async def test_more_tags_than_allowed_are_refused_before_any_is_applied(protocol: str, tag: str) -> None:
    async with instruction_gateway(protocol) as harness:
        answer = await harness.send(f"{tag * (MOST_INSTRUCTIONS + 1)} hi")
        assert (answer.status, harness.requests, await harness.session_state()) == (400, [], {})
    field = {"responses": "input[0]", "gemini": "contents[0]"}.get(protocol, "messages[0]")
    grammar.check_error(protocol, 400, answer.body)
    assert f"{field}: a message may hold at most 20000 instructions" in answer.json["error"]["message"]


@protocols
async def test_a_megabyte_of_openings_is_ordinary_text(protocol: str) -> None:
    text = "<**" * 350_000
    async with instruction_gateway(protocol) as harness:
        answer = await harness.send(text)
        assert (answer.status, harness.last_target, await harness.session_state()) == (
            200,
            ("key-eye-1", "seer"),
            {},
        )
        assert upstream_messages(protocol, harness.requests[0]) == client_messages(protocol, ("user", text))
        closed = await harness.send(f"{text}!glm.2**> hi")
        assert (closed.status, await harness.session_state()) == (200, {"sticky": "glm.2"})


@protocols
async def test_a_history_of_thousands_of_tags_and_confirmations_is_left_out(protocol: str) -> None:
    pair: list[Step] = [("user", "<**!glm.2**>"), ("assistant", "[RouteCodex] nothing is set.")]
    async with instruction_gateway(protocol) as harness:
        await harness.send(*pair * 3000, "hi")
        assert upstream_messages(protocol, harness.requests[0]) == client_messages(protocol, ("user", "hi"))


async def test_counting_tokens_strips_and_applies_nothing() -> None:
    async with instruction_gateway("messages") as harness:
        harness.upstream.answer_with(lambda _: Json(200, {"input_tokens": 7}))
        body = {"model": "auto", "messages": [{"role": "user", "content": "<**!glm.2**> hi"}]}
        answer = await call(harness.gateway.port, "/v1/messages/count_tokens", body, headers=SESSION_HEADER)
        assert (answer.json, await harness.session_state()) == ({"input_tokens": 7}, {})
        assert harness.requests[0].json["messages"] == [{"role": "user", "content": " hi"}]
