"""Cross-checks: whether the parts of a configuration fit together."""

from __future__ import annotations

import pytest

from routecodex.config import check, is_loopback, loads
from tests.config.checked import BASE, Told, provider, told

PROVIDERS = [
    pytest.param(
        provider(protocol='"messages"', base_url='"http://127.0.0.1:1/v1"'),
        ("error", "providers.q.base_url", "ends in /v1, which is added to it", 'use "http://127.0.0.1:1"'),
        id="messages with v1",
    ),
    pytest.param(
        provider(protocol='"gemini"', base_url='"http://127.0.0.1:1/v1beta/"'),
        (
            "error",
            "providers.q.base_url",
            "holds the version of the API, which is added to it",
            'use "http://127.0.0.1:1"',
        ),
        id="gemini with v1beta",
    ),
    pytest.param(
        provider(base_url='"http://127.0.0.1:1/api"'),
        (
            "warning",
            "providers.q.base_url",
            "does not end in a version such as /v1",
            'use "http://127.0.0.1:1/api/v1" unless the provider says otherwise',
        ),
        id="chat without a version",
    ),
    pytest.param(
        provider(base_url='"http://127.0.0.1:1/v1/chat/completions"'),
        (
            "error",
            "providers.q.base_url",
            "ends in /chat/completions, which is added to it",
            "leave that off",
        ),
        id="an endpoint",
    ),
    pytest.param(
        provider(base_url='"api.example.com/v1"'),
        (
            "error",
            "providers.q.base_url",
            "is not a URL",
            "write https:// or http://, a host, and a port if need be",
        ),
        id="no scheme",
    ),
    pytest.param(
        provider(base_url='"http:///v1"'),
        (
            "error",
            "providers.q.base_url",
            "is not a URL",
            "write https:// or http://, a host, and a port if need be",
        ),
        id="no host",
    ),
    pytest.param(
        provider(base_url='"http://[::1/v1"'),
        (
            "error",
            "providers.q.base_url",
            "is not a URL",
            "write https:// or http://, a host, and a port if need be",
        ),
        id="half an address",
    ),
    pytest.param(
        provider(base_url='"http://127.0.0.1:99999/v1"'),
        (
            "error",
            "providers.q.base_url",
            "is not a URL",
            "write https:// or http://, a host, and a port if need be",
        ),
        id="port out of range",
    ),
    pytest.param(
        provider(base_url='"http://u:p@127.0.0.1/v1"'),
        ("error", "providers.q.base_url", "holds a user name or password", "put the key in auth"),
        id="credentials",
    ),
    pytest.param(
        provider(base_url='"http://127.0.0.1/v1?a=b"'),
        ("error", "providers.q.base_url", "holds a query", 'put it in query = { name = "value" }'),
        id="query",
    ),
    pytest.param(
        provider(base_url='""'),
        (
            "error",
            "providers.q.base_url",
            "is missing",
            'set it: base_url = "https://api.example.com/v1"',
        ),
        id="no base_url",
    ),
    pytest.param(
        provider(base_url='"https://api.example.com/v1"'),
        (
            "error",
            "providers.q.auth",
            "there is no key",
            'add auth = [{ env = "NAME_OF_VARIABLE" }], or auth_style = "none" if it asks for none',
        ),
        id="no key for a remote provider",
    ),
    pytest.param(
        provider(models="{}"),
        (
            "warning",
            "providers.q.models",
            "there is no model, so nothing can be routed here",
            'add one: [providers.q.models."model-name"]',
        ),
        id="no models",
    ),
    pytest.param(
        provider(auth='[{ alias = "m", value = "a" }]'),
        (
            "warning",
            "providers.q.auth[0].alias",
            '"m" is also the name of a model: instructions that force or stick take it for the model, those '
            "that disable for the key",
            "use another alias",
        ),
        id="alias like a model",
    ),
    pytest.param(
        provider(models='{ "4" = {} }'),
        (
            "warning",
            "providers.q.models.4",
            '"4" would also be read as the number of a key',
            'use another name, and id = "4" for the upstream',
        ),
        id="model like a number",
    ),
    pytest.param(
        provider(auth='[{ alias = "7", value = "a" }]'),
        (
            "error",
            "providers.q.auth[0].alias",
            '"7" would be read as the number of a key',
            "add a letter to it",
        ),
        id="alias like a number",
    ),
    pytest.param(
        provider(auth='[{ alias = "a.b", value = "a" }]'),
        (
            "error",
            "providers.q.auth[0].alias",
            '"a.b" cannot be an alias',
            "use letters, digits, _ and - only: targets are split at dots",
        ),
        id="alias with a dot",
    ),
    pytest.param(
        BASE + '[providers."a.b"]\nprotocol = "demo"\n',
        (
            "error",
            'providers."a.b"',
            '"a.b" cannot be the name of a provider',
            "use letters, digits, _ and - only: targets are split at dots",
        ),
        id="provider with a dot",
    ),
]

