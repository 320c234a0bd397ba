"""Reload while running: requests in flight finish with the old configuration."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pty
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from routecodex.canon.errors import ConfigError
from routecodex.cli.config import examine_file
from routecodex.config import Config
from routecodex.server.reload import ConfigSource, Reloader, ReloadResult, stamp
from routecodex.server.serve import Service
from tests.cli.process import ROOT, Command, running, serve, until
from tests.kit import answers, asking
from tests.kit.gateway import Running, one_target
from tests.kit.raw_client import Answer, begin, call
from tests.kit.steps import Json, Sse
from tests.kit.upstream import Request, Upstream
from tests.server.test_workers import DEMO, lines_to_all

TOKEN = "operator"
HEAD = '[store]\nurl = "memory:"\n[logging]\nlevel = "error"\n'
ADMIN = {"authorization": f"Bearer {TOKEN}"}
KEYS = 'client_keys = [{ name = "laptop", key = "k-1" }]'


def source_of(file: Path) -> ConfigSource:
    seen = stamp(file)
    config, problems = examine_file(file)
    assert config is not None, problems
    return ConfigSource(path=file, load=lambda: examine_file(file), config=config, stamp=seen)


@contextlib.asynccontextmanager
async def serving_file(file: Path) -> AsyncIterator[Running]:
    """Run a gateway that reloads this file, with an admin API."""
    source = source_of(file)
    service = Service(source.config, source=source)
    _, port = await service.start()
    try:
        yield Running(port, service)
    finally:
        await service.stop()


def text(up: Upstream, *, server: str = "", more: str = "") -> str:
    return HEAD + one_target("chat", up, server=f'admin_token = "{TOKEN}"\n{server}') + more


async def reload(port: int) -> Any:
    answer = await call(port, "/admin/reload", headers=ADMIN)
    assert answer.status == 200, answer.body
    return answer.json


async def send(port: int, model: str = "up.m", **headers: str) -> Answer:
    return await call(
        port, "/v1/chat/completions", asking.body("chat", stream=False, model=model), headers=headers
    )


MORE = '[models]\nnew = "up.m"\n'


async def test_a_reload_changes_what_is_served(tmp_path: Path) -> None:
    file = tmp_path / "gateway.toml"
    async with Upstream(lambda _: answers.text("chat", "hi", False)) as up:
        file.write_text(text(up))
        async with serving_file(file) as gateway:
            before = await call(gateway.port, "/v1/models/new", method="GET")
            file.write_text(text(up, more=MORE))
            assert await reload(gateway.port) == {"reloaded": True, "problems": []}
            after = await call(gateway.port, "/v1/models/new", method="GET")
    assert (before.status, after.status) == (404, 200)


async def test_the_file_is_watched(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "routecodex.server")
    file = tmp_path / "gateway.toml"
    async with Upstream() as up:
        file.write_text(text(up))
        async with serving_file(file) as gateway:
            # As editors do it: a new file in the place of the old one.
            (tmp_path / "next").write_text(text(up, more=MORE))
            os.replace(tmp_path / "next", file)
            await until(lambda: "configuration reloaded" in caplog.text, "the change is noticed")
            assert (await call(gateway.port, "/v1/models/new", method="GET")).status == 200
    assert caplog.text.count("configuration reloaded") == 1


async def test_a_request_under_way_finishes_on_the_old_gateway(tmp_path: Path) -> None:
    file = tmp_path / "gateway.toml"
    release = asyncio.Event()
    said = answers.text("chat", "one two three four five six", True)
    assert isinstance(said, Sse)

    def paced(_: Request) -> Sse:
        assert isinstance(said, Sse)
        return Sse(said.frames, pace={3: release})

    async with Upstream(paced) as old, Upstream(lambda _: answers.text("chat", "new", False)) as new:
        file.write_text(text(old))
        async with serving_file(file) as gateway:
            body = asking.body("chat", stream=True)
            under_way = await begin(gateway.port, "/v1/chat/completions", body)
            await under_way.head()
            assert await under_way.piece()
            file.write_text(text(new))
            assert (await reload(gateway.port))["reloaded"]
            assert "new" in (await send(gateway.port)).json["choices"][0]["message"]["content"]
            release.set()
            answer = await under_way.rest()
            await under_way.close()
        assert (len(old.requests), len(new.requests)) == (1, 1)
    asking.check("chat", answer, stream=True)


async def test_client_keys_and_limits_change_and_metrics_stay(tmp_path: Path) -> None:
    file = tmp_path / "gateway.toml"
    async with Upstream(lambda _: answers.text("chat", "hi", False)) as up:
        file.write_text(text(up))
        async with serving_file(file) as gateway:
            assert (await send(gateway.port)).status == 200
            file.write_text(text(up, server=f"{KEYS}\nmax_body_mb = 1\nmax_messages = 1"))
            assert (await reload(gateway.port))["reloaded"]
            statuses = [
                (await send(gateway.port)).status,
                (await send(gateway.port, **{"x-api-key": "k-1"})).status,
            ]
            long = {"model": "up.m", "messages": [{"role": "user", "content": "x"}] * 3, "tools": []}
            big = asking.body("chat", "x" * 1_100_000, stream=False)
            for body in (long, big):
                answer = await call(gateway.port, "/v1/chat/completions", body, headers={"x-api-key": "k-1"})
                statuses.append(answer.status)
            shown = await call(gateway.port, "/metrics", method="GET", headers={"x-api-key": "k-1"})
    assert statuses == [401, 200, 413, 413]
    counted = [
        line
        for line in shown.body.decode().splitlines()
        if line.startswith("routecodex_requests_total") and 'status="200"' in line
    ]
    assert [line.rpartition(" ")[2] for line in counted] == ["2.0"]


async def test_allowed_origins_change_with_a_reload(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    page = "http://localhost:3000"
    async with Upstream(lambda _: answers.text("chat", "hi", False)) as up:
        file.write_text(text(up))
        async with serving_file(file) as gateway:
            before = await send(gateway.port, origin=page)
            file.write_text(text(up, server=f'allowed_origins = ["{page}"]'))
            await reload(gateway.port)
            after = await send(gateway.port, origin=page)
    assert (before.status, after.status) == (403, 200)
    assert after.headers["access-control-allow-origin"] == page


async def test_keys_that_were_refused_are_tried_again_after_a_reload(tmp_path: Path) -> None:
    file = tmp_path / "gateway.toml"

    def answer(request: Request) -> Json | Sse:
        if request.headers["authorization"] == "Bearer secret-up":
            return Json(401, {"error": {"message": "no such key"}})
        return answers.text("chat", "hi", False)

    async with Upstream(answer) as up:
        file.write_text(text(up))
        async with serving_file(file) as gateway:
            statuses = [(await send(gateway.port)).status]
            file.write_text(text(up).replace("secret-up", "secret-new"))
            assert (await reload(gateway.port))["reloaded"]
            statuses.append((await send(gateway.port)).status)
    assert statuses == [424, 200]


async def test_an_invalid_file_keeps_the_old_configuration_and_tells_every_problem(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "gateway.toml"
    async with Upstream(lambda _: answers.text("chat", "hi", False)) as up:
        file.write_text(text(up))
        async with serving_file(file) as gateway:
            file.write_text(text(up).replace("port = 0", "port = 0\nprot = 1") + "[classifier]\nodd = 1\n")
            result = await reload(gateway.port)
            assert (await send(gateway.port)).status == 200
    assert result["reloaded"] is False
    assert [problem["path"] for problem in result["problems"]] == ["server.prot", "classifier.odd"]
    assert result["problems"][0] == {
        "severity": "error",
        "path": "server.prot",
        "line": 7,
        "message": "is not a known key",
        "fix": 'did you mean "port"?',
    }
    lines = [record.getMessage() for record in caplog.records if record.name == "routecodex.server"]
    assert len(lines) == 3
    assert "server.prot: is not a known key" in lines[0]
    assert "classifier.odd" in lines[1]
    assert lines[2].startswith("configuration not reloaded")


@pytest.mark.parametrize(
    ("old", "new", "path"),
    [
        ("port = 0", "port = 1", "server.port"),
        ("[server]", '[server]\nhost = "::1"', "server.host"),
        ("[server]", '[server]\nid = "x"', "server.id"),
        (TOKEN, "other", "server.admin_token"),
        ("[logging]", '[logging]\nformat = "json"', "logging.format"),
    ],
)
async def test_what_takes_a_restart_is_told_and_stays(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, old: str, new: str, path: str
) -> None:
    file = tmp_path / "gateway.toml"
    async with Upstream() as up:
        file.write_text(text(up))
        async with serving_file(file) as gateway:
            file.write_text(text(up, more=MORE).replace(old, new))
            result = await reload(gateway.port)
            again = await reload(gateway.port)
            assert (await call(gateway.port, "/v1/models/new", method="GET")).status == 200
    assert result["reloaded"] is True
    assert [(problem["severity"], problem["path"]) for problem in result["problems"]] == [("warning", path)]
    assert again == result
    assert f"{path}: has changed, which needs a restart" in caplog.text


class Adopted:
    """Records the configurations of a reloader."""

    def __init__(self, failure: Exception | None = None) -> None:
        self.configs: list[Config] = []
        self.failure = failure

    async def __call__(self, config: Config) -> None:
        if self.failure is not None:
            raise self.failure
        self.configs.append(config)


def reloader(
    file: Path, adopt: Adopted, *, running: Callable[[Config], Config] = lambda config: config, **more: Any
) -> Reloader:
    source = source_of(file)
    return Reloader(source, running=running(source.config), adopt=adopt, **more)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    found = tmp_path / "gateway.toml"
    found.write_text(DEMO)
    return found


def severities(outcome: ReloadResult) -> list[str]:
    return [problem.severity for problem in outcome.problems]


async def test_a_configuration_that_cannot_be_put_to_use_is_refused(file: Path) -> None:
    outcome = await reloader(file, Adopted(ConfigError("no such certificate"))).reload()
    assert not outcome.reloaded
    assert "no such certificate" in outcome.problems[0].message


async def test_an_open_address_never_loses_its_last_client_key(file: Path) -> None:
    adopted = Adopted()
    # The address came from the command line: the file alone is fine without keys.
    open_door = reloader(
        file,
        adopted,
        running=lambda config: replace(config, server=replace(config.server, host="192.0.2.7")),
    )
    outcome = await open_door.reload()
    assert (outcome.reloaded, severities(outcome)) == (False, ["error"])
    assert adopted.configs == []


async def test_a_file_that_is_gone_is_waited_for_and_taken_when_it_is_back(file: Path) -> None:
    adopted = Adopted()
    watching = reloader(file, adopted)
    file.unlink()
    await watching.catch_up()
    assert adopted.configs == []
    assert not (await watching.reload()).reloaded
    file.write_text(DEMO + MORE.replace("up.m", "demo.demo-1"))
    await watching.catch_up()
    assert [dict(config.models) for config in adopted.configs] == [{"new": "demo.demo-1"}]
    await watching.catch_up()
    assert len(adopted.configs) == 1


async def test_a_worker_that_starts_later_catches_up_with_the_file(file: Path) -> None:
    source = source_of(file)
    file.write_text(DEMO + MORE.replace("up.m", "demo.demo-1"))
    adopted = Adopted()
    await Reloader(source, running=source.config, adopt=adopted).catch_up()
    assert len(adopted.configs) == 1


async def settled() -> None:
    """Wait for every task of the test."""
    await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()})


async def test_the_echo_of_our_own_word_to_the_workers_is_no_news(file: Path) -> None:
    adopted = Adopted()
    one = reloader(file, adopted, spread=lambda: True)
    await one.reload_all()
    one.on_sighup()
    await settled()
    assert len(adopted.configs) == 1
    one.on_sighup()
    await settled()
    assert len(adopted.configs) == 2


async def test_a_change_that_comes_with_the_echo_is_not_missed(file: Path) -> None:
    adopted = Adopted()
    one = reloader(file, adopted, spread=lambda: True)
    await one.reload_all()
    file.write_text(DEMO + MORE.replace("up.m", "demo.demo-1"))
    one.on_sighup()
    await settled()
    assert len(adopted.configs) == 2


async def test_without_other_workers_a_later_signal_counts(file: Path) -> None:
    adopted = Adopted()
    one = reloader(file, adopted)
    await one.reload_all()
    one.on_sighup()
    await settled()
    assert len(adopted.configs) == 2


@pytest.mark.parametrize("all_have", [True, False])
async def test_workers_get_a_signal_only_if_one_did_not_answer(file: Path, all_have: bool) -> None:
    signals: list[str] = []

    async def reload_others() -> bool:
        return all_have

    def spread() -> bool:
        signals.append("SIGHUP")
        return True

    one = reloader(file, Adopted(), reload_others=reload_others, spread=spread)
    assert (await one.reload_all()).reloaded
    assert signals == ([] if all_have else ["SIGHUP"])


async def models(line: Any) -> list[str]:
    return [row["id"] for row in (await line.send("GET", "/v1/models")).json["data"]]


ALIAS = '[models]\nnew = "demo.demo-1"\n'


async def all_know_it(port: int) -> None:
    """Wait until every worker uses the current file."""
    lines = await lines_to_all(port, 2)
    async with asyncio.timeout(20):
        for line in lines.values():
            while "new" not in await models(line):
                await asyncio.sleep(0.02)
            await line.close()


def listens(port: int) -> bool:
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) == 0


async def reloads(command: Command, count: int) -> None:
    await until(lambda: command.text.count("configuration reloaded") >= count, f"{count} reloads")


async def test_a_sighup_to_the_parent_reaches_all_workers(tmp_path: Path) -> None:
    async with serve(tmp_path, DEMO, "--workers", "2") as command:
        port = await command.port()
        # Nothing has changed: it is the signal alone that makes them read the file.
        command.signal(signal.SIGHUP)
        await reloads(command, 2)
        (tmp_path / "gateway.toml").write_text(DEMO + ALIAS)
        command.signal(signal.SIGHUP)
        await all_know_it(port)
        command.signal()
        assert await command.ended() == 0
    assert "Traceback" not in command.text


async def test_a_reload_asked_of_one_worker_reaches_the_other_and_happens_once_in_each(
    tmp_path: Path,
) -> None:
    async with serve(tmp_path, DEMO, "--workers", "2") as command:
        port = await command.port()
        token = (tmp_path / "user" / "admin-token").read_text().strip()
        for count in (2, 4):
            answer = await call(port, "/admin/reload", headers={"authorization": f"Bearer {token}"})
            assert answer.json == {"reloaded": True, "problems": []}
            await reloads(command, count)
        command.signal()
        assert await command.ended() == 0
    assert command.text.count("configuration reloaded") == 4
    assert "Traceback" not in command.text


async def test_a_worker_that_replaces_another_has_the_latest_configuration(tmp_path: Path) -> None:
    async with serve(tmp_path, DEMO, "--workers", "2") as command:
        port = await command.port()
        (tmp_path / "gateway.toml").write_text(DEMO + ALIAS)
        await reloads(command, 2)
        for worker in command.workers():
            worker.kill()
        await reloads(command, 4)
        # A worker reads the file before it listens, and for a moment there is none that does.
        await until(lambda: listens(port), "a worker that listens")
        await all_know_it(port)
        command.signal()
        assert await command.ended() == 0


async def test_a_reload_keeps_the_port_that_was_given_on_the_command_line(tmp_path: Path) -> None:
    text = DEMO.replace("port = 0", "port = 5520")
    async with serve(tmp_path, text) as command:
        port = await command.port()
        command.signal(signal.SIGHUP)
        await reloads(command, 1)
        assert (await call(port, "/health", method="GET")).status == 200
        command.signal()
        assert await command.ended() == 0
    assert "needs a restart" not in command.text


async def test_the_level_of_logging_changes_at_once(tmp_path: Path) -> None:
    async with serve(tmp_path, DEMO + '[logging]\nlevel = "error"\n') as command:
        port = await command.port()
        (tmp_path / "gateway.toml").write_text(DEMO + '[logging]\nlevel = "info"\n')
        await reloads(command, 1)
        await send(port, "demo.demo-1")
        await command.wait_for('"logger":"routecodex.access"')
        command.signal()
        assert await command.ended() == 0


async def test_a_demo_has_no_file_to_reload(tmp_path: Path) -> None:
    async with running(tmp_path, "demo", "--port", "0") as command:
        port = int((await command.wait_for(r"demo on http://127.0.0.1:(\d+)"))[1])
        token = (tmp_path / "user" / "admin-token").read_text().strip()
        answer = await call(port, "/admin/reload", headers={"authorization": f"Bearer {token}"})
        command.signal()
        assert await command.ended() == 0
    assert (answer.status, answer.json["error"]["code"]) == (409, "no_config_file")


@pytest.mark.parametrize("workers", ["1", "2"])
async def test_a_server_ends_with_the_terminal_it_was_watched_on(tmp_path: Path, workers: str) -> None:
    (tmp_path / "gateway.toml").write_text(DEMO)
    master, slave = pty.openpty()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "routecodex", "serve", "--config", "gateway.toml", "--port", "0"),
        *("--workers", workers),
        cwd=tmp_path,
        env={
            **os.environ,
            "ROUTECODEX_USER_DIR": str(tmp_path / "user"),
            "PYTHONPATH": str(ROOT / "src"),
            "PYTHONUNBUFFERED": "",  # buffered, as by default: the rest of the output cannot be written
        },
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
    )
    os.close(slave)
    try:
        with open(master, "rb", buffering=0) as terminal:
            assert b"listens on" in await asyncio.to_thread(terminal.read, 1000)
        process.send_signal(signal.SIGHUP)
        assert await asyncio.wait_for(process.wait(), 20) == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert list(tmp_path.glob("user/servers/*.json")) == []
