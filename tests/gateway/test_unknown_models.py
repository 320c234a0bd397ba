"""A model that its provider does not know: the next target, else 404 at once, as long as it lasts."""

from __future__ import annotations

from typing import Any

import pytest

from tests.gateway.test_unusable_keys import REFUSED, send
from tests.kit import answers
from tests.kit.gateway import provider, serving
from tests.kit.raw_client import call
from tests.kit.steps import Json
from tests.kit.upstream import Request, Upstream

PROTOCOLS = ("chat", "responses", "messages", "gemini")
SERVER = '[server]\nport = 0\ndrain_seconds = 1\nadmin_token = "operator"\n'
OPERATOR = {"authorization": "Bearer operator"}
TYPES: dict[str, dict[str, str]] = {
    "chat": {"type": "invalid_request_error", "code": "model_not_found"},
    "responses": {"type": "invalid_request_error", "code": "model_not_found"},
    "messages": {"type": "not_found_error"},
    "gemini": {"status": "NOT_FOUND"},
}
UNKNOWN: dict[str, Json] = {
    "OpenAI": Json(404, {"error": {"message": "The model does not exist", "code": "model_not_found"}}),
    "400 with the code": Json(400, {"error": {"message": "no such model", "code": "model_not_found"}}),
    "the code as type": Json(404, {"error": {"message": "no such model", "type": "model_not_found"}}),
    "Ollama": Json(404, {"error": "model 'glm-9' not found"}),
    "Anthropic": Json(
        404, {"type": "error", "error": {"type": "not_found_error", "message": "model: glm-9"}}
    ),
    "Gemini": Json(404, {"error": {"code": 404, "message": "models/glm-9 is not found for API version v1"}}),
}
OTHER: dict[str, Json] = {
    "no name": Json(404, {"detail": "Not Found"}),
    "a longer name": Json(404, {"error": {"message": "glm-9.5-air is not found"}}),
    "400 that names it": Json(400, {"error": {"message": "glm-9 takes no images"}}),
}


def one_model(up: Upstream, *, more: str = "") -> str:
    return (
        f'{SERVER}[providers.glm]\nprotocol = "chat"\nbase_url = "{up.url}/v1"\n'
        'auth = [{ alias = "primary", value = "secret-glm" }]\n'
        '[providers.glm.models.m]\nid = "glm-9"\n[providers.glm.models.other]\n'
        f'[routing]\ndefault = ["glm.m"]\n{more}'
    )


def two_providers(one: Upstream, two: Upstream) -> str:
    return (
        SERVER
        + provider("one", "chat", one)
        + provider("two", "chat", two)
        + '[routing]\ndefault = [{ mode = "priority", targets = ["one.m", "two.m"] }]\n'
        + "[routing_options]\nmax_wait_ms = 0\n"
    )


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("client", PROTOCOLS)
async def test_an_unknown_model_is_named_at_once_and_remembered(client: str, stream: bool) -> None:
    async with Upstream(lambda _: UNKNOWN["OpenAI"]) as up, serving(one_model(up)) as gateway:
        received = [await send(gateway, client, stream=stream) for _ in range(3)]
        forced = await send(gateway, client, stream=stream, text="<**glm.m**> hi")
    for answer in (*received, forced):
        assert answer.status == 404
        error = answer.json["error"]
        assert {name: error[name] for name in TYPES[client]} == TYPES[client]
        assert (answer.json["code"], error["message"]) == (
            "upstream_model",
            "provider 'glm' does not serve model 'glm-9' with key 'primary' "
            "(HTTP 404: The model does not exist); check providers.glm.models",
        )
        assert answer.json["details"] == {"provider": "glm", "key": "primary", "upstream_status": 404}
        assert answer.headers["x-should-retry"] == "false"
        assert "retry-after" not in answer.headers
    assert len(up.requests) == 1


@pytest.mark.parametrize("unknown", UNKNOWN.values(), ids=UNKNOWN)
async def test_an_unknown_model_is_known_by_its_code_or_its_name(unknown: Json) -> None:
    async with Upstream(lambda _: unknown) as up, serving(one_model(up)) as gateway:
        answer = await send(gateway, "chat")
    assert (answer.status, answer.json["code"]) == (404, "upstream_model")


