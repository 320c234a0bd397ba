"""The trial in its short form, and the proof that its rules can be broken."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from tests.cluster import record as rules
from tests.cluster.deployments import ClusterRedis, SentinelRedis, SingleRedis
from tests.cluster.exchanges import Exchange
from tests.cluster.model import Exhaustion, ModelCall
from tests.cluster.record import Record
from tests.cluster.rules import judge_cooldown, judge_exchange
from tests.cluster.stop_messages import StopMessage, judge_uses
from tests.cluster.store_faults import CLUSTER, SENTINEL, SINGLE
from tests.cluster.timeline import Timeline, Window
from tests.cluster.trial import WORKERS, StagePlan, run_stage

RATE, PAUSE = 15.0, 1.5
OK = b'{"id":"1","object":"chat.completion","created":1,"model":"m","choices":[]}'


@pytest.mark.timeout(400)
async def test_three_nodes_behind_a_balancer_keep_every_rule_while_parts_of_them_fail(tmp_path: Path) -> None:
    record = Record()
    await run_stage(
        tmp_path, SingleRedis(tmp_path, len(WORKERS)), StagePlan(SINGLE, None, RATE, PAUSE), record
    )
    check(record)
    assert [rule for rule in rules.RULES if not record.judged[rule]] == []


@pytest.mark.timeout(300)
async def test_three_nodes_keep_every_rule_while_sentinels_choose_another_master(tmp_path: Path) -> None:
    faults = {name: SENTINEL[name] for name in ("master killed", "a node killed")}
    record = Record()
    await run_stage(tmp_path, SentinelRedis(tmp_path), StagePlan(faults, None, RATE, PAUSE), record)
    check(record)


@pytest.mark.timeout(300)
async def test_three_nodes_keep_every_rule_while_servers_of_a_cluster_fail(tmp_path: Path) -> None:
    faults = {name: CLUSTER[name] for name in ("a server of the cluster killed", "a node killed")}
    record = Record()
    await run_stage(tmp_path, ClusterRedis(tmp_path), StagePlan(faults, None, RATE, PAUSE), record)
    check(record)


def check(record: Record) -> None:
    """Check that no rule was broken, and that requests were answered."""
    assert {rule: found for rule, found in record.broken.items() if found} == {}
    assert record.counts["requests: answered"] > 100


def exchange(*, status: int = 200, body: bytes = OK, is_complete: bool = True, end: float = 2.0) -> Exchange:
    return Exchange(1, "s", "chat", False, 1.0, end, "gw-0", status, is_complete, body)


STORE_ERROR = b'{"error":{"message":"no","type":"server_error","param":null,"code":"store_unavailable"}}'
BROKEN: dict[str, tuple[Exchange, str]] = {
    "an answer breaks off": (exchange(is_complete=False), rules.ANSWERED),
    "the balancer found no node": (exchange(status=502), rules.ANSWERED),
    "the store is said to be unavailable": (exchange(status=503, body=STORE_ERROR), rules.ANSWERED),
    "an answer is not of its protocol": (exchange(body=b'{"hello":1}'), rules.GRAMMATICAL),
}


@pytest.mark.parametrize(("one", "rule"), BROKEN.values(), ids=BROKEN)
def test_an_outcome_that_no_fault_explains_breaks_a_rule(one: Exchange, rule: str) -> None:
    record = Record()
    judge_exchange(one, Timeline([Window("killed", "gw-1", 0.0, 9.0), Window("store", "gw-0", 4.0)]), record)
    assert len(record.broken[rule]) == 1


def test_a_kill_explains_a_broken_answer_of_that_node_alone() -> None:
    record = Record()
    timeline = Timeline([Window("killed", "gw-0", 1.5, 3.0)])
    judge_exchange(exchange(is_complete=False), timeline, record)
    assert record.broken[rules.ANSWERED] == []


@pytest.mark.parametrize(("last", "broken"), [(1.9, 0), (2.1, 1)])
def test_a_call_more_than_a_second_after_the_first_429_breaks_a_rule(last: float, broken: int) -> None:
    hits = [ModelCall(number, "first", at, 0, frozenset()) for number, at in enumerate((1.0, last))]
    record = Record()
    judge_cooldown(Exhaustion("first", 0.0, 5.0, hits), Timeline(), record)
    assert len(record.broken[rules.COOLDOWN]) == broken


OUTAGE = Window("store", "gw-0", 1.0, 5.0)
PAUSED_ONE = {"x-routecodex-notice": "stopMessage%20paused: store unavailable"}
UNSAVED = b'{"error":{"message":"no","type":"server_error","param":null,"code":"state_not_saved"}}'


def of_session(number: int, begin: float, end: float, *, node: str = "gw-1", **fields: Any) -> Exchange:
    return Exchange(
        number, "s", "chat", False, begin, end, node, **{"status": 200, "is_complete": True, **fields}
    )


def follow_up(number: int, at: float, count: int = 1) -> ModelCall:
    return ModelCall(number, "first", at, count, frozenset())


CONFIRMED = of_session(1, 0.5, 0.9)
REFUSED = of_session(1, 1.5, 2.5, node="gw-0", status=503, body=UNSAVED)
PAUSED = of_session(2, 1.5, 2.5, node="gw-0", headers=PAUSED_ONE)
OTHER, LATER = of_session(3, 3.0, 4.0), of_session(4, 6.0, 7.0)
STOP_MESSAGES: dict[str, tuple[list[Exchange], list[ModelCall], list[str]]] = {
    "every use is sent": ([CONFIRMED, LATER], [follow_up(1, 0.7), follow_up(4, 6.5)], []),
    "one use more is sent": (
        [CONFIRMED, OTHER, LATER],
        [follow_up(1, 0.7), follow_up(3, 3.5), follow_up(4, 6.5)],
        [rules.NOT_TOO_MANY],
    ),
    "one follow-up goes to two targets": (
        [CONFIRMED, LATER],
        [follow_up(1, 0.7), follow_up(4, 6.4), follow_up(4, 6.5)],
        [],
    ),
    "a use is lost without a cause": ([CONFIRMED, OTHER, LATER], [follow_up(1, 0.7)], [rules.NOT_LOST]),
    "a paused use is given back": (
        [CONFIRMED, PAUSED, LATER],
        [follow_up(4, 6.4), follow_up(4, 6.5, 2)],
        [],
    ),
    "a paused use is not given back, though nobody has written": (
        [CONFIRMED, PAUSED, LATER],
        [follow_up(4, 6.4)],
        [rules.NOT_LOST],
    ),
    "a paused use is not given back, because another node has written": (
        [CONFIRMED, PAUSED, OTHER, LATER],
        [follow_up(3, 3.5)],
        [],
    ),
    "two uses are lost, and one write explains only one": (
        [CONFIRMED, PAUSED, OTHER, LATER],
        [],
        [rules.NOT_LOST],
    ),
    "a refused message is not used": ([REFUSED, LATER], [], []),
    "a refused message is used after the return": (
        [REFUSED, LATER],
        [follow_up(4, 6.5)],
        [rules.NOT_TOO_MANY],
    ),
    "a refused message is used by another node before the return, and stays": (
        [REFUSED, OTHER, LATER],
        [follow_up(3, 3.5), follow_up(4, 6.5)],
        [],
    ),
}


@pytest.mark.parametrize(("exchanges", "calls", "broken"), STOP_MESSAGES.values(), ids=STOP_MESSAGES)
def test_only_a_write_in_between_excuses_a_write_that_is_not_undone(
    exchanges: list[Exchange], calls: list[ModelCall], broken: list[str]
) -> None:
    record = Record()
    judge_uses(StopMessage(2, exchanges[0], exchanges, calls, Timeline([OUTAGE])), record)
    assert [rule for rule, found in record.broken.items() if found] == broken


def test_a_killed_node_may_lose_the_use_that_it_had_counted() -> None:
    broken_off = of_session(2, 1.5, 2.5, node="gw-0", is_complete=False)
    for killed, count in (("gw-0", 0), ("gw-1", 1)):
        record, timeline = Record(), Timeline([Window("killed", killed, 2.0, 3.0)])
        judge_uses(StopMessage(1, CONFIRMED, [CONFIRMED, broken_off], [], timeline), record)
        assert len(record.broken[rules.NOT_LOST]) == count


def test_a_fault_has_an_aftermath() -> None:
    timeline = Timeline([Window("store", "gw-0", 1.0, 2.0)])
    assert timeline.was("store", begin=2.9, end=3.0, node="gw-0")
    assert not timeline.was("store", begin=3.1, end=4.0, node="gw-0")
    assert not timeline.was("store", begin=1.0, end=4.0, node="gw-1")
    assert timeline.was("store", begin=time.monotonic() - 1) is False
