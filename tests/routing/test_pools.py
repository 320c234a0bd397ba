from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from routecodex.routing.pools import RoundRobin, pool_selectors
from routecodex.routing.registry import Model, Pool, Provider, Registry

MODELS = {"m": Model(id="m"), "n": Model(id="n")}
PROVIDERS = [
    Provider(name="a", protocol="chat", keys=("k1", "k2", "k3"), models=MODELS),
    Provider(name="b", protocol="chat", keys=("k1",), models=MODELS),
    Provider(name="c", protocol="chat", keys=("k1",), models=MODELS),
]


def registry(*pools: Pool) -> Registry:
    return Registry(PROVIDERS, routes={"default": pools}, aliases={})


def firsts(pool: Pool, count: int, *, affinity: list[str] | None = None) -> Counter[str]:
    (selector,) = pool_selectors(registry(pool), "default")
    next_turn = RoundRobin()
    orders = (
        selector.order(affinity=affinity[number] if affinity else None, next_turn=next_turn)
        for number in range(count)
    )
    return Counter(str(order[0].target) for order in orders)


def test_round_robin_gives_every_model_the_same_share_and_every_key_of_it_too() -> None:
    pool = Pool(id="p", targets=("a.m", "b.m"))
    assert firsts(pool, 60) == {"a.k1.m": 10, "a.k2.m": 10, "a.k3.m": 10, "b.k1.m": 30}


def test_round_robin_goes_in_turn() -> None:
    (pool,) = pool_selectors(registry(Pool(id="p", targets=("b.m", "c.m"))), "default")
    next_turn = RoundRobin()
    seen = [str(pool.order(affinity=None, next_turn=next_turn)[0].target) for _ in range(4)]
    assert seen == ["b.k1.m", "c.k1.m", "b.k1.m", "c.k1.m"]


def test_priority_always_begins_with_the_first() -> None:
    pool = Pool(id="p", targets=("b.m", "c.m"), mode="priority")
    assert firsts(pool, 10) == {"b.k1.m": 10}


def test_keys_of_the_first_in_priority_take_turns() -> None:
    assert firsts(Pool(id="p", targets=("a.m", "b.m"), mode="priority"), 9) == {
        "a.k1.m": 3,
        "a.k2.m": 3,
        "a.k3.m": 3,
    }


def test_weights_share_out_exactly_over_any_stretch() -> None:
    pool = Pool(id="p", targets=("b.m", "c.m"), weights={"b.m": 3.0, "c.m": 1.0}, mode="weighted")
    seen = firsts(pool, 400)
    assert abs(seen["b.k1.m"] - 300) <= 3


def test_weights_alone_make_a_pool_weighted() -> None:
    seen = firsts(Pool(id="p", targets=("b.m", "c.m"), weights={"b.m": 9.0}), 100)
    assert seen["b.k1.m"] >= 85


def test_many_keys_get_no_larger_share_of_the_weight() -> None:
    seen = firsts(Pool(id="p", targets=("a.m", "b.m"), mode="weighted"), 100)
    assert abs(seen["b.k1.m"] - 50) <= 2


def test_backups_come_last_and_a_target_stands_only_where_it_is_named_first() -> None:
    made = pool_selectors(
        registry(
            Pool(id="spare", targets=("c.m", "b.m"), backup=True),
            Pool(id="main", targets=("b.m",)),
        ),
        "default",
    )
    rows = [(str(step.target), step.reason) for pool in made for group in pool.groups for step in group.steps]
    assert rows == [("b.k1.m", "pool main"), ("c.k1.m", "pool spare (backup)")]


def test_a_key_named_in_the_pool_is_the_only_one_of_its_model() -> None:
    assert firsts(Pool(id="p", targets=("a.k2.m",)), 5) == {"a.k2.m": 5}


@given(st.text(max_size=40))
def test_a_conversation_keeps_its_place(session: str) -> None:
    pool = Pool(id="p", targets=("a.m", "b.m", "c.n"))
    assert len(firsts(pool, 5, affinity=[session] * 5)) == 1


def test_conversations_are_spread_by_weight_first_and_by_key_inside() -> None:
    pool = Pool(id="p", targets=("a.m", "b.m"), weights={"a.m": 1.0, "b.m": 1.0}, mode="weighted")
    seen = firsts(pool, 2000, affinity=[f"session-{number}" for number in range(2000)])
    assert 850 < seen["b.k1.m"] < 1150
    assert all(250 < seen[f"a.k{number}.m"] < 420 for number in (1, 2, 3))


def test_only_conversations_of_a_target_that_goes_away_move() -> None:
    (pool,) = pool_selectors(registry(Pool(id="p", targets=("a.m", "b.m", "c.m"))), "default")
    for number in range(200):
        order = pool.order(affinity=f"s{number}", next_turn=RoundRobin())
        kept = [step for step in order if step.target.key != "k2"]
        if order[0].target.key != "k2":
            assert kept[0] == order[0]


def test_priority_holds_for_conversations_too() -> None:
    pool = Pool(id="p", targets=("b.m", "c.m"), mode="priority")
    assert firsts(pool, 20, affinity=[str(number) for number in range(20)]) == {"b.k1.m": 20}
