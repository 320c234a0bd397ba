from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from routecodex.cli.checks.provider_keys import check_keys
from routecodex.cli.checks.result import CheckResult
from routecodex.config import loads
from routecodex.providers.catalog import PRESETS
from tests.cli.checks.agent_model import answers_well, configured
from tests.cli.checks.test_providers import FAR, provider
from tests.kit import answers
from tests.kit.answers import PROTOCOLS
from tests.kit.steps import Answer, Json
from tests.kit.upstream import Request, Upstream


async def keys(text: str, *, offline: bool = False) -> list[CheckResult]:
    return await check_keys(configured(text), {}, offline=offline)


_BASES = {"chat": "/v1", "responses": "/v1", "messages": "", "gemini": ""}


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_each_key_is_tried_with_one_small_request(protocol: str) -> None:
    def script(request: Request) -> Answer:
        if "second" in str(dict(request.headers)):
            return answers.error(protocol, 401, "invalid api key second-key")
        return answers_well(protocol, request)

    async with Upstream(script) as upstream:
        found = await keys(
            f'[routing]\ndefault = ["up.m"]\n[providers.up]\nprotocol = "{protocol}"\n'
            f'base_url = "{upstream.url}{_BASES[protocol]}"\n'
            'auth = [{ alias = "one", value = "first-key" }, { alias = "two", value = "second-key" }]\n'
            "[providers.up.models.m]\n[providers.up.models.n]\n"
        )
        assert len(upstream.requests) == 2
    assert [(one.id, one.status) for one in found] == [("provider.up.one", "ok"), ("provider.up.two", "fail")]
    assert found[0].message == "the key is accepted (m answered)"
    assert "rejected key 'two'" in found[1].message
    assert "second-key" not in found[1].message + found[1].fix


async def test_the_variable_of_a_rejected_key_is_named() -> None:
    async with Upstream(lambda _request: answers.error("chat", 401)) as upstream:
        text = provider(f"{upstream.url}/v1").replace('value = "secret-up"', 'env = "UP_KEY"')
        config = loads(text, environ={"UP_KEY": "secret-up"}, presets=PRESETS)
        (result,) = await check_keys(config, {}, offline=False)
    assert (result.status, result.fix) == ("fail", "check UP_KEY")


REPLIES: dict[str, tuple[Callable[[], Answer], str, str]] = {
    "limited": (lambda: answers.error("chat", 429, "slow down"), "warn", "the key could not be tried now"),
    "credit": (lambda: answers.error("chat", 402, "no money"), "fail", "no money"),
    "rejected": (
        lambda: answers.error("chat", 400, "max_tokens is odd"),
        "warn",
        "the provider rejected the small request",
    ),
    "broken": (lambda: answers.error("chat", 500, "it broke"), "fail", "it broke"),
    "overload": (lambda: answers.error("chat", 529, "too many"), "warn", "the key could not be tried now"),
    "model": (lambda: answers.error("chat", 404, "no model `m` here"), "fail", "does not serve 'm'"),
    "garbage": (lambda: Json(200, ["no"]), "fail", ""),
}


@pytest.mark.parametrize("name", REPLIES)
async def test_other_replies_are_told_from_a_wrong_key(name: str) -> None:
    make, status, words = REPLIES[name]
    async with Upstream(lambda _request: make()) as upstream:
        (result,) = await keys(provider(f"{upstream.url}/v1"))
    assert result.status == status, result
    assert words in result.message
    assert result.fix


async def test_keys_are_not_tried_offline_but_for_this_machine() -> None:
    assert (await keys(provider(FAR), offline=True))[0].status == "skip"
    async with Upstream(partial(answers_well, "chat")) as upstream:
        assert (await keys(provider(f"{upstream.url}/v1"), offline=True))[0].status == "ok"


async def test_the_demo_provider_needs_no_key() -> None:
    demo = '[providers.demo]\nprotocol = "demo"\n[providers.demo.models.m]\n[routing]\ndefault = ["demo.m"]\n'
    assert await keys(demo) == [CheckResult("provider.demo.key1", "ok", "is built in and needs no key")]


async def test_a_proxy_that_cannot_be_used_fails() -> None:
    config = configured(provider("http://far.invalid/v1"))
    (result,) = await check_keys(config, {"http_proxy": "socks5://127.0.0.1:1"}, offline=False)
    assert (result.status, result.fix) == ("fail", "correct this setting or variable")
