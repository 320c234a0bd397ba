"""Checks of clients, teams, their keys and the usage ledger."""

from __future__ import annotations

from pathlib import Path

import pytest

from routecodex.config import (
    AllowConfig,
    ClientConfig,
    LimitConfig,
    TeamConfig,
    UsageConfig,
    examine,
    key_digest,
    loads,
    parse_time,
)
from tests.config.checked import BASE, problems_of

DIGEST = key_digest("k-1")


def rows(text: str) -> list[tuple[str, str, str]]:
    return [(severity, path, message) for severity, path, message, _ in problems_of(BASE + text)]


def client(*lines: str, name: str = "laptop") -> str:
    return f'[clients.{name}]\nkey = "k-1"\n' + "".join(f"{line}\n" for line in lines)


FULL = """\
[usage]
timezone = "Europe/Berlin"
reserve = "max"
webhook = "https://hooks.example/limits"
[teams.core]
limits = ["$200/month"]
allow = { providers = ["glm"] }
instructions = ["status"]
shared_sessions = ["laptop", "ci"]
[clients.laptop]
key = "${LAPTOP_KEY}"
team = "core"
rpm = 60
tpm = 200000
concurrent = 8
limits = ["$20/day", { limit = "$5/5h", warn_at = 0.5, on_exceeded = "route:default" },
          { limit = "$10/week", models = ["glm-*"], timezone = "Asia/Shanghai", mode = "shadow" }]
allow = { providers = ["*"], models = ["glm.*", "blind"], routes = ["*"] }
instructions = ["routing", "stop_message", "clock", "status", "agents", "approve"]
expires = "2027-01-31T00:00:00Z"
role = "viewer"
mcp = ["github.*"]
blocked = true
[clients.anonymous]
limits = ["10 requests/day"]
"""


def test_every_setting_of_clients_and_teams_is_read() -> None:
    config, problems = examine(BASE + FULL, environ={"LAPTOP_KEY": "k-1"})
    assert config is not None
    assert problems == []
    laptop = config.clients["laptop"]
    assert laptop.digest == DIGEST
    assert laptop.limit_rows == (
        LimitConfig(limit="60 requests/60s"),
        LimitConfig(limit="200000 tokens/60s"),
        LimitConfig(limit="$20/day"),
        LimitConfig(limit="$5/5h", warn_at=0.5, on_exceeded="route:default"),
        LimitConfig(limit="$10/week", models=("glm-*",), timezone="Asia/Shanghai", mode="shadow"),
    )
    assert (laptop.team, laptop.concurrent, laptop.role, laptop.mcp, laptop.blocked) == (
        *("core", 8, "viewer", ("github.*",), True),
    )
    assert laptop.allow == AllowConfig(models=("glm.*", "blind"))
    assert laptop.instructions == ("routing", "stop_message", "clock", "status", "agents", "approve")
    assert config.teams == {
        "core": TeamConfig(
            limits=("$200/month",),
            allow=AllowConfig(providers=("glm",)),
            instructions=("status",),
            shared_sessions=("laptop", "ci"),
        )
    }
    assert config.usage == UsageConfig(
        timezone="Europe/Berlin", reserve="max", webhook="https://hooks.example/limits"
    )
    assert config.clients["anonymous"] == ClientConfig(limits=("10 requests/day",))
    assert config.has_clients


def test_without_tables_there_are_no_clients_and_the_ledger_has_its_defaults() -> None:
    config = loads(BASE, environ={})
    assert (config.clients, config.teams, config.has_clients) == ({}, {}, False)
    assert config.usage == UsageConfig()
    assert (config.usage.keep_days, config.usage.max_mb, config.usage.timezone) == (90, 1024, "UTC")
    assert (config.usage.reserve, config.usage.unknown_price, config.usage.on_store_down) == (
        *("typical", "refuse", "refuse"),
    )


def test_a_limit_of_a_providers_key_is_read() -> None:
    text = BASE.replace('value = "a"', 'value = "a", rpm = 50, tpm = 40000, concurrent = 5')
    key = loads(text, environ={}).providers["glm"].auth[0]
    assert (key.rpm, key.tpm, key.concurrent) == (50, 40000, 5)


