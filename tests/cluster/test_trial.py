"""The trial in its short form, and the proof that its rules can be broken."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.cluster import record as rules
from tests.cluster.deployments import SingleRedis
from tests.cluster.exchanges import Exchange
from tests.cluster.faults import Fault
from tests.cluster.model import Exhaustion, ModelCall
from tests.cluster.record import Record
from tests.cluster.rules import judge_cooldown, judge_exchange
from tests.cluster.store_faults import SINGLE
from tests.cluster.timeline import Timeline, Window
from tests.cluster.trial import WORKERS, StagePlan, run_stage

SHORT = ("a node killed", "a provider answers 429", "a node cut off from Redis")
OK = b'{"id":"1","object":"chat.completion","created":1,"model":"m","choices":[]}'


@pytest.mark.timeout(300)
async def test_three_nodes_behind_a_balancer_keep_every_rule_while_parts_of_them_fail(tmp_path: Path) -> None:
    faults: dict[str, Fault[SingleRedis]] = {name: SINGLE[name] for name in SHORT}
    record = Record()
    plan = StagePlan(faults, rate=15.0, pause=1.5)
    await run_stage(tmp_path, SingleRedis(tmp_path, len(WORKERS)), plan, record)
    assert {rule: found for rule, found in record.broken.items() if found} == {}
    unjudged = {rule for rule in rules.RULES if not record.judged[rule]}
    assert unjudged == {rules.CLEAN_ENDS}, "no node was restarted"


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


def test_a_fault_has_an_aftermath() -> None:
    timeline = Timeline([Window("store", "gw-0", 1.0, 2.0)])
    assert timeline.was("store", begin=2.9, end=3.0, node="gw-0")
    assert not timeline.was("store", begin=3.1, end=4.0, node="gw-0")
    assert not timeline.was("store", begin=1.0, end=4.0, node="gw-1")
    assert timeline.was("store", begin=time.monotonic() - 1) is False
