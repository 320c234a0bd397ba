"""Loading: the whole path from text to a configuration, and how every mistake is told."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest
from msgspec import Struct

from routecodex.config import (
    ClientKeyConfig,
    Config,
    InvalidConfig,
    KeyConfig,
    ModelConfig,
    PoolConfig,
    Preset,
    PriceConfig,
    Problem,
    Secret,
    TimeoutConfig,
    examine,
    find_path,
    load,
    loads,
)
from routecodex.config.reference import example
from routecodex.config.syntax import MINIMAL_CONFIG
from routecodex.providers import catalog

KEYS = {"GLM_API_KEY": "first", "GLM_KEY2": "second"}

MINIMAL = """\
[providers.p]
protocol = "chat"
base_url = "http://127.0.0.1:9001/v1"
models = { m = {} }
[routing]
default = ["p.m"]
"""

PRESETS = {
    "acme": Preset(
        about="Acme",
        protocol="messages",
        base_url="https://api.acme.test",
        env=("ACME_API_KEY", "ACME_KEY"),
        auth_style="x-api-key",
        models={"big": ModelConfig(context_tokens=1000, vision=False, price=PriceConfig(input=1, output=2))},
        dialect={"image_urls": False},
        headers={"x-team": "one"},
        others=(
            Preset(
                about="Acme",
                protocol="chat",
                base_url="https://{resource}.{region}.acme.test/chat",
                env=("ACME_API_KEY", "ACME_KEY"),
                auth_style="bearer",
                models={"small": ModelConfig(context_tokens=500)},
            ),
        ),
    ),
    "local": Preset(
        about="Local", protocol="chat", base_url="http://127.0.0.1:1/v1", env=(), auth_style="none"
    ),
}


class Accent(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Stands in for the dialect of the protocols."""

    image_urls: bool = True
    system_role: Literal["system", "developer"] = "system"
    unsupported: tuple[str, ...] = ()


def told(text: str, environ: dict[str, str] | None = None) -> list[tuple[int | None, str, str, str]]:
    """Line, path, message and fix of every error in the text."""
    _, problems = examine(text, environ=environ or {}, presets=PRESETS, dialect_type=Accent)
    return [(one.line, one.path, one.message, one.fix) for one in problems if one.severity == "error"]


def test_the_example_loads_as_it_stands() -> None:
    config = loads(example(), environ=KEYS)
    assert config.server.identity == "main"
    assert config.providers["glm"].auth == (
        KeyConfig(alias="primary", value=Secret("first")),
        KeyConfig(alias="backup", value=Secret("second"), env="GLM_KEY2"),
    )
    assert config.providers["glm"].models["glm-4.7"] == ModelConfig(
        id="glm-4.7",
        context_tokens=200_000,
        max_output_tokens=128_000,
        vision=False,
        price=PriceConfig(input=0.6, output=2.2, cache_read=0.11),
    )
    assert config.providers["claude"].auth_style == "x-api-key"
    assert config.providers["claude"].auth[0].alias == "key1"
    assert config.pools("default") == (
        PoolConfig(id="main", targets=("glm.glm-4.7", "claude.claude-sonnet-4-5")),
    )
    assert config.pools("thinking") == (
        PoolConfig(id="main", mode="priority", targets=("claude.claude-sonnet-4-5",)),
        PoolConfig(id="spare", backup=True, targets=("glm.glm-4.7",)),
    )
    assert config.pools("coding") == ()
    assert config.server_tools.clock.ntp.servers == ("pool.ntp.org:123",)
    assert config.models == {"gpt-5": "glm.glm-4.7", "claude-*haiku*": "route:background"}


def test_the_example_has_no_warnings() -> None:
    assert examine(example(), environ=KEYS)[1] == []


def assert_taken_or_told(text: str) -> None:
    """Either there is a configuration, or errors; each problem has a place, a message and a way out."""
    config, problems = examine(text, environ=KEYS, presets=PRESETS, dialect_type=Accent)
    assert config is not None or any(one.severity == "error" for one in problems), text
    assert [one for one in problems if not ((one.path or one.line) and one.message and one.fix)] == [], text
    assert {one.file for one in problems} <= {"config.toml"}


@pytest.mark.parametrize("value", ["5", "-1", "1.5", "true", '""', '"x"', "[]", "[[]]", "{}", "{ a = {} }"])
def test_any_value_in_any_place_is_taken_or_told_and_never_breaks_the_loader(value: str) -> None:
    lines = example().splitlines()
    for number, line in enumerate(lines):
        key, equals, _ = line.partition(" = ")
        if equals and not line.startswith("#"):
            text = "\n".join([*lines[:number], f"{key} = {value}", *lines[number + 1 :]])
            assert_taken_or_told(text)
    for section in ("server", "providers", "models", "routing", "server_tools", "classifier"):
        assert_taken_or_told(f"{section} = {value}")
        assert_taken_or_told(f"{section}.acme = {value}")


