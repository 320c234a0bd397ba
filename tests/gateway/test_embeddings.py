"""Embeddings pass through: only the name of the model changes."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from routecodex.protocols import grammar
from tests.kit import answers
from tests.kit.gateway import one_target, provider, serving
from tests.kit.raw_client import Answer, call
from tests.kit.steps import Hang, Json, Steps
from tests.kit.upstream import Request, Upstream

BODY = (
    b'{"encoding_format": "base64", "input": ["a", "b\\u00e9"], "model": "up.m",'
    b' "x_unknown": {"z": 1.50, "a": null}, "dimensions": 8}'
)
EMBEDDINGS = b'{"object":"list","data":[{"object":"embedding","index":0,"embedding":[1e-05, 2.50]}],"x":1}'


async def embed(text: str, body: bytes = BODY, path: str = "/v1/embeddings") -> Answer:
    async with serving(text) as gateway:
        return await call(gateway.port, path, body)


@pytest.mark.parametrize("protocol", ["chat", "responses"])
@pytest.mark.parametrize("path", ["/v1/embeddings", "/embeddings", "/openai/v1/embeddings"])
async def test_only_the_models_name_is_changed_on_the_way(protocol: str, path: str) -> None:
    async with Upstream(lambda _: Json(200, EMBEDDINGS)) as up:
        text = one_target(protocol, up).replace("[routing]", 'id = "text-embedding-9"\n[routing]')
        answer = await embed(text, path=path)
        request = up.requests[0]
    assert (answer.status, answer.body) == (200, EMBEDDINGS)
    assert request.path == "/v1/embeddings"
    assert request.headers["authorization"] == "Bearer secret-up"
    assert list(request.json) == ["encoding_format", "input", "model", "x_unknown", "dimensions"]
    assert request.json["model"] == "text-embedding-9"
    assert b'"x_unknown":{"z": 1.50, "a": null}' in request.body
    assert b'"input":["a", "b\\u00e9"]' in request.body


@pytest.mark.parametrize(
    ("input", "expected"),
    [
        ("a <**!glm.2**>b", "a b"),
        (["a\u00e9", "`<**clear**>` b"], ["a\u00e9", "`` b"]),
        ([[1, 2], [3]], [[1, 2], [3]]),
        (
            [{"type": "text", "text": "<**#glm**>c"}, {"image": "<**"}],
            [{"type": "text", "text": "c"}, {"image": "<**"}],
        ),
        ("an open <** stays", "an open <** stays"),
    ],
)
async def test_no_provider_sees_a_tag_in_the_input(input: Any, expected: Any) -> None:
    async with Upstream(lambda _: Json(200, EMBEDDINGS)) as up:
        await embed(
            one_target("chat", up), msgspec.json.encode({"model": "up.m", "input": input, "user": "u"})
        )
        assert up.requests[0].json == {"model": "m", "input": expected, "user": "u"}


@pytest.mark.parametrize(("status", "expected"), [(400, 400), (404, 404), (429, 429), (401, 424), (500, 502)])
async def test_a_providers_error_is_passed_on(status: int, expected: int) -> None:
    async with Upstream(lambda _: answers.error("chat", status, "no such dimensions", retry_after="9")) as up:
        answer = await embed(one_target("chat", up) + "[routing_options]\nmax_wait_ms = 0\n")
    assert answer.status == expected
    grammar.check_error("chat", expected, answer.body)
    assert b"no such dimensions" in answer.body
    assert answer.headers.get("retry-after") == ("9" if expected == 429 else None)


def several(first: Upstream, second: Upstream, third: Upstream) -> str:
    return (
        "[server]\nport = 0\n"
        + provider("claude", "messages", first)
        + provider("one", "chat", second)
        + provider("two", "chat", third)
        + '[routing]\ndefault = [{ mode = "priority", targets = ["claude.m", "one.m", "two.m"] }]\n'
    )


async def test_the_next_provider_that_has_embeddings_is_tried() -> None:
    async with (
        Upstream() as claude,
        Upstream(lambda _: answers.error("chat", 503)) as one,
        Upstream(lambda _: Json(200, EMBEDDINGS)) as two,
    ):
        answer = await embed(several(claude, one, two), BODY.replace(b"up.m", b"any-model"))
        assert [len(up.requests) for up in (claude, one, two)] == [0, 1, 1]
    assert (answer.status, answer.body) == (200, EMBEDDINGS)


async def test_a_request_the_provider_calls_wrong_is_not_tried_elsewhere() -> None:
    async with (
        Upstream() as claude,
        Upstream(lambda _: answers.error("chat", 400)) as one,
        Upstream() as two,
    ):
        answer = await embed(several(claude, one, two), BODY.replace(b"up.m", b"any-model"))
        assert two.requests == []
    assert answer.status == 400


@pytest.mark.parametrize("protocol", ["messages", "gemini"])
async def test_without_a_provider_that_has_embeddings_it_is_a_400(protocol: str) -> None:
    async with Upstream() as up:
        answer = await embed(one_target(protocol, up))
        assert up.requests == []
    assert answer.status == 400
    grammar.check_error("chat", 400, answer.body)
    assert (answer.json["code"], answer.json["error"]["param"]) == ("no_embeddings", "model")


WRONG = [b"", b"nonsense", b"[]", b"{}", b'{"model": 7}', b'{"input": "x"}', b'{"model": "m\xff"}']


@pytest.mark.parametrize("body", WRONG)
async def test_a_wrong_body_is_a_400(body: bytes) -> None:
    async with Upstream() as up:
        answer = await embed(one_target("chat", up), body)
        assert up.requests == []
    assert answer.status == 400
    grammar.check_error("chat", 400, answer.body)


async def test_a_silent_provider_is_a_504() -> None:
    async with Upstream(lambda _: Steps((Hang(),))) as up:
        more = "timeout = { first_byte_ms = 50, idle_ms = 50 }"
        answer = await embed(one_target("chat", up, more=more))
    assert answer.status == 504


TOKEN = {"authorization": "Bearer operator"}
OPERATED = '[server]\nport = 0\nadmin_token = "operator"\n[routing_options]\nmax_wait_ms = 0\n'


def two(up: Upstream, *, keys: str = '[{ alias = "a", value = "ka" }, { alias = "b", value = "kb" }]') -> str:
    """Return a configuration with one provider for embeddings and one for chat."""
    text = provider("vec", "chat", up).replace('[{ alias = "primary", value = "secret-vec" }]', keys)
    return OPERATED + text + provider("talk", "chat", up) + '[routing]\ndefault = ["talk.m"]\n'


def routed(answer: Answer) -> tuple[str, str, str]:
    route, target, reason = (answer.headers[f"x-routecodex-{name}"] for name in ("route", "target", "reason"))
    return route, target, reason


async def test_an_answer_names_its_route_and_target() -> None:
    async with Upstream(lambda _: Json(200, EMBEDDINGS)) as up:
        answer = await embed(one_target("chat", up))
    assert routed(answer) == ("embeddings", "up.primary.m", "model up.m names the target")


async def test_a_sticky_target_of_the_operator_does_not_apply_to_embeddings() -> None:
    async with Upstream(lambda _: Json(200, EMBEDDINGS)) as up, serving(two(up)) as gateway:
        await call(gateway.port, "/admin/routing", {"sticky": "talk.m"}, headers=TOKEN)
        answer = await call(gateway.port, "/v1/embeddings", {"model": "vec.m", "input": "x"})
        assert [request.headers["authorization"] for request in up.requests] in (["Bearer ka"], ["Bearer kb"])
    assert answer.status == 200


@pytest.mark.parametrize(
    ("order", "reason"), [({"disable": ["vec"]}, "disabled"), ({"allow": ["talk"]}, "not_allowed")]
)
async def test_a_target_excluded_by_the_operator_is_refused_and_never_replaced(
    order: dict[str, list[str]], reason: str
) -> None:
    async with Upstream() as up, serving(two(up)) as gateway:
        await call(gateway.port, "/admin/routing", order, headers=TOKEN)
        answer = await call(gateway.port, "/v1/embeddings", {"model": "vec.m", "input": "x"})
        assert up.requests == []
    assert (answer.status, answer.json["details"]["reason"]) == (403, reason)
    assert routed(answer)[:2] == ("gateway", "gateway")


async def test_a_rate_limited_key_is_skipped_with_a_notice() -> None:
    def by_key(request: Request) -> Json:
        limited = request.headers["authorization"] == "Bearer ka"
        return answers.error("chat", 429, "slow down", retry_after="60") if limited else Json(200, EMBEDDINGS)

    async with Upstream(by_key) as up, serving(two(up)) as gateway:
        responses = [
            await call(gateway.port, "/v1/embeddings", {"model": "vec.m", "input": "x"}) for _ in range(4)
        ]
        health = await call(gateway.port, "/admin/health", method="GET", headers=TOKEN)
        assert [request.headers["authorization"] for request in up.requests].count("Bearer ka") == 1
    assert [answer.status for answer in responses] == [200] * 4
    assert [row["name"] for row in health.json["health"]] == ["vec.a"]


async def test_retry_after_is_sent_when_all_keys_are_rate_limited() -> None:
    async with Upstream(lambda _: answers.error("chat", 429, "slow down", retry_after="40")) as up:
        async with serving(two(up, keys='[{ alias = "a", value = "ka" }]')) as gateway:
            responses = [
                await call(gateway.port, "/v1/embeddings", {"model": "vec.m", "input": "x"}) for _ in range(2)
            ]
        assert len(up.requests) == 1
    assert [(answer.status, int(answer.headers["retry-after"]) <= 40) for answer in responses] == [
        (429, True)
    ] * 2
    assert b"slow down" in responses[1].body
    assert routed(responses[0])[:2] == ("embeddings", "vec.a.m")


HERE = {"x-session-id": "here"}
VECTORS = {"model": "vec.m", "input": "x"}


async def operate(port: int, **order: object) -> None:
    done = await call(port, "/admin/routing", order, headers=TOKEN)
    assert done.status == 200, done.body


async def send_instruction(port: int, text: str) -> None:
    """Send instructions in the session, which the gateway answers itself."""
    body = {"model": "any", "messages": [{"role": "user", "content": text}]}
    assert (await call(port, "/v1/chat/completions", body, headers=HERE)).status == 200


RULED_OUT: dict[str, tuple[str, str, str]] = {
    "the provider": ("<**#vec**>", "vec", "disabled"),
    "the model": ("<**#vec.m**>", "vec.a.m", "disabled"),
    "another provider allowed": ("<**!talk**>", "talk", "not_allowed"),
}


@pytest.mark.parametrize(("instruction", "named", "reason"), RULED_OUT.values(), ids=list(RULED_OUT))
async def test_a_target_excluded_by_the_session_is_refused_and_never_replaced(
    instruction: str, named: str, reason: str
) -> None:
    async with Upstream(lambda _: Json(200, EMBEDDINGS)) as up, serving(two(up)) as gateway:
        await send_instruction(gateway.port, instruction)
        answer = await call(gateway.port, "/v1/embeddings", VECTORS, headers=HERE)
        assert up.requests == []
        elsewhere = await call(gateway.port, "/v1/embeddings", VECTORS, headers={"x-session-id": "there"})
        await send_instruction(gateway.port, "<**clear**>")
        cleared = await call(gateway.port, "/v1/embeddings", VECTORS, headers=HERE)
    grammar.check_error("chat", 403, answer.body)
    assert (answer.status, answer.json["code"]) == (403, "PROVIDER_NOT_AVAILABLE")
    assert answer.json["details"] == {"provider": named, "reason": reason}
    assert (elsewhere.status, cleared.status) == (200, 200)


async def test_the_allow_list_of_the_session_overrides_the_operator_and_its_error_says_how_to_clear_it() -> (
    None
):
    async with Upstream(lambda _: Json(200, EMBEDDINGS)) as up, serving(two(up)) as gateway:
        await operate(gateway.port, allow=["talk"])
        ruled = await call(gateway.port, "/v1/embeddings", VECTORS, headers=HERE)
        await send_instruction(gateway.port, "<**!vec**>")
        allowed = await call(gateway.port, "/v1/embeddings", VECTORS, headers=HERE)
        await operate(gateway.port, allow=["vec"])
        await send_instruction(gateway.port, "<**!talk**>")
        answer = await call(gateway.port, "/v1/embeddings", VECTORS, headers=HERE)
    assert "`routecodex daemon set routing --clear` clears the list" in ruled.json["error"]["message"]
    assert allowed.status == 200
    assert answer.json["error"]["message"] == (
        "No route has a target that the allow list permits (talk); <**clear**> clears the list"
    )


async def test_a_key_that_the_session_has_disabled_is_not_used() -> None:
    async with Upstream(lambda _: Json(200, EMBEDDINGS)) as up, serving(two(up)) as gateway:
        await send_instruction(gateway.port, "<**#vec.1**>")
        for _ in range(3):
            assert (await call(gateway.port, "/v1/embeddings", VECTORS, headers=HERE)).status == 200
        assert [request.headers["authorization"] for request in up.requests] == ["Bearer kb"] * 3


@pytest.mark.parametrize("instruction", ["<**!talk.m**>", "<**talk.m**>"])
async def test_a_forced_or_sticky_target_of_the_session_does_not_apply_to_embeddings(
    instruction: str,
) -> None:
    async with Upstream(lambda _: Json(200, EMBEDDINGS)) as up, serving(two(up)) as gateway:
        await send_instruction(gateway.port, instruction)
        answer = await call(gateway.port, "/v1/embeddings", VECTORS, headers=HERE)
    assert (answer.status, routed(answer)[2]) == (200, "model vec.m names the target")


async def test_a_session_named_in_the_body_counts_and_is_not_sent_on() -> None:
    async with Upstream(lambda _: Json(200, EMBEDDINGS)) as up, serving(two(up)) as gateway:
        await operate(gateway.port, session="here", disable=["vec.1"])
        metadata: list[object] = [{"sessionId": "here", "mine": 1}, {"sessionId": "here"}, "odd"]
        for instruction in metadata:
            answer = await call(gateway.port, "/v1/embeddings", {**VECTORS, "metadata": instruction})
            assert answer.status == 200
        sent = [request.json for request in up.requests]
        keys = [request.headers["authorization"] for request in up.requests[:2]]
    assert keys == ["Bearer kb"] * 2
    assert sent == [
        {"model": "m", "input": "x", "metadata": {"mine": 1}},
        {"model": "m", "input": "x"},
        {"model": "m", "input": "x", "metadata": "odd"},
    ]


NONE_LEFT: dict[str, tuple[dict[str, list[str]], dict[str, str]]] = {
    "not allowed": ({"allow": ["claude"]}, {"provider": "claude", "reason": "not_allowed"}),
    "disabled": ({"disable": ["one", "two"]}, {"provider": "one", "reason": "disabled"}),
}


@pytest.mark.parametrize(("order", "details"), NONE_LEFT.values(), ids=list(NONE_LEFT))
@pytest.mark.parametrize("session", [None, "here"])
async def test_a_rule_that_leaves_only_providers_without_embeddings_is_named(
    session: str | None, order: dict[str, list[str]], details: dict[str, str]
) -> None:
    async with Upstream() as up:
        text = several(up, up, up).replace("[server]\nport = 0\n", OPERATED)
        async with serving(text) as gateway:
            await operate(gateway.port, session=session, **order)
            answer = await call(gateway.port, "/v1/embeddings", {"model": "any", "input": "x"}, headers=HERE)
        assert up.requests == []
    assert (answer.status, answer.json["details"]) == (403, details)
    if details["reason"] == "not_allowed":
        way_out = "<**clear**>" if session else "`routecodex daemon set routing --clear`"
        assert answer.json["error"]["message"].endswith(f"(claude); {way_out} clears the list")


async def test_a_number_out_of_range_beside_a_tag_is_the_clients_fault() -> None:
    async with Upstream(lambda _: Json(200, EMBEDDINGS)) as up:
        answer = await embed(one_target("chat", up), b'{"model":"up.m","input":["<**clear**> a",1e999]}')
    assert (answer.status, up.requests) == (400, [])
    grammar.check_error("chat", 400, answer.body)
