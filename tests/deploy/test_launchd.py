"""The launchd daemon: the script that it runs, in the shells that may be /bin/sh on a Mac."""

from __future__ import annotations

import asyncio
import contextlib
import os
import plistlib
import shutil
import signal
import stat
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.cli.process import ROOT, Command
from tests.deploy.checks import DEPLOY
from tests.kit import answers, asking
from tests.kit.gateway import one_target
from tests.kit.raw_client import begin
from tests.kit.steps import Sse
from tests.kit.upstream import Upstream

DAEMON = DEPLOY / "launchd" / "dev.routecodex.gateway.plist"
SHELLS = [shell for shell in (("dash",), ("bash", "--posix")) if shutil.which(shell[0])]
REAL = f'exec env PYTHONPATH={ROOT / "src"} {sys.executable} -m routecodex "$@"'
WITHOUT_PRIVILEGES = ("setpriv", "--inh-caps=-all", "--bounding-set=-all")
in_each_shell = pytest.mark.parametrize("shell", SHELLS, ids=[shell[0] for shell in SHELLS])


@contextlib.asynccontextmanager
async def daemon(
    folder: Path, shell: tuple[str, ...], gateway: str, *, prefix: tuple[str, ...] = ()
) -> AsyncIterator[Command]:
    """Run the script of the daemon with `folder` for /usr/local; `gateway` is the text of its program."""
    program = folder / "opt/routecodex/bin/routecodex"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\n{gateway}\n", "utf-8")
    program.chmod(stat.S_IRWXU)
    (folder / "etc/routecodex").mkdir(parents=True, exist_ok=True)
    settings = plistlib.loads(DAEMON.read_bytes())
    sh, flag, script = settings["ProgramArguments"]
    assert (sh, flag) == ("/bin/sh", "-c")
    process = await asyncio.create_subprocess_exec(
        *(*prefix, *shell, flag, script.replace("/usr/local", str(folder))),
        env={"PATH": os.environ["PATH"], "ROUTECODEX_USER_DIR": str(folder / "var")},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    command = Command(process)
    try:
        yield command
    finally:
        await command.kill()


@in_each_shell
@pytest.mark.parametrize(("code", "reported"), [(0, 0), (1, 1), (2, 0), (137, 137)])
async def test_only_an_invalid_configuration_and_success_are_not_restarted(
    tmp_path: Path, shell: tuple[str, ...], code: int, reported: int
) -> None:
    async with daemon(tmp_path, shell, f"exit {code}") as command:
        assert await command.ended() == reported


@in_each_shell
async def test_a_gateway_with_an_invalid_configuration_says_so_and_is_not_restarted(
    tmp_path: Path, shell: tuple[str, ...]
) -> None:
    config = tmp_path / "etc/routecodex/config.toml"
    config.parent.mkdir(parents=True)
    config.write_text("[servr]\n", "utf-8")
    async with daemon(tmp_path, shell, REAL) as command:
        assert await command.ended() == 0
        assert "servr" in command.text


@in_each_shell
async def test_sigterm_reaches_the_gateway_which_lets_its_stream_end(
    tmp_path: Path, shell: tuple[str, ...]
) -> None:
    whole = answers.text("chat", "one two three", True)
    assert isinstance(whole, Sse)
    goes_on = asyncio.Event()
    paced = Sse(whole.frames, pace={len(whole.frames) - 1: goes_on})
    async with Upstream(lambda _: paced) as up:
        config = tmp_path / "etc/routecodex/config.toml"
        config.parent.mkdir(parents=True)
        config.write_text(one_target("chat", up).replace("drain_seconds = 1", "drain_seconds = 20"), "utf-8")
        async with daemon(tmp_path, shell, REAL) as command:
            port = await command.port()
            stream = await begin(port, "/v1/chat/completions", asking.body("chat", stream=True))
            await stream.head()
            assert await stream.piece()
            command.signal(signal.SIGTERM)
            await command.wait_for("draining")
            goes_on.set()
            answer = await stream.rest()
            await stream.close()
            assert await command.ended() == 0
    asking.check("chat", answer, stream=True)


@in_each_shell
async def test_sighup_reaches_the_gateway_and_ends_nothing(tmp_path: Path, shell: tuple[str, ...]) -> None:
    gateway = (
        "trap 'echo reloads' HUP; trap 'echo stops; exit 0' TERM; echo starts; while :; do sleep 0.05; done"
    )
    async with daemon(tmp_path, shell, gateway) as command:
        for number, effect in ((signal.SIGHUP, "reloads"), (signal.SIGTERM, "stops")):
            await command.wait_for("starts")
            command.signal(number)
            await command.wait_for(effect)
        assert await command.ended() == 0
    assert command.out == ["starts", "reloads", "stops"]


@in_each_shell
async def test_the_gateway_gets_the_variables_of_the_file(tmp_path: Path, shell: tuple[str, ...]) -> None:
    file = tmp_path / "etc/routecodex/routecodex.env"
    file.parent.mkdir(parents=True)
    file.write_text("KEY='a $b c'\n", "utf-8")
    async with daemon(tmp_path, shell, 'echo "$KEY $@"') as command:
        assert await command.ended() == 0
    assert command.out == [f"a $b c serve --config {tmp_path}/etc/routecodex/config.toml"]


@in_each_shell
async def test_a_file_of_variables_that_the_user_may_not_read_stops_the_start(
    tmp_path: Path, shell: tuple[str, ...]
) -> None:
    file = tmp_path / "etc/routecodex/routecodex.env"
    file.parent.mkdir(parents=True)
    file.write_text("KEY=k\n", "utf-8")
    file.chmod(0)
    prefix = WITHOUT_PRIVILEGES if os.geteuid() == 0 else ()
    if prefix and shutil.which(prefix[0]) is None:
        pytest.skip("root reads every file, and setpriv is not there to take that away")
    async with daemon(tmp_path, shell, "echo started", prefix=prefix) as command:
        assert await command.ended() == 0
    assert command.out == []
    assert command.text.startswith(f"error: {file} cannot be read by ")
