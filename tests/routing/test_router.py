"""The rules of routing, a row each: state, query and plan."""

from __future__ import annotations

from typing import Any

import pytest

from routecodex.canon.errors import GatewayError, NotFound, ProviderNotAvailable
from routecodex.routing.pools import RoundRobin
from routecodex.routing.registry import Model, Pool, Provider, Registry, Target
from routecodex.routing.route_plan import RoutePlan, RouteQuery
from routecodex.routing.router import Router
from routecodex.routing.state import ForcedTarget, ServerState, SessionState


def models(*names: str, size: int | None = None) -> dict[str, Model]:
    return {name: Model(id=name, context_tokens=size) for name in names}


PROVIDERS = [
    Provider(name="glm", protocol="chat", keys=("a", "b"), models=models("glm-4.7", "air", size=200_000)),
    Provider(name="gpt", protocol="responses", keys=("k",), models=models("5.2", size=400_000)),
    Provider(name="claude", protocol="messages", keys=("k",), models=models("opus", size=100_000)),
    Provider(name="see", protocol="gemini", keys=("k",), models=models("eye")),
    Provider(name="long", protocol="gemini", keys=("k",), models=models("scroll", size=2_000_000)),
    Provider(name="lonely", protocol="chat", keys=("x", "y"), models=models("one")),
]
ROUTES = {
    "default": (
        Pool(id="last", targets=("claude.opus",), backup=True),
        Pool(id="first", mode="priority", targets=("glm.glm-4.7", "gpt.5.2")),
    ),
    "thinking": (Pool(id="deep", targets=("claude.opus",)),),
    "coding": (Pool(id="code", targets=("gpt.5.2",)),),
    "vision": (Pool(id="see", targets=("see.eye",)),),
    "longcontext": (Pool(id="long", targets=("long.scroll",)),),
    "empty": (),
}
ALIASES = {
    "smart": "route:thinking",
    "lost": "route:nowhere",
    "hollow": "route:empty",
    "fast": "glm.b.glm-4.7",
    "gone": "nobody.x",
}
ROUTER = Router(Registry(PROVIDERS, routes=ROUTES, aliases=ALIASES))


class Ill:
    """Health in which some targets cool down until a time."""

    def __init__(self, **until: float) -> None:
        self._until = {name.replace("__", "."): end for name, end in until.items()}

    quiet = False

    def until(self, target: Target, now: float) -> float:
        return max(self._until.get(target.provider, 0), self._until.get(f"{target.provider}.{target.key}", 0))

    def why(self, target: Target, now: float) -> str:
        return "429"

    def is_limit(self, target: Target, now: float) -> bool:
        return True


def planned(
    model: str = "x",
    *,
    session: SessionState | None = None,
    server: ServerState | None = None,
    health: Any = None,
    router: Router = ROUTER,
    **query: Any,
) -> RoutePlan:
    return router.plan(
        RouteQuery(model=model, **query),
        session=session or SessionState(),
        server=server or ServerState(),
        health=health or Ill(),
        now=0.0,
        next_turn=RoundRobin(),
    )


def targets(plan: RoutePlan) -> list[str]:
    return [str(step.target) for step in plan.steps]


GLM = ["glm.a.glm-4.7", "glm.b.glm-4.7"]
DEFAULT = [*GLM, "gpt.k.5.2", "claude.k.opus"]

