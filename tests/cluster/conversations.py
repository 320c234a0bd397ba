"""What the clients of a trial do, each conversation in a session of its own, with the rule it must keep.

A further kind is one more function in `CONVERSATIONS` and one more rule in `record`.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from tests.cluster import record as rules
from tests.cluster.exchanges import Exchange, TrialClient
from tests.cluster.model import TrialModel
from tests.cluster.record import Record
from tests.cluster.stop_messages import NOT_SAVED, PAUSED, StopMessage, judge_uses
from tests.cluster.timeline import Timeline
from tests.kit import answers

USES = 4
LIMIT, LIMITED_CLIENTS = 5, 300
LEASE_MS = 2000
STORE_TIMEOUT = 1.0
DUE_WINDOW_MS = 400
HOLD_MAX_MS = 1500
TARGET = "second.m"
_SEEN_SOON, _SEEN_AT_LAST = 0.1, 1.0
_LEASE = LEASE_MS / 1000
_REMINDER_SECONDS = 30.0
_SETTLE_TRIES = 40
_STICKY_REQUESTS = 6


@dataclass
class Client:
    """The parts that a conversation needs, and its number."""

    number: int
    client: TrialClient
    model: TrialModel
    timeline: Timeline
    record: Record
    chance: random.Random

    async def ask(self, text: str, session: str = "", *, protocol: str = "") -> Exchange:
        """Ask streamed or not, in any protocol unless one is given."""
        return await self.client.ask(
            text,
            session=session,
            protocol=protocol or self.chance.choice(answers.PROTOCOLS),
            stream=self.chance.random() < 0.5,
        )

    @property
    def is_patient(self) -> bool:
        return self.number // len(CONVERSATIONS) % 2 == 1

    def has_lost_data(self, since: float) -> bool:
        return self.timeline.was("emptied", begin=since)


Conversation = Callable[[Client], Awaitable[None]]


async def stateless(client: Client) -> None:
    """Requests without a session: they are answered whatever happens to the store."""
    for protocol in answers.PROTOCOLS:
        await client.ask("hello", protocol=protocol)


async def sticky(client: Client) -> None:
    """A sticky target holds on every node from the moment that it was confirmed."""
    session = f"sticky-{client.number}"
    for _ in range(2):
        await client.ask("hello", session)
    confirmed = await client.ask(f"<**!{TARGET}**> hello", session)
    client.record.count("sticky: confirmed" if confirmed.ok else "sticky: not confirmed")
    if confirmed.ok:
        for _ in range(_STICKY_REQUESTS):
            _judge_sticky(client, confirmed, await client.ask("hello", session))


def _judge_sticky(client: Client, confirmed: Exchange, exchange: Exchange) -> None:
    if not exchange.ok:
        return
    since = exchange.begin - confirmed.end
    if exchange.target.startswith("second."):
        client.record.judge(rules.STICKY, True)
    elif _may_miss(client.timeline, confirmed, exchange):
        client.record.count("sticky: old target during a fault")
    elif since < _SEEN_AT_LAST:
        soon = "within 100 ms" if since < _SEEN_SOON else "after 100 ms to 1 s"
        client.record.count(f"sticky: old target {soon}")
    else:
        shown = f"{exchange.session}: {exchange.target} at {exchange.node} after {since:.3f} s"
        client.record.judge(rules.STICKY, False, shown)


def _may_miss(timeline: Timeline, confirmed: Exchange, exchange: Exchange) -> bool:
    """Return whether the node was cut off or stood still, or Redis has lost the setting since."""
    return timeline.was(
        *("store", "frozen", "frozen_beyond_lease"),
        begin=confirmed.begin,
        end=exchange.end,
        node=exchange.node,
    ) or timeline.was("emptied", "failover", begin=confirmed.begin)


async def stop_message(client: Client) -> None:
    """Requests of one session at several nodes share the uses of its stopMessage exactly.

    Every other client is patient: it sends one request at a time, and after a pause waits until the node is
    back. Nobody has written the session meanwhile, so that a use which was counted must have been given back.
    """
    session = f"stop-{client.number}"
    armed = asyncio.ensure_future(client.ask(f'<**stopMessage:"carry on",{USES}**> hello', session))
    if client.is_patient:
        first = await armed
    else:
        await _until_armed(client, session, armed)
        others = [asyncio.ensure_future(client.ask("hello", session)) for _ in range(2)]
        first = await armed
        await asyncio.gather(*others)
    if first.ok:
        await _use_up(client, session, first)
    elif first.code == NOT_SAVED:
        # Were the message not undone, these would use it.
        await _until_back(client, first)
        for _ in range(2):
            await client.ask("hello", session)
    exchanges, calls = client.client.of(session), client.model.calls
    judge_uses(StopMessage(USES, first, exchanges, calls, client.timeline), client.record)


async def _until_armed(client: Client, session: str, armed: asyncio.Future[Exchange]) -> None:
    """Wait until the model was called: the message is saved before, and is used up in the same turn."""
    while not armed.done():
        numbers = {exchange.number for exchange in client.client.of(session)}
        if any(call.number in numbers for call in client.model.calls[-100:]):
            return
        await asyncio.sleep(0.02)


async def _use_up(client: Client, session: str, last: Exchange) -> None:
    """Ask until a request that could have used one has found none left."""
    for _ in range(_SETTLE_TRIES):
        if client.is_patient and PAUSED in last.notices:
            await _until_back(client, last)
        last = await client.ask("hello", session)
        numbers = {call.number for call in client.model.calls if call.follow_ups}
        used = PAUSED in last.notices or last.number in numbers
        if (
            last.ok
            and not used
            and not client.timeline.was("store", begin=last.begin, end=last.end, node=last.node)
        ):
            return
        await asyncio.sleep(0.2)
    client.record.count("stopMessage: never settled")


async def _until_back(client: Client, exchange: Exchange) -> None:
    """Wait until the node that lost a write of this request reaches Redis again."""
    where = {"begin": exchange.begin, "end": exchange.end}
    while math.isinf(client.timeline.end_of("store", **where, node=exchange.node)):
        await asyncio.sleep(0.05)


async def reminder(client: Client) -> None:
    """A reminder is told once, on whatever node, by the rule for kills and freezes."""
    session, name = f"clock-{client.number}", f"reminder-{client.number}"
    delay_ms = client.chance.randrange(600, 5000)
    asked = await client.ask(f"schedule {name} in {delay_ms} ms", session)
    if "scheduled" not in asked.text and "told" not in asked.text:
        client.record.count("reminders: not scheduled")
        return
    client.record.count("reminders: scheduled")
    await _until_told(client, session, asked.begin)
    # A second telling would come from a mark that has expired.
    await asyncio.sleep(_LEASE + 0.3)
    await client.ask("anything else?", session)
    _judge_tellings(client, session, asked)


def _tellings(client: Client, session: str) -> list[Exchange]:
    return [exchange for exchange in client.client.of(session) if "told" in exchange.text]


async def _until_told(client: Client, session: str, since: float) -> None:
    deadline = since + _REMINDER_SECONDS
    while not _tellings(client, session):
        now = time.monotonic()
        if now > deadline and not client.timeline.was("store", begin=now - 4 * _LEASE):
            return
        await client.ask("anything?", session)
        await asyncio.sleep(0.5)


def _judge_tellings(client: Client, session: str, asked: Exchange) -> None:
    tellings = _tellings(client, session)
    if not tellings and client.has_lost_data(asked.begin):
        client.record.count("reminders: lost with the data of Redis")
        return
    client.record.judge(rules.TOLD, bool(tellings), f"{session}: never told")
    if not tellings:
        return
    first = tellings[0]
    if len(tellings) > 1 and client.timeline.was(
        *("killed", "frozen_beyond_lease", "store_beyond_lease"),
        begin=first.begin,
        end=first.end + _LEASE,
        node=first.node or None,
    ):
        client.record.count("reminders: told twice by the rule of kills and freezes")
        return
    where = ", ".join(f"{one.node} at {one.begin - asked.begin:.2f} s" for one in tellings)
    client.record.judge(rules.TOLD_ONCE, len(tellings) == 1, f"{session}: {where}")


async def responses(client: Client) -> None:
    """A stored response is continued on any node; while Redis is down it is unavailable, never unknown."""
    first = await client.client.ask("hello", protocol="responses")
    if not first.ok or "cannot be continued" in first.notices:
        client.record.count("responses: not stored")
        return
    stored = {"previous_response_id": first.json["id"]}
    for _ in range(3):
        exchange = await client.client.ask("more", protocol="responses", more=stored)
        is_unknown = exchange.code == rules.UNKNOWN_RESPONSE
        if is_unknown and client.timeline.was("emptied", "failover", begin=first.begin):
            client.record.count("responses: lost with the data of Redis")
        elif exchange.ok or is_unknown:
            client.record.judge(rules.RESPONSES, not is_unknown, f"{stored} at {exchange.node}")


def limited_key(number: int) -> str:
    """Return the key of a client that may send so many requests a day."""
    return f"k-limited-{number}"


async def budget(client: Client) -> None:
    """A client with a limit sends more requests than that at once, to all nodes."""
    number = client.number // len(CONVERSATIONS)
    if number >= LIMITED_CLIENTS:
        return
    begin, key = time.monotonic(), limited_key(number)
    asked = [client.client.ask("hello", key=key) for _ in range(LIMIT + 3)]
    exchanges = await asyncio.gather(*asked)
    called = {call.number for call in client.model.calls if call.at >= begin}
    sent = sum(one.number in called for one in exchanges)
    broken_off = sum(not one.is_complete for one in exchanges)
    client.record.count("limits: requests sent", sent)
    if client.has_lost_data(begin):
        client.record.count("limits: windows lost with the data of Redis")
        return
    # What a killed process had reserved is not charged, and blocks others until its lease ends.
    faults = client.timeline.was("store", "killed", "frozen", "frozen_beyond_lease", begin=begin)
    least = 0 if faults or broken_off else LIMIT
    shown = f"{key}: {sent} of {LIMIT}, {broken_off} broken off"
    client.record.judge(rules.BUDGET, least <= sent <= LIMIT + broken_off, shown)


CONVERSATIONS: dict[str, Conversation] = {
    "stateless": stateless,
    "sticky": sticky,
    "stopMessage": stop_message,
    "reminders": reminder,
    "responses": responses,
    "limits": budget,
}
