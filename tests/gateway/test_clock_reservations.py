"""Reservations over HTTP: of requests that a reload leaves behind, and of requests side by side."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from routecodex.server_tools.clock import reservations
from tests.cli.process import until
from tests.gateway.clock_gateway import clocked, now_ms, operate, plant, reminders, tasks, whole_config
from tests.gateway.continuation_gateway import Talk
from tests.kit import answers
from tests.kit.steps import Answer as Given
from tests.kit.steps import Send, Sse, Steps, Wait
from tests.kit.upstream import Request, Upstream
from tests.server.test_reload import serving_file

streaming = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
SHORT = "lease_ms = 300\n"
CHANGED = "hold_max_ms = 1000\n"


def reservation(folder: Path) -> dict[str, Any] | None:
    (task,) = tasks(folder)
    found: dict[str, Any] | None = task.get("reservation")
    return found


def waiting(talk: Talk, door: asyncio.Event) -> None:
    """The upstream keeps its first answer back until the door opens, and gives the others at once."""

    def answer(request: Request, number: int) -> Given:
        given = talk.text(f"part {number}", request)
        if number:
            return given
        if isinstance(given, Sse):
            return Steps(
                [Wait(door), *map(Send, given.frames)], headers={"content-type": "text/event-stream"}
            )
        whole = answers.text(talk.speaks, "part 0", True)
        assert isinstance(whole, Sse)
        return Steps([Wait(door), *map(Send, whole.frames)], headers={"content-type": "text/event-stream"})

    talk.script(answer)


@streaming
async def test_a_request_that_a_reload_leaves_behind_keeps_what_it_has_reserved(
    tmp_path: Path, stream: bool
) -> None:
    door = asyncio.Event()
    file = tmp_path / "gateway.toml"
    async with Upstream() as upstream:
        talk = Talk("chat", "chat", tmp_path / "state", upstream)
        plant(talk.folder, now_ms())
        waiting(talk, door)
        file.write_text(whole_config(talk, SHORT))
        async with serving_file(file) as gateway:
            talk.port = gateway.port
            under_way = await talk.begin("Hello", stream=stream)
            await upstream.received()
            before = reservation(talk.folder)
            assert before is not None
            file.write_text(whole_config(talk, SHORT + CHANGED))
            assert (await operate(talk, "reload", {}))["reloaded"]
            await until(lambda: reservations.uptime().ms > before["untilUpMs"], "the lease is up")
            await talk.ask("and?")
            assert [len(found) for found in reminders(talk)] == [1, 0]
            door.set()
            assert talk.words(await under_way.rest(), stream=stream) == "part 0"
            await under_way.close()
            await talk.ask("again?")
    assert [len(found) for found in reminders(talk)] == [1, 0, 0]
    (task,) = tasks(talk.folder)
    assert (task["deliveryCount"], "reservation" in task) == (1, False)


async def test_a_request_that_a_reload_leaves_behind_gives_back_what_it_could_not_deliver(
    tmp_path: Path,
) -> None:
    file = tmp_path / "gateway.toml"
    async with Upstream() as upstream:
        talk = Talk("chat", "chat", tmp_path / "state", upstream)
        plant(talk.folder, now_ms())
        waiting(talk, asyncio.Event())
        file.write_text(whole_config(talk))
        async with serving_file(file) as gateway:
            talk.port = gateway.port
            under_way = await talk.begin("Hello")
            await upstream.received()
            file.write_text(whole_config(talk, CHANGED))
            assert (await operate(talk, "reload", {}))["reloaded"]
            await under_way.leave()
            await until(lambda: reservation(talk.folder) is None, "it is given back")
            await talk.ask("and?")
    assert [len(found) for found in reminders(talk)] == [1, 1]
    assert tasks(talk.folder)[0]["deliveryCount"] == 1


@streaming
async def test_nobody_waits_for_a_reminder_that_another_request_is_telling_of(
    tmp_path: Path, stream: bool
) -> None:
    door = asyncio.Event()
    async with clocked("chat", tmp_path) as talk:
        plant(tmp_path, now_ms())
        waiting(talk, door)
        slow = await talk.begin("Hello", stream=stream)
        await talk.upstream.received()
        quick = await asyncio.wait_for(talk.ask("beside it", stream=stream), 20)
        assert talk.words(quick, stream=stream) == "part 1"
        assert reservation(tmp_path) is not None
        door.set()
        assert talk.words(await slow.rest(), stream=stream) == "part 0"
        await slow.close()
    assert [len(found) for found in reminders(talk)] == [1, 0]