SERVER = [
    pytest.param(
        BASE + '[server]\nhost = "0.0.0.0"\n',
        (
            "error",
            "server.client_keys",
            'the gateway refuses to start on "0.0.0.0" without client keys: '
            "anyone who reaches it could spend yours",
            'add client_keys = [{ name = "laptop", key = "${ROUTECODEX_KEY}" }], or set host = "127.0.0.1"',
        ),
        id="open to all",
    ),
    pytest.param(
        BASE + '[server]\nid = "../x"\n',
        ("error", "server.id", '"../x" cannot be a name', "use letters, digits, . _ and -"),
        id="id like a path",
    ),
    pytest.param(
        BASE + '[server]\nadmin_token = ""\n',
        (
            "error",
            "server.admin_token",
            "is empty",
            "give a token, or remove the line to have one made",
        ),
        id="empty admin token",
    ),
    pytest.param(
        BASE + '[server]\nclient_keys = [{ name = "a", key = "" }]\n',
        ("error", "server.client_keys[0].key", "is empty", "give the key"),
        id="empty client key",
    ),
    pytest.param(
        BASE + '[store]\nurl = "redis://:pw@h:6379/0"\n',
        (
            "error",
            "store.url",
            "this version ships the stores file: and memory: only",
            'use url = "file:"',
        ),
        id="redis",
    ),
    pytest.param(
        BASE + '[store]\nurl = "/tmp/x"\n',
        ("error", "store.url", "is no store this version knows", 'use "file:", "file:/path" or "memory:"'),
        id="path without a scheme",
    ),
]


@pytest.mark.parametrize(("text", "expected"), [*PROVIDERS, *SERVER])
def test_parts_that_do_not_fit_are_told_with_a_fix(text: str, expected: Told) -> None:
    assert told(text) == [expected]


def test_what_fits_is_not_complained_about() -> None:
    assert check(loads(BASE, environ={})) == []


def test_names_used_twice_are_told_at_each_place() -> None:
    text = provider(auth='[{ alias = "key2", value = "a" }, { value = "b" }]') + (
        '[server]\nclient_keys = [{ name = "a", key = "1" }, { name = "a", key = "2" }]\n'
    )
    assert [(path, message) for _, path, message, _ in told(text)] == [
        ("providers.q.auth[0].alias", '"key2" is used more than once'),
        ("providers.q.auth[1].alias", '"key2" is used more than once'),
        ("server.client_keys[0].name", '"a" is used more than once'),
        ("server.client_keys[1].name", '"a" is used more than once'),
    ]


def test_no_provider_at_all_is_told() -> None:
    assert [(path, fix) for _, path, _, fix in told("")] == [
        ("providers", 'add one, such as [providers.openai] with preset = "openai"'),
        ("routing.default", 'add default = ["provider.model"]'),
    ]


@pytest.mark.parametrize("url", ["file:", "file:/var/lib/x", "memory:"])
def test_the_stores_of_this_version_are_accepted(url: str) -> None:
    assert told(BASE + f'[store]\nurl = "{url}"\n') == []


@pytest.mark.parametrize(
    ("host", "expected"),
    [("127.0.0.1", True), ("127.8.0.1", True), ("::1", True), ("[::1]", True), ("localhost", True),
     ("0.0.0.0", False), ("::", False), ("10.0.0.1", False), ("example.com", False)],
)  # fmt: skip
def test_loopback_is_only_this_machine(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected
