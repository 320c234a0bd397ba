"""First mistakes in provider tables: one problem each, with the line to write instead."""

from __future__ import annotations

import pytest

from routecodex.config import Problem, examine
from routecodex.providers.catalog import PRESETS

ROUTING = '[routing]\ndefault = ["x.m"]\n'
ENVIRON = {"DEEPSEEK_API_KEY": "k", "KEY": "sk-from-env"}
AUTH_FIX = (
    'write auth = [{ env = "X_API_KEY" }] and set that variable, or auth = [{ value = "…" }] with the key'
)


def provider(*lines: str, **fields: str) -> str:
    rows = {"protocol": '"chat"', "base_url": '"https://api.test/v1"', "auth": '[{ value = "k" }]'}
    rows |= {"models": "{ m = {} }", **fields}
    table = [f"{key} = {value}" for key, value in rows.items() if value]
    return "\n".join(["[providers.x]", *table, *lines, ROUTING])


def problems_of(text: str) -> list[Problem]:
    return examine(text, environ=ENVIRON, presets=PRESETS)[1]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(
            provider(protocol='"openai"'),
            (
                "providers.x.protocol",
                '"openai" is not a protocol',
                'write protocol = "chat" (chat completions), or protocol = "responses" (Responses API)',
            ),
            id="protocol openai",
        ),
        pytest.param(
            provider(protocol='"Anthropic"', base_url='"https://api.test"'),
            (
                "providers.x.protocol",
                '"Anthropic" is not a protocol',
                'write protocol = "messages" (Anthropic messages)',
            ),
            id="protocol anthropic",
        ),
        pytest.param(
            provider(protocol='"google"', base_url='"https://api.test"'),
            ("providers.x.protocol", '"google" is not a protocol', 'write protocol = "gemini"'),
            id="protocol google",
        ),
        pytest.param(
            provider('api_key = "sk-1234567"', auth=""),
            ("providers.x.api_key", "is not a known key", AUTH_FIX),
            id="api_key",
        ),
        pytest.param(
            provider('api_key = "${KEY}"', auth=""),
            ("providers.x.api_key", "is not a known key", AUTH_FIX),
            id="api_key from the environment",
        ),
        pytest.param(
            provider('api_keys = ["sk-1234567"]', auth=""),
            ("providers.x.api_keys", "is not a known key", AUTH_FIX),
            id="api_keys",
        ),
        pytest.param(
            provider('api_key = "sk-1234567"'),
            ("providers.x.api_key", "is not a known key", "remove it: auth holds the keys"),
            id="api_key beside auth",
        ),
        pytest.param(
            provider(auth='"sk-1234567"'),
            ("providers.x.auth", "must be a list of keys, got a string", AUTH_FIX),
            id="auth as a string",
        ),
        pytest.param(
            provider(auth='["sk-1234567"]'),
            (
                "providers.x.auth[0]",
                "must be a table, got a string",
                'write { env = "X_API_KEY" } and set that variable, or { value = "…" } with the key',
            ),
            id="auth as a list of strings",
        ),
        pytest.param(
            provider(auth='{ value = "sk-1234567" }'),
            ("providers.x.auth", "must be a list of keys, got a table", "write auth = [{ … }]"),
            id="auth as a table",
        ),
        pytest.param(
            provider(models='["m", "n-2.0"]'),
            (
                "providers.x.models",
                "must be a table, got a list",
                'write models = { "m" = {}, "n-2.0" = {} }',
            ),
            id="models as a list",
        ),
        pytest.param(
            provider(models='"m"'),
            ("providers.x.models", "must be a table, got a string", 'write models = { "m" = {} }'),
            id="models as a string",
        ),
        pytest.param(
            provider().replace("[providers.x]", "[provider.x]"),
            ("provider.x", "is not a known table", "write [providers.x]"),
            id="provider",
        ),
        pytest.param(
            '[providers.deepseak]\n[routing]\ndefault = ["deepseak.deepseek-v4-pro"]\n',
            (
                "providers.deepseak",
                "has no protocol, and no preset has this name",
                "did you mean [providers.deepseek]? For another provider set protocol and base_url",
            ),
            id="preset with a typo",
        ),
        pytest.param(
            '[provider.deepseak]\n[routing]\ndefault = ["deepseek.deepseek-v4-pro"]\n',
            ("provider.deepseak", "is not a known table", "write [providers.deepseek]"),
            id="both",
        ),
    ],
)
def test_a_first_mistake_is_one_problem_that_says_what_to_write(
    text: str, expected: tuple[str, str, str]
) -> None:
    problems = problems_of(text)
    assert [(one.path, one.message, one.fix) for one in problems] == [expected]
    assert all(one.line for one in problems)
    assert not any(key in str(one) for one in problems for key in ("sk-1234567", "sk-from-env"))


def test_a_repaired_table_is_checked_further() -> None:
    text = provider('api_key = "sk-1234567"', auth="", protocol='"anthropic"').replace('"x.m"', '"x.n"')
    assert [one.path for one in problems_of(text)] == [
        "providers.x.protocol",
        "providers.x.base_url",
        "providers.x.api_key",
        "routing.default[0]",
    ]


def test_models_from_the_environment_are_not_shown() -> None:
    (problem,) = problems_of(provider(models='["m", "${KEY}"]'))
    assert problem.fix == 'write models = { "model-name" = {} }'
