"""Presets with several protocols and variables, and addresses with a resource or a region."""

from __future__ import annotations

import pytest

from routecodex.config import ModelConfig, Preset, ProviderConfig, examine, loads

KEY = {"ACME_API_KEY": "first"}
ENV = ("ACME_API_KEY", "ACME_KEY")
PRESETS = {
    "acme": Preset(
        about="Acme",
        protocol="messages",
        base_url="https://api.acme.test",
        env=ENV,
        auth_style="x-api-key",
        models={"big": ModelConfig(context_tokens=1000)},
        dialect={"image_urls": False},
        others=(
            Preset(
                about="Acme",
                protocol="chat",
                base_url="https://api.acme.test/openai",
                env=ENV,
                auth_style="bearer",
                models={"small": ModelConfig(context_tokens=500)},
            ),
        ),
    ),
    "acme-coding": Preset(
        about="Acme plan", protocol="chat", base_url="https://plan.acme.test/v1", env=ENV, auth_style="bearer"
    ),
    "cloud": Preset(
        about="Cloud",
        protocol="chat",
        base_url="https://{resource}.{region}.cloud.test/v1",
        env=(),
        auth_style="none",
        models={"m": ModelConfig()},
    ),
}


def text(row: str, target: str) -> str:
    return f'[providers.q]\n{row}\n[routing]\ndefault = ["q.{target}"]\n'


def provider(row: str, target: str, environ: dict[str, str]) -> ProviderConfig:
    return loads(text(row, target), environ=environ, presets=PRESETS).providers["q"]


def told(row: str, target: str, environ: dict[str, str]) -> list[tuple[str, str, str, str]]:
    _, problems = examine(text(row, target), environ=environ, presets=PRESETS)
    return [(one.severity, one.path, one.message, one.fix) for one in problems]


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (
            'preset = "acme"',
            ("messages", "https://api.acme.test", "x-api-key", ["big"], {"image_urls": False}),
        ),
        (
            'preset = "acme"\nprotocol = "messages"',
            ("messages", "https://api.acme.test", "x-api-key", ["big"], {"image_urls": False}),
        ),
        (
            'preset = "acme"\nprotocol = "chat"',
            ("chat", "https://api.acme.test/openai", "bearer", ["small"], {}),
        ),
        (
            'preset = "acme"\nprotocol = "chat"\nbase_url = "http://127.0.0.1:9/v1"',
            ("chat", "http://127.0.0.1:9/v1", "bearer", ["small"], {}),
        ),
        (
            'preset = "acme"\nprotocol = "responses"\nbase_url = "http://127.0.0.1:9/v1"',
            ("responses", "http://127.0.0.1:9/v1", "x-api-key", ["big"], {"image_urls": False}),
        ),
    ],
    ids=[
        "the first by default",
        "the first by name",
        "another",
        "another at an own address",
        "an own address",
    ],
)
def test_the_protocol_chooses_among_the_addresses_of_a_preset(
    row: str, expected: tuple[str, str, str, list[str], dict[str, bool]]
) -> None:
    one = provider(row, expected[3][0], KEY)
    assert (one.protocol, one.base_url, one.auth_style, list(one.models), one.dialect) == expected


def test_an_address_of_a_preset_gets_no_warning_but_an_own_one_does() -> None:
    assert told('preset = "acme"\nprotocol = "chat"', "small", KEY) == []
    own = 'preset = "acme"\nprotocol = "chat"\nbase_url = "https://api.acme.test/openai"'
    assert told(own, "small", KEY) == [
        (
            "warning",
            "providers.q.base_url",
            "does not end in a version such as /v1",
            'use "https://api.acme.test/openai/v1" unless the provider says otherwise',
        )
    ]


@pytest.mark.parametrize("protocol", ["responses", "gemini", "demo"])
def test_a_protocol_that_the_preset_lacks_is_an_error_with_those_that_it_has(protocol: str) -> None:
    assert told(f'preset = "acme"\nprotocol = "{protocol}"', "unknown", {}) == [
        (
            "error",
            "providers.q.protocol",
            f'"acme" has no address for the protocol "{protocol}"',
            'use one of: "messages", "chat"; or set base_url yourself',
        )
    ]


