"""A refused key and used-up credit are named at once, and never look like an outage."""

from __future__ import annotations

from typing import Any

import pytest

from routecodex.protocols import grammar
from tests.kit import answers, asking
from tests.kit.gateway import Running, provider, serving
from tests.kit.raw_client import Answer, call
from tests.kit.steps import Json
from tests.kit.upstream import Upstream

PROTOCOLS = ("chat", "responses", "messages", "gemini")
SERVER = "[server]\nport = 0\ndrain_seconds = 1\n"
ENVIRON = {"GLM_API_KEY": "secret-glm"}
TYPES: dict[str, tuple[int, str, str]] = {
    "chat": (424, "type", "upstream_error"),
    "responses": (400, "type", "invalid_request_error"),
    "messages": (424, "type", "api_error"),
    "gemini": (424, "status", "FAILED_PRECONDITION"),
}
REFUSED = Json(401, {"error": {"message": "invalid api key sk-ab****yz"}})
USED_UP = Json(429, {"error": {"message": "no credit left", "code": "insufficient_quota"}})
MESSAGES = {
    "upstream_auth": "provider 'glm' rejected key 'primary' (HTTP 401: invalid api key ***); "
    "check GLM_API_KEY",
    "upstream_quota": "provider 'glm' has no credit for key 'primary' (HTTP 429: no credit left); "
    "check the account of GLM_API_KEY",
}


def one_key(up: Upstream, auth: str = 'alias = "primary", env = "GLM_API_KEY"') -> str:
    return (
        f'{SERVER}[providers.glm]\nprotocol = "chat"\nbase_url = "{up.url}/v1"\nauth = [{{ {auth} }}]\n'
        '[providers.glm.models.m]\n[routing]\ndefault = ["glm.m"]\n'
    )


async def send(gateway: Running, client: str, *, stream: bool = False, text: str = "hi") -> Answer:
    path = asking.path(client, stream=stream, model="auto")
    answer = await call(gateway.port, path, asking.body(client, text, stream=stream, model="auto"))
    grammar.check_error(client, answer.status, answer.body)
    return answer


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("client", PROTOCOLS)
@pytest.mark.parametrize(
    ("refusal", "code", "upstream_status"),
    [(REFUSED, "upstream_auth", 401), (USED_UP, "upstream_quota", 429)],
    ids=["refused", "used up"],
)
async def test_an_unusable_key_is_named_at_once_and_remembered(
    refusal: Json, code: str, upstream_status: int, client: str, stream: bool
) -> None:
    async with Upstream(lambda _: refusal) as up, serving(one_key(up), environ=ENVIRON) as gateway:
        received = [await send(gateway, client, stream=stream) for _ in range(3)]
        forced = await send(gateway, client, stream=stream, text="<**glm.m**> hi")
    status, field, value = TYPES[client]
    for answer in (*received, forced):
        assert (answer.status, answer.json["error"][field]) == (status, value)
        assert (answer.json["code"], answer.json["error"]["message"]) == (code, MESSAGES[code])
        details = {"provider": "glm", "key": "primary", "upstream_status": upstream_status}
        assert answer.json["details"] == details
        assert answer.headers["x-should-retry"] == "false"
        assert "retry-after" not in answer.headers
    assert len(up.requests) == 1


@pytest.mark.parametrize(
    ("auth", "source"),
    [
        ('alias = "primary", value = "${GLM_API_KEY}"', "GLM_API_KEY"),
        ('alias = "primary", value = "secret-glm"', "providers.glm.auth"),
    ],
)
async def test_the_message_names_the_place_of_the_key(auth: str, source: str) -> None:
    async with Upstream(lambda _: REFUSED) as up, serving(one_key(up, auth), environ=ENVIRON) as gateway:
        answer = await send(gateway, "chat")
    assert answer.json["error"]["message"].endswith(f"; check {source}")


PASSING: list[tuple[Json, int, str | None]] = [
    (answers.error("chat", 429, "slow down", retry_after="40"), 429, "40"),
    (answers.error("chat", 500, "broken"), 502, None),
    (answers.error("chat", 529, "busy"), 503, "5"),
]


@pytest.mark.parametrize("first", ["refused", "passing"])
@pytest.mark.parametrize(("passing", "status", "wait"), PASSING)
async def test_a_passing_failure_gives_the_status_and_the_message_names_both(
    passing: Json, status: int, wait: str | None, first: str
) -> None:
    scripts: list[Any] = [REFUSED, passing] if first == "refused" else [passing, REFUSED]
    async with Upstream(lambda _: scripts[0]) as one, Upstream(lambda _: scripts[1]) as two:
        text = (
            SERVER
            + provider("one", "chat", one)
            + provider("two", "chat", two)
            + '[routing]\ndefault = [{ mode = "priority", targets = ["one.m", "two.m"] }]\n'
            + "[routing_options]\nmax_wait_ms = 0\n"
        )
        async with serving(text) as gateway:
            answer = await send(gateway, "chat")
            again = await send(gateway, "chat")
    refused = "one" if first == "refused" else "two"
    named = f"provider '{refused}' rejected key 'primary' (HTTP 401: invalid api key ***)"
    assert (answer.status, answer.headers.get("retry-after")) == (status, wait)
    assert "x-should-retry" not in answer.headers
    for received in (answer, again):
        assert received.status == status
        assert named in received.json["error"]["message"]


async def test_a_wrong_client_key_is_not_retried() -> None:
    keyed = 'client_keys = [{ name = "a", key = "k" }]\n'
    async with Upstream() as up:
        text = one_key(up).replace("port = 0\n", f"port = 0\n{keyed}")
        async with serving(text, environ=ENVIRON) as gateway:
            answer = await send(gateway, "messages")
    assert (answer.status, answer.headers["x-should-retry"]) == (401, "false")
