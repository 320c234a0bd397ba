"""Discovered models in real processes: several workers, restarts with the provider down, reloads."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from pathlib import Path
from typing import Any

import msgspec
import psutil  # type: ignore[import-untyped]  # it has no types of its own
import pytest

from tests.cli.process import Command, running, serve, until
from tests.kit import answers, asking
from tests.kit.raw_client import call
from tests.kit.steps import Json
from tests.kit.upstream import Request, Upstream


class Listing:
    """A provider whose list the test changes."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def __call__(self, request: Request) -> Any:
        if request.method != "GET":
            return answers.text("chat", "hi", answers.wants_stream(request))
        return Json(200, {"data": [{"id": name} for name in self.names]})


def config(up: Upstream, *, models: str = '"discover"') -> str:
    return (
        "[server]\ndrain_seconds = 1\n"
        f'[providers.up]\nprotocol = "chat"\nbase_url = "{up.url}/v1"\nauth = [{{ value = "k" }}]\n'
        f'models = {models}\n[logging]\nformat = "human"\n[routing]\ndefault = ["up.a"]\n'
    )


async def ids(port: int) -> list[str]:
    answer = await call(port, "/v1/models", method="GET")
    return [row["id"] for row in answer.json["data"]]


async def every_worker_lists(port: int, names: list[str]) -> None:
    """Wait until twenty requests in a row, each on a new connection, see the same list."""
    seen: list[list[str]] = []
    async with asyncio.timeout(20):
        while seen != [names] * 20:
            await asyncio.sleep(0.02)
            with contextlib.suppress(ConnectionError):  # no worker listens while both start
                seen = [await ids(port) for _ in range(20)]


def listings(up: Upstream) -> int:
    return sum(request.method == "GET" for request in up.requests)


async def reload(folder: Path) -> Any:
    async with running(folder, "daemon", "reload", "--json") as command:
        assert await command.ended() == 0, command.text
    return msgspec.json.decode("\n".join(command.out))


async def test_workers_share_the_list_through_the_store_and_one_of_them_fetches_it(tmp_path: Path) -> None:
    async with Upstream(Listing("a", "b")) as up, serve(tmp_path, config(up), "--workers", "2") as command:
        port = await command.port()
        await every_worker_lists(port, ["up.a", "up.b"])
        assert listings(up) == 1


async def test_a_worker_that_is_replaced_has_the_list_at_once(tmp_path: Path) -> None:
    async with Upstream(Listing("a")) as up, serve(tmp_path, config(up), "--workers", "2") as command:
        port = await command.port()
        await every_worker_lists(port, ["up.a"])
        up.answer_with(lambda _: Json(500, {}))
        before = {worker.pid for worker in command.workers()}
        for pid in before:
            psutil.Process(pid).kill()
        await until(
            lambda: len(alive := {worker.pid for worker in command.workers()}) == 2 and not alive & before,
            "two new workers",
        )
        await every_worker_lists(port, ["up.a"])


async def test_a_restart_with_the_provider_down_keeps_the_list_and_says_so(tmp_path: Path) -> None:
    async with Upstream(Listing("a", "b")) as up:
        text = config(up)
        async with serve(tmp_path, text, "--port", "0") as command:
            await every_worker_lists(await command.port(), ["up.a", "up.b"])
            port = await command.port()
            command.signal()
            assert await command.ended() == 0
    async with running(tmp_path, "serve", "--config", "gateway.toml", "--port", str(port)) as command:
        await command.port()
        assert await ids(port) == ["up.a", "up.b"]
        said = await command.wait_for("could not be listed")
        assert "its last list of 2 stays" in said.string
        assert await ids(port) == ["up.a", "up.b"]


@pytest.mark.parametrize("workers", ["1", "2"])
async def test_daemon_reload_asks_the_provider_again(tmp_path: Path, workers: str) -> None:
    listing = Listing("a")
    async with Upstream(listing) as up, serve(tmp_path, config(up), "--workers", workers) as command:
        port = await command.port()
        await every_worker_lists(port, ["up.a"])
        for names in (("a", "b"), ("c",)):
            listing.names = names
            await reload(tmp_path)
            # The command has waited for the provider; another worker reads the list from the store.
            assert await ids(port) == [f"up.{name}" for name in names]
            await every_worker_lists(port, [f"up.{name}" for name in names])


async def test_sighup_asks_the_provider_again(tmp_path: Path) -> None:
    listing = Listing("a")
    async with Upstream(listing) as up, serve(tmp_path, config(up), "--workers", "2") as command:
        port = await command.port()
        await every_worker_lists(port, ["up.a"])
        listing.names = ("z",)
        command.signal(signal.SIGHUP)
        await every_worker_lists(port, ["up.z"])
        assert listings(up) == 2


async def changed(command: Command, folder: Path, text: str) -> None:
    (folder / "gateway.toml").write_text(text, "utf-8")
    await reload(folder)


async def test_discovery_can_be_turned_on_and_off_by_a_reload(tmp_path: Path) -> None:
    async with Upstream(Listing("a", "b")) as up:
        named = config(up, models="{ a = {} }")
        async with serve(tmp_path, named) as command:
            port = await command.port()
            assert (await ids(port), listings(up)) == (["up.a"], 0)
            await changed(command, tmp_path, config(up))
            assert await ids(port) == ["up.a", "up.b"]
            await changed(command, tmp_path, named)
            assert await ids(port) == ["up.a"]
            body = asking.body("chat", stream=False, model="up.b")
            assert (await call(port, "/v1/chat/completions", body)).status == 404


async def test_a_reload_does_not_wait_long_for_a_provider_that_hangs(tmp_path: Path) -> None:
    release = asyncio.Event()

    async def answer(_: Request) -> Any:
        await release.wait()
        return Json(200, {"data": [{"id": "late"}]})

    async with Upstream(answer) as up, serve(tmp_path, config(up)) as command:
        port = await command.port()
        await reload(tmp_path)
        assert await ids(port) == []
        release.set()
        await every_worker_lists(port, ["up.late"])
