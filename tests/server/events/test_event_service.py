"""GET /admin/events over real sockets, with one worker and with two."""

from __future__ import annotations

import asyncio
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.cli.process import Command, serve, until
from tests.kit.gateway import serving
from tests.kit.raw_client import Answer, begin, call
from tests.server.console_client import BEARER, CLIENTS, code_of, config, logged_in
from tests.server.events.event_stream import EventStream, subscribe, subscribe_slowly
from tests.server.test_workers import lines_to_all

PATIENT = config().replace("drain_seconds = 1", "drain_seconds = 60")
WORKERS = pytest.mark.parametrize("workers", ["1", "2"])


def body(text: str = "hi", **more: Any) -> dict[str, Any]:
    return {"model": "x", "messages": [{"role": "user", "content": text}], **more}


async def chat(port: int, text: str = "hi", **headers: str) -> Answer:
    return await call(port, "/v1/chat/completions", body(text), headers=headers)


def id_of(answer: Answer) -> str:
    return answer.headers["x-request-id"]


def stats_of(stream: EventStream) -> list[dict[str, Any]]:
    return [one.data for one in stream.events if one.event == "stats"]


def sessions_of(stream: EventStream) -> set[str]:
    return {name for one in stream.events if one.event == "sessions" for name in one.data["changed"]}


def is_gone(command: Command, pid: int) -> bool:
    return pid not in [worker.pid for worker in command.workers()]


async def all_sockets(command: Command) -> list[str]:
    """Return the Unix connections of the workers; a listening socket is not one."""

    def find() -> list[str]:
        return [str(one.laddr) for worker in command.workers() for one in worker.net_connections(kind="unix")]

    return await asyncio.to_thread(find)


@WORKERS
async def test_a_stream_begins_with_hello(tmp_path: Path, workers: str) -> None:
    async with serve(tmp_path, config(), "--workers", workers) as command:
        port = await command.port()
        stream = await subscribe(port)
        assert stream.head is not None
        assert stream.head.headers["content-type"].startswith("text/event-stream")
        assert stream.head.headers["cache-control"] == "no-store"
        hello = await stream.next()
        assert hello.event == "hello"
        assert sorted(hello.data) == ["at", "boot", "resumed", "server", "ui", "version", "workers"]
        assert (hello.data["server"], hello.data["workers"], hello.data["resumed"]) == (
            "main",
            int(workers),
            False,
        )
        assert hello.id == f"{hello.data['boot']}.0"
        await stream.close()


@WORKERS
async def test_requests_of_all_workers_arrive_with_the_fields_of_their_rows(
    tmp_path: Path, workers: str
) -> None:
    async with serve(tmp_path, config(), "--workers", workers) as command:
        port = await command.port()
        stream = await subscribe(port)
        await stream.next()
        answers = [await chat(port, **{"x-session-id": f"s{n}"}) for n in range(12)]
        refused = await call(port, "/v1/chat/completions", {"model": 1})
        rows = await stream.finished(*map(id_of, answers), id_of(refused))
        listed = await call(port, "/admin/requests?limit=50", method="GET", headers=BEARER)
        expected = {row["request"]: row for row in listed.json["requests"]}
        for name, row in rows.items():
            assert {key: row.get(key) for key in ("status", "session", "target", "client", "model")} == {
                key: expected[name].get(key) for key in ("status", "session", "target", "client", "model")
            }
        assert rows[id_of(refused)]["status"] == 400
        while sum(one["requests"] for one in stats_of(stream)) < 13 or len(sessions_of(stream)) < 12:
            await stream.next()
        stats = stats_of(stream)
        assert sum(one["requests"] for one in stats) == 13
        assert sum(one["errors"] for one in stats) == 1
        assert sorted(sessions_of(stream)) == sorted(f"s{n}" for n in range(12))
        await stream.close()


