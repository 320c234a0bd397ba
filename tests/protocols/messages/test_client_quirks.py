from __future__ import annotations

import pytest

from routecodex.protocols.messages.client_quirks import knows_refusal, message_stop_rule

JS_STREAM = {"x-stainless-lang": "js", "x-stainless-helper-method": "stream"}

NEEDING = [
    JS_STREAM,
    {"user-agent": "ai-sdk/anthropic/2.0.1 ai-sdk/provider-utils/3.0.1 runtime/node.js/22"},
    {"user-agent": "ai/5.0.1 ai-sdk/anthropic/2.0.1"},
    {"user-agent": "claude-cli/2.1.0 (external, cli)"},
    {"user-agent": "opencode/1.0, claude-cli/2.1.0"},
    {"x-claude-code-session-id": "s"},
    {"user-agent": "pi/0.74.1"},
    {"x-stainless-lang": "js", "anthropic-dangerous-direct-browser-access": "true"},
]
LAWFUL: list[dict[str, str]] = [
    {},
    {"user-agent": "Anthropic/Python 2.8.0", "x-stainless-lang": "python"},
    {"x-stainless-lang": "python", "x-stainless-helper-method": "stream"},
    {"user-agent": "Anthropic/JS 0.100.0", "x-stainless-lang": "js"},
    {"user-agent": "python-httpx/0.28 my-api/1.0"},
    {"user-agent": "api/1.0"},
]


@pytest.mark.parametrize("headers", NEEDING)
def test_clients_that_lose_something_get_their_message_stop(headers: dict[str, str]) -> None:
    assert message_stop_rule("auto", headers)[0]
    assert not message_stop_rule("never", headers)[0]


@pytest.mark.parametrize("headers", LAWFUL)
def test_for_all_others_the_law_holds(headers: dict[str, str]) -> None:
    assert not message_stop_rule("auto", headers)[0]
    assert message_stop_rule("always", headers)[0]


@pytest.mark.parametrize(
    ("lang", "version", "knows"),
    [
        ("python", "0.50.0", False),
        ("python", "0.51.0", True),
        ("python", "2.8.0", True),
        ("js", "0.40.1", False),
        ("js", "0.41.0", True),
        ("js", "0.100.0", True),
        ("go", "0.1.0", True),
        ("python", "unknown", True),
        ("", "", True),
    ],
)
def test_only_old_sdks_do_not_know_refusal(lang: str, version: str, knows: bool) -> None:
    headers = {"x-stainless-lang": lang, "x-stainless-package-version": version}
    assert knows_refusal(headers) is knows


def test_a_client_without_version_knows_refusal() -> None:
    assert knows_refusal({})