Row = tuple[dict[str, Any], str, list[str], str]
PLANS: list[Row] = [
    ({"model": "glm.glm-4.7"}, "direct", GLM, "model glm.glm-4.7 names the target"),
    ({"model": "glm.b.glm-4.7"}, "direct", GLM[1:], "model glm.b.glm-4.7 names the target"),
    (
        {"model": "lonely.one"},
        "direct",
        ["lonely.x.one", "lonely.y.one"],
        "model lonely.one names the target",
    ),
    ({"model": "fast"}, "direct", GLM[1:], "alias fast names glm.b.glm-4.7"),
    ({"model": "smart"}, "thinking", ["claude.k.opus", *DEFAULT[:3]], "alias smart names route thinking"),
    ({"model": "gpt-4o"}, "default", DEFAULT, "no rule names another route"),
    ({"model": "gone"}, "default", DEFAULT, "no rule names another route"),
    (
        {"model": "lost"},
        "default",
        DEFAULT,
        "alias lost names route nowhere; route nowhere has no usable target",
    ),
    (
        {"model": "hollow"},
        "default",
        DEFAULT,
        "alias hollow names route empty; route empty has no usable target",
    ),
    (
        {"route": "coding", "why": "wrote files"},
        "coding",
        ["gpt.k.5.2", *GLM, "claude.k.opus"],
        "wrote files",
    ),
    (
        {"route": "coding", "hint": "thinking"},
        "thinking",
        ["claude.k.opus", *DEFAULT[:3]],
        "metadata.routeHint names route thinking",
    ),
    (
        {"route": "coding", "why": "w", "hint": "nowhere"},
        "coding",
        ["gpt.k.5.2", *GLM, "claude.k.opus"],
        "w",
    ),
]


@pytest.mark.parametrize(("query", "route", "expected", "reason"), PLANS)
def test_without_rules_the_body_and_the_table_decide(
    query: dict[str, Any], route: str, expected: list[str], reason: str
) -> None:
    plan = planned(**query)
    assert (plan.route, targets(plan), plan.reason) == (route, expected, reason)


TURN = "turn"
RULES: list[tuple[str, dict[str, Any], SessionState, list[str]]] = [
    ("force", {}, SessionState(force=ForcedTarget("gpt.5.2", TURN)), ["gpt.k.5.2"]),
    ("force one key", {}, SessionState(force=ForcedTarget("glm.b.glm-4.7", TURN)), GLM[1:]),
    ("force a key by number", {}, SessionState(force=ForcedTarget("glm.2", TURN)), GLM[1:]),
    ("force a key by alias", {"route": "coding"}, SessionState(force=ForcedTarget("glm.b", TURN)), GLM[1:]),
    (
        "a key forced takes the model the body names",
        {"model": "glm.air"},
        SessionState(force=ForcedTarget("glm.b", TURN)),
        ["glm.b.air"],
    ),
    (
        "force what is in no route",
        {},
        SessionState(force=ForcedTarget("lonely.y.one", TURN)),
        ["lonely.y.one"],
    ),
    ("force is of one turn", {"turn": "later"}, SessionState(force=ForcedTarget("gpt.5.2", TURN)), DEFAULT),
    (
        "force over sticky",
        {},
        SessionState(force=ForcedTarget("gpt.5.2", TURN), sticky="glm.glm-4.7"),
        ["gpt.k.5.2"],
    ),
    (
        "force over allow",
        {},
        SessionState(force=ForcedTarget("gpt.5.2", TURN), allow=("glm",)),
        ["gpt.k.5.2"],
    ),
    (
        "force over direct",
        {"model": "glm.air"},
        SessionState(force=ForcedTarget("gpt.5.2", TURN)),
        ["gpt.k.5.2"],
    ),
    ("sticky: every key of the model", {}, SessionState(sticky="glm.glm-4.7"), GLM),
    ("sticky: one key", {}, SessionState(sticky="glm.b.glm-4.7"), GLM[1:]),
    ("sticky by number", {}, SessionState(sticky="glm.2"), GLM[1:]),
    ("sticky in no route", {}, SessionState(sticky="lonely.one"), ["lonely.x.one", "lonely.y.one"]),
    ("sticky over class", {"route": "coding"}, SessionState(sticky="claude.opus"), ["claude.k.opus"]),
    ("sticky over allow", {}, SessionState(sticky="claude.opus", allow=("glm",)), ["claude.k.opus"]),
    ("sticky over direct", {"model": "gpt.5.2"}, SessionState(sticky="claude.opus"), ["claude.k.opus"]),
    (
        "vision before sticky",
        {"route": "vision"},
        SessionState(sticky="claude.opus"),
        ["see.k.eye", "claude.k.opus"],
    ),
    (
        "longcontext before sticky",
        {"route": "longcontext"},
        SessionState(sticky="gpt.5.2"),
        ["long.k.scroll", "gpt.k.5.2"],
    ),
    ("web_search has no pool here", {"route": "web_search"}, SessionState(sticky="gpt.5.2"), ["gpt.k.5.2"]),
    ("sticky ignored once", {"ignore_sticky": True}, SessionState(sticky="claude.opus"), DEFAULT),
    ("sticky unknown by now", {}, SessionState(sticky="nobody.x"), DEFAULT),
    ("allow filters the table", {}, SessionState(allow=("gpt", "claude")), DEFAULT[2:]),
    (
        "allow filters direct",
        {"model": "glm.air"},
        SessionState(allow=("gpt",)),
        ["gpt.k.5.2"],
    ),
    ("allowed direct", {"model": "glm.air"}, SessionState(allow=("glm",)), ["glm.a.air", "glm.b.air"]),
    ("allow finds other routes", {}, SessionState(allow=("see",)), ["see.k.eye"]),
    ("disable a provider", {}, SessionState(disable=("glm",)), DEFAULT[2:]),
    ("disable a key by number", {}, SessionState(disable=("glm.1",)), DEFAULT[1:]),
    ("disable a key by alias", {}, SessionState(disable=("glm.b",)), [GLM[0], *DEFAULT[2:]]),
    ("disable a model", {}, SessionState(disable=("glm.glm-4.7",)), DEFAULT[2:]),
    ("disable under sticky", {}, SessionState(sticky="glm.glm-4.7", disable=("glm.a",)), GLM[1:]),
    (
        "disable under force",
        {},
        SessionState(force=ForcedTarget("glm.glm-4.7", TURN), disable=("glm.1",)),
        GLM[1:],
    ),
    ("disable under direct", {"model": "glm.glm-4.7"}, SessionState(disable=("glm.2",)), GLM[:1]),
    ("disabled names that are gone", {}, SessionState(disable=("nobody", "glm.9")), DEFAULT),
    (
        "a whole route disabled falls to default",
        {"route": "thinking"},
        SessionState(disable=("claude",)),
        DEFAULT[:3],
    ),
]


