"""Sessions over HTTP: every way to name one, chains of responses, and requests without a session."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from routecodex.gateway.context.identity import Scope
from routecodex.gateway.state import sessions
from routecodex.stores.file import FileStore
from tests.gateway.instruction_gateway import (
    DEFAULT_TARGET,
    PROTOCOLS,
    SESSION,
    InstructionHarness,
    instruction_gateway,
    target,
)
from tests.kit import asking
from tests.kit.raw_client import Answer
from tests.kit.steps import Json, Sse
from tests.kit.upstream import Request
from tests.routing.instruction_texts import Step

protocols = pytest.mark.parametrize("protocol", PROTOCOLS)
streams = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])

GLM = ("key-glm-b", "air")
SET = "<**!glm.2**> hi"
ONE = "6f0b3a52-4c1e-4b57-9d11-0a7c52f6b8aa"
OTHER = "6F0B3A52-4c1e-4b57-9d11-0a7c52f6b8aa"
HEADERS = (
    *("x-session-id", "session-id", "session_id", "x-claude-code-session-id", "x-session-affinity"),
    *("x-conversation-id", "conversation_id", "conversation-id", "thread-id"),
)
FIELDS: dict[str, dict[str, Any]] = {
    "metadata.sessionId": {"metadata": {"sessionId": "{}"}},
    "metadata.conversationId": {"metadata": {"conversationId": "{}"}},
    "labels.sessionId": {"labels": {"sessionId": "{}"}},
    "metadata.user_id": {"metadata": {"user_id": "user_ab12_account__session_{}"}},
    "metadata.user_id in JSON": {"metadata": {"user_id": '{{"device_id": "d", "session_id": "{}"}}'}},
    "prompt_cache_key": {"prompt_cache_key": "{}"},
    "conversation": {"conversation": "{}"},
    "conversation.id": {"conversation": {"id": "{}"}},
}
BODIES: dict[str, tuple[str, ...]] = {
    "chat": ("metadata.sessionId", "metadata.conversationId"),
    "messages": (
        *("metadata.sessionId", "metadata.conversationId"),
        *("metadata.user_id", "metadata.user_id in JSON"),
    ),
    "gemini": ("labels.sessionId", "metadata.sessionId"),
    "responses": (
        *("metadata.sessionId", "metadata.conversationId"),
        *("prompt_cache_key", "conversation", "conversation.id"),
    ),
}
WAYS = [(protocol, name) for protocol in PROTOCOLS for name in (*HEADERS, *BODIES[protocol])]


def named(way: str, id: str) -> dict[str, Any]:
    """Return the headers and fields that name the session in this way."""
    if way in HEADERS:
        return {"headers": {way: id}}
    return {"headers": {}, **_filled(FIELDS[way], id)}


def _filled(value: Any, id: str) -> Any:
    if isinstance(value, str):
        return value.format(id)
    return {key: _filled(item, id) for key, item in value.items()}


async def send(harness: InstructionHarness, text: str, **more: Any) -> Answer:
    answer = await harness.send(text, **more)
    assert answer.status == 200, answer.body
    return answer


@pytest.mark.parametrize(("protocol", "way"), WAYS, ids=[" ".join(way) for way in WAYS])
async def test_state_belongs_to_the_named_session(protocol: str, way: str) -> None:
    async with instruction_gateway(protocol) as harness:
        await send(harness, SET, **named(way, ONE))
        await send(harness, "hi", **named(way, ONE))
        await send(harness, "hi", **named(way, OTHER))
        await send(harness, f"hi, session_{ONE} speaking", headers={})
        assert harness.sent_targets == [GLM, GLM, DEFAULT_TARGET, DEFAULT_TARGET]
        assert [row["sticky"] for row in await harness.stored_states()] == ["glm.2"]


async def test_one_session_is_the_same_in_every_protocol_and_comes_before_the_conversation() -> None:
    async with instruction_gateway("chat") as harness:
        await send(harness, SET, headers={"x-session-id": ONE, "x-conversation-id": "c-1"})
        for protocol in PROTOCOLS:
            await send(harness, "hi", protocol=protocol, headers={"session_id": ONE})
        await send(harness, "hi", headers={"x-conversation-id": "c-1"})
        await send(harness, "hi", headers={"x-conversation-id": ONE})
        assert harness.sent_targets == [GLM] * 5 + [DEFAULT_TARGET] * 2


NEAR = (
    *("../../etc/passwd", "..%2F..%2Fetc%2Fpasswd", "a", "A", "a.", "a ?", "a/", "a\\", "a:b", "session:a"),
    *("con", "CON", "x" * 5000, "x" * 4999 + "y", "é", "é".encode().decode("latin-1"), "hex~61", "-", "."),
)


async def test_session_ids_stay_distinct_and_are_never_paths(tmp_path: Path) -> None:
    store = f'[store]\nurl = "file:{tmp_path / "state"}"\n'
    async with instruction_gateway(more=store) as harness:
        for place, id in enumerate(NEAR):
            body = asking.body("chat", f'<**stopMessage:"{place}"**>', stream=False)
            answer = await harness.post(body | {"metadata": {"sessionId": id}}, headers={})
            assert (id, target(answer)) == (id, "gateway")
        states = await harness.stored_states()
    assert [int(row["stop_message"]["text"]) for row in reversed(states)] == list(range(len(NEAR)))
    assert [path.name for path in tmp_path.iterdir()] == ["state"]


@streams
@protocols
async def test_without_a_session_state_lasts_for_the_request_and_is_not_stored(
    protocol: str, stream: bool, tmp_path: Path
) -> None:
    folder = tmp_path / "state"
    # A response that is not stored cannot be continued: it has no chain.
    more = {"store": False} if protocol == "responses" else {}
    async with instruction_gateway(protocol, more=f'[store]\nurl = "file:{folder}"\n') as harness:
        await send(harness, SET, headers={}, stream=stream, **more)
        alone = await send(harness, "<**!glm.2**>", headers={}, stream=stream, **more)
        await send(harness, "hi", headers={}, stream=stream, **more)
        assert (harness.sent_targets, target(alone), await harness.stored_states()) == (
            [GLM, DEFAULT_TARGET],
            "gateway",
            [],
        )
    assert not any(b"glm.2" in path.read_bytes() for path in folder.rglob("*") if path.is_file())


@streams
@protocols
async def test_state_is_stored_before_the_provider_request_and_before_a_gateway_reply(
    protocol: str, stream: bool, tmp_path: Path
) -> None:
    folder = tmp_path / "state"
    found: list[bool] = []

    def stored() -> bool:
        return any(b'"glm.2"' in path.read_bytes() for path in folder.rglob("*") if path.is_file())

    async with instruction_gateway(protocol, more=f'[store]\nurl = "file:{folder}"\n') as harness:

        def answer(request: Request) -> Json | Sse:
            found.append(stored())
            return harness.answer(request)

        harness.upstream.answer_with(answer)
        await send(harness, SET, stream=stream)
        await send(harness, "<**clear**>", stream=stream)
        found.append(stored())
        await send(harness, "<**!glm.2**>", stream=stream)
        found.append(stored())
    assert found == [True, False, True]


def response_id(answer: Answer, *, stream: bool) -> str:
    if not stream:
        return str(answer.json["id"])
    events = [line[6:] for line in answer.body.decode().splitlines() if line.startswith("data: ")]
    return str(msgspec.json.decode(events[-1])["response"]["id"])


@pytest.mark.parametrize("upstream", ["responses", "chat"])
@streams
async def test_a_chain_of_responses_keeps_what_its_first_request_set(upstream: str, stream: bool) -> None:
    async with instruction_gateway("responses", upstream=upstream) as harness:
        first = await send(harness, SET, headers={}, stream=stream)
        at = response_id(first, stream=stream)
        for text in ("more", "and more"):
            answer = await send(harness, text, headers={}, stream=stream, previous_response_id=at)
            at = response_id(answer, stream=stream)
        other = await send(harness, "hi", headers={}, stream=stream)
        await send(
            harness,
            "hi",
            headers={},
            stream=stream,
            previous_response_id=response_id(other, stream=stream),
        )
        assert harness.sent_targets == [GLM, GLM, GLM, DEFAULT_TARGET, DEFAULT_TARGET]
        assert [row["sticky"] for row in await harness.stored_states()] == ["glm.2"]
        assert all(b"<**" not in request.body for request in harness.requests)


@pytest.mark.parametrize("upstream", ["responses", "chat"])
@streams
async def test_a_chain_may_begin_with_the_gateways_own_answer(upstream: str, stream: bool) -> None:
    async with instruction_gateway("responses", upstream=upstream) as harness:
        reply = await send(harness, "<**!glm.2**>", headers={}, stream=stream)
        at = response_id(reply, stream=stream)
        await send(harness, "hi", headers={}, stream=stream, previous_response_id=at)
        assert harness.sent_targets == [GLM]
        (request,) = harness.requests
        listed = request.json["input" if upstream == "responses" else "messages"]
        assert [(item["role"], _text(item["content"])) for item in listed] == [("user", "hi")]
        assert "previous_response_id" not in request.json


@streams
async def test_an_instruction_in_the_middle_of_a_chain_is_left_out_of_it(stream: bool) -> None:
    async with instruction_gateway("responses") as harness:
        at = response_id(await send(harness, "hi", headers={}, stream=stream), stream=stream)
        own = await send(harness, "<**!glm.2**>", headers={}, stream=stream, previous_response_id=at)
        at = response_id(own, stream=stream)
        await send(harness, "more", headers={}, stream=stream, previous_response_id=at)
        assert (target(own), harness.sent_targets) == ("gateway", [DEFAULT_TARGET, GLM])
        messages = [(item["role"], _text(item["content"])) for item in harness.requests[-1].json["input"]]
        assert messages == [("user", "hi"), ("assistant", "hello there"), ("user", "more")]


def _text(content: Any) -> str:
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


@streams
async def test_force_in_a_chain_applies_to_its_own_turn(stream: bool) -> None:
    async with instruction_gateway("responses", upstream="chat") as harness:
        first = await send(harness, "<**glm.2**> hi", headers={}, stream=stream)
        at = response_id(first, stream=stream)
        await send(harness, "more", headers={}, stream=stream, previous_response_id=at)
        assert harness.sent_targets == [GLM, DEFAULT_TARGET]


async def test_the_provider_that_holds_a_chain_does_not_stick_to_the_session() -> None:
    async with instruction_gateway("responses") as harness:
        forced = await send(harness, "<**glm.2**> hi")
        at = response_id(forced, stream=False)
        await send(harness, "more", previous_response_id=at)
        assert (harness.last_target, harness.requests[-1].json["previous_response_id"]) == (GLM, at)
        await send(harness, "hi")
        assert (harness.last_target, await harness.session_state()) == (DEFAULT_TARGET, {})


async def age_by_an_hour(folder: Path) -> None:
    """Rewrite the stored state as if it had been saved an hour ago."""

    def aged(raw: bytes | None) -> bytes:
        assert raw is not None
        state = sessions.decode(key, raw)
        return sessions.encode(key, replace(state, updated_at=state.updated_at - 3600))

    key = Scope("session", SESSION).key
    store = FileStore(folder)
    await store.update(sessions.SPACE, key, aged)
    await store.close()


async def test_a_force_is_not_shown_after_its_turn_was_dropped_from_the_history(
    tmp_path: Path,
) -> None:
    loop: list[Step] = [("user", "<**glm.2**> look"), ("call", "Read", {"path": "f"}), ("result", "text")]
    async with instruction_gateway(more=f'[store]\nurl = "file:{tmp_path}"\n') as harness:
        await harness.send(loop[0])
        await harness.send("a summary of what was before")
        assert await harness.session_state() == {"force": "glm.2"}
        await age_by_an_hour(tmp_path)
        assert (await harness.session_state(), await harness.stored_states()) == ({}, [])
        await harness.send(*loop)
        assert [row["force"] for row in await harness.stored_states()] == ["glm.2"], (
            "its turn goes on after all"
        )
