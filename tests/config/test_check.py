"""Cross-checks: whether the parts of a configuration fit together."""

from __future__ import annotations

import pytest

from routecodex.config import check, examine, is_loopback, loads, split_target

BASE = """\
[providers.glm]
protocol = "chat"
base_url = "http://127.0.0.1:9001/v1"
auth = [{ alias = "primary", value = "a" }, { value = "b" }]
models = { "glm-4.7" = {}, "blind" = { vision = false } }
[routing]
default = ["glm.glm-4.7"]
"""

Told = tuple[str, str, str, str]


def told(text: str) -> list[Told]:
    _, problems = examine(text, environ={})
    return [(one.severity, one.path, one.message, one.fix) for one in problems]


def provider(**fields: str) -> str:
    rows = {"protocol": '"chat"', "base_url": '"http://127.0.0.1:1/v1"', "models": "{ m = {} }", **fields}
    return BASE + "[providers.q]\n" + "".join(f"{key} = {value}\n" for key, value in rows.items())


def routed(default: str) -> str:
    return BASE.replace('["glm.glm-4.7"]', default)


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

TARGETS = [
    pytest.param(
        routed('["gml.glm-4.7"]'),
        (
            "error",
            "routing.default[0]",
            'names the provider "gml", which is not configured',
            'did you mean "glm.glm-4.7"?',
        ),
        id="unknown provider, near",
    ),
    pytest.param(
        routed('["openai.gpt"]'),
        (
            "error",
            "routing.default[0]",
            'names the provider "openai", which is not configured',
            'use one of: "glm"',
        ),
        id="unknown provider",
    ),
    pytest.param(
        routed('["glm.glm-4.8"]'),
        (
            "error",
            "routing.default[0]",
            'names the model "glm-4.8", which provider "glm" does not have',
            'did you mean "glm.glm-4.7"? Or add [providers.glm.models."glm-4.8"]',
        ),
        id="unknown model, near",
    ),
    pytest.param(
        routed('["glm.primary.zzz"]'),
        (
            "error",
            "routing.default[0]",
            'names the model "zzz", which provider "glm" does not have',
            'add [providers.glm.models."zzz"]',
        ),
        id="unknown model of a key",
    ),
    pytest.param(
        routed('["glm.primry.glm-4.7"]'),
        (
            "error",
            "routing.default[0]",
            'names the key "primry", which provider "glm" does not have',
            'did you mean "glm.primary.glm-4.7"?',
        ),
        id="unknown key, near",
    ),
    pytest.param(
        routed('["glm.9.glm-4.7"]'),
        (
            "error",
            "routing.default[0]",
            'names the key "9", which provider "glm" does not have',
            'its keys: "primary", "key2"',
        ),
        id="unknown key number",
    ),
    pytest.param(
        routed('["glm"]'),
        ("error", "routing.default[0]", '"glm" names no model', 'write provider.model: "glm.glm-4.7"'),
        id="provider alone",
    ),
    pytest.param(
        routed('["glm.glm-4.7", "glm.glm-4.7"]'),
        ("warning", "routing.default[1]", '"glm.glm-4.7" is named twice', "remove one"),
        id="twice",
    ),
    pytest.param(
        BASE + '[models]\n"gpt-*" = "glm.gpt"\n',
        (
            "error",
            'models."gpt-*"',
            'names the model "gpt", which provider "glm" does not have',
            'add [providers.glm.models."gpt"]',
        ),
        id="alias to an unknown model",
    ),
    pytest.param(
        BASE + '[models]\n"gpt-*" = "route:thinkin"\n',
        (
            "error",
            'models."gpt-*"',
            'names the route "thinkin", which does not exist',
            'did you mean "route:thinking"?',
        ),
        id="alias to an unknown route",
    ),
    pytest.param(
        BASE + '[models]\n"glm.blind" = "glm.glm-4.7"\n',
        (
            "warning",
            'models."glm.blind"',
            "is also a target: requests for that target would go where the alias says",
            "use another name",
        ),
        id="alias like a target",
    ),
    pytest.param(
        BASE + '[models]\n"a" = "b"\n"b" = "glm.glm-4.7"\n',
        (
            "error",
            "models.a",
            '"b" is an alias itself, and aliases are not followed',
            'name a target ("provider.model") or a route ("route:thinking")',
        ),
        id="alias to an alias",
    ),
    pytest.param(
        BASE + '[models]\n"claude-*" = "glm.blind"\n"claude-*-4" = "glm.glm-4.7"\n',
        (
            "warning",
            'models."claude-*-4"',
            'is never used: "claude-*" comes before it and matches all that it does',
            'put it before "claude-*"',
        ),
        id="glob behind a wider one",
    ),
]


def test_globs_that_match_something_of_their_own_are_fine() -> None:
    aliases = '"claude-?" = "glm.blind"\n"claude-*" = "glm.glm-4.7"\n"claude-9" = "glm.blind"\n'
    assert told(f"{BASE}[models]\n{aliases}") == []