def test_what_the_file_leaves_out_has_its_default() -> None:
    config = loads(MINIMAL, environ={})
    assert config == Config(providers=config.providers, routing={"default": ("p.m",)})
    assert config.server.identity == "127.0.0.1-5520"
    assert config.providers["p"].timeout == TimeoutConfig()
    assert config.providers["p"].keys == (KeyConfig(alias="key1"),)
    assert not config.providers["p"].keys[0].secret


def test_environment_fills_strings_numbers_and_booleans() -> None:
    text = MINIMAL + (
        "[server]\n"
        'host = "${HOST:-127.0.0.1}"\n'
        'port = "${PORT}"\n'
        'id = "a$$b${EMPTY:-c}-$d"\n'
        "[logging]\n"
        'finish_trace = "${TRACE}"\n'
        "[store]\n"
        'responses_ttl_hours = "${HOURS}"\n'
    )
    environ = {"PORT": "8080", "TRACE": "True", "EMPTY": "", "HOURS": "1.5"}
    config, _ = examine(text, environ=environ)
    assert config is not None
    assert (config.server.host, config.server.port, config.server.id) == ("127.0.0.1", 8080, "a$bc-$d")
    assert config.logging.finish_trace is True
    assert config.store.responses_ttl_hours == 1.5


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(
            "[server]\nprot = 1\n",
            (2, "server.prot", "is not a known key", 'did you mean "port"?'),
            id="unknown key",
        ),
        pytest.param(
            "[sevrer]\nport = 1\n",
            (1, "sevrer", "is not a known key", 'did you mean "server"?'),
            id="unknown section",
        ),
        pytest.param(
            "[routing_options]\nzzz = 1\n",
            (
                2,
                "routing_options.zzz",
                "is not a known key",
                'remove it; known here: "affinity", "max_attempts", "max_wait_ms", "health", '
                '"retry_after_max_ms"',
            ),
            id="unknown key like no other",
        ),
        pytest.param(
            '[server]\nport = "5520"\n',
            (
                2,
                "server.port",
                'must be a whole number from 0 to 65535, got "5520"',
                "write 5520 without the quotes",
            ),
            id="number in quotes",
        ),
        pytest.param(
            "[server]\nport = 70000\n",
            (
                2,
                "server.port",
                "must be a whole number from 0 to 65535, got 70000",
                "write a whole number from 0 to 65535",
            ),
            id="number out of range",
        ),
        pytest.param(
            "[server]\nport = true\n",
            (
                2,
                "server.port",
                "must be a whole number from 0 to 65535, got true",
                "write a whole number from 0 to 65535",
            ),
            id="boolean for a number",
        ),
        pytest.param(
            '[routing_options]\naffinity = "true"\n',
            (
                2,
                "routing_options.affinity",
                'must be true or false, got "true"',
                "write true without the quotes",
            ),
            id="boolean in quotes",
        ),
        pytest.param(
            '[logging]\nlevel = "warn"\n',
            (
                2,
                "logging.level",
                'must be one of "debug", "error", "info", "warning", got "warn"',
                'did you mean "warning"?',
            ),
            id="not one of",
        ),
        pytest.param(
            "[server]\nhost = 1979-05-27\n",
            (
                2,
                "server.host",
                "must be a non-empty string, got a date or time",
                "write a non-empty string",
            ),
            id="date for a string",
        ),
        pytest.param(
            "server = 5\n",
            (
                1,
                "server",
                "must be a table, got a number",
                "write { … } with any of: host, port, id, advertise_url, client_keys, admin_token, "
                "allowed_hosts, allowed_origins, max_body_mb, max_header_kb, max_messages, max_concurrent, "
                "max_queued, queue_wait_ms, client_idle_ms, max_body_seconds, keepalive_ms, drain_seconds, "
                "drain_notice_ms, worker_timeout_ms",
            ),
            id="number for a table",
        ),
        pytest.param(
            '[server]\nallowed_hosts = "a"\n',
            (2, "server.allowed_hosts", "must be a list, got a string", "put it in [ ]"),
            id="string for a list",
        ),
        pytest.param(
            '[server]\nclient_keys = [{ key = "k" }]\n',
            (2, "server.client_keys[0].name", "is missing", 'name its owner: name = "laptop"'),
            id="required key",
        ),
        pytest.param(
            '[providers.q]\nprotocol = "chat"\nbase_url = "http://127.0.0.1/v1"\n'
            '[providers.q.models."glm-4.7"]\ncontext_tokens = 0\n',
            (
                5,
                'providers.q.models."glm-4.7".context_tokens',
                "must be a whole number of at least 1, got 0",
                "write a whole number of at least 1",
            ),
            id="quoted path",
        ),
        pytest.param(
            '[providers.q]\nbase_url = "http://127.0.0.1/v1"\nmodels = { m = {} }\n',
            (
                1,
                "providers.q.protocol",
                "is missing",
                'set protocol = "chat", "responses", "messages" or "gemini", or name a preset',
            ),
            id="no protocol and no preset",
        ),
        pytest.param(
            '[providers.q]\npreset = "acne"\nauth = [{ value = "k" }]\n',
            (
                2,
                "providers.q.preset",
                'names the preset "acne", which does not exist',
                'did you mean "acme"?',
            ),
            id="unknown preset",
        ),
        pytest.param(
            '[providers.q]\npreset = "acne"\n[models]\nx = "q.small"\n',
            (
                2,
                "providers.q.preset",
                'names the preset "acne", which does not exist',
                'did you mean "acme"?',
            ),
            id="what an unknown preset would have said",
        ),
        pytest.param(
            '[providers.q]\npreset = "zzz"\n[models]\nx = "q.small"\n',
            (
                2,
                "providers.q.preset",
                'names the preset "zzz", which does not exist',
                'use one of: "acme", "local"',
            ),
            id="what a preset like no other would have said",
        ),
        pytest.param(
            "[server]\nclient_idle_ms = 86400001\n",
            (
                2,
                "server.client_idle_ms",
                "must be a whole number from 1000 to 86400000, got 86400001",
                "write a whole number from 1000 to 86400000",
            ),
            id="more than a day",
        ),
        pytest.param(
            "[store]\nresponses_ttl_hours = inf\n",
            (
                2,
                "store.responses_ttl_hours",
                "must be a number above 0 and up to 8760, got inf",
                "write a number above 0 and up to 8760",
            ),
            id="no end",
        ),
        pytest.param(
            '[server]\nid = "${NOPE}"\n',
            (
                2,
                "server.id",
                "uses the environment variable NOPE, which is not set",
                "set NOPE, or add a default: ${NOPE:-…}",
            ),
            id="variable not set",
        ),
        pytest.param(
            '[server]\nid = "${no name}"\n',
            (2, "server.id", 'has a "${" without a valid variable name', "write ${NAME}, or $$ for one $"),
            id="variable without a name",
        ),
        pytest.param(
            '[providers.acme]\nauth = [{ env = "NOPE" }]\n',
            (2, "providers.acme.auth[0].env", "the environment variable NOPE is not set", "set NOPE"),
            id="key variable not set",
        ),
        pytest.param(
            '[providers.acme]\nauth = [{ alias = "a" }]\n',
            (2, "providers.acme.auth[0]", "has no key", "set exactly one of value, env and file"),
            id="key without a value",
        ),
        pytest.param(
            '[providers.acme]\nauth = [{ value = "a", env = "B" }]\n',
            (
                2,
                "providers.acme.auth[0]",
                "has several keys: value, env",
                "set exactly one of value, env and file",
            ),
            id="key in two places",
        ),
        pytest.param(
            '[providers.acme]\nauth = [{ value = "" }]\n',
            (2, "providers.acme.auth[0].value", "is empty", "set the key"),
            id="empty key",
        ),
        pytest.param(
            '[providers.acme]\nauth = [{ value = "a\\nb" }]\n',
            (
                2,
                "providers.acme.auth[0].value",
                "contains a character that is not allowed in a header",
                "copy the key again, without spaces",
            ),
            id="key with a line break",
        ),
        pytest.param(
            '[providers.acme]\nauth = [{ value = "k" }]\ndialect = { image_url = true }\n',
            (3, "providers.acme.dialect.image_url", "is not a known key", 'did you mean "image_urls"?'),
            id="unknown dialect key",
        ),
        pytest.param(
            '[providers.acme]\nauth = [{ value = "k" }]\ndialect = { system_role = "sytem" }\n',
            (
                3,
                "providers.acme.dialect.system_role",
                'must be one of "developer", "system", got "sytem"',
                'did you mean "system"?',
            ),
            id="dialect value",
        ),
    ],
)
def test_a_mistake_is_told_with_its_line_path_and_fix(text: str, expected: tuple[int, str, str, str]) -> None:
    line, *rest = expected
    assert told(text + "\n" + MINIMAL) == [(line, *rest)]