KEYS = ['key = "k-1"', 'key = { env = "K" }', 'key = { file = "k.txt" }', f'key_sha256 = "{DIGEST.upper()}"']


@pytest.mark.parametrize("key", KEYS)
def test_a_key_is_a_string_a_variable_a_file_or_a_digest(key: str, tmp_path: Path) -> None:
    file = tmp_path / "k.txt"
    file.write_text("k-1\n")
    file.chmod(0o600)
    config, problems = examine(
        BASE + f"[clients.a]\n{key}\n", source=str(tmp_path / "gateway.toml"), environ={"K": "k-1"}
    )
    assert config is not None
    assert problems == []
    assert config.clients["a"].digest == DIGEST
    assert "k-1" not in repr(config)


def test_a_key_file_that_others_can_read_is_a_warning(tmp_path: Path) -> None:
    file = tmp_path / "k.txt"
    file.write_text("k-1\n")
    file.chmod(0o644)
    _, problems = examine(
        BASE + '[clients.a]\nkey = { file = "k.txt" }\n', source=str(tmp_path / "gateway.toml"), environ={}
    )
    assert [(one.severity, one.path, one.message, one.fix) for one in problems] == [
        ("warning", "clients.a.key.file", f"other users can read {file} (mode 644)", f"chmod 600 {file}")
    ]


BAD_KEYS = [
    pytest.param(
        "[clients.a]\nrpm = 1\n", ("error", "clients.a.key", "has no key"), id="neither key nor digest"
    ),
    pytest.param(
        f'[clients.a]\nkey = "x"\nkey_sha256 = "{DIGEST}"\n',
        ("error", "clients.a.key_sha256", "is given beside key"),
        id="a key given twice",
    ),
    pytest.param(
        '[clients.a]\nkey = { env = "K", file = "f" }\n',
        ("error", "clients.a.key", "has several keys: env, file"),
        id="a key in two places",
    ),
    pytest.param(
        '[clients.a]\nkey = { env = "K" }\n',
        ("error", "clients.a.key.env", "the environment variable K is not set"),
        id="a variable that is not set",
    ),
    pytest.param('[clients.a]\nkey = ""\n', ("error", "clients.a.key.value", "is empty"), id="an empty key"),
    pytest.param(
        '[clients.a]\nkey_sha256 = "abc"\n',
        ("error", "clients.a.key_sha256", "is not a SHA-256 of 64 hex digits"),
        id="a digest that is none",
    ),
    pytest.param(
        client() + f'[clients.b]\nkey_sha256 = "{DIGEST.upper()}"\n',
        (
            *("error", "clients.b.key_sha256"),
            'is also the key of "laptop": the two cannot be told apart',
        ),
        id="one key for two clients",
    ),
    pytest.param(
        '[server]\nclient_keys = [{ name = "a", key = "k-1" }]\n' + client(),
        ("error", "clients.laptop.key", 'is also the key of "a": the two cannot be told apart'),
        id="one key in the list and in a table",
    ),
    pytest.param(
        '[server]\nclient_keys = [{ name = "laptop", key = "k-2" }]\n' + client(),
        ("error", "server.client_keys[0].name", '"laptop" is also a table [clients.laptop]'),
        id="one name in the list and in a table",
    ),
    pytest.param(
        '[clients.anonymous]\nkey = "x"\n',
        ("error", "clients.anonymous.key", "stands for requests without a key, and has one"),
        id="a key for requests without a key",
    ),
    pytest.param(
        '[server]\nclient_keys = [{ name = "anonymous", key = "x" }]\n',
        ("error", "server.client_keys[0].name", '"anonymous" stands for requests without a key'),
        id="a key in the list for requests without a key",
    ),
]


@pytest.mark.parametrize(("text", "expected"), BAD_KEYS)
def test_a_key_that_is_missing_or_not_unique_is_an_error(text: str, expected: tuple[str, str, str]) -> None:
    assert rows(text) == [expected]