def test_a_protocol_that_does_not_exist_is_told_once() -> None:
    assert [row[1] for row in told('preset = "acme"\nprotocol = "chatt"', "big", KEY)] == [
        "providers.q.protocol"
    ]


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"ACME_API_KEY": "a", "ACME_KEY": "b"}, ("ACME_API_KEY", "a")),
        ({"ACME_KEY": "b"}, ("ACME_KEY", "b")),
        ({"ACME_API_KEY": "", "ACME_KEY": "b"}, ("ACME_KEY", "b")),
    ],
)
def test_the_first_variable_that_is_set_has_the_key(
    environ: dict[str, str], expected: tuple[str, str]
) -> None:
    (key,) = provider('preset = "acme"', "big", environ).auth
    assert (key.env, key.secret.reveal()) == expected


def test_without_a_key_the_first_variable_is_asked_for() -> None:
    assert told('preset = "acme"', "big", {}) == [
        (
            "error",
            "providers.q.auth[0].env",
            "the environment variable ACME_API_KEY is not set",
            "set ACME_API_KEY",
        )
    ]


def test_an_unknown_preset_is_answered_with_the_near_ones() -> None:
    assert told('preset = "acme-codin"', "big", KEY) == [
        (
            "error",
            "providers.q.preset",
            'names the preset "acme-codin", which does not exist',
            'did you mean "acme-coding"?',
        )
    ]


def test_an_unknown_model_of_a_preset_is_answered_with_the_near_one() -> None:
    (row,) = told('preset = "acme"', "bigg", KEY)
    assert row[3] == 'did you mean "q.big"? Or add [providers.q.models."bigg"]'


ENVIRON = {"AZURE_RESOURCE_NAME": "ours", "AWS_REGION": "eu-1", "AWS_DEFAULT_REGION": "us-1"}


@pytest.mark.parametrize(
    ("row", "environ", "expected"),
    [
        ('resource = "mine"\nregion = "eu-2"', {}, "https://mine.eu-2.cloud.test/v1"),
        ('resource = "mine"\nregion = "eu-2"', ENVIRON, "https://mine.eu-2.cloud.test/v1"),
        ("", ENVIRON, "https://ours.eu-1.cloud.test/v1"),
        ("", {**ENVIRON, "AWS_REGION": ""}, "https://ours.us-1.cloud.test/v1"),
        ('base_url = "https://{region}.own.test/v1"', ENVIRON, "https://eu-1.own.test/v1"),
    ],
    ids=["from the row", "the row wins", "from the environment", "the second variable", "an own address"],
)
def test_resource_and_region_are_filled_in(row: str, environ: dict[str, str], expected: str) -> None:
    assert provider(f'preset = "cloud"\n{row}', "m", environ).base_url == expected


def test_what_is_missing_in_an_address_is_named() -> None:
    assert told('preset = "cloud"', "m", {}) == [
        (
            "error",
            "providers.q.resource",
            "is missing: the base URL contains {resource}",
            'set resource = "…", or the environment variable AZURE_RESOURCE_NAME',
        ),
        (
            "error",
            "providers.q.region",
            "is missing: the base URL contains {region}",
            'set region = "…", or the environment variable AWS_REGION or AWS_DEFAULT_REGION',
        ),
    ]


@pytest.mark.parametrize("value", ["https://mine.test", "mine.test", "evil.test/", "-a", "", "a\\nb", "a@b"])
def test_an_address_is_filled_with_names_only(value: str) -> None:
    fix = "use letters, digits and -, without the rest of the address"
    assert told(f'preset = "cloud"\nresource = "{value}"', "m", ENVIRON) == [
        ("error", "providers.q.resource", "is not the name of a resource", fix)
    ]


def test_a_value_of_the_environment_is_not_shown() -> None:
    secret = {**ENVIRON, "AZURE_RESOURCE_NAME": "sk-secret/"}
    assert told('preset = "cloud"', "m", secret) == [
        (
            "error",
            "providers.q.resource",
            "AZURE_RESOURCE_NAME is not the name of a resource",
            "use letters, digits and -, without the rest of the address",
        )
    ]


def test_a_resource_of_the_wrong_type_is_told_once() -> None:
    assert [row[1] for row in told('preset = "cloud"\nresource = 7', "m", ENVIRON)] == [
        "providers.q.resource"
    ]


def test_a_region_without_use_is_a_warning() -> None:
    assert told('preset = "acme"\nregion = "eu"', "big", KEY) == [
        (
            "warning",
            "providers.q.region",
            "has no effect: the base URL does not contain {region}",
            "remove it",
        )
    ]
