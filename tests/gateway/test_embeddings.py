"""Embeddings pass through: the model's name is mapped, everything else is the client's and the provider's."""

from __future__ import annotations

import pytest

from tests.kit import answers, grammar
from tests.kit.gateway import one_target, provider, serving
from tests.kit.raw_client import Answer, call
from tests.kit.upstream import Hang, Json, Steps, Upstream

BODY = (
    b'{"encoding_format": "base64", "input": ["a", "b\\u00e9"], "model": "up.m",'
    b' "x_unknown": {"z": 1.50, "a": null}, "dimensions": 8}'
)
SAID = b'{"object":"list","data":[{"object":"embedding","index":0,"embedding":[1e-05, 2.50]}],"x":1}'


async def embed(text: str, body: bytes = BODY, path: str = "/v1/embeddings") -> Answer:
    async with serving(text) as gateway:
        return await call(gateway.port, path, body)


@pytest.mark.parametrize("protocol", ["chat", "responses"])
@pytest.mark.parametrize("path", ["/v1/embeddings", "/embeddings", "/openai/v1/embeddings"])
async def test_only_the_models_name_is_changed_on_the_way(protocol: str, path: str) -> None:
    async with Upstream(lambda _: Json(200, SAID)) as up:
        text = one_target(protocol, up).replace("[routing]", 'id = "text-embedding-9"\n[routing]')
        answer = await embed(text, path=path)
        request = up.requests[0]
    assert (answer.status, answer.body) == (200, SAID)
    assert request.path == "/v1/embeddings"
    assert request.headers["authorization"] == "Bearer secret-up"
    assert list(request.json) == ["encoding_format", "input", "model", "x_unknown", "dimensions"]
    assert request.json["model"] == "text-embedding-9"
    assert b'"x_unknown":{"z": 1.50, "a": null}' in request.body
    assert b'"input":["a", "b\\u00e9"]' in request.body


@pytest.mark.parametrize(("status", "seen"), [(400, 400), (404, 404), (429, 429), (401, 502), (500, 502)])
async def test_a_providers_error_is_passed_on(status: int, seen: int) -> None:
    async with Upstream(lambda _: answers.error("chat", status, "no such dimensions", retry_after="9")) as up:
        answer = await embed(one_target("chat", up))
    assert answer.status == seen
    grammar.check_error("chat", seen, answer.body)
    assert (b"no such dimensions" in answer.body) == (status != 401)
    assert answer.headers.get("retry-after") == ("9" if seen == 429 else None)


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
        Upstream(lambda _: Json(200, SAID)) as two,
    ):
        answer = await embed(several(claude, one, two), BODY.replace(b"up.m", b"any-model"))
        assert [len(up.requests) for up in (claude, one, two)] == [0, 1, 1]
    assert (answer.status, answer.body) == (200, SAID)


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