@pytest.mark.parametrize("other", OTHER.values(), ids=OTHER)
async def test_other_rejections_are_passed_on(other: Json) -> None:
    async with Upstream(lambda _: other) as up, serving(one_model(up)) as gateway:
        received = [await send(gateway, "chat") for _ in range(2)]
    for answer in received:
        assert answer.status == other.status
        assert answer.json.get("code") != "upstream_model"
        assert "x-should-retry" not in answer.headers
    assert len(up.requests) == 2


async def test_the_next_target_answers_and_the_model_is_not_asked_for_again() -> None:
    async with Upstream(lambda _: UNKNOWN["OpenAI"]) as one, Upstream() as two:
        two.answer_with(lambda request: answers.text("chat", "hi", answers.wants_stream(request)))
        async with serving(two_providers(one, two)) as gateway:
            for _ in range(3):
                answer = await call(gateway.port, "/v1/chat/completions", _hello("auto"))
                assert answer.headers["x-routecodex-target"] == "two.primary.m"
    assert (len(one.requests), len(two.requests)) == (1, 3)


def _hello(model: str) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": "hi"}]}


async def test_other_models_of_the_key_stay_in_use() -> None:
    def answer(request: Request) -> Any:
        return UNKNOWN["OpenAI"] if b"glm-9" in request.body else answers.text("chat", "hi", False)

    async with Upstream(answer) as up, serving(one_model(up)) as gateway:
        assert (await call(gateway.port, "/v1/chat/completions", _hello("glm.m"))).status == 404
        assert (await call(gateway.port, "/v1/chat/completions", _hello("glm.other"))).status == 200
        (row,) = (await call(gateway.port, "/admin/health", method="GET", headers=OPERATOR)).json["health"]
    assert (row["name"], row["state"], row["reason"]) == ("glm.primary.m", "refused", "model unknown")


async def test_a_reset_lets_the_model_be_asked_for_again() -> None:
    async with Upstream(lambda _: UNKNOWN["OpenAI"]) as up, serving(one_model(up)) as gateway:
        for _ in range(2):
            assert (await call(gateway.port, "/v1/chat/completions", _hello("glm.m"))).status == 404
        up.answer_with(lambda _: answers.text("chat", "hi", False))
        await call(gateway.port, "/admin/health/reset", {}, headers=OPERATOR)
        assert (await call(gateway.port, "/v1/chat/completions", _hello("glm.m"))).status == 200
    assert len(up.requests) == 2


PASSING: list[tuple[Json, int]] = [
    (answers.error("chat", 429, "slow down", retry_after="40"), 429),
    (answers.error("chat", 500, "broken"), 502),
]


@pytest.mark.parametrize("first", ["unknown", "passing"])
@pytest.mark.parametrize(("passing", "status"), PASSING)
async def test_a_passing_failure_gives_the_status_and_the_message_names_both(
    passing: Json, status: int, first: str
) -> None:
    unknown = UNKNOWN["OpenAI"]
    scripts = [unknown, passing] if first == "unknown" else [passing, unknown]
    async with (
        Upstream(lambda _: scripts[0]) as one,
        Upstream(lambda _: scripts[1]) as two,
        serving(two_providers(one, two)) as gateway,
    ):
        received = [await send(gateway, "chat") for _ in range(2)]
    name = "one" if first == "unknown" else "two"
    for answer in received:
        assert answer.status == status
        assert f"provider '{name}' does not serve model 'm'" in answer.json["error"]["message"]
        assert "x-should-retry" not in answer.headers


async def test_a_refused_key_comes_before_an_unknown_model() -> None:
    async with (
        Upstream(lambda _: UNKNOWN["OpenAI"]) as one,
        Upstream(lambda _: REFUSED) as two,
        serving(two_providers(one, two)) as gateway,
    ):
        received = [await send(gateway, "chat") for _ in range(2)]
    for answer in received:
        assert (answer.status, answer.json["code"]) == (424, "upstream_auth")
        assert "rejected key 'primary'" in answer.json["error"]["message"]
        assert "does not serve model 'm'" in answer.json["error"]["message"]
    assert (len(one.requests), len(two.requests)) == (1, 1)
