"""The tables of the store and the names of a node."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

from routecodex.config import Secret, examine, loads
from tests.config.checked import BASE, problems_of


def store(*lines: str) -> str:
    return BASE + "[store]\n" + "".join(f"{line}\n" for line in lines)


@pytest.mark.parametrize(
    "url",
    [
        "redis://h",
        "rediss://u:p@h:6379/0",
        "redis+sentinel://a:1,b:2/m",
        "rediss+sentinel://a/m/1",
        "redis+cluster://a,b",
        "rediss+cluster://a",
        "REDIS://h",
        "File:/path",
        "file:///path",
        "MEMORY:",
    ],
)
def test_every_kind_of_url_is_accepted(url: str) -> None:
    assert problems_of(store(f'url = "{url}"')) == []


@pytest.mark.parametrize(
    ("lines", "path", "message"),
    [
        (('url = "redis:///0"',), "store.url", "has no host"),
        (('url = "redis+sentinel://h:1"',), "store.url", "names no master"),
        (
            ('url = "redis+cluster://u:secret@h1,u:secret@h2"',),
            "store.url",
            "has a login behind its first host",
        ),
        (('url = "file://host/x"',), "store.url", '"file://host/x" is not an absolute path'),
        (('url = "FILE:x"',), "store.url", '"FILE:x" is not an absolute path'),
        (
            ('url = "rediskluster://u:secret@h"',),
            "store.url",
            "this value is not a store of this version",
        ),
        (('url = "redis://h"', 'prefix = "a{b}"'), "store.prefix", "is not a valid prefix"),
        (
            ('url = "redis://u:secret@h"', 'username = "v"'),
            "store.username",
            "is also in store.url: two values for the username",
        ),
        (
            ('url = "redis://:secret@h"', 'password = "x"'),
            "store.password",
            "is also in store.url: two values for the password",
        ),
        (('url = "redis://h"', 'password = ""'), "store.password.value", "is empty"),
        (
            ('url = "redis://h"', 'password = { env = "NOT_SET" }'),
            "store.password.env",
            "the environment variable NOT_SET is not set",
        ),
        (
            ('url = "redis://h"', 'sentinel_password = "secret"'),
            "store.sentinel_password",
            "has no effect without sentinels",
        ),
        (
            ('url = "redis+sentinel://h/m"', 'sentinel_username = "ann"'),
            "store.sentinel_username",
            "has no password beside it",
        ),
        (
            ('url = "redis+sentinel://h/m"', 'sentinel_password = { env = "NOT_SET" }'),
            "store.sentinel_password.env",
            "the environment variable NOT_SET is not set",
        ),
        (
            ('url = "rediss://h"', 'ca_file = "missing.pem"'),
            "store.ca_file",
            "names missing.pem, which is not a file",
        ),
        (
            ('url = "rediss://h"', 'cert_file = "missing.pem"'),
            "store.cert_file",
            "names missing.pem, which cannot be read",
        ),
    ],
)
def test_a_mistake_is_named_with_its_place_and_shows_no_password(
    lines: tuple[str, ...], path: str, message: str
) -> None:
    [(severity, place, found, fix)] = problems_of(store(*lines))
    assert (severity, place, found) == ("error", path, message)
    assert fix
    assert "secret" not in found + fix


def test_tls_settings_need_a_tls_url_and_a_key_needs_its_certificate() -> None:
    file = Path(__file__)
    found = problems_of(store('url = "redis://h"', f'key_file = "{file}"'))
    assert [(row[1], row[2]) for row in found] == [
        ("store.key_file", "has no effect without TLS"),
        ("store.key_file", "has no certificate beside it"),
    ]


def test_a_redis_url_without_the_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "redis", None)
    assert problems_of(store('url = "redis://h"')) == [
        (
            "error",
            "store.url",
            "needs the package redis, which is not installed",
            "pip install 'routecodex[redis]'",
        )
    ]
    assert problems_of(store('url = "file:"')) == []


@pytest.mark.parametrize("name", ["password", "sentinel_password"])
@pytest.mark.parametrize("source", ["value", "env", "file"])
def test_a_password_comes_from_the_file_the_environment_or_a_file_of_its_own(
    source: str, name: str, tmp_path: Path
) -> None:
    secret = tmp_path / "password"
    secret.write_text("two words\n")
    secret.chmod(0o600)
    password = {
        "value": '"${REDIS_PASSWORD}"',
        "env": '{ env = "REDIS_PASSWORD" }',
        "file": '{ file = "password" }',
    }[source]
    config, problems = examine(
        store('url = "redis+sentinel://h/m"', f"{name} = {password}"),
        source=str(tmp_path / "config.toml"),
        environ={"REDIS_PASSWORD": "two words"},
    )
    assert problems == []
    assert config is not None
    found = getattr(config.store, name)
    assert found is not None
    assert found.value == Secret("two words")
    assert "two words" not in repr(config)


def test_a_node_is_named_by_its_machine_if_it_shares_a_store() -> None:
    alone = loads(BASE, environ={})
    shared = loads(store('url = "redis://h"'), environ={})
    assert alone.identity == "127.0.0.1-5520"
    assert shared.identity == f"{socket.gethostname()}-5520"


def test_nodes_that_share_one_file_get_id_and_url_from_the_environment() -> None:
    text = BASE + '[server]\nid = "file"\nadvertise_url = "http://file:1"\n'
    environ = {"ROUTECODEX_SERVER_ID": "gw-1", "ROUTECODEX_ADVERTISE_URL": "http://10.0.0.7:5520/"}
    given, named = loads(text, environ={}), loads(text, environ=environ)
    assert (given.identity, given.server.advertise_url) == ("file", "http://file:1")
    assert (named.identity, named.server.advertise_url) == ("gw-1", "http://10.0.0.7:5520")


@pytest.mark.parametrize("url", ["10.0.0.7:5520", "ftp://h", "http://u:p@h", "http://h/path"])
def test_an_advertised_url_is_that_of_a_server(url: str) -> None:
    assert problems_of(BASE + f'[server]\nadvertise_url = "{url}"\n') == [
        (
            "error",
            "server.advertise_url",
            "is not the URL of a server",
            'write "http://host:port", without a path',
        )
    ]