def test_a_key_in_a_place_of_the_wrong_type_is_not_shown() -> None:
    text = MINIMAL + '[providers.acme]\nauth = ["sk-1234"]\n[server]\nadmin_token = 5678\nport = "${K}"\n'
    _, problems = examine(text, environ={"K": "sk-9999"}, presets=PRESETS)
    assert [one.path for one in problems] == ["providers.acme.auth[0]", "server.admin_token", "server.port"]
    assert not any(secret in str(one) for one in problems for secret in ("1234", "5678", "9999"))


def test_every_problem_is_told_at_once_and_in_the_order_of_the_file() -> None:
    text = (
        "[server]\n"
        'host = "0.0.0.0"\n'
        "prot = 1\n"
        "[providers.p]\n"
        'protocol = "chta"\n'
        'auth = [{ alias = "a", value = "${NOPE}" }]\n'
        "[providers.p.models.m]\n"
        "context_tokens = 0\n"
        "[routing]\n"
        'default = ["p.m", "p.n"]\n'
    )
    assert [(line, path) for line, path, _, _ in told(text)] == [
        (1, "server.client_keys"),
        (3, "server.prot"),
        (5, "providers.p.protocol"),
        (6, "providers.p.auth[0].value"),
        (8, "providers.p.models.m.context_tokens"),
        (10, "routing.default[1]"),
    ]


