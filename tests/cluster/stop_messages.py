"""The rules about uses of a stopMessage: judged by what was sent, and by what one write may do to another.

A write whose caller was told that it failed is undone when its node reaches Redis again, unless somebody has
written the key since. So a use that was counted and never sent, or a message that was refused and is in
force, is excused by another write of the session between the lost one and the return of its node, and by
nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tests.cluster import record as rules
from tests.cluster.exchanges import Exchange
from tests.cluster.model import ModelCall
from tests.cluster.record import Record
from tests.cluster.timeline import Timeline

NOT_SAVED = "state_not_saved"
PAUSED = "stopMessage paused"
# A follow-up is sent after its use was written; on a busy machine that takes a moment.
_SENDING_SECONDS = 0.5


@dataclass(frozen=True)
class StopMessage:
    """A message with so many uses, all requests of its session, and all calls of the model."""

    uses: int
    armed: Exchange
    exchanges: Sequence[Exchange]
    calls: Sequence[ModelCall]
    timeline: Timeline

    def follow_ups(self, exchanges: Sequence[Exchange]) -> list[ModelCall]:
        """Return the follow-ups of these requests; of one that was sent to two targets, the first call."""
        numbers = {one.number for one in exchanges}
        found: dict[tuple[int, int], ModelCall] = {}
        for call in self.calls:
            if call.follow_ups and call.number in numbers:
                found.setdefault((call.number, call.follow_ups), call)
        return list(found.values())

    @property
    def sent(self) -> int:
        return len(self.follow_ups(self.exchanges))

    @property
    def lost_by_kills(self) -> int:
        """Uses that killed nodes may have counted without sending."""
        return sum(
            not one.is_complete
            and self.timeline.was("killed", begin=one.begin, end=one.end, node=one.node or None)
            for one in self.exchanges
        )

    @property
    def lost_by_writers(self) -> int:
        """Uses that were counted, not sent, and could not be given back."""
        return sum(PAUSED in one.notices and self.may_stay(one) for one in self.exchanges)

    def may_stay(self, lost: Exchange) -> bool:
        """Return whether the lost write of a request may stay: another one came before its node was back."""
        back = self.timeline.end_of("store", begin=lost.begin, end=lost.end, node=lost.node)
        others = [one for one in self.exchanges if one.number != lost.number]
        is_written = any(
            lost.begin <= call.at <= back + _SENDING_SECONDS for call in self.follow_ups(others)
        ) or any(_loses_write(one) and one.begin <= back and one.end >= lost.begin for one in others)
        return is_written or self.timeline.was("killed", begin=lost.begin, end=back, node=lost.node)


def _loses_write(exchange: Exchange) -> bool:
    return exchange.code == NOT_SAVED or PAUSED in exchange.notices


def judge_uses(message: StopMessage, record: Record) -> None:
    """Judge that no use was sent too many and none was lost, but by the rules for kills and outages."""
    armed, sent = message.armed, message.sent
    record.count("stopMessage: uses sent", sent)
    elsewhere = [one for one in message.exchanges if one.node != armed.node]
    record.count(
        "stopMessage: uses sent by other nodes than it was set at", len(message.follow_ups(elsewhere))
    )
    most = message.uses
    if armed.code == NOT_SAVED:
        most = message.uses if message.may_stay(armed) else 0
        if sent:
            record.count("stopMessage: refused, used by others before it was undone")
        else:
            record.count("stopMessage: refused, and never used")
    shown = f"{armed.session}: {sent} of {most}, set with {armed.status} at {armed.node}"
    record.judge(rules.NOT_TOO_MANY, sent <= most, shown)
    if armed.ok:
        record.count("stopMessage: confirmed")
        _judge_lost(message, record)


def _judge_lost(message: StopMessage, record: Record) -> None:
    lost = message.uses - message.sent
    if lost > 0 and message.timeline.was("emptied", begin=message.armed.begin):
        record.count("stopMessage: uses lost with the data of Redis", lost)
        return
    kills, writers = message.lost_by_kills, message.lost_by_writers
    shown = f"{message.armed.session}: {lost} of {message.uses}, {kills} by kills and {writers} by writers"
    record.judge(rules.NOT_LOST, lost <= kills + writers, shown)
    if lost > 0:
        cause = "a kill" if kills else "two writers in an outage"
        record.count(f"stopMessage: uses lost by {cause}", lost)
    if any(PAUSED in one.notices for one in message.exchanges) and lost <= 0:
        record.count("stopMessage: paused, and every use was sent")