ROUTES = [
    pytest.param(
        BASE.partition("[routing]")[0],
        (
            "error",
            "routing.default",
            "is missing: a request that no other route takes would have nowhere to go",
            'add default = ["glm.glm-4.7"]',
        ),
        id="no default",
    ),
    pytest.param(
        routed("[]"),
        (
            "error",
            "routing.default",
            "is empty: a request that no other route takes would have nowhere to go",
            'add default = ["glm.glm-4.7"]',
        ),
        id="empty default",
    ),
    pytest.param(
        BASE + "coding = []\n",
        ("warning", "routing.coding", "is empty: its requests go to default", "add targets"),
        id="empty route",
    ),
    pytest.param(
        BASE + '"a.b" = ["glm.glm-4.7"]\n',
        (
            "error",
            'routing."a.b"',
            '"a.b" cannot be the name of a route',
            "use letters, digits, _ and - only: targets are split at dots",
        ),
        id="route with a dot",
    ),
    pytest.param(
        routed('["glm.glm-4.7", { targets = ["glm.glm-4.7"] }]'),
        (
            "error",
            "routing.default",
            "mixes targets and pools",
            "make every entry a target or every entry a pool",
        ),
        id="targets and pools",
    ),
    pytest.param(
        routed('[{ id = "a" }]'),
        ("error", "routing.default[0].targets", "there is no target", 'add targets = ["glm.glm-4.7"]'),
        id="empty pool",
    ),
    pytest.param(
        routed('[{ targets = ["glm.glm-4.7"], weights = { "glm.glm-4.8" = 1 } }]'),
        (
            "error",
            'routing.default[0].weights."glm.glm-4.8"',
            "is not a target of this pool",
            'did you mean "glm.glm-4.7"?',
        ),
        id="weight of a stranger",
    ),
    pytest.param(
        routed('[{ mode = "priority", targets = ["glm.glm-4.7"], weights = { "glm.glm-4.7" = 1 } }]'),
        (
            "warning",
            "routing.default[0].weights",
            'have no effect in mode "priority"',
            'set mode = "weighted", or remove them',
        ),
        id="weights without effect",
    ),
    pytest.param(
        BASE + 'vision = ["glm.blind"]\n',
        (
            "warning",
            "routing.vision[0]",
            '"glm.blind" cannot see images and is in the route vision',
            "set vision = true on that model, or remove it here",
        ),
        id="blind model in vision",
    ),
    pytest.param(
        provider(models="{ m = { context_tokens = 128000 } }").replace(
            "[providers.q]", 'longcontext = ["q.m"]\n[providers.q]'
        ),
        (
            "warning",
            "routing.longcontext[0]",
            '"q.m" holds 128000 tokens; requests here have 180000 or more',
            "use a larger model here, or lower classifier.longcontext_tokens",
        ),
        id="small model in longcontext",
    ),
    pytest.param(
        BASE + 'direct = ["glm.glm-4.7"]\n',
        (
            "error",
            "routing.direct",
            '"direct" is taken: so the gateway reports a model that is named outright',
            "use another name",
        ),
        id="route with a name of ours",
    ),
    pytest.param(
        BASE + 'thinkin = ["glm.glm-4.7"]\n',
        (
            "warning",
            "routing.thinkin",
            "only metadata.routeHint would lead here",
            'did you mean "thinking"?',
        ),
        id="route that looks like a mistake",
    ),
]


def test_a_route_of_ones_own_is_fine_with_an_alias_or_a_name_unlike_the_known_ones() -> None:
    assert told(f'{BASE}reviews = ["glm.glm-4.7"]\n') == []
    assert told(f'{BASE}thinkin = ["glm.glm-4.7"]\n[models]\n"o3" = "route:thinkin"\n') == []


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


@pytest.mark.parametrize(("text", "expected"), [*PROVIDERS, *TARGETS, *ROUTES, *SERVER])
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


def test_pools_with_the_same_id_are_told() -> None:
    pool = '{ id = "x", targets = ["glm.glm-4.7"] }'
    assert [path for _, path, _, _ in told(routed(f"[{pool}, {pool}]"))] == [
        "routing.default[0].id",
        "routing.default[1].id",
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
    ("target", "expected"),
    [
        ("glm.glm-4.7", ("glm", None, "glm-4.7")),
        ("glm.primary.glm-4.7", ("glm", "primary", "glm-4.7")),
        ("glm.key2.glm-4.7", ("glm", "key2", "glm-4.7")),
        ("glm.2.glm-4.7", ("glm", "key2", "glm-4.7")),
        ("glm.3.glm-4.7", None),
        ("glm.primary", None),
        ("glm", None),
        ("x.glm-4.7", None),
    ],
)
def test_a_target_is_looked_up_not_split(target: str, expected: tuple[str, str | None, str] | None) -> None:
    assert split_target(loads(BASE, environ={}), target) == expected


@pytest.mark.parametrize(
    ("host", "expected"),
    [("127.0.0.1", True), ("127.8.0.1", True), ("::1", True), ("[::1]", True), ("localhost", True),
     ("0.0.0.0", False), ("::", False), ("10.0.0.1", False), ("example.com", False)],
)  # fmt: skip
def test_loopback_is_only_this_machine(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected
