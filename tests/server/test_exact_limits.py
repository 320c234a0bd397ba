"""Limits hold: 200 parallel requests against a limit for 50, on two workers, whatever goes wrong."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]  # it has no types of its own

from tests.cli.process import Command, serve, until
from tests.kit import answers
from tests.kit.gateway import provider
from tests.kit.raw_client import Call, begin, call
from tests.kit.steps import Json, Sse
from tests.kit.upstream import Request, Upstream

SENT, ALLOWED, IN_FLIGHT = 200, 50, 12
KEY = {"authorization": "Bearer key-laptop"}
ADMIN = {"authorization": "Bearer operator"}
FAILING = "fail"
OUTPUT = 100
BODY = {"model": "up.m", "max_tokens": OUTPUT, "stream_options": {"include_usage": True}}


@dataclass
class Held:
    """An upstream that holds every answer until the test releases it; some requests fail."""

    release: asyncio.Event = field(default_factory=asyncio.Event)

    def answer(self, request: Request) -> Json | Sse:
        if FAILING in request.json["messages"][0]["content"]:
            return answers.error("chat", 400)
        counts = answers.Counts(input=20, output=OUTPUT)
        canned = answers.text("chat", "one two three", bool(request.json["stream"]), counts=counts)
        return Sse(canned.frames, pace={2: self.release}) if isinstance(canned, Sse) else canned


def configuration(upstream: Upstream, limits: str) -> str:
    return (
        '[server]\nport = 0\nadmin_token = "operator"\ndrain_seconds = 1\n[logging]\nlevel = "error"\n'
        f'[usage]\nreserve = "max"\n[clients.laptop]\nkey = "key-laptop"\nlimits = {limits}\n'
        + provider("up", "chat", upstream)
        # Output alone costs something, so that the estimate of the input does not matter.
        + "price = { input = 0, output = 1000 }\n"
        + '[routing]\ndefault = ["up.m"]\n'
    )


class Crowd:
    """Clients that send their requests at the same time."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.calls: list[Call] = []

    async def send(self, count: int, text: str = "Hello", *, stream: bool = True) -> list[Call]:
        """Send requests; return the calls whose answers begin with status 200, the others are over."""
        body = {**BODY, "stream": stream, "messages": [{"role": "user", "content": text}]}
        begun = await asyncio.gather(
            *(begin(self.port, "/v1/chat/completions", body, headers=KEY) for _ in range(count))
        )
        heads = await asyncio.gather(*(one.head() for one in begun))
        self.statuses = Counter(head.status for head in heads)
        admitted = []
        for one, head in zip(begun, heads, strict=True):
            if head.status == 200:
                admitted.append(one)
            else:
                await one.rest()
                await one.close()
        return admitted


async def finish(calls: list[Call]) -> list[bool]:
    """Read the rest of the answers; return which were complete."""

    async def one(each: Call) -> bool:
        try:
            answer = await each.rest()
        except (asyncio.IncompleteReadError, ConnectionError):
            return False
        finally:
            await each.close()
        return answer.complete

    return list(await asyncio.gather(*map(one, calls)))


async def client_row(port: int) -> dict[str, Any]:
    row: dict[str, Any] = (await call(port, "/admin/clients/laptop", method="GET", headers=ADMIN)).json
    found: dict[str, Any] = row["client"]
    return found


async def limits_of(port: int) -> list[dict[str, Any]]:
    limits: list[dict[str, Any]] = (await client_row(port))["limits"]
    return limits


async def ledger(port: int, requests: int) -> dict[str, Any]:
    """Return the total of the ledger once it has so many requests: each worker writes within a second."""
    total: dict[str, Any] = {}
    for _ in range(200):
        found = await call(port, "/admin/usage?by=client&client=laptop", method="GET", headers=ADMIN)
        total = found.json["total"]
        if total["requests"] >= requests:
            break
        await asyncio.sleep(0.05)
    return total


async def metrics(port: int, pattern: str) -> float:
    """Return the sum of a metric over both workers: each connection reaches one of them."""
    seen: dict[str, float] = {}
    for _ in range(200):
        text = (await call(port, "/metrics", method="GET", headers=KEY)).body.decode()
        worker = re.search(r'worker="(\d+)"', text)
        assert worker is not None
        seen[worker[1]] = sum(float(value) for value in re.findall(pattern, text, re.MULTILINE))
        if len(seen) == 2:
            break
    return sum(seen.values())


async def settled(port: int) -> list[dict[str, Any]]:
    """Return the limits once nothing is reserved."""
    for _ in range(500):
        limits = await limits_of(port)
        if not any(row["reserved"] for row in limits):
            return limits
        await asyncio.sleep(0.02)
    raise AssertionError(f"still reserved: {limits}")