@pytest.mark.parametrize(("name", "query", "session", "expected"), RULES, ids=[row[0] for row in RULES])
def test_a_rule_of_the_session_decides(
    name: str, query: dict[str, Any], session: SessionState, expected: list[str]
) -> None:
    assert targets(planned(**{"turn": TURN, **query}, session=session)) == expected


REFUSALS: list[tuple[str, dict[str, Any], SessionState, int, str, dict[str, Any]]] = [
    (
        "forced and disabled",
        {},
        SessionState(force=ForcedTarget("glm.glm-4.7", TURN), disable=("glm",)),
        403,
        "Requested provider glm is disabled",
        {"provider": "glm", "reason": "disabled"},
    ),
    (
        "named and disabled",
        {"model": "glm.glm-4.7"},
        SessionState(disable=("glm",)),
        403,
        "Requested provider glm is disabled",
        {"provider": "glm", "reason": "disabled"},
    ),
    (
        "forced, and gone from the configuration",
        {},
        SessionState(force=ForcedTarget("nobody.x", TURN)),
        404,
        "Requested provider nobody.x not found in provider registry",
        {"provider": "nobody.x"},
    ),
]


@pytest.mark.parametrize(
    ("name", "query", "session", "status", "message", "details"), REFUSALS, ids=[row[0] for row in REFUSALS]
)
def test_what_a_person_insists_on_is_refused_and_never_replaced(
    name: str,
    query: dict[str, Any],
    session: SessionState,
    status: int,
    message: str,
    details: dict[str, Any],
) -> None:
    with pytest.raises(ProviderNotAvailable) as caught:
        planned(**{"turn": TURN, **query}, session=session)
    error = caught.value
    assert (error.status, error.message, error.details, error.code) == (
        status,
        message,
        details,
        "PROVIDER_NOT_AVAILABLE",
    )


def test_an_allow_list_that_leaves_nothing_says_how_to_clear_it() -> None:
    with pytest.raises(ProviderNotAvailable, match=r"lonely.*<\*\*clear\*\*>") as caught:
        planned(session=SessionState(allow=("lonely",)))
    assert caught.value.status == 403
    assert caught.value.details is not None
    assert caught.value.details["reason"] == "not_allowed"


