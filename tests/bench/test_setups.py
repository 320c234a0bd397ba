"""What our gateway is set up with for the cells of its features is what it really meets under load."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from bench import requests
from bench.cells import CELLS, OF_FEATURES, Cell
from bench.measure import meet_sessions
from bench.native import LoadRun, mock
from bench.ports import free_port
from bench.processes import Running, running
from bench.setups import CALL_A_TOOL, SETUPS, Setup, write_sessions
from bench.systems import SYSTEMS, Place
from routecodex.gateway.context.identity import Scope
from routecodex.gateway.state.sessions import Sessions
from routecodex.routing.state import SessionState
from routecodex.stores.file import FileStore
from tests.kit import answers
from tests.kit.raw_client import call
from tests.kit.steps import Json, Sse
from tests.kit.upstream import Request, Upstream


def answer(request: Request) -> Json | Sse:
    """As the benchmark's mock does it."""
    said = request.json
    if CALL_A_TOOL in str(said["messages"][-1]["content"]):
        return answers.tool_call("chat", "tool_0", {}, "call_1", stream=said["stream"])
    return answers.text("chat", "It is here to be carried, not to be read.", stream=said["stream"])


@asynccontextmanager
async def gateway_for(cell: Cell, folder: Path) -> AsyncIterator[tuple[Running, Upstream]]:
    async with Upstream(answer) as upstream:
        place = Place(folder, free_port(), cell.variant, upstream.port)
        with running(SYSTEMS["ours"], place, core=None) as gateway:
            yield gateway, upstream


async def load(gateway: Running, cell: Cell, *, most: int) -> None:
    """So many requests on one connection, each of the next session."""
    file = requests.write(gateway.place.folder / "request.http", gateway.system.request(cell, gateway.place))
    run = LoadRun(
        gateway.port,
        file,
        connections=1,
        seconds=20,
        warmup=0,
        needle=cell.needle,
        most=most,
        sessions=SETUPS[cell.setup].numbers,
    )
    await asyncio.to_thread(run.measuring)
    seen = await asyncio.to_thread(run.result)
    assert (seen.first_error, seen.requests) == ("", most)


async def states(folder: Path, *ids: str) -> list[SessionState]:
    store = FileStore(folder / "sessions")
    try:
        sessions = Sessions(store)
        return [await sessions.load(Scope("session", id)) for id in ids]
    finally:
        await store.close()


def logged(folder: Path) -> list[dict[str, str]]:
    """The gateway's own record of its requests."""
    [file] = (folder / "sessions").glob("requests*.jsonl")
    return [msgspec.json.decode(line) for line in file.read_text().splitlines()]


@pytest.mark.parametrize("name", ["sticky16", "known16"])
async def test_a_session_found_on_disk_decides_the_target(name: str, tmp_path: Path) -> None:
    async with gateway_for(CELLS[name], tmp_path) as (gateway, _):
        await load(gateway, CELLS[name], most=3)
    assert [row["reason"] for row in logged(tmp_path)[:3]] == ["sticky mock.gpt-mock"] * 3


@pytest.mark.parametrize(
    ("name", "asks_for_a_call", "used"),
    [("armed16", [True, True], 0), ("follow16", [False, True, False, True], 1)],
)
async def test_stop_message_follows_up_once_unless_a_tool_call_ends_the_turn(
    name: str, asks_for_a_call: list[bool], used: int, tmp_path: Path
) -> None:
    async with gateway_for(CELLS[name], tmp_path) as (gateway, upstream):
        await load(gateway, CELLS[name], most=2)
        last_words = [request.json["messages"][-1]["content"] for request in upstream.requests]
    found = await states(tmp_path, "bench-00000000", "bench-00000001")
    assert [words == CALL_A_TOOL for words in last_words[: len(asks_for_a_call)]] == asks_for_a_call
    assert [state.stop_message and state.stop_message.used for state in found] == [used, used]


@pytest.mark.parametrize(
    ("name", "limits"), [("keys16", 0), ("budget16", 3), ("sbudget16", 3), ("redisbudget16", 3)]
)
async def test_requests_are_those_of_a_client_with_its_limits(name: str, limits: int, tmp_path: Path) -> None:
    async with gateway_for(CELLS[name], tmp_path) as (gateway, _):
        await load(gateway, CELLS[name], most=3)
        answer = await call(
            gateway.port,
            requests.PATHS["chat"],
            requests.body("chat", "1k", stream=False),
            headers={"authorization": f"Bearer {requests.CLIENT_KEY}"},
        )
    assert [row["client"] for row in logged(tmp_path)[:3]] == ["bench"] * 3
    shown = {"x-routecodex-budget", "x-ratelimit-limit-requests", "x-ratelimit-limit-tokens"}
    assert len(shown & answer.headers.keys()) == limits


