"""Whether requests can be sent: addresses, keys and headers of the providers and of the search."""

from __future__ import annotations

import pytest

from routecodex.config import loads
from tests.config.checked import BASE, Row, problems_of, provider

PROVIDERS = [
    pytest.param(
        provider(models='{ "*" = { context_tokens = 9 } }'),
        (
            "error",
            'providers.q.models."*"',
            "stands for many models and cannot have properties",
            "name the model that is meant: its own table has its properties",
        ),
        id="properties of all models",
    ),
    pytest.param(
        provider(models='"Discover"'),
        ("error", "providers.q.models", '"Discover" is not a table', 'write models = "discover"'),
        id="discover misspelled",
    ),
    pytest.param(
        provider(models='"all"'),
        ("error", "providers.q.models", '"all" is not a table', 'write models = "discover"'),
        id="another word for discover",
    ),
    pytest.param(
        BASE + '[providers.d]\nprotocol = "demo"\nmodels = "discover"\n',
        (
            "error",
            "providers.d.models",
            "the demo provider does not list its models, so they cannot be discovered",
            "name them: models = { model = {} }",
        ),
        id="discovery at the demo provider",
    ),
    pytest.param(
        provider(codex_items='"plain"'),
        (
            "error",
            "providers.q.codex_items",
            'applies to providers with protocol = "responses" only',
            "remove it: others always get plain functions",
        ),
        id="codex_items of a chat provider",
    ),
    pytest.param(
        provider(protocol='"messages"', base_url='"http://127.0.0.1:1/v1"'),
        ("error", "providers.q.base_url", "ends in /v1, which the gateway adds", 'use "http://127.0.0.1:1"'),
        id="messages with v1",
    ),
    pytest.param(
        provider(protocol='"gemini"', base_url='"http://127.0.0.1:1/v1beta/"'),
        (
            "error",
            "providers.q.base_url",
            "contains the version of the API, which the gateway adds",
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
            "ends in /chat/completions, which the gateway adds",
            "remove that",
        ),
        id="an endpoint",
    ),
    pytest.param(
        provider(base_url='"api.example.com/v1"'),
        (
            "error",
            "providers.q.base_url",
            '"api.example.com/v1" is not a URL',
            "write https:// or http://, a host, and a port if needed",
        ),
        id="no scheme",
    ),
    pytest.param(
        provider(base_url='"http:///v1"'),
        (
            "error",
            "providers.q.base_url",
            '"http:///v1" is not a URL',
            "write https:// or http://, a host, and a port if needed",
        ),
        id="no host",
    ),
    pytest.param(
        provider(base_url='"http://[::1/v1"'),
        (
            "error",
            "providers.q.base_url",
            '"http://[::1/v1" is not a URL',
            "write https:// or http://, a host, and a port if needed",
        ),
        id="half an address",
    ),
    pytest.param(
        provider(base_url='"http://127.0.0.1:99999/v1"'),
        (
            "error",
            "providers.q.base_url",
            '"http://127.0.0.1:99999/v1" is not a URL',
            "write https:// or http://, a host, and a port if needed",
        ),
        id="port out of range",
    ),
    pytest.param(
        provider(base_url='"http://u:p@127.0.0.1/v1"'),
        ("error", "providers.q.base_url", "contains a user name or password", "put the key in auth"),
        id="credentials",
    ),
    pytest.param(
        provider(base_url='"http://127.0.0.1/v1?a=b"'),
        ("error", "providers.q.base_url", "contains a query", 'put it in query = { name = "value" }'),
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
            "has no key",
            'add auth = [{ env = "NAME_OF_VARIABLE" }], or auth_style = "none" if it needs none',
        ),
        id="no key for a remote provider",
    ),
    pytest.param(
        provider(models="{}"),
        (
            "warning",
            "providers.q.models",
            "is empty, so no request can be routed to this provider",
            'add one: [providers.q.models."model-name"]',
        ),
        id="no models",
    ),
    pytest.param(
        provider(auth='[{ alias = "m", value = "a" }]'),
        (
            "warning",
            "providers.q.auth[0].alias",
            '"m" is also the name of a model: force and sticky instructions use '
            "the model, disable instructions the key",
            "use another alias",
        ),
        id="alias like a model",
    ),
    pytest.param(
        provider(models='{ "4" = {} }'),
        (
            "warning",
            "providers.q.models.4",
            '"4" could also be the number of a key',
            'use another name, and id = "4" for the upstream',
        ),
        id="model like a number",
    ),
    pytest.param(
        provider(auth='[{ alias = "7", value = "a" }]'),
        (
            "error",
            "providers.q.auth[0].alias",
            '"7" would be taken for the number of a key',
            "add a letter to it",
        ),
        id="alias like a number",
    ),
    pytest.param(
        provider(auth='[{ alias = "a.b", value = "a" }]'),
        (
            "error",
            "providers.q.auth[0].alias",
            '"a.b" is not a valid alias',
            "use letters, digits, _ and - only: targets are split at dots",
        ),
        id="alias with a dot",
    ),
    pytest.param(
        provider(auth='[{ alias = "a", value = "k" }, { alias = "b", value = "k" }]'),
        (
            "warning",
            "providers.q.auth[1]",
            'is the same key as "a": both share one limit',
            "remove one of them",
        ),
        id="the same key twice",
    ),
    pytest.param(
        BASE + '[providers."a.b"]\nprotocol = "demo"\n',
        (
            "error",
            'providers."a.b"',
            '"a.b" is not a valid name of a provider',
            "use letters, digits, _ and - only: targets are split at dots",
        ),
        id="provider with a dot",
    ),
]

