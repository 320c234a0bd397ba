"""Shapes that Claude Code sends: its billing header, and system messages between the others."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.gateway.instruction_gateway import answer_text, instruction_gateway, target
from tests.kit import answers, asking
from tests.kit.gateway import one_target, serving
from tests.kit.raw_client import Answer, call
from tests.kit.steps import Json
from tests.kit.upstream import Request, Upstream

UPSTREAMS = ("chat", "responses", "messages", "gemini")
HEADER = "x-anthropic-billing-header: cc_version=2.1.326.0b1; cc_entrypoint=cli; cch=1a2b3;"
CACHED = {"cache_control": {"type": "ephemeral"}}

upstreams = pytest.mark.parametrize("upstream", UPSTREAMS)


def block(text: str, **fields: Any) -> dict[str, Any]:
    return {"type": "text", "text": text, **fields}


def body(*messages: tuple[str, Any], **fields: Any) -> dict[str, Any]:
    listed = [{"role": role, "content": content} for role, content in messages]
    return {"model": "up.m", "max_tokens": 99, "messages": listed, **fields}


async def received(
    upstream: str, sent: dict[str, Any], *, more: str = "", path: str = "/v1/messages"
) -> Request:
    """Return the request that the upstream got."""

    def reply(request: Request) -> Any:
        if "ount" in request.path:
            return Json(200, {"input_tokens": 7, "totalTokens": 7})
        return answers.text(upstream, "fine", answers.wants_stream(request))

    async with Upstream(reply) as up, serving(one_target(upstream, up, more=more)) as gateway:
        answer: Answer = await call(gateway.port, path, sent)
        assert answer.status == 200, answer.body
        (request,) = up.requests
        return request


SYSTEMS: dict[str, tuple[Any, list[str]]] = {
    "block": ([block(HEADER), block("Be brief.", **CACHED)], ["Be brief."]),
    "block alone": ([block(HEADER)], []),
    "second block": ([block("Be brief."), block(HEADER), block("Be kind.")], ["Be brief.", "Be kind."]),
    "one block with the prompt": ([block(f"{HEADER}\nBe brief.")], ["Be brief."]),
    "string": (f"{HEADER}\nBe brief.", ["Be brief."]),
    "escaped": ([block(f"\n{HEADER}"), block("é")], ["é"]),
    "quoted": ([block(f"It begins with {HEADER}")], [f"It begins with {HEADER}"]),
    "long": ([block(HEADER), block("Be brief. " * 9000)], ["Be brief. " * 9000]),
    "long with the prompt": ([block(f"{HEADER}\n{'Be brief. ' * 9000}")], ["Be brief. " * 9000]),
}


def system_texts(upstream: str, request: Request) -> list[str]:
    """Return the system texts that an upstream got; chat and responses have them in one."""
    sent = request.json
    if upstream == "messages":
        system = sent.get("system") or []
        return [system] if isinstance(system, str) else [one["text"] for one in system]
    if upstream == "gemini":
        return [part["text"] for part in sent.get("systemInstruction", {}).get("parts", [])]
    if upstream == "responses":
        return [sent["instructions"]] if "instructions" in sent else []
    return [one["content"] for one in sent["messages"] if one["role"] == "system"]


@upstreams
@pytest.mark.parametrize("name", SYSTEMS)
async def test_the_billing_header_is_kept_from_other_providers(upstream: str, name: str) -> None:
    system, expected = SYSTEMS[name]
    request = await received(upstream, body(("user", "hi"), system=system))
    texts = system_texts(upstream, request)
    joined = ["\n\n".join(expected)] if expected and upstream in ("chat", "responses") else expected
    assert texts == joined
    if upstream == "messages" and isinstance(system, list):
        assert [one for one in request.json.get("system", ()) if "cache_control" in one] == [
            one for one in system if "cache_control" in one
        ]


@upstreams
@pytest.mark.parametrize("setting", ["auto", "keep", "strip"])
async def test_the_setting_of_a_provider_decides_about_the_billing_header(
    upstream: str, setting: str
) -> None:
    sent = body(("user", "hi"), system=[block(HEADER), block("Be brief.")])
    request = await received(upstream, sent, more=f'billing_header = "{setting}"')
    assert (HEADER.encode() in request.body) is (setting == "keep")


async def test_the_billing_header_reaches_anthropic() -> None:
    sent = body(("user", "hi"), system=[block(HEADER), block("Be brief.")])
    request = await received("messages", sent, more='preset = "anthropic"')
    assert request.json["system"] == sent["system"]
    stripped = await received("messages", sent, more='preset = "anthropic"\nbilling_header = "strip"')
    assert stripped.json["system"] == [block("Be brief.")]


@pytest.mark.parametrize("upstream", ["messages", "gemini"])
async def test_the_billing_header_is_not_counted(upstream: str) -> None:
    sent = body(("user", "hi"), system=[block(HEADER), block("Be brief.")])
    request = await received(upstream, sent, path="/v1/messages/count_tokens")
    assert (HEADER.encode() in request.body, b"Be brief." in request.body) == (False, True)


CALL = {"type": "tool_use", "id": "t1", "name": "f", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "t1", "content": "r"}
TOOLS = [{"name": "f", "input_schema": {"type": "object"}}]
CONVERSATION = (
    ("user", "one"),
    ("system", "note one"),
    ("assistant", [CALL]),
    ("user", [RESULT]),
    ("system", [block("note two")]),
    ("user", "two"),
    ("system", "note three"),
)


@upstreams
async def test_system_messages_stay_at_their_place(upstream: str) -> None:
    request = await received(upstream, body(*CONVERSATION, system="Be brief.", tools=TOOLS))
    texts = ('"one"', "note one", '"t1"', "note two", '"two"', "note three")
    entries = request.json.get("messages") or request.json.get("input") or request.json["contents"]
    # Google's parts are compared too: each text is a part of its own.
    places = [msgspec.json.encode(entries).index(text.encode()) for text in texts]
    assert places == sorted(places)
    assert system_texts(upstream, request)[0] == "Be brief."


async def test_an_upstream_with_one_system_message_gets_later_ones_as_user_text() -> None:
    """The chat templates of vLLM and LM Studio raise an error for a system message that is not the first."""
    sent = body(("system", "note zero"), *CONVERSATION, system="Be brief.", tools=TOOLS)
    request = await received("chat", sent, more="dialect = { merge_system = true }")
    assert [(one["role"], one.get("content")) for one in request.json["messages"]] == [
        ("system", "Be brief.\n\nnote zero"),
        ("user", "one"),
        ("user", "<system>\nnote one\n</system>"),
        ("assistant", None),
        ("tool", "r"),
        ("user", "<system>\nnote two\n</system>"),
        ("user", "two"),
        ("user", "<system>\nnote three\n</system>"),
    ]


@pytest.mark.parametrize("protocol", ["chat", "messages", "responses"])
async def test_a_message_of_tags_is_confirmed_with_a_system_message_behind_it(protocol: str) -> None:
    note = {"role": "system", "content": "note"}
    tagged = {"role": "user", "content": "<**!glm.2**>"}
    entries = "input" if protocol == "responses" else "messages"
    limit = {"max_tokens": 9} if protocol == "messages" else {}
    async with instruction_gateway(protocol) as harness:
        answer = await harness.post({"model": "auto", entries: [tagged, note], **limit})
        asking.check(protocol, answer, stream=False)
        assert (target(answer), harness.requests) == ("gateway", [])
        reply = {"role": "assistant", "content": answer_text(protocol, answer, stream=False)}
        hi = {"role": "user", "content": "hi"}
        await harness.post({"model": "auto", entries: [tagged, note, reply, hi], **limit})
        (request,) = harness.requests
    assert request.json[entries] == [note, hi]
