from __future__ import annotations

import pytest

from routecodex.canon.errors import NotFound
from routecodex.routing.plan import AllHealthy, Asked, Health, Plan, ServerState, SessionState, plan
from routecodex.routing.registry import Model, Pool, Provider, Registry, Target

PROVIDERS = [
    Provider(name="glm", protocol="chat", keys=("a", "b"), models={"m": Model(id="m")}),
    Provider(name="gpt", protocol="responses", keys=("k",), models={"5.2": Model(id="5.2")}),
    Provider(name="claude", protocol="messages", keys=("k",), models={"o": Model(id="o")}),
]
ROUTES = {
    "default": (
        Pool(id="last", targets=("claude.o",), backup=True),
        Pool(id="first", targets=("glm.m", "gpt.5.2")),
        Pool(id="second", targets=("gpt.k.5.2", "nobody.m")),
    ),
    "thinking": (Pool(id="deep", targets=("claude.o",)),),
    "empty": (),
}
ALIASES = {
    "smart": "route:thinking",
    "lost": "route:nowhere",
    "hollow": "route:empty",
    "fast": "glm.b.m",
    "gone": "nobody.x",
}


class Without:
    """Health that knows some targets to be down."""

    def __init__(self, *down: str) -> None:
        self._down = down

    def available(self, target: Target, now: float) -> bool:
        return str(target) not in self._down


def planned(model: str, *, health: Health | None = None, registry: Registry | None = None) -> Plan:
    return plan(
        Asked(model=model),
        session=SessionState(),
        server=ServerState(),
        health=health or AllHealthy(),
        registry=registry or Registry(PROVIDERS, routes=ROUTES, aliases=ALIASES),
        now=0.0,
        rng=lambda: 0.0,
    )


def steps(made: Plan) -> list[tuple[str, str]]:
    return [(str(step.target), step.reason) for step in made.steps]


DEFAULT = [
    ("glm.a.m", "pool first"),
    ("glm.b.m", "pool first"),
    ("gpt.k.5.2", "pool first"),
    ("claude.k.o", "pool last (backup)"),
]
PLANS: list[tuple[str, str, list[tuple[str, str]], str]] = [
    ("glm.m", "direct", [("glm.a.m", "direct"), ("glm.b.m", "direct")], "model glm.m names the target"),
    ("glm.b.m", "direct", [("glm.b.m", "direct")], "model glm.b.m names the target"),
    ("gpt.5.2", "direct", [("gpt.k.5.2", "direct")], "model gpt.5.2 names the target"),
    ("fast", "direct", [("glm.b.m", "direct")], "alias fast names glm.b.m"),
    ("smart", "thinking", [("claude.k.o", "pool deep")], "alias smart names route thinking"),
    ("gpt-4o", "default", DEFAULT, "no rule names another route"),
    ("gone", "default", DEFAULT, "no rule names another route"),
    ("lost", "default", DEFAULT, "alias lost names route nowhere"),
    ("hollow", "default", DEFAULT, "alias hollow names route empty"),
]


@pytest.mark.parametrize(("model", "route", "expected", "reason"), PLANS, ids=[row[0] for row in PLANS])
def test_targets_are_tried_in_order(
    model: str, route: str, expected: list[tuple[str, str]], reason: str
) -> None:
    made = planned(model)
    assert (made.route, steps(made), made.reason) == (route, expected, reason)


def test_a_named_model_goes_to_the_keys_that_work() -> None:
    assert steps(planned("glm.m", health=Without("glm.a.m"))) == [("glm.b.m", "direct")]


def test_a_named_model_is_tried_even_if_all_its_keys_are_down() -> None:
    made = planned("glm.m", health=Without("glm.a.m", "glm.b.m"))
    assert [target for target, _ in steps(made)] == ["glm.a.m", "glm.b.m"]


def test_no_targets_at_all_is_told_with_the_way_out() -> None:
    with pytest.raises(
        NotFound, match=r"route 'default' has no targets; add some under \[routing\]"
    ) as caught:
        planned("gpt-4o", registry=Registry(PROVIDERS, routes={}, aliases={}))
    assert caught.value.code == "no_targets"
