"""Instructions in the texts that reach a provider: none is left, and nothing else is missing."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings

from routecodex.routing.instructions import MOST_INSTRUCTIONS
from tests.gateway.instruction_gateway import (
    DEFAULT,
    HERE,
    PROTOCOLS,
    as_told,
    conversation,
    steered,
    target,
    told,
    turns,
    words,
)
from tests.kit import asking, grammar
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
    kept = f"kept {TAGS} as it is"
    steps: list[Step] = [
        ("user", LEFT),
        ("assistant", kept),
        ("call", "Read", {"path": kept}),
        ("result", kept),
        ("user", f"{TAGS}hi"),
    ]
    stripped: list[Step] = [("user", CLEAN), *steps[1:4], ("user", "hi")]
    async with steered(protocol, upstream=upstream) as world:
        answer = await world.say(*steps, system=kept, tools=["Read"])
        assert answer.status == 200, answer.body
        await world.say(*stripped, system=kept, tools=["Read"])
        with_tags, without = (request.body for request in world.requests)
    assert with_tags == without
    assert with_tags.count(b"<**!glm.2**>") == 4


def parted(protocol: str, *texts: str) -> dict[str, Any]:
    """One message of the user in several parts."""
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
    (message,) = conversation(protocol, request)
    return [part["text"] for part in message["parts" if protocol == "gemini" else "content"]]


@protocols
async def test_a_tag_split_over_parts_is_text_and_an_empty_part_is_dropped(protocol: str) -> None:
    async with steered(protocol) as world:
        await world.post(parted(protocol, "a <**!gl", "m.2**> b"))
        assert (parts_of(protocol, world.requests[0]), world.last) == (["a <**!gl", "m.2**> b"], DEFAULT)
        await world.post(parted(protocol, "<**!glm.2**>", "hi", " <**#eye**> "))
        assert (parts_of(protocol, world.requests[1]), world.last in AIR_B) == (["hi"], True)
        assert await world.state() == {"sticky": "glm.2", "disable": ["eye"]}


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
    "hidden by a key said twice": (
        "chat",
        b'{"model":"auto","messages":[{"role":"user","content":"<**#glm**>","content":"<**!glm.2**> hi"}]}',
        b'{"model":"air","messages":[{"role":"user","content":" hi"}]}',
    ),
}


@pytest.mark.parametrize(("protocol", "body", "expected"), ODD.values(), ids=ODD.keys())
async def test_a_tag_is_found_however_the_body_is_written(
    protocol: str, body: bytes, expected: bytes
) -> None:
    async with steered(protocol) as world:
        await world.post(body)
        assert (await world.state(), world.requests[0].body) == ({"sticky": "glm.2"}, expected)


@protocols
async def test_code_and_envelopes_are_not_obeyed(protocol: str) -> None:
    async with steered(protocol) as world:
        await world.say("<environment_context><**!glm.2**></environment_context>\n`<**!glm.2**>` ok?")
        assert (world.last, await world.state()) == (DEFAULT, {})


@streams
@protocols
async def test_what_is_malformed_is_noticed_stripped_and_not_applied(protocol: str, stream: bool) -> None:
    async with steered(protocol) as world:
        answer = await world.say("<**stopMessage:3**> hi <**#gpt**>", stream=stream)
        asking.check(protocol, answer, stream=stream)
        assert told(answer)["notice"] == (
            'ignored <**stopMessage:3**>: stopMessage needs a text in quotes, like stopMessage:"go on", '
            "a <file://?>, or clear"
        )
        assert conversation(protocol, world.requests[0]) == as_told(protocol, ("user", " hi "))
        assert await world.state() == {"disable": ["gpt"]}


@protocols
async def test_metadata_for_the_gateway_never_reaches_a_provider(protocol: str) -> None:
    home = "labels" if protocol == "gemini" else "metadata"
    ours = {"sessionId": "s-9", "conversationId": "c", "routeHint": "coding", "disableStickyRoutes": "true"}
    async with steered(protocol) as world:
        fields: dict[str, Any] = {home: ours}
        answer = await world.say("hi", headers={}, **fields)
        assert target(answer).endswith(".glm-4.7")
        (request,) = world.requests
    assert home not in request.json
    assert not any(name.encode() in request.body for name in ours)


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
    async with steered(protocol, upstream=upstream) as world:
        for example in found:
            answer = await world.say(*turns(*(text or " " for text in example)), headers={})
            assert answer.status in (200, 400, 404), answer.body
    for request in world.requests:
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
async def test_ten_thousand_tags_are_obeyed_left_to_right(protocol: str) -> None:
    many = "<**#gpt**><**@gpt**>" * 5000
    async with steered(protocol) as world:
        answer = await world.say(f"{many}<**!glm.2**> hi")
        assert (answer.status, world.last in AIR_B, await world.state()) == (200, True, {"sticky": "glm.2"})
        assert conversation(protocol, world.requests[0]) == as_told(protocol, ("user", " hi"))


@protocols
async def test_ten_thousand_malformed_tags_are_told_in_a_few_lines(protocol: str) -> None:
    async with steered(protocol) as world:
        answer = await world.say("<** **>" * 10_000)
        lines = words(protocol, answer, stream=False).splitlines()
    assert (len(lines), lines[-1]) == (12, "- and 9990 more")
    assert len(told(answer)["notice"]) < 2000


@protocols
@pytest.mark.parametrize("tag", ["<**!glm.2**>", "<** **>"])
async def test_more_tags_than_allowed_are_refused_before_any_is_obeyed(protocol: str, tag: str) -> None:
    async with steered(protocol) as world:
        answer = await world.say(f"{tag * (MOST_INSTRUCTIONS + 1)} hi")
        assert (answer.status, world.requests, await world.state()) == (400, [], {})
    field = {"responses": "input[0]", "gemini": "contents[0]"}.get(protocol, "messages[0]")
    grammar.check_error(protocol, 400, answer.body)
    assert f"{field}: a message may hold at most 20000 instructions" in answer.json["error"]["message"]


@protocols
async def test_a_megabyte_of_openings_is_ordinary_text(protocol: str) -> None:
    text = "<**" * 350_000
    async with steered(protocol) as world:
        answer = await world.say(text)
        assert (answer.status, world.last, await world.state()) == (200, ("key-eye-1", "seer"), {})
        assert conversation(protocol, world.requests[0]) == as_told(protocol, ("user", text))
        closed = await world.say(f"{text}!glm.2**> hi")
        assert (closed.status, await world.state()) == (200, {"sticky": "glm.2"})


@protocols
async def test_a_history_of_thousands_of_tags_and_confirmations_is_left_out(protocol: str) -> None:
    pair: list[Step] = [("user", "<**!glm.2**>"), ("assistant", "[RouteCodex] nothing is set.")]
    async with steered(protocol) as world:
        await world.say(*pair * 3000, "hi")
        assert conversation(protocol, world.requests[0]) == as_told(protocol, ("user", "hi"))


async def test_counting_tokens_strips_and_applies_nothing() -> None:
    async with steered("messages") as world:
        world.upstream.answer_with(lambda _: Json(200, {"input_tokens": 7}))
        body = {"model": "auto", "messages": [{"role": "user", "content": "<**!glm.2**> hi"}]}
        answer = await call(world.gateway.port, "/v1/messages/count_tokens", body, headers=HERE)
        assert (answer.json, await world.state()) == ({"input_tokens": 7}, {})
        assert world.requests[0].json["messages"] == [{"role": "user", "content": " hi"}]