def test_everything_disabled_is_an_error_that_names_it() -> None:
    with pytest.raises(ProviderNotAvailable) as caught:
        planned(session=SessionState(disable=("glm", "gpt", "claude")))
    assert caught.value.details == {"provider": "glm", "reason": "disabled"}


def test_no_targets_at_all_is_told_with_the_way_out() -> None:
    with pytest.raises(
        GatewayError, match=r"route 'default' has no targets; add some under \[routing\]"
    ) as caught:
        planned(router=Router(Registry(PROVIDERS, routes={}, aliases={})))
    assert isinstance(caught.value, NotFound)
    assert caught.value.code == "no_targets"


def test_the_route_of_a_sticky_target_is_the_one_that_contains_it() -> None:
    plan = planned(route="coding", session=SessionState(sticky="claude.opus"))
    assert (plan.route, plan.reason) == ("default", "sticky claude.opus")
    assert planned(session=SessionState(sticky="see.eye")).route == "vision"
    assert planned(session=SessionState(sticky="lonely.one")).route == "sticky"


def test_sticky_keys_take_turns_whatever_the_conversation() -> None:
    next_turn = RoundRobin()
    seen = [
        ROUTER.plan(
            RouteQuery(model="x", affinity="same"),
            session=SessionState(sticky="glm.glm-4.7"),
            server=ServerState(),
            health=Ill(),
            now=0.0,
            next_turn=next_turn,
        )
        .steps[0]
        .target.key
        for _ in range(4)
    ]
    assert seen == ["a", "b", "a", "b"]


def test_a_sticky_key_that_cools_is_left_out_while_another_works() -> None:
    plan = planned(session=SessionState(sticky="glm.glm-4.7"), health=Ill(glm__a=100))
    assert targets(plan) == GLM[1:]
    assert not plan.clears_sticky


def test_sticky_keys_that_are_back_soon_are_waited_for() -> None:
    plan = planned(session=SessionState(sticky="glm.glm-4.7"), health=Ill(glm=5), max_wait=10)
    assert (targets(plan), [row.until for row in plan.cooling]) == ([], [5, 5])
    assert not plan.clears_sticky


def test_sticky_is_cleared_when_none_of_its_keys_is_back_in_time() -> None:
    plan = planned(session=SessionState(sticky="glm.glm-4.7"), health=Ill(glm=100), max_wait=10)
    assert (targets(plan), plan.clears_sticky) == (["gpt.k.5.2", "claude.k.opus"], True)
    assert plan.reason.startswith("sticky glm.glm-4.7 cleared, none of its keys can be used; ")


def test_sticky_is_cleared_when_all_its_keys_are_disabled() -> None:
    plan = planned(session=SessionState(sticky="claude.opus", disable=("claude",)))
    assert (targets(plan), plan.clears_sticky) == (DEFAULT[:3], True)


def test_a_sticky_target_that_failed_this_request_alone_stays_sticky() -> None:
    tried = frozenset({Target("claude", "k", "opus")})
    plan = planned(session=SessionState(sticky="claude.opus"), tried=tried)
    assert (targets(plan), plan.clears_sticky) == (DEFAULT[:3], False)


def test_nothing_falls_to_another_provider_while_a_sticky_key_is_left() -> None:
    tried = frozenset({Target("glm", "a", "glm-4.7")})
    assert targets(planned(session=SessionState(sticky="glm.glm-4.7"), tried=tried)) == GLM[1:]


def test_the_operators_disables_add_to_the_sessions() -> None:
    plan = planned(session=SessionState(disable=("gpt",)), server=ServerState(disable=("glm",)))
    assert targets(plan) == ["claude.k.opus"]


def test_the_sessions_own_sticky_and_allow_win_over_the_operators() -> None:
    server = ServerState(sticky="gpt.5.2", allow=("gpt",))
    assert targets(planned(server=server)) == ["gpt.k.5.2"]
    assert targets(planned(server=server, session=SessionState(sticky="claude.opus"))) == ["claude.k.opus"]
    assert targets(planned(server=server, session=SessionState(allow=("claude",)))) == ["claude.k.opus"]