async def test_requests_of_many_clients_count_in_the_limits_of_each(tmp_path: Path) -> None:
    cell = CELLS["redisclients16"]
    async with gateway_for(cell, tmp_path) as (gateway, _):
        await load(gateway, cell, most=3)
    assert [row["client"] for row in logged(tmp_path)[:3]] == ["bench-0", "bench-1", "bench-2"]


@pytest.mark.parametrize("name", ["filesticky16", "redissticky16"])
async def test_every_request_sets_a_sticky_target_in_the_store_of_the_cell(name: str, tmp_path: Path) -> None:
    async with gateway_for(CELLS[name], tmp_path) as (gateway, _):
        await load(gateway, CELLS[name], most=3)
        shown = (await call(gateway.port, "/health/ready", method="GET")).json["store"]["kind"]
        answer = await call(
            gateway.port,
            requests.PATHS["chat"],
            requests.body("chat", "1k", stream=False),
            headers={"x-session-id": "bench-00000001"},
        )
    assert answer.headers["x-routecodex-reason"] == "sticky mock.gpt-mock"
    has_files = any((tmp_path / "sessions").glob("sessions/*.json"))
    assert (shown, has_files) == (("file", True) if name == "filesticky16" else ("redis", False))


async def test_the_clock_tells_the_time_and_is_on_offer(tmp_path: Path) -> None:
    async with gateway_for(CELLS["clock16"], tmp_path) as (gateway, upstream):
        await load(gateway, CELLS["clock16"], most=1)
        body = upstream.requests[0].json
    assert [tool["function"]["name"] for tool in body["tools"]] == ["clock"]
    assert "UTC" in str(body["messages"][-1]["content"])


async def test_every_session_is_met_before_anything_is_measured(tmp_path: Path) -> None:
    cell = CELLS["clock16"]
    async with Upstream(answer) as upstream:
        place = Place(tmp_path, free_port(), cell.variant, upstream.port)
        gateway = Running(SYSTEMS["ours"], place, upstream.port, (), 0.0)
        await asyncio.to_thread(meet_sessions, gateway, cell, None)
        ids = {request.headers["x-session-id"] for request in upstream.requests}
    assert {f"bench-{number:08}" for number in range(100)} <= ids


async def test_without_a_limit_requests_are_of_random_sessions(tmp_path: Path) -> None:
    cell = CELLS["known16"]
    async with Upstream(answer) as upstream:
        place = Place(tmp_path, free_port(), cell.variant, upstream.port)
        file = requests.write(tmp_path / "request.http", SYSTEMS["ours"].request(cell, place))
        run = LoadRun(
            upstream.port, file, connections=4, seconds=0.2, warmup=0, needle=cell.needle, sessions=10_000
        )
        await asyncio.to_thread(run.measuring)
        seen = await asyncio.to_thread(run.result)
        numbers = [
            int(request.headers["x-session-id"].removeprefix("bench-")) for request in upstream.requests
        ]
    assert (seen.first_error, seen.errors) == ("", 0)
    assert len(set(numbers)) > len(numbers) // 2
    assert 0 <= min(numbers) < max(numbers) < 10_000
    assert numbers != sorted(numbers)


async def test_state_is_written_as_the_gateway_writes_it(tmp_path: Path) -> None:
    setup = Setup(sessions=3, state=SETUPS["sticky"].state)
    write_sessions(setup, tmp_path / "sessions")
    last = f"bench-{2:08}"
    [state, unknown] = await states(tmp_path, last, f"bench-{3:08}")
    assert (state.sticky, unknown) == ("mock.gpt-mock", SessionState())
    store = FileStore(tmp_path / "sessions")
    sessions = Sessions(store)
    assert [scope.id for scope, _ in (await sessions.page(10)).rows] == [f"bench-{n:08}" for n in (2, 1, 0)]
    assert await store.trim("sessions", entries=10, size=10**6) == 0
    await store.close()


def test_cells_of_features_are_for_our_gateway_alone() -> None:
    able = {
        name: [system for system in SYSTEMS if SYSTEMS[system].supports(CELLS[name])] for name in OF_FEATURES
    }
    assert able == {name: ["ours"] for name in OF_FEATURES}


def test_the_mock_calls_a_tool_when_the_request_ends_with_the_words_for_it(tmp_path: Path) -> None:
    with mock() as provider:
        for stream in (True, False):
            content = requests.body("chat", "1k", stream=stream, last_words=CALL_A_TOOL)
            raw = requests.raw("/v1/chat/completions", content, {})
            file = requests.write(tmp_path / "request.http", raw)
            run = LoadRun(
                provider.ports.whole,
                file,
                connections=1,
                seconds=5,
                warmup=0,
                needle='"finish_reason":"tool_calls"',
                most=1,
            )
            run.measuring()
            assert run.result().first_error == ""