PROVIDERS += [
    pytest.param(
        provider(base_url=f'"{url}"'),
        (
            "error",
            "providers.q.base_url",
            f"{displayed} is not a URL",
            "write https:// or http://, a host, and a port if needed",
        ),
        id=name,
    )
    for name, url, displayed in (
        ("space in a URL", "http://127.0.0.1/a b/v1", '"http://127.0.0.1/a b/v1"'),
        ("space in a host", "http://a b/v1", '"http://a b/v1"'),
        ("line break in a URL", "http://127.0.0.1/\\nv1", r'"http://127.0.0.1/\nv1"'),
        ("beyond ASCII in a path", "http://127.0.0.1/ü/v1", '"http://127.0.0.1/ü/v1"'),
        ("a password is not shown", "http://u:pw@127.0.0.1:99999/v1", "this value"),
    )
]

NO_NAME = "use letters, digits and -"
NO_VALUE = (
    "contains a character that is not allowed in a header",
    "remove line breaks and other control characters",
)
HEADERS = [
    pytest.param(r'"x-y" = "a\r\nx-injected: 1"', "x-y", *NO_VALUE, id="a header inside a value"),
    pytest.param(r'"x-y" = "a\nb"', "x-y", *NO_VALUE, id="lone line feed"),
    pytest.param(r'"x-y" = "a\rb"', "x-y", *NO_VALUE, id="lone carriage return"),
    pytest.param(r'"x-y" = "a\u0000"', "x-y", *NO_VALUE, id="NUL"),
    pytest.param('"x-y" = "€"', "x-y", *NO_VALUE, id="beyond Latin-1"),
    pytest.param('"x y" = "1"', '"x y"', '"x y" is not a valid header name', NO_NAME, id="space"),
    pytest.param('"" = "1"', '""', '"" is not a valid header name', NO_NAME, id="no name"),
    pytest.param('"x:y" = "1"', '"x:y"', '"x:y" is not a valid header name', NO_NAME, id="colon"),
    pytest.param(
        r'"x\r\ny" = "1"', r'"x\r\ny"', r'"x\r\ny" is not a valid header name', NO_NAME, id="broken name"
    ),
    *(
        pytest.param(f'{name} = "1"', name, "is set by the gateway itself", "remove it", id=name)
        for name in ("Host", "content-length", "Transfer-Encoding", "connection", "upgrade")
    ),
]


@pytest.mark.parametrize(("header", "name", "message", "fix"), HEADERS)
def test_a_header_that_cannot_be_sent_is_told_wherever_it_stands(
    header: str, name: str, message: str, fix: str
) -> None:
    search = f"[server_tools.web_search.http]\nheaders = {{ {header} }}\n"
    assert problems_of(provider(headers=f"{{ {header} }}")) == [
        ("error", f"providers.q.headers.{name}", message, fix)
    ]
    assert problems_of(BASE + search) == [
        ("error", f"server_tools.web_search.http.headers.{name}", message, fix)
    ]


def test_headers_that_can_be_sent_are_taken() -> None:
    rows = r'{ x-team = "", Authorization = "Bearer {key}", "x_y.z!" = "tab\there, Grüße" }'
    assert problems_of(provider(headers=rows) + f"[server_tools.web_search.http]\nheaders = {rows}\n") == []


SEARCH = "[server_tools.web_search.http]\n"
SEARCHES = [
    pytest.param(
        SEARCH + 'url = "search.example?q={query}"\n',
        (
            "error",
            "server_tools.web_search.http.url",
            '"search.example?q={query}" is not a URL',
            "write https:// or http://, a host, and a port if needed",
        ),
        id="search without a scheme",
    ),
    pytest.param(
        SEARCH + 'url = "https://u:pw@search.example/?q={query}"\n',
        (
            "error",
            "server_tools.web_search.http.url",
            "contains a user name or password",
            "put the key in key or headers",
        ),
        id="search with credentials",
    ),
    pytest.param(
        SEARCH + 'key = "a\\nb"\n',
        (
            "error",
            "server_tools.web_search.http.key",
            "contains a character that is not allowed in a header",
            "copy the key again, without spaces",
        ),
        id="search key with a line break",
    ),
]


@pytest.mark.parametrize(("text", "expected"), PROVIDERS)
def test_what_cannot_be_sent_to_is_told_with_a_fix(text: str, expected: Row) -> None:
    assert problems_of(text) == [expected]


@pytest.mark.parametrize(("text", "expected"), SEARCHES)
def test_a_search_that_cannot_be_asked_is_told_with_a_fix(text: str, expected: Row) -> None:
    assert problems_of(BASE + text) == [expected]


@pytest.mark.parametrize(
    ("base_url", "setting", "form"),
    [
        ("https://api.openai.com/v1", "auto", "native"),
        ("https://x.openai.azure.com/openai/v1", "auto", "native"),
        ("https://x.services.ai.azure.com/openai/v1", "auto", "native"),
        ("https://api.openai.com.example.org/v1", "auto", "kept"),
        ("https://openrouter.ai/api/v1", "auto", "kept"),
        ("https://openrouter.ai/api/v1", "native", "native"),
        ("https://api.openai.com/v1", "plain", "plain"),
    ],
)
def test_the_address_decides_about_the_tools_of_codex(base_url: str, setting: str, form: str) -> None:
    fields = {
        "protocol": '"responses"',
        "base_url": f'"{base_url}"',
        "codex_items": f'"{setting}"',
        "auth_style": '"none"',
    }
    assert loads(provider(**fields), environ={}).providers["q"].codex_form == form
