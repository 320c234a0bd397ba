"""The test of a key: one small request as the gateway sends it, and the error in words."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from routecodex.cli.key_check import KeyCheck, check_keys
from routecodex.config import loads
from tests.kit import answers
from tests.kit.steps import CutOff
from tests.kit.upstream import Json, Steps, Upstream

PATHS = {
    "chat": "/v1/chat/completions",
    "responses": "/v1/responses",
    "messages": "/v1/messages",
    "gemini": "/v1beta/models/m:generateContent",
}
KEY_HEADERS = {
    "chat": "authorization",
    "responses": "authorization",
    "messages": "x-api-key",
    "gemini": "x-goog-api-key",
}


async def checked(url: str, protocol: str = "chat", **environ: str) -> list[KeyCheck]:
    base = f"{url}/v1" if protocol in ("chat", "responses") else url
    config = loads(
        f'[providers.p]\nprotocol = "{protocol}"\nbase_url = "{base}"\nauth = [{{ value = "sk-1234567" }}]\n'
        '[providers.p.models.m]\n[routing]\ndefault = ["p.m"]\n',
        environ={},
    )
    return await asyncio.to_thread(check_keys, config, {"p": "m"}, environ=environ)


@pytest.mark.parametrize("protocol", PATHS)
async def test_one_small_request_is_sent_in_the_protocol_of_the_provider(protocol: str) -> None:
    async with Upstream() as up:
        up.queue(answers.text(protocol, "OK", stream=False))
        [check] = await checked(up.url, protocol)
        assert (str(check.target), check.error) == ("p.key1.m", None)
        [request] = up.requests
    assert request.path == PATHS[protocol]
    assert "sk-1234567" in request.headers[KEY_HEADERS[protocol]]
    assert "Reply with OK." in request.body.decode()
    assert len(request.body) < 300


async def test_an_answer_without_text_is_an_answer() -> None:
    async with Upstream() as up:
        up.queue(answers.length("chat", "", stream=False))
        [check] = await checked(up.url)
    assert check.error is None


@pytest.mark.parametrize(
    ("answer", "refused", "unreachable", "words"),
    [
        (Json(401, {"error": {"message": "no such key sk-1234567"}}), True, False, "rejected"),
        (Json(403, {"error": {"message": "forbidden"}}), True, False, "rejected"),
        (Json(404, {"error": {"message": "no m", "code": "model_not_found"}}), False, False, "m"),
        (Json(429, {"error": {"message": "slow down"}}), False, False, "slow down"),
        (Json(500, {"error": {"message": "broken"}}), False, False, "broken"),
        (Json(200, {"error": {"message": "overloaded"}}), False, False, "overloaded"),
        (Steps([CutOff()]), False, True, "127.0.0.1"),
    ],
)
async def test_a_failure_says_whether_the_key_or_the_way_there_is_at_fault(
    answer: Any, refused: bool, unreachable: bool, words: str
) -> None:
    async with Upstream(lambda _request: answer) as up:
        [check] = await checked(up.url)
    assert check.error is not None
    assert (check.is_refused, words in check.error.message) == (refused, True), check.error.message
    assert "sk-1234567" not in f"{check.error.message} {getattr(check.error, 'provider_message', '')}"
    if unreachable:
        assert check.is_unreachable


async def test_a_provider_that_is_down_is_unreachable() -> None:
    async with Upstream() as gone:
        url = gone.url
    [check] = await checked(url)
    assert (check.is_unreachable, check.is_refused) == (True, False)


async def test_an_unusable_proxy_variable_is_an_error_of_its_own() -> None:
    [check] = await checked("http://api.test", http_proxy="socks5://proxy.test")
    assert check.error is not None
    assert "http_proxy" in check.error.message
    assert not check.is_refused
