"""The image that `make image` has built: run as process 1, with a read-only root, without privileges.

No container runtime is needed: buildah mounts the file system, and namespaces do the rest.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]  # it has no types of its own
import pytest

from compile.image import OPTIONS
from routecodex import __version__
from tests.cli.process import Command, until
from tests.deploy.test_nginx import balancer
from tests.kit import answers, asking
from tests.kit.raw_client import begin, call
from tests.kit.redis_server import RedisServer
from tests.kit.steps import Sse
from tests.kit.upstream import Upstream

pytestmark = pytest.mark.wheels
IMAGE = f"localhost/routecodex:{__version__}"
MOST_BYTES = 60_000_000
KEY = {"authorization": "Bearer k-1234567890"}

START = """
mount --bind "$1" "$1" && mount -o remount,bind,ro "$1" &&
mount -t tmpfs -o mode=700,uid=10001,gid=10001 tmpfs "$1/data" && mount -t proc proc "$1/proc" &&
mount --rbind /dev "$1/dev" && cp "$2" "$1/data/config.toml" && shift 2 && exec "$@"
"""


def buildah(*arguments: str) -> str:
    done = subprocess.run(
        ["buildah", *OPTIONS, *arguments], check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    return done.stdout.decode().strip()


@pytest.fixture(scope="module")
def image() -> dict[str, Any]:
    """Return what buildah says of the image."""
    if os.geteuid() != 0:
        pytest.skip("mounting the image needs root")
    try:
        found: dict[str, Any] = json.loads(buildah("inspect", "--type", "image", IMAGE))
    except (FileNotFoundError, subprocess.CalledProcessError):
        pytest.skip("there is no image: `make image BASE=…` builds it")
    return found


@pytest.fixture(scope="module")
def root(image: dict[str, Any]) -> Iterator[Path]:
    container = buildah("from", IMAGE)
    yield Path(buildah("mount", container))
    buildah("umount", container)
    buildah("rm", container)


def test_the_image_says_how_it_is_run(image: dict[str, Any]) -> None:
    config = image["Docker"]["config"]
    assert (config["User"], config["Entrypoint"]) == ("10001:10001", ["python3", "-m", "routecodex"])
    assert config["Volumes"] == {"/data": {}}
    assert "/health/live" in " ".join(config["Healthcheck"]["Test"])


def test_the_gateway_takes_less_than_60_mb_and_brings_no_compiler(root: Path) -> None:
    files = [path for path in (root / "opt").rglob("*") if path.is_file() and not path.is_symlink()]
    assert 10_000_000 < sum(path.stat().st_size for path in files) < MOST_BYTES
    assert not list((root / "usr" / "bin").glob("*gcc*"))
    assert not (root / "wheels").exists()


@contextlib.asynccontextmanager
async def container(
    root: Path, folder: Path, upstream: Upstream, *, store: str = "file:", id: str = "one"
) -> AsyncIterator[Command]:
    """Run the entry point of the image as process 1 of a namespace, on a read-only root."""
    config = folder / f"{id}.toml"
    config.write_text(
        f'[server]\nhost = "127.0.0.1"\nport = 0\nid = "{id}"\ndrain_seconds = 20\n'
        'client_keys = [{ name = "team", key = "k-1234567890" }]\n'
        f'[providers.up]\nprotocol = "chat"\nbase_url = "{upstream.url}/v1"\nmodels = {{ m = {{}} }}\n'
        f'auth = [{{ value = "secret-up" }}]\n[routing]\ndefault = ["up.m"]\n[store]\nurl = "{store}"\n',
        "utf-8",
    )
    config.chmod(0o644)
    environ = ["PATH=/usr/bin:/bin", "PYTHONPATH=/opt/routecodex", "HOME=/data", "ROUTECODEX_USER_DIR=/data"]
    entry = ["env", "-i", *environ, "python3", "-m", "routecodex", "serve"]
    process = await asyncio.create_subprocess_exec(
        *("unshare", "--mount", "--pid", "--fork", "sh", "-c", START, "sh", str(root), str(config)),
        *("chroot", "--userspec=10001:10001", str(root), *entry),
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


def gateway_of(command: Command) -> psutil.Process:
    (gateway,) = command.workers()
    return gateway


async def test_it_answers_as_process_1_on_a_read_only_root(root: Path, tmp_path: Path) -> None:
    async with (
        Upstream(lambda _: answers.text("chat", "Hi", False)) as up,
        container(root, tmp_path, up) as command,
    ):
        port = await command.port()
        answer = await call(port, "/v1/chat/completions", asking.body("chat", stream=False), headers=KEY)
        status = Path(f"/proc/{gateway_of(command).pid}/status").read_text()
    asking.check("chat", answer, stream=False)
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert fields["NSpid"].split()[-1] == "1"
    assert set(fields["Uid"].split()) == {"10001"}
    assert int(fields["CapEff"], 16) == 0


async def test_sigterm_lets_a_stream_end_and_the_exit_code_is_0(root: Path, tmp_path: Path) -> None:
    whole = answers.text("chat", "a long answer", True)
    assert isinstance(whole, Sse)
    goes_on = asyncio.Event()
    paced = Sse(whole.frames, pace={len(whole.frames) - 1: goes_on})
    async with Upstream(lambda _: paced) as up, container(root, tmp_path, up) as command:
        port = await command.port()
        body = asking.body("chat", stream=True)
        stream = await begin(port, "/v1/chat/completions", body, headers=KEY)
        await stream.head()
        gateway_of(command).send_signal(signal.SIGTERM)
        await command.wait_for("draining")
        goes_on.set()
        answer = await stream.rest()
        await stream.close()
        assert await command.ended() == 0
    asking.check("chat", answer, stream=True)


async def test_orphans_are_reaped(root: Path, tmp_path: Path) -> None:
    async with Upstream() as up, container(root, tmp_path, up) as command:
        await command.port()
        gateway = gateway_of(command)
        subprocess.run(["nsenter", "-t", str(gateway.pid), "-p", "sh", "-c", "sleep 0.05 &"], check=True)
        await until(lambda: _dead(gateway), "an orphan is dead")
        await until(lambda: not _dead(gateway), "it is reaped")


async def test_three_gateways_behind_nginx_share_a_session_in_redis(root: Path, tmp_path: Path) -> None:
    server = RedisServer(tmp_path / "redis", saves=True)
    try:
        async with contextlib.AsyncExitStack() as stack:
            up = await stack.enter_async_context(Upstream(lambda _: answers.text("chat", "Hi", False)))
            ids = ("gateway-1", "gateway-2", "gateway-3")
            runs = [container(root, tmp_path, up, store=server.url, id=id) for id in ids]
            gateways = [await stack.enter_async_context(run) for run in runs]
            ports = [await gateway.port() for gateway in gateways]
            port = await stack.enter_async_context(balancer(tmp_path, ports))
            session = {**KEY, "x-session-id": "s-1"}
            sticky = asking.body("chat", "<**!up.m**>Hello", stream=False)
            await call(port, "/v1/chat/completions", sticky, headers=session)
            plain = asking.body("chat", "again", stream=False, model="any")
            path = "/v1/chat/completions"
            found = [await call(each, path, plain, headers=session) for each in (port, *ports)]
    finally:
        server.kill()
    reasons = {answer.headers["x-routecodex-reason"] for answer in found}
    assert len(reasons) == 1
    assert "sticky" in reasons.pop()


def _dead(process: psutil.Process) -> list[int]:
    return [one.pid for one in process.children() if one.status() == psutil.STATUS_ZOMBIE]