@WORKERS
async def test_requests_under_way_are_rows_without_a_status(tmp_path: Path, workers: str) -> None:
    async with serve(tmp_path, config(), "--workers", workers) as command:
        port = await command.port()
        # One began before anybody looked.
        early = await begin(port, "/v1/chat/completions", body("demo:slow 3 hi"))
        stream = await subscribe(port)
        slow = [
            asyncio.ensure_future(chat(port, "demo:slow 1 hi", **{"x-session-id": "s1"})) for _ in range(4)
        ]
        while len(started := stream.rows("started")) < 5:
            await stream.next()
        assert {row["status"] for row in started.values()} == {None}
        assert {row["target"] for row in started.values()} == {"demo.key1.demo-1"}
        assert sorted(str(row.get("session")) for row in started.values()) == ["None", "s1", "s1", "s1", "s1"]
        stats = await stream.until("stats")
        assert stats.data["active"] >= 1
        ended = [id_of(await one) for one in slow]
        first = await early.rest()
        assert set(started) == {*ended, id_of(first)}
        rows = await stream.finished(*ended, id_of(first))
        assert {row["status"] for row in rows.values()} == {200}
        await early.close()
        await stream.close()


@WORKERS
async def test_a_stream_that_broke_off_is_resumed_at_any_worker(tmp_path: Path, workers: str) -> None:
    async with serve(tmp_path, config(), "--workers", workers) as command:
        port = await command.port()
        stream = await subscribe(port)
        await stream.next()
        first = await chat(port)
        await stream.finished(id_of(first))
        last = stream.events[-1].id
        await stream.close()
        missed = [await chat(port) for _ in range(3)]
        for way in ("query", "header"):
            query = f"?last_event_id={last}" if way == "query" else ""
            headers = BEARER if way == "query" else {**BEARER, "last-event-id": last}
            again = await subscribe(port, query=query, headers=headers)
            hello = await again.next()
            assert (hello.data["resumed"], hello.id) == (True, last)
            rows = await again.finished(*map(id_of, missed))
            assert id_of(first) not in rows
            numbers = [int(one.id.rpartition(".")[2]) for one in again.events]
            assert numbers == sorted(set(numbers))
            await again.close()


@WORKERS
async def test_topics_select_events(tmp_path: Path, workers: str) -> None:
    async with serve(tmp_path, config(), "--workers", workers) as command:
        port = await command.port()
        stream = await subscribe(port, query="?topics=stats,config")
        answer = await chat(port)
        await stream.until("stats", requests=0)
        assert {one.event for one in stream.events} == {"hello", "stats"}
        assert id_of(answer) not in str(stream.events)
        await stream.close()
        wrong = await subscribe(port, query="?topics=stats,nothing")
        assert wrong.head is not None
        assert code_of(wrong.head) == (400, "unknown_topic")


async def test_changes_of_routing_health_and_sessions_are_events() -> None:
    async with serving(config(more="[routing_options]\nmax_wait_ms = 0\n")) as running:
        port = running.port
        stream = await subscribe(port)
        await stream.next()
        await call(port, "/admin/routing", {"disable": ["demo.key1"]}, headers=BEARER)
        health = await stream.until("health")
        assert [(row["name"], row["state"]) for row in health.data["keys"]] == [("demo.key1", "disabled")]
        shown = await call(port, "/admin/providers", method="GET", headers=BEARER)
        assert health.data["keys"] == shown.json["providers"][0]["keys"]
        routing = await stream.until("routing")
        expected = await call(port, "/admin/routing", method="GET", headers=BEARER)
        assert routing.data == expected.json
        await call(port, "/admin/routing", {"clear": True}, headers=BEARER)
        assert (await stream.until("routing")).data["routing"]["disable"] == []
        await call(port, "/admin/routing", {"session": "s9", "sticky": "demo.demo-1"}, headers=BEARER)
        await stream.until("sessions", changed=["s9"])
        await call(port, "/admin/routing", {"session": "s9", "clear": True}, headers=BEARER)
        await stream.until("sessions", changed=["s9"])
        await stream.close()


@WORKERS
async def test_a_reload_is_an_event(tmp_path: Path, workers: str) -> None:
    async with serve(tmp_path, config(), "--workers", workers) as command:
        port = await command.port()
        stream = await subscribe(port)
        await stream.next()
        file = tmp_path / "gateway.toml"
        file.write_text(config() + "[nonsense]\n")
        await call(port, "/admin/reload", {}, headers=BEARER)
        failed = await stream.until("config", reloaded=False)
        assert failed.data["problems"]
        file.write_text(config())
        await call(port, "/admin/reload", {}, headers=BEARER)
        assert (await stream.until("config", reloaded=True)).data["problems"] == []
        await stream.close()


@WORKERS
async def test_a_shutdown_says_goodbye_and_needs_no_new_login(tmp_path: Path, workers: str) -> None:
    async with serve(tmp_path, PATIENT, "--workers", workers) as command:
        port = await command.port()
        page = await logged_in(port)
        streams = [await subscribe(port, headers=page.headers) for _ in range(4)]
        last = (await streams[0].next()).id
        command.signal()
        assert await command.ended() == 0
        for stream in streams:
            rest = await stream.to_end()
            assert (rest[-1].event, rest[-1].data) == ("bye", {"reason": "drain"})
            assert stream.call.answer.complete
            await stream.close()
    async with serve(tmp_path, config(), "--workers", workers, "--port", str(port)) as command:
        await command.port()
        stream = await subscribe(port, query=f"?last_event_id={last}", headers=page.headers)
        assert (await stream.next()).data["resumed"] is False
        await stream.close()


async def test_a_killed_worker_takes_only_its_own_streams_along(tmp_path: Path) -> None:
    async with serve(tmp_path, config(), "--workers", "2") as command:
        port = await command.port()
        streams = [await subscribe(port) for _ in range(8)]
        boots = {(await stream.next()).data["boot"] for stream in streams}
        assert len(boots) == 1
        for worker in command.workers():
            worker.send_signal(signal.SIGKILL)
            break
        await command.wait_for("exited with code -9; starting another")
        # Whether it was the hub or not: every stream ends or goes on, and a new one works.
        for line in (await lines_to_all(port, 2)).values():
            await line.close()
        stream = await subscribe(port)
        await stream.next()
        answers = [await chat(port) for _ in range(10)]
        await stream.finished(*map(id_of, answers))
        for one in (*streams, stream):
            await one.call.leave()
        assert "Traceback" not in command.text


async def test_the_death_of_the_hub_ends_the_streams_of_others_and_another_takes_over(tmp_path: Path) -> None:
    async with serve(tmp_path, config(), "--workers", "2") as command:
        port = await command.port()
        before = command.workers()
        stream = await subscribe(port)
        hello = await stream.next()
        for worker in before:
            worker.send_signal(signal.SIGKILL)
            await until(partial(is_gone, command, worker.pid), "the end of a worker")
            for line in (await lines_to_all(port, 2)).values():
                await line.close()
        await stream.to_end()
        again = await subscribe(port, query=f"?last_event_id={hello.id}")
        other = await again.next()
        assert other.data["resumed"] is False
        assert other.data["boot"] != hello.data["boot"]
        answers = [await chat(port) for _ in range(10)]
        await again.finished(*map(id_of, answers))
        for one in (stream, again):
            await one.call.leave()


async def test_sockets_between_workers_are_closed_after_the_last_subscriber(tmp_path: Path) -> None:
    async with serve(tmp_path, config(), "--workers", "2") as command:
        port = await command.port()
        idle = await all_sockets(command)
        stream = await subscribe(port)
        await stream.next()
        assert len(await all_sockets(command)) > len(idle)
        await stream.close()
        async with asyncio.timeout(30):
            while len(await all_sockets(command)) != len(idle):
                await asyncio.sleep(0.2)
        assert sorted(await all_sockets(command)) == sorted(idle)