REQUESTS = r'^routecodex_client_requests_total\{client="laptop",status="(?:200|400|499)"[^}]*\} (\S+)$'
COSTS = r'^routecodex_cost_usd_total\{client="laptop"[^}]*\} (\S+)$'


async def test_as_many_requests_are_admitted_as_the_limit_allows(tmp_path: Path) -> None:
    held = Held()
    async with (
        Upstream(held.answer) as upstream,
        serve(tmp_path, configuration(upstream, '["50 requests/day"]'), "--workers", "2") as command,
    ):
        crowd = Crowd(port := await command.port())
        failed = await crowd.send(5, FAILING)
        assert (failed, crowd.statuses) == ([], {400: 5})
        admitted = await crowd.send(SENT)
        assert crowd.statuses == {200: ALLOWED - 5, 429: SENT - ALLOWED + 5}
        for one in admitted[:10]:
            await one.leave()
        held.release.set()
        assert all(await finish(admitted[10:]))
        [limit] = await settled(port)
        assert (limit["used"], limit["remaining"]) == (ALLOWED, 0)
        assert len(upstream.requests) == ALLOWED
        assert (await ledger(port, ALLOWED))["requests"] == ALLOWED
        assert await metrics(port, REQUESTS) == ALLOWED
        await crowd.send(5, stream=False)
        assert crowd.statuses == {429: 5}


async def test_as_much_money_is_spent_as_the_limit_allows(tmp_path: Path) -> None:
    held = Held()
    async with (
        Upstream(held.answer) as upstream,
        # Each request may cost 100 tokens of output at a tenth of a cent.
        serve(tmp_path, configuration(upstream, '["$5/month"]'), "--workers", "2") as command,
    ):
        crowd = Crowd(port := await command.port())
        admitted = await crowd.send(SENT)
        assert crowd.statuses == {200: ALLOWED, 429: SENT - ALLOWED}
        [limit] = await limits_of(port)
        assert (limit["used"], limit["reserved"], limit["remaining"]) == (0, 5, 0)
        # Whichever worker answers, it knows of the requests of both.
        shown = [(await client_row(port))["in_flight"] for _ in range(8)]
        assert shown == [ALLOWED] * 8
        held.release.set()
        assert all(await finish(admitted))
        [limit] = await settled(port)
        assert (limit["used"], limit["remaining"]) == (5, 0)
        total = await ledger(port, ALLOWED)
        assert (total["requests"], round(total["cost"], 9)) == (ALLOWED, 5)
        assert round(await metrics(port, COSTS), 9) == 5
        await crowd.send(5)
        assert crowd.statuses == {429: 5}


async def test_money_agrees_everywhere_after_clients_left_and_providers_failed(tmp_path: Path) -> None:
    held = Held()
    async with (
        Upstream(held.answer) as upstream,
        serve(tmp_path, configuration(upstream, '["$5/month"]'), "--workers", "2") as command,
    ):
        crowd = Crowd(port := await command.port())
        await crowd.send(20, FAILING)
        assert crowd.statuses == {400: 20}
        admitted = await crowd.send(SENT)
        assert len(admitted) == ALLOWED
        for one in admitted[:20]:
            await one.leave()
        held.release.set()
        assert all(await finish(admitted[20:]))
        [limit] = await settled(port)
        # Those who left are charged for what they have seen, which is less than they might have got.
        assert 3 < limit["used"] < 5
        again = await finish(await crowd.send(SENT))
        assert all(again)
        [limit] = await settled(port)
        total = await ledger(port, 20 + ALLOWED + len(again))
        assert limit["used"] <= 5
        assert round(total["cost"], 9) == round(limit["used"], 9)
        assert round(await metrics(port, COSTS), 9) == round(limit["used"], 9)


async def kill(command: Command, victim: psutil.Process) -> None:
    """Kill a worker, and wait until another one listens in its place."""
    os.kill(victim.pid, signal.SIGKILL)

    def is_replaced() -> bool:
        workers = command.workers()
        return len(workers) == 2 and victim not in workers and all(map(listens, workers))

    await until(is_replaced, "a new worker")


def listens(worker: psutil.Process) -> bool:
    try:
        return any(row.status == psutil.CONN_LISTEN for row in worker.net_connections("tcp"))
    except psutil.Error:
        return False