def test_the_error_reads_as_a_list_for_people() -> None:
    with pytest.raises(InvalidConfig) as caught:
        loads(MINIMAL + "[server]\nprot = 1\n[store]\nurl = 5\n", source="my.toml", environ={})
    assert caught.value.message == (
        "The configuration has 2 problems:\n"
        '  - my.toml:8: server.prot: is not a known key. Fix: did you mean "port"?\n'
        "  - my.toml:10: store.url: must be a string, got 5. Fix: write a string"
    )
    assert len(caught.value.problems) == 2


@pytest.mark.parametrize(
    ("text", "message", "line"),
    [
        ("[a]\nb 5\n", "at line 2, column 3: Expected '=' after a key in a key/value pair", 2),
        ('a = "x', "at the end of the file: Unterminated string", 1),
    ],
)
def test_a_syntax_error_names_line_and_column(text: str, message: str, line: int) -> None:
    assert examine(text, environ={}) == (
        None,
        [
            Problem(
                (),
                f"is not valid TOML {message}",
                "correct the syntax there",
                file="config.toml",
                line=line,
            )
        ],
    )


def test_the_smallest_file_that_is_shown_can_be_used() -> None:
    environ = {"OPENAI_API_KEY": "k"}
    assert examine(MINIMAL_CONFIG, environ=environ, presets=catalog.PRESETS)[1] == []