LONG = "x" * 65


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ('"a b"', '"a b" is not a valid name'),
        ('"a/b"', '"a/b" is not a valid name'),
        ('"ü"', '"ü" is not a valid name'),
        ('""', '"" is not a valid name'),
        (LONG, f'"{LONG}" is not a valid name'),
        ("console", '"console" stands for the playground of the console'),
        ("gateway", '"gateway" stands for the gateway\'s own calls'),
    ],
)
def test_a_name_that_cannot_be_used_is_an_error(name: str, message: str) -> None:
    clients = problems_of(BASE + client(name=name))
    teams = problems_of(BASE + f"[teams.{name}]\n")
    assert [row[0::2][:2] for row in (*clients, *teams)] == [("error", message)] * 2


@pytest.mark.parametrize("name", ["a", "A_b-9", '"a.b"', "x" * 64])
def test_names_are_letters_digits_underscores_dots_and_dashes(name: str) -> None:
    assert problems_of(BASE + client(name=name)) == []


def test_names_of_the_old_list_stay_valid_but_for_reserved_ones() -> None:
    assert rows('[server]\nclient_keys = [{ name = "my laptop", key = "1" }]\n') == []
    assert rows('[server]\nclient_keys = [{ name = "gateway", key = "1" }]\n') == [
        ("error", "server.client_keys[0].name", '"gateway" stands for the gateway\'s own calls')
    ]


BAD_VALUES = [
    ('team = "cor"', "team", 'names the team "cor", which is not configured'),
    ('expires = "tomorrow"', "expires", '"tomorrow" is not a time'),
    ('expires = "30d"', "expires", '"30d" is not a time'),
    ('expires = "2027-01-31T00:00:00"', "expires", '"2027-01-31T00:00:00" is not a time'),
    ("rpm = 0", "rpm", "must be a whole number from 1 to 1000000000, got 0"),
    ("tpm = -5", "tpm", "must be a whole number from 1 to 1000000000, got -5"),
    ("concurrent = -1", "concurrent", "must be a whole number from 1 to 1000000000, got -1"),
    (
        f"rpm = {10**30}",
        "rpm",
        f"must be a whole number from 1 to 1000000000, got {10**30}",
    ),
    ('limits = [""]', "limits[0]", '"" is not a limit'),
    (
        'limits = ["$20/fortnight"]',
        "limits[0]",
        '"$20/fortnight" has the window "fortnight"; windows are minute, hour, day, week and month, and '
        "times such as 60s, 5h or 7d",
    ),
    ('limits = ["$-20/day"]', "limits[0]", '"$-20/day" is negative'),
    ('limits = [{ limit = "0 requests/day" }]', "limits[0].limit", '"0 requests/day" allows nothing'),
    (
        'limits = [{ limit = "$1/day", warn_at = 1.5 }]',
        "limits[0].warn_at",
        "must be a number above 0 and up to 1, got 1.5",
    ),
    (
        'limits = [{ limit = "$1/day", on_exceeded = "cry" }]',
        "limits[0].on_exceeded",
        '"cry" is not a way to deal with a used limit',
    ),
    (
        'limits = [{ limit = "$1/day", on_exceeded = "route:cheap" }]',
        "limits[0].on_exceeded",
        'names the route "cheap", which is not configured',
    ),
    (
        'limits = [{ limit = "$1/day", timezone = "Mars/North" }]',
        "limits[0].timezone",
        '"Mars/North" is not a time zone of this machine',
    ),
    ("limits = [5]", "limits[0]", "must be a string or a table, got a number"),
    (
        'instructions = ["routing", "sing"]',
        "instructions[1]",
        'must be one of "agents", "approve", "clock", "routing", "status", "stop_message", got "sing"',
    ),
    (
        'instructions = "some"',
        "instructions",
        'must be one of "all", "none" or a list, got a string',
    ),
    ('role = "root"', "role", 'must be one of "", "operator", "viewer", got "root"'),
    ("colour = 1", "colour", "is not a known key"),
]