async def test_what_a_killed_worker_had_reserved_is_free_again_and_not_charged(tmp_path: Path) -> None:
    held = Held()
    limits = '["50 requests/day", "$5/month"]'
    async with (
        Upstream(held.answer) as upstream,
        serve(tmp_path, configuration(upstream, limits), "--workers", "2") as command,
    ):
        crowd = Crowd(port := await command.port())
        admitted = await crowd.send(SENT)
        assert len(admitted) == ALLOWED
        first, second = command.workers()
        await kill(command, first)
        held.release.set()
        survived = sum(await finish(admitted))
        # A worker that is killed would lose its rows of the last 250 ms.
        assert (await ledger(port, survived))["requests"] == survived
        held.release.clear()
        admitted = await crowd.send(SENT)
        assert len(admitted) == ALLOWED - survived
        await kill(command, second)
        held.release.set()
        survived += sum(await finish(admitted))
        again = await finish(await crowd.send(SENT))
        assert (len(again), all(again)) == (ALLOWED - survived, True)
        requests, money = await settled(port)
        assert (requests["used"], money["used"]) == (ALLOWED, 5)
        total = await ledger(port, ALLOWED)
        assert (total["requests"], round(total["cost"], 9)) == (ALLOWED, 5)


async def test_limits_hold_while_workers_are_killed_in_the_middle_of_their_work(tmp_path: Path) -> None:
    held = Held()
    held.release.set()
    limits = '["50 requests/day", "$5/month"]'
    async with (
        Upstream(held.answer) as upstream,
        serve(tmp_path, configuration(upstream, limits), "--workers", "2") as command,
    ):
        port = await command.port()
        complete = 0
        for _ in range(3):
            before = len(upstream.requests)
            sending = asyncio.gather(*(is_answered(port) for _ in range(IN_FLIGHT)))
            # Some have their answer, others wait for theirs, and some begin.
            await until(partial(has_more, upstream, before + IN_FLIGHT // 2), "requests under way")
            await kill(command, command.workers()[0])
            complete += sum(await sending)
        while await is_answered(port):
            complete += 1
        requests, money = await settled(port)
        # An answer counts before its client sees the end.
        assert complete <= requests["used"] == ALLOWED
        assert round(money["used"], 9) <= 5
        # A worker that is killed loses at most the rows of the last 250 ms.
        least = int(requests["used"]) - 3 * IN_FLIGHT
        total = await ledger(port, least)
        assert least <= total["requests"] <= ALLOWED
        assert round(total["cost"], 9) <= round(money["used"], 9)
        assert (await client_row(port))["in_flight"] == 0


def has_more(upstream: Upstream, requests: int) -> bool:
    return len(upstream.requests) >= requests


async def is_answered(port: int) -> bool:
    """Send one request; return whether its answer was complete: it may be refused, or cut off."""
    body = {**BODY, "stream": True, "messages": [{"role": "user", "content": "Hello"}]}
    try:
        answer = await call(port, "/v1/chat/completions", body, headers=KEY)
    except (ConnectionError, asyncio.IncompleteReadError):
        return False
    return answer.status == 200 and answer.complete


async def test_windows_survive_the_end_of_all_processes(tmp_path: Path) -> None:
    held = Held()
    held.release.set()
    async with Upstream(held.answer) as upstream:
        config = configuration(upstream, '["5 requests/day"]').replace(
            "port = 0", 'port = 0\nid = "survivor"'
        )
        for way in (signal.SIGKILL, signal.SIGTERM):
            async with serve(tmp_path, config, "--workers", "2") as command:
                crowd = Crowd(await command.port())
                await finish(await crowd.send(2))
                assert crowd.statuses == {200: 2}
                if way is signal.SIGKILL:
                    await command.kill()
                else:
                    command.signal(way)
                    await command.ended()
        async with serve(tmp_path, config, "--workers", "2") as command:
            crowd = Crowd(port := await command.port())
            await finish(await crowd.send(9))
            assert crowd.statuses == {200: 1, 429: 8}
            [limit] = await settled(port)
            assert limit["used"] == 5


async def test_a_lost_file_is_rebuilt_from_the_ledger(tmp_path: Path) -> None:
    held = Held()
    held.release.set()
    async with Upstream(held.answer) as upstream:
        limits = '["5 requests/day", "$9/week", "$9/24h", { limit = "$9/month", models = ["up.*"] }]'
        config = configuration(upstream, limits).replace("port = 0", 'port = 0\nid = "survivor"')
        async with serve(tmp_path, config) as command:
            await finish(await Crowd(await command.port()).send(3))
            command.signal()
            await command.ended()
        (tmp_path / "user" / "usage" / "survivor.limits").unlink()
        async with serve(tmp_path, config) as command:
            used = [round(row["used"], 9) for row in await limits_of(await command.port())]
    assert used == [3, 0.3, 0.3, 0.3]