def test_a_missing_file_says_how_to_make_one(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    with pytest.raises(InvalidConfig) as caught:
        load(path, {})
    assert [str(one) for one in caught.value.problems] == [
        f"{path}: the file does not exist. Fix: create it; the smallest one is:\n{MINIMAL_CONFIG}"
    ]


def test_a_directory_or_a_file_that_is_not_text_is_told(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="cannot be read: Is a directory"):
        load(tmp_path, {})
    (tmp_path / "c.toml").write_bytes(b"a = '\xff'")
    with pytest.raises(InvalidConfig, match=r"is not UTF-8 text \(byte 5\)"):
        load(tmp_path / "c.toml", {})


def test_keys_are_read_from_files_beside_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("from-file\n")
    path = tmp_path / "config.toml"
    path.write_text(MINIMAL.replace("models", 'auth = [{ file = "key" }]\nmodels'))
    assert load(path, {}).providers["p"].keys[0].secret.reveal() == "from-file"
    (tmp_path / "key").unlink()
    with pytest.raises(InvalidConfig) as caught:
        load(path, {})
    problem = caught.value.problems[0]
    assert (problem.path, problem.message, problem.line) == (
        "providers.p.auth[0].file",
        f"cannot read {tmp_path / 'key'}: No such file or directory",
        4,
    )


def test_a_missing_authority_file_is_told(tmp_path: Path) -> None:
    text = MINIMAL.replace("models", 'tls = { ca_file = "ca.pem" }\nmodels')
    _, problems = examine(text, source=str(tmp_path / "c.toml"), environ={})
    assert [(one.path, one.message) for one in problems] == [
        ("providers.p.tls.ca_file", f"names {tmp_path / 'ca.pem'}, which is not a file")
    ]


def test_an_authority_file_without_a_certificate_is_told(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("nothing of the kind\n")
    text = MINIMAL.replace("models", 'tls = { ca_file = "ca.pem" }\nmodels')
    _, problems = examine(text, source=str(tmp_path / "c.toml"), environ={})
    assert [(one.line, one.path, one.message, one.fix) for one in problems] == [
        (
            4,
            "providers.p.tls.ca_file",
            f"names {tmp_path / 'ca.pem'}, which has no certificate in PEM form",
            "name a file with -----BEGIN CERTIFICATE----- in it",
        )
    ]


def test_a_preset_fills_in_what_the_row_leaves_out() -> None:
    text = (
        '[providers.mine]\npreset = "acme"\nheaders = { x-user = "me" }\n'
        'dialect = { system_role = "developer" }\n'
        '[providers.mine.models.big]\nprice = { output = 5 }\n[providers.mine.models.other]\nid = "o-1"\n'
        '[routing]\ndefault = ["mine.big"]\n'
    )
    mine = loads(text, environ={"ACME_API_KEY": "k"}, presets=PRESETS, dialect_type=Accent).providers["mine"]
    assert (mine.protocol, mine.base_url, mine.auth_style) == (
        "messages",
        "https://api.acme.test",
        "x-api-key",
    )
    assert mine.auth == (KeyConfig(alias="key1", value=Secret("k"), env="ACME_API_KEY"),)
    assert mine.headers == {"x-team": "one", "x-user": "me"}
    assert mine.dialect == {"image_urls": False, "system_role": "developer"}
    assert mine.models == {
        "big": ModelConfig(id="big", context_tokens=1000, vision=False, price=PriceConfig(input=1, output=5)),
        "other": ModelConfig(id="o-1"),
    }


def test_a_provider_named_like_a_preset_uses_it() -> None:
    text = '[providers.acme]\n[routing]\ndefault = ["acme.big"]\n'
    config = loads(text, environ={"ACME_API_KEY": "k"}, presets=PRESETS)
    assert config.providers["acme"].preset == "acme"
    assert told(text) == [
        (
            1,
            "providers.acme.auth[0].env",
            "the environment variable ACME_API_KEY is not set",
            "set ACME_API_KEY",
        )
    ]


def test_a_provider_named_like_a_preset_with_its_own_address_does_not_use_it() -> None:
    text = MINIMAL.replace("providers.p", "providers.acme").replace("p.m", "acme.m")
    provider = loads(text, environ={}, presets=PRESETS).providers["acme"]
    assert (provider.preset, provider.protocol, list(provider.models)) == (None, "chat", ["m"])


def test_a_local_preset_asks_for_no_key_but_takes_one() -> None:
    text = "[providers.local]\nmodels = { m = {} }\n%s\n[routing]\ndefault = ['local.m']\n"
    assert loads(text % "", environ={}, presets=PRESETS).providers["local"].auth_style == "none"
    keyed = loads(text % "auth = [{ value = 'k' }]", environ={}, presets=PRESETS).providers["local"]
    assert (keyed.auth_style, keyed.keys[0].secret) == ("bearer", Secret("k"))


def test_weights_make_a_pool_weighted_and_unnamed_pools_get_names() -> None:
    text = MINIMAL.replace(
        '["p.m"]', '[{ targets = ["p.m"], weights = { "p.m" = 2 } }, { targets = ["p.m"] }]'
    )
    assert loads(text, environ={}).pools("default") == (
        PoolConfig(id="pool1", mode="weighted", targets=("p.m",), weights={"p.m": 2.0}),
        PoolConfig(id="pool2", targets=("p.m",)),
    )


def test_no_representation_shows_a_secret() -> None:
    text = MINIMAL.replace("models", 'auth = [{ value = "sk-1" }]\nmodels') + (
        '[server]\nadmin_token = "sk-2"\nclient_keys = [{ name = "a", key = "sk-3" }]\n'
    )
    config = loads(text, environ={})
    assert config.server.client_keys == (ClientKeyConfig(name="a", key=Secret("sk-3")),)
    assert "sk-" not in f"{config!r} {config!s} {config.server.client_keys[0].key}"


def test_the_file_is_found_by_variable_then_user_dir_then_home(tmp_path: Path) -> None:
    named = {"ROUTECODEX_CONFIG_PATH": "/etc/r.toml", "ROUTECODEX_USER_DIR": str(tmp_path)}
    assert find_path(named) == Path("/etc/r.toml")
    assert find_path({"ROUTECODEX_USER_DIR": str(tmp_path)}) == tmp_path / "config.toml"
    assert find_path({}) == Path("~/.routecodex/config.toml").expanduser()
