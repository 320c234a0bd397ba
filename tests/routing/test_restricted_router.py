"""Routing for a client that may use a part of all targets: what is not allowed does not exist for it."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase

import pytest

from routecodex.canon.errors import ProviderNotAvailable
from routecodex.routing.registry import Model, Pool, Provider, Registry
from routecodex.routing.route_plan import NotPermitted
from routecodex.routing.router import RestrictedRouter
from routecodex.routing.state import ForcedTarget, ServerState, SessionState
from tests.routing.test_router import ALIASES, GLM, PROVIDERS, ROUTES, planned, targets

ANY = Provider(name="any", protocol="chat", keys=("k",), models={}, describe=lambda name: Model(id=name))
WHOLE = Registry(
    [*PROVIDERS, ANY], routes=ROUTES, aliases={**ALIASES, "deep": "claude.opus", "open*": "any.m"}
)


@dataclass(frozen=True)
class Rules:
    """Rules of one row of patterns."""

    providers: tuple[str, ...] = ("*",)
    models: tuple[str, ...] = ("*",)
    routes: tuple[str, ...] = ("*",)

    def admits_provider(self, name: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in self.providers)

    def admits_target(self, provider: str, model: str) -> bool:
        names = (model, f"{provider}.{model}")
        return self.admits_provider(provider) and any(
            fnmatchcase(name, pattern) for name in names for pattern in self.models
        )

    def admits_route(self, route: str) -> bool:
        return any(fnmatchcase(route, pattern) for pattern in self.routes)


def router(**patterns: tuple[str, ...]) -> RestrictedRouter:
    return RestrictedRouter(WHOLE.restricted(Rules(**patterns)), WHOLE)


NO_CLAUDE = router(providers=("g*", "see", "long", "lonely"))


def test_what_is_not_allowed_is_not_in_the_plan() -> None:
    assert targets(planned("x", router=NO_CLAUDE)) == [*GLM, "gpt.k.5.2"]


def test_models_are_allowed_by_their_own_name_or_with_their_provider() -> None:
    assert targets(planned("x", router=router(models=("opus", "gpt.*")))) == ["gpt.k.5.2", "claude.k.opus"]


@pytest.mark.parametrize("model", ["claude.opus", "claude.k.opus", "deep", "smart", "claude-via-claude.opus"])
def test_a_target_or_route_named_in_the_request_is_refused(model: str) -> None:
    with pytest.raises(NotPermitted) as caught:
        planned(model, router=NO_CLAUDE)
    assert caught.value.subject == model


def test_a_name_that_nobody_has_is_unknown_and_not_refused() -> None:
    with pytest.raises(ProviderNotAvailable):
        planned("glm.nothing", router=NO_CLAUDE)
    assert targets(planned("claude.nothing", router=NO_CLAUDE)) == [*GLM, "gpt.k.5.2"]


def test_a_refused_target_cannot_be_forced() -> None:
    for name in ("claude.opus", "claude.k", "claude"):
        with pytest.raises(NotPermitted):
            planned(session=SessionState(force=ForcedTarget(name, "t")), turn="t", router=NO_CLAUDE)
    forced = SessionState(force=ForcedTarget("gpt.5.2", "t"))
    assert targets(planned("claude.opus", session=forced, turn="t", router=NO_CLAUDE)) == ["gpt.k.5.2"]


def test_a_refused_target_does_not_exist_for_sticky_and_stays_set() -> None:
    plan = planned(session=SessionState(sticky="claude.opus"), router=NO_CLAUDE)
    assert targets(plan) == [*GLM, "gpt.k.5.2"]
    assert (plan.clears_sticky, plan.reason) == (
        False,
        "sticky claude.opus skipped, it is not allowed; no rule names another route",
    )


def test_a_sticky_target_that_is_allowed_takes_requests_for_one_that_is_not() -> None:
    plan = planned("claude.opus", session=SessionState(sticky="gpt.5.2"), router=NO_CLAUDE)
    assert targets(plan) == ["gpt.k.5.2"]


def test_an_operators_sticky_target_does_not_lead_around_the_rule() -> None:
    assert targets(planned(server=ServerState(sticky="claude.opus"), router=NO_CLAUDE)) == [
        *GLM,
        "gpt.k.5.2",
    ]


def test_a_class_whose_route_has_no_allowed_target_falls_back_to_default() -> None:
    plan = planned(route="thinking", why="thinks", router=NO_CLAUDE)
    assert (plan.route, targets(plan)) == ("default", [*GLM, "gpt.k.5.2"])


CODING = router(routes=("coding",))


def test_with_some_routes_allowed_every_class_is_served_by_them() -> None:
    assert targets(planned("x", router=CODING)) == ["gpt.k.5.2"]
    assert targets(planned("x", route="vision", router=CODING)) == ["gpt.k.5.2"]


def test_naming_a_target_does_not_lead_around_allowed_routes() -> None:
    assert targets(planned("gpt.5.2", router=CODING)) == ["gpt.k.5.2"]
    with pytest.raises(NotPermitted):
        planned("glm.glm-4.7", router=CODING)


def test_nothing_left_is_refused() -> None:
    for patterns in ({"models": ("none",)}, {"routes": ("none",)}, {"providers": ()}):
        with pytest.raises(NotPermitted) as caught:
            planned("x", router=router(**patterns))
        assert caught.value.subject == "any target of the routes"


def test_a_disabled_target_is_called_so() -> None:
    with pytest.raises(ProviderNotAvailable, match="is disabled"):
        planned(session=SessionState(disable=("gpt",)), router=CODING)


def test_a_provider_that_names_its_models_serves_the_allowed_names_only() -> None:
    some = router(providers=("any",), models=("any.good-*",))
    assert targets(planned("any.good-1", router=some)) == ["any.k.good-1"]
    for model in ("any.bad", "any.k.bad", "open-1"):
        with pytest.raises(NotPermitted):
            planned(model, router=some)
    assert NO_CLAUDE.registry.providers.keys() == {"glm", "gpt", "see", "long", "lonely"}


def test_lists_have_allowed_models_and_aliases_only() -> None:
    registry = NO_CLAUDE.registry
    assert set(registry.aliases) == {"fast"}
    assert registry.resolve("claude.opus") is None
    assert list(registry.routes["default"]) == [
        Pool(id="first", mode="priority", targets=("glm.glm-4.7", "gpt.5.2"))
    ]
