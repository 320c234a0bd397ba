"""Cross-checks of targets: in aliases, routes, pools and weights."""

from __future__ import annotations

import pytest

from routecodex.config import loads, split_target
from tests.config.checked import BASE, Row, problems_of, provider, routed

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
        routed('["glm-4.7"]'),
        ("error", "routing.default[0]", '"glm-4.7" has no provider', 'did you mean "glm.glm-4.7"?'),
        id="model alone",
    ),
    pytest.param(
        routed('["blind"]'),
        ("error", "routing.default[0]", '"blind" has no provider', 'did you mean "glm.blind"?'),
        id="model without a dot alone",
    ),
    pytest.param(
        routed('["glm-4.8"]'),
        (
            "error",
            "routing.default[0]",
            'names the provider "glm-4", which is not configured',
            'did you mean "glm.glm-4.7"?',
        ),
        id="unknown model alone, near",
    ),
    pytest.param(
        BASE + '[models]\n"gpt-*" = "glm-4.7"\n',
        ("error", 'models."gpt-*"', '"glm-4.7" has no provider', 'did you mean "glm.glm-4.7"?'),
        id="alias to a model alone",
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
        ("error", "routing.default[0]", '"glm" has no model', 'write provider.model: "glm.glm-4.7"'),
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
            "is also a target: requests for that target would go to the alias instead",
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
            'is never used: "claude-*" comes first and matches the same names',
            'put it before "claude-*"',
        ),
        id="glob behind a wider one",
    ),
]


def test_globs_that_match_something_of_their_own_are_fine() -> None:
    aliases = '"claude-?" = "glm.blind"\n"claude-*" = "glm.glm-4.7"\n"claude-9" = "glm.blind"\n'
    assert problems_of(f"{BASE}[models]\n{aliases}") == []


ROUTES = [
    pytest.param(
        BASE.partition("[routing]")[0],
        (
            "error",
            "routing.default",
            "is missing: requests that match no other route would fail",
            'add default = ["glm.glm-4.7"]',
        ),
        id="no default",
    ),
    pytest.param(
        routed("[]"),
        (
            "error",
            "routing.default",
            "is empty: requests that match no other route would fail",
            'add default = ["glm.glm-4.7"]',
        ),
        id="empty default",
    ),
    pytest.param(
        BASE + "coding = []\n",
        ("warning", "routing.coding", "is empty: its requests fall back to default", "add targets"),
        id="empty route",
    ),
    pytest.param(
        BASE + '"a.b" = ["glm.glm-4.7"]\n',
        (
            "error",
            'routing."a.b"',
            '"a.b" is not a valid name of a route',
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
        ("error", "routing.default[0].targets", "is empty", 'add targets = ["glm.glm-4.7"]'),
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
        routed('[{ mode = "weighted", targets = ["glm.glm-4.7"] }]'),
        (
            "warning",
            "routing.default[0].weights",
            'are missing in mode "weighted": every model gets the same share',
            "add weights, or remove the mode",
        ),
        id="weighted without weights",
    ),
    pytest.param(
        routed('[{ targets = ["glm.glm-4.7"], weights = { "glm.glm-4.7" = inf } }]'),
        (
            "error",
            'routing.default[0].weights."glm.glm-4.7"',
            "must be a number above 0, got inf",
            "write a number above 0",
        ),
        id="infinite weight",
    ),
    pytest.param(
        routed(
            '[{ targets = ["glm.glm-4.7", "glm.blind"], '
            'weights = { "glm.glm-4.7" = 1e308, "glm.blind" = 1e308 } }]'
        ),
        (
            "error",
            "routing.default[0].weights",
            "add up to infinity",
            "use smaller numbers: only their ratio counts",
        ),
        id="weights that add up to infinity",
    ),
    pytest.param(
        routed(
            '[{ targets = ["glm.1.glm-4.7", "glm.2.glm-4.7"],'
            ' weights = { "glm.1.glm-4.7" = 1, "glm.2.glm-4.7" = 2 } }]'
        ),
        (
            "warning",
            'routing.default[0].weights."glm.2.glm-4.7"',
            'is not used: the keys of a model share one weight, that of "glm.1.glm-4.7"',
            "remove it",
        ),
        id="two weights for one model",
    ),
    pytest.param(
        routed('["glm.glm-4.7", "glm.primary.glm-4.7"]'),
        (
            "warning",
            "routing.default[1]",
            '"glm.primary.glm-4.7" is one of the keys that "glm.glm-4.7" covers',
            "remove one of the two",
        ),
        id="a key beside all keys",
    ),
    pytest.param(
        routed('[{ id = "a", targets = ["glm.glm-4.7"] }, { id = "b", targets = ["glm.2.glm-4.7"] }]'),
        (
            "warning",
            "routing.default[1].targets[0]",
            '"glm.2.glm-4.7" is already in the pool "a" and counts only there',
            "remove one of the two",
        ),
        id="one target in two pools",
    ),
    pytest.param(
        routed('["glm.primary"]'),
        (
            "error",
            "routing.default[0]",
            'names the key "primary" of provider "glm" but no model',
            'write provider.key.model: "glm.primary.glm-4.7"',
        ),
        id="a key without a model",
    ),
    pytest.param(
        BASE + 'vision = ["glm.blind"]\n',
        (
            "warning",
            "routing.vision[0]",
            '"glm.blind" does not support images but is in the route vision',
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
            '"direct" is reserved: the gateway reports it for requests whose model names a target',
            "use another name",
        ),
        id="route with a name of ours",
    ),
    pytest.param(
        BASE + 'thinkin = ["glm.glm-4.7"]\n',
        (
            "warning",
            "routing.thinkin",
            "only metadata.routeHint can select this route",
            'did you mean "thinking"?',
        ),
        id="route that looks like a mistake",
    ),
]


def test_a_route_of_ones_own_is_fine_with_an_alias_or_a_name_unlike_the_known_ones() -> None:
    assert problems_of(f'{BASE}reviews = ["glm.glm-4.7"]\n') == []
    assert problems_of(f'{BASE}thinkin = ["glm.glm-4.7"]\n[models]\n"o3" = "route:thinkin"\n') == []


@pytest.mark.parametrize(("text", "expected"), [*TARGETS, *ROUTES])
def test_targets_that_do_not_fit_are_told_with_a_fix(text: str, expected: Row) -> None:
    assert problems_of(text) == [expected]


def test_pools_with_the_same_id_are_told() -> None:
    pools = '[{ id = "x", targets = ["glm.glm-4.7"] }, { id = "x", targets = ["glm.blind"] }]'
    assert [path for _, path, _, _ in problems_of(routed(pools))] == [
        "routing.default[0].id",
        "routing.default[1].id",
    ]


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
