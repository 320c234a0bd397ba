"""The rules that are judged over all exchanges at the end of a stage."""

from __future__ import annotations

from routecodex.protocols import grammar
from tests.cluster import record as rules
from tests.cluster.exchanges import Exchange, as_answer
from tests.cluster.model import Exhaustion
from tests.cluster.record import UNKNOWN_RESPONSE, Record
from tests.cluster.timeline import Timeline
from tests.kit import asking

_STORE_CODES = ("state_not_saved", "store_unavailable")
# Clients with a limit ask for more than it; their conversation judges how many were refused.
_LIMIT_CODE = "insufficient_quota"
_BALANCER_ERRORS = (502, 504)
# A response is continued within this time, so that one that is lost was stored shortly before.
_RESPONSE_SECONDS = 30.0


def judge_exchange(exchange: Exchange, timeline: Timeline, record: Record) -> None:
    """Judge one outcome: complete and grammatical, or an error that a fault explains."""
    is_whole = exchange.is_complete and exchange.status not in _BALANCER_ERRORS
    if exchange.ok:
        record.count("requests: answered")
    elif not is_whole:
        record.count("requests: broken off")
    else:
        record.count(f"requests: {exchange.status} {exchange.code}")
    if is_whole:
        _judge_grammar(exchange, record)
    record.judge(rules.ANSWERED, exchange.ok or _is_explained(exchange, timeline), _shown(exchange))


def _is_explained(exchange: Exchange, timeline: Timeline) -> bool:
    node, begin, end = exchange.node or None, exchange.begin, exchange.end
    if not exchange.is_complete or exchange.status in _BALANCER_ERRORS:
        return timeline.was("killed", node=node, begin=begin, end=end)
    if exchange.code == _LIMIT_CODE:
        return True
    if exchange.code == UNKNOWN_RESPONSE:
        return timeline.was("emptied", "failover", begin=begin - _RESPONSE_SECONDS, end=end)
    return exchange.code in _STORE_CODES and timeline.was("store", node=node, begin=begin, end=end)


def _judge_grammar(exchange: Exchange, record: Record) -> None:
    try:
        if exchange.status == 200:
            asking.check(exchange.protocol, as_answer(exchange), stream=exchange.stream)
        else:
            grammar.check_error(exchange.protocol, exchange.status, exchange.body)
    except (AssertionError, ValueError, grammar.GrammarViolation) as exc:
        record.judge(rules.GRAMMATICAL, False, f"{_shown(exchange)}: {exc}")
    else:
        record.judge(rules.GRAMMATICAL, True)


def _shown(exchange: Exchange) -> str:
    kind = f"{exchange.protocol}{' stream' if exchange.stream else ''}"
    end = "" if exchange.is_complete else ", broken off"
    where = f"of {exchange.session!r} at {exchange.node or '?'}"
    return f"q{exchange.number} {kind} {where}: {exchange.status}{end} {exchange.body[-200:]!r}"


def judge_cooldown(exhaustion: Exhaustion, timeline: Timeline, record: Record) -> None:
    """After the first 429 no node calls the provider for longer than a second."""
    if not exhaustion.hits:
        return
    first, last = exhaustion.hits[0].at, exhaustion.hits[-1].at
    if timeline.was("store", "frozen", "frozen_beyond_lease", begin=first, end=last):
        record.count("cooldowns: not judged, a fault was under way")
        return
    record.took("from the first 429 to the last call of any node", last - first)
    record.judge(rules.COOLDOWN, last - first <= rules.COOLDOWN_SEEN, f"called after {last - first:.3f} s")