async def test_there_are_twenty_subscribers_at_most(tmp_path: Path) -> None:
    async with serve(tmp_path, config(), "--workers", "2") as command:
        port = await command.port()
        streams = [await subscribe(port) for _ in range(20)]
        refused = await subscribe(port)
        assert refused.head is not None
        assert code_of(refused.head) == (503, "too_many_subscribers")
        await streams.pop().close()
        async with asyncio.timeout(20):
            while (again := await subscribe(port)).head is None or again.call.answer.status != 200:
                await asyncio.sleep(0.05)
        for stream in (*streams, again):
            await stream.close()


@pytest.mark.timeout(300)
@WORKERS
async def test_a_slow_subscriber_is_told_of_its_lag_and_delays_nobody(tmp_path: Path, workers: str) -> None:
    async with serve(tmp_path, config(), "--workers", workers) as command:
        port = await command.port()
        slow = await subscribe_slowly(port, query="?topics=config")
        fast = await subscribe(port, query="?topics=config")
        await fast.next()
        (tmp_path / "gateway.toml").write_text(config() + "".join(f"[nonsense{n:0600}]\n" for n in range(60)))
        sent = 0
        # The kernel keeps up to 4 MB for the slow one, the gateway half a megabyte.
        while sent < 6_000_000:
            # A worker reports four results at a time.
            for _ in range(4):
                await call(port, "/admin/reload", {}, headers=BEARER)
            for _ in range(4):
                sent += len(str((await fast.until("config", reloaded=False)).data))
        assert 30_000 < fast.largest <= 64 * 1024
        lag = await slow.until("lag")
        assert lag.data["dropped"] > 0
        assert [one for one in fast.events if one.event == "lag"] == []
        for stream in (slow, fast):
            await stream.close()


async def test_a_stream_takes_no_place_of_a_request() -> None:
    async with serving(config(server="max_concurrent = 1\nmax_queued = 0")) as running:
        streams = [await subscribe(running.port) for _ in range(3)]
        for stream in streams:
            await stream.next()
        assert (await chat(running.port)).status == 200
        status = await call(running.port, "/admin/status", method="GET", headers=BEARER)
        assert status.json["active"] == 0
        for stream in streams:
            await stream.close()


async def test_a_stream_needs_a_login_of_our_own_page() -> None:
    async with serving(config(more=CLIENTS)) as running:
        nobody = await subscribe(running.port, headers={})
        assert nobody.head is not None
        assert code_of(nobody.head) == (401, "invalid_admin_token")
        page = await logged_in(running.port, key="k-reader")
        foreign = await subscribe(running.port, headers={**page.headers, "sec-fetch-site": "same-site"})
        assert foreign.head is not None
        assert code_of(foreign.head) == (403, "cross_site")
        for refused in (nobody, foreign):
            await refused.close()
        stream = await subscribe(running.port, headers=page.headers)
        assert (await stream.next()).event == "hello"
        await stream.close()


async def test_without_a_subscriber_nothing_is_collected() -> None:
    async with serving(config()) as running:
        assert running.service.is_tapped is False
        stream = await subscribe(running.port)
        await stream.next()
        assert running.service.is_tapped is True
        await stream.close()


async def test_a_stream_that_its_page_closes_is_no_request(tmp_path: Path) -> None:
    async with serve(tmp_path, config()) as command:
        port = await command.port()
        watching = await subscribe(port)
        await watching.next()
        stream = await subscribe(port)
        await stream.next()
        await stream.close()
        answer = await chat(port)
        rows = await watching.finished(id_of(answer))
        listed = await call(port, "/admin/requests?limit=50", method="GET", headers=BEARER)
        assert [row["request"] for row in listed.json["requests"]] == [id_of(answer)]
        assert list(rows) == [id_of(answer)]
        await watching.close()