def test_the_operators_sticky_target_is_passed_over_but_never_cleared() -> None:
    plan = planned(server=ServerState(sticky="gpt.5.2"), health=Ill(gpt=100))
    assert (targets(plan), plan.clears_sticky) == ([*GLM, "claude.k.opus"], False)


def test_a_named_model_goes_to_the_keys_that_work() -> None:
    assert targets(planned("glm.glm-4.7", health=Ill(glm__a=9))) == GLM[1:]


def test_a_named_model_that_cools_is_waited_for_and_not_replaced() -> None:
    plan = planned("glm.glm-4.7", health=Ill(glm=9))
    assert (targets(plan), len(plan.cooling)) == ([], 2)


def test_a_target_too_small_for_the_request_is_skipped_with_the_reason() -> None:
    plan = planned(tokens=300_000)
    assert targets(plan) == ["gpt.k.5.2"]
    assert {str(row.step.target): row.reason for row in plan.removed} == {
        "glm.a.glm-4.7": "holds 200000 tokens, the request has about 300000",
        "glm.b.glm-4.7": "holds 200000 tokens, the request has about 300000",
        "claude.k.opus": "holds 100000 tokens, the request has about 300000",
    }


def test_an_estimate_alone_never_refuses_a_request() -> None:
    assert targets(planned(tokens=3_000_000))[0] == "gpt.k.5.2"


def test_an_allow_list_that_passes_over_the_named_model_says_so() -> None:
    plan = planned("glm.air", session=SessionState(allow=("gpt",)))
    assert plan.notices == ("glm.air is not in the allow list gpt",)


def test_a_request_that_is_too_long_goes_where_it_must() -> None:
    plan = planned("smart", only_route="longcontext")
    assert (plan.route, targets(plan)[0]) == ("longcontext", "long.k.scroll")


def test_every_target_left_out_has_a_reason() -> None:
    plan = planned(session=SessionState(disable=("glm.a",), allow=("glm", "gpt")), health=Ill(gpt=3))
    assert targets(plan) == GLM[1:]
    assert [(str(row.step.target), row.reason) for row in plan.removed] == [
        ("glm.a.glm-4.7", "disabled"),
        ("claude.k.opus", "not in the allow list glm, gpt"),
    ]
    assert [(str(row.step.target), row.reason) for row in plan.cooling] == [("gpt.k.5.2", "429")]


@pytest.mark.parametrize("rule", ["force", "sticky"])
def test_a_key_alone_gets_a_model_that_is_not_disabled(rule: str) -> None:
    only: dict[str, SessionState] = {
        "force": SessionState(force=ForcedTarget("glm.2", TURN), disable=("glm.glm-4.7",)),
        "sticky": SessionState(sticky="glm.2", disable=("glm.glm-4.7",)),
    }
    plan = planned(session=only[rule], turn=TURN)
    assert (targets(plan), plan.clears_sticky) == (["glm.b.air"], False)


def test_a_key_whose_models_are_all_disabled_is_refused() -> None:
    with pytest.raises(ProviderNotAvailable, match=r"glm\.b\.glm-4\.7 is disabled"):
        planned(
            session=SessionState(force=ForcedTarget("glm.2", TURN), disable=("glm.glm-4.7", "glm.air")),
            turn=TURN,
        )


def test_what_clients_call_routes_and_models_is_not_kept_whole() -> None:
    router = Router(Registry(PROVIDERS, routes=ROUTES, aliases={"claude-*": "glm.glm-4.7"}))
    for number in range(3):
        planned(router=router, hint=f"{number}" * 100_000)
    assert "0" * 100_000 not in router.registry.routes
    assert not router.has_route("0" * 100_000)
    plan = planned(f"claude-{'x' * 100_000}", router=router)
    assert (plan.route, len(plan.reason) < 300) == ("direct", True)


def test_an_allow_list_of_the_operator_is_cleared_by_the_operator() -> None:
    with pytest.raises(ProviderNotAvailable) as refused:
        planned(server=ServerState(allow=("lonely",)))
    assert refused.value.message == (
        "No route has a target that the allow list permits (lonely); "
        "`routecodex daemon set routing --clear` clears the list"
    )
