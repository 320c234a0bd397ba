"""Cross-checks: whether the parts of a configuration fit together."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from routecodex.config import check, examine, is_loopback, loads
from routecodex.server_tools.clock.ntp import address_of
from tests.config.checked import BASE, Row, problems_of, provider

NTP = "[server_tools.clock.ntp]\n"
TIME_SERVERS = [
    pytest.param(
        NTP + "servers = []\n",
        (
            "error",
            "server_tools.clock.ntp.servers",
            "is empty",
            "add one, or set enabled = false",
        ),
        id="no time server",
    ),
    *(
        pytest.param(
            NTP + f'servers = ["{server}"]\n',
            (
                "error",
                "server_tools.clock.ntp.servers[0]",
                f'"{server}" is not a time server',
                'use "host" or "host:port"',
            ),
            id=f"time server {server!r}",
        )
        for server in (
            "",
            "time.example:",
            "time.example:0",
            "time.example:70000",
            "time.example:ntp",
            ":123",
        )
    ),
]


@pytest.mark.parametrize(("text", "expected"), TIME_SERVERS)
def test_a_time_server_that_cannot_be_asked_is_told(text: str, expected: Row) -> None:
    assert problems_of(BASE + text) == [expected]


@pytest.mark.parametrize("server", ["time.example", "time.example:123", "::1", "[::1]:123", "192.0.2.1:1"])
def test_a_time_server_is_a_host_or_a_host_and_a_port(server: str) -> None:
    assert problems_of(BASE + NTP + f'servers = ["{server}"]\n') == []
    assert address_of(server)


def test_no_time_server_is_needed_by_who_asks_none() -> None:
    assert problems_of(BASE + NTP + "enabled = false\nservers = []\n") == []


SERVER = [
    pytest.param(
        BASE + '[server]\nhost = "0.0.0.0"\n',
        (
            "error",
            "server.client_keys",
            'the gateway refuses to start on "0.0.0.0" without client keys: '
            "anyone who reaches it could spend yours",
            "run `routecodex keys add NAME`, or add client_keys = "
            '[{ name = "laptop", key = "${ROUTECODEX_KEY}" }], or set host = "127.0.0.1"',
        ),
        id="open to all",
    ),
    pytest.param(
        BASE + '[server]\nid = "../x"\n',
        ("error", "server.id", '"../x" is not a valid name', "use letters, digits, . _ and -"),
        id="id like a path",
    ),
    pytest.param(
        BASE + '[server]\nadmin_token = ""\n',
        (
            "error",
            "server.admin_token",
            "is empty",
            "set a token, or remove the line to have one generated",
        ),
        id="empty admin token",
    ),
    pytest.param(
        BASE + '[server]\nclient_keys = [{ name = "a", key = "" }]\n',
        ("error", "server.client_keys[0].key", "is empty", "set the key"),
        id="empty client key",
    ),
    pytest.param(
        BASE + '[store]\nurl = "/tmp/x"\n',
        (
            "error",
            "store.url",
            '"/tmp/x" is not a store of this version',
            'use "file:", "file:/path", "memory:" or "redis://host:6379/0"',
        ),
        id="path without a scheme",
    ),
    pytest.param(
        BASE + '[store]\nurl = "postgres://u:pw@h/x"\n',
        (
            "error",
            "store.url",
            "this value is not a store of this version",
            'use "file:", "file:/path", "memory:" or "redis://host:6379/0"',
        ),
        id="store with a password",
    ),
    pytest.param(
        BASE + '[store]\nurl = "file:state"\n',
        (
            "error",
            "store.url",
            '"file:state" is not an absolute path',
            'use "file:/path", or "file:" for the session dir',
        ),
        id="relative path",
    ),
    pytest.param(
        BASE + '[store]\nurl = "file:/dev/null/state"\n',
        (
            "error",
            "store.url",
            "/dev/null is not a directory",
            "name a directory, or one that can be created",
        ),
        id="below a file",
    ),
    pytest.param(
        BASE + '[server]\nclient_keys = [{ name = "a", key = "1" }, { name = "b", key = "1" }]\n',
        (
            "error",
            "server.client_keys[1].key",
            'is also the key of "a": the two cannot be told apart',
            "give each its own key",
        ),
        id="one key for two clients",
    ),
]


@pytest.mark.parametrize(("text", "expected"), SERVER)
def test_parts_that_do_not_fit_are_told_with_a_fix(text: str, expected: Row) -> None:
    assert problems_of(text) == [expected]


def test_what_fits_is_not_complained_about() -> None:
    assert check(loads(BASE, environ={})) == []


def test_names_used_twice_are_told_at_each_place() -> None:
    text = provider(auth='[{ alias = "key2", value = "a" }, { value = "b" }]') + (
        '[server]\nclient_keys = [{ name = "a", key = "1" }, { name = "a", key = "2" }]\n'
    )
    assert [(path, message) for _, path, message, _ in problems_of(text)] == [
        ("providers.q.auth[0].alias", '"key2" is used more than once'),
        ("providers.q.auth[1].alias", '"key2" is used more than once'),
        ("server.client_keys[0].name", '"a" is used more than once'),
        ("server.client_keys[1].name", '"a" is used more than once'),
    ]


def test_no_provider_at_all_is_told() -> None:
    assert [(path, fix) for _, path, _, fix in problems_of("")] == [
        ("providers", 'add one, such as [providers.openai] with preset = "openai"'),
        ("routing.default", 'add default = ["provider.model"]'),
    ]


@pytest.mark.parametrize("url", ["file:", "file:{}/a/b", "file://{}/a", "memory:"])
def test_the_stores_of_this_version_are_accepted(url: str, tmp_path: Path) -> None:
    assert problems_of(BASE + f'[store]\nurl = "{url.format(tmp_path)}"\n') == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_that_only_others_may_write_is_a_warning(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    assert problems_of(BASE + f'[store]\nurl = "file:{tmp_path}/state"\n') == [
        (
            "warning",
            "store.url",
            f"{tmp_path} cannot be written by this user",
            "name another directory, or run as its owner",
        )
    ]


def test_what_came_from_the_environment_is_not_shown() -> None:
    text = provider(base_url='"${URL}"') + '[store]\nurl = "${STORE}"\n'
    _, problems = examine(text, environ={"URL": "sk-1234", "STORE": "sk-5678"})
    assert [one.message for one in problems] == [
        "the value from the environment is not a URL",
        "the value from the environment is not a store of this version",
    ]


@pytest.mark.parametrize(
    ("host", "expected"),
    [("127.0.0.1", True), ("127.8.0.1", True), ("::1", True), ("[::1]", True), ("localhost", True),
     ("0.0.0.0", False), ("::", False), ("10.0.0.1", False), ("example.com", False)],
)  # fmt: skip
def test_loopback_is_only_this_machine(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


ORIGINS = [
    ("http://localhost:3000/", '"http://localhost:3000/" is not an origin', 'write "http://localhost:3000"'),
    ("https://a.example/chat", '"https://a.example/chat" is not an origin', 'write "https://a.example"'),
    (
        "localhost:3000",
        '"localhost:3000" is not an origin',
        'write "https://localhost:3000" or "http://localhost:3000"',
    ),
    ("", '"" is not an origin', "write scheme://host or scheme://host:port"),
    (
        "https://*.a.example",
        '"https://*.a.example" is not an origin',
        "write scheme://host or scheme://host:port",
    ),
    (
        "https://*",
        '"https://*" stands for every web page',
        'name the host, or write "*" for all pages',
    ),
    (
        "https://a.example:443",
        '"https://a.example:443" has the default port, which browsers leave out',
        'write "https://a.example"',
    ),
]


@pytest.mark.parametrize(("origin", "message", "fix"), ORIGINS)
def test_an_allowed_origin_that_no_browser_sends_is_an_error(origin: str, message: str, fix: str) -> None:
    text = BASE + f'[server]\nallowed_origins = ["{origin}"]\n'
    assert problems_of(text) == [("error", "server.allowed_origins[0]", message, fix)]


@pytest.mark.parametrize(
    "origin",
    [
        "http://localhost:3000",
        "https://Chat.Example.com",
        "http://localhost:*",
        "http://[::1]:3000",
        "app://*",
        "app://obsidian.md",
        "vscode-webview://*",
        "http://a.example:443",
    ],
)
def test_an_allowed_origin_is_a_scheme_a_host_and_perhaps_a_port(origin: str) -> None:
    assert problems_of(BASE + f'[server]\nallowed_origins = ["{origin}"]\n') == []


@pytest.mark.parametrize(
    ("origin", "pages"), [("*", "every web page"), ("null", "a sandboxed frame of every web page")]
)
def test_an_origin_that_stands_for_all_pages_is_a_warning_without_client_keys(
    origin: str, pages: str
) -> None:
    text = BASE + f'[server]\nallowed_origins = ["{origin}"]\n'
    row = f'"{origin}" lets {pages} spend your provider keys', "list the origins, or set client_keys"
    assert problems_of(text) == [("warning", "server.allowed_origins[0]", *row)]
    assert problems_of(text + 'client_keys = [{ name = "a", key = "k" }]\n') == []