@pytest.mark.parametrize(("line", "field", "message"), BAD_VALUES)
def test_a_wrong_value_of_a_client_is_an_error(line: str, field: str, message: str) -> None:
    assert rows(client(line)) == [("error", f"clients.laptop.{field}", message)]


def test_a_misspelt_team_gets_a_suggestion() -> None:
    found = problems_of(BASE + "[teams.core]\n" + client('team = "cor"'))
    assert [(path, fix) for _, path, _, fix in found] == [("clients.laptop.team", 'did you mean "core"?')]


BAD_USAGE = [
    ('timezone = "Mars/North"', "timezone", '"Mars/North" is not a time zone of this machine'),
    ('webhook = "hooks"', "webhook", "is not a URL"),
    ("keep_days = 0", "keep_days", "must be a whole number from 1 to 36500, got 0"),
    ("max_mb = -1", "max_mb", "must be a whole number from 1 to 1048576, got -1"),
    ('reserve = "all"', "reserve", 'must be one of "max", "typical", got "all"'),
]


@pytest.mark.parametrize(("line", "field", "message"), BAD_USAGE)
def test_a_wrong_value_of_the_ledger_is_an_error(line: str, field: str, message: str) -> None:
    assert rows(f"[usage]\n{line}\n") == [("error", f"usage.{field}", message)]


ALLOW = [
    ('{ providers = ["gml"] }', "providers[0]", '"gml" matches none of the configured providers'),
    ('{ models = ["glm.x*"] }', "models[0]", '"glm.x*" matches none of the configured models'),
    ('{ routes = ["thinking"] }', "routes[0]", '"thinking" matches none of the configured routes'),
    ("{ models = [] }", "models", "is empty, so nothing is allowed"),
]


@pytest.mark.parametrize(("allow", "field", "message"), ALLOW)
def test_a_pattern_that_matches_nothing_is_a_warning(allow: str, field: str, message: str) -> None:
    assert rows(client(f"allow = {allow}")) == [("warning", f"clients.laptop.allow.{field}", message)]


def test_a_limit_whose_models_match_nothing_is_a_warning() -> None:
    """It would never count, and the budget would hold nothing."""
    text = '[teams.core]\nlimits = [{ limit = "$9/day", models = ["opus-*"] }]\n'
    text += client('team = "core"\nlimits = [{ limit = "$1/day", models = ["glm.*", "gml.*"] }]')
    assert rows(text) == [
        ("warning", "teams.core.limits[0].models[0]", '"opus-*" matches none of the configured models'),
        ("warning", "clients.laptop.limits[0].models[1]", '"gml.*" matches none of the configured models'),
    ]


def test_sessions_are_shared_by_members_of_the_team_only() -> None:
    text = (
        '[server]\nclient_keys = [{ name = "old", key = "k-2" }]\n'
        '[teams.core]\nshared_sessions = ["laptop", "old", "added-later"]\n' + client()
    )
    assert rows(text) == [
        ("error", "teams.core.shared_sessions[0]", '"laptop" is not a member of this team'),
        ("error", "teams.core.shared_sessions[1]", '"old" is not a member of this team'),
    ]


def test_a_table_of_a_client_opens_an_address_to_other_machines() -> None:
    assert rows('[server]\nhost = "0.0.0.0"\n' + client()) == []


def test_an_open_address_may_have_its_clients_in_the_store() -> None:
    text = BASE + '[server]\nhost = "0.0.0.0"\n'
    assert loads(text, environ={}, stored_clients=True).server.host == "0.0.0.0"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2027-01-31T00:00:00Z", 1801353600.0),
        ("2027-01-31", 1801353600.0),
        ("2027-01-31T01:00:00+01:00", 1801353600.0),
        ("2027-01-31T00:00:00", None),
        ("99999-01-01T00:00:00Z", None),
        ("0001-01-01T00:00:00+14:00", None),
        ("soon", None),
        ("", None),
    ],
)
def test_a_time_has_a_zone_or_is_a_date(text: str, seconds: float | None) -> None:
    assert parse_time(text) == seconds
