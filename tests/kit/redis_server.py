"""Real servers of Redis or Valkey, each on a free port of its own, ended by pid.

They come from the system's packages and are installed when they are missing (Debian: `redis-server`).
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from bench.ports import free_port

_INSTALL = ["apt-get", "-o", "DPkg::Lock::Timeout=300", "install", "-y", "-q", "--no-install-recommends"]
_INSTALL_SECONDS = 600
_PATIENCE = 20.0
_MARKER = "end-of-what-is-monitored"


@functools.cache
def server_program() -> str:
    """Return the path of redis-server; install it if it is missing, or skip the test."""
    found = shutil.which("redis-server") or install("redis-server", "redis-server")
    if found is None:
        pytest.skip("redis-server is missing and cannot be installed here: `apt-get install redis-server`")
    return found


def install(package: str, program: str) -> str | None:
    """Install a package of Debian if that is possible here; return the path of its program."""
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        return None
    command = [*_INSTALL, package]
    for step in (command, ["apt-get", "update", "-q"], command):
        subprocess.run(step, capture_output=True, timeout=_INSTALL_SECONDS, check=False)
        found = shutil.which(program)
        if found is not None:
            return found
    return None


class RedisServer:
    """One process of redis-server (or valkey-server); without persistence unless `saves`.

    With a `launcher` it runs in a network namespace, at all addresses there; `host` is the one for the test.
    """

    def __init__(
        self,
        directory: Path,
        *options: str,
        saves: bool = False,
        program: str | None = None,
        password: str | None = None,
        sentinel: bool = False,
        tls_port: int = 0,
        host: str = "127.0.0.1",
        launcher: Sequence[str] = (),
    ) -> None:
        self.host = host
        self.port = free_port()
        self.tls_port = tls_port
        self.password = password
        self._directory = directory
        self._directory.mkdir(parents=True, exist_ok=True)
        self._options = list(options)
        self._saves = saves
        self._program = program or server_program()
        self._launcher = launcher
        self._sentinel = sentinel
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def url(self) -> str:
        login = f":{self.password}@" if self.password else ""
        return f"redis://{login}{self.host}:{self.port}/0"

    @property
    def _log(self) -> Path:
        return self._directory / f"{self.port}.log"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start the server, again on the same port, and wait until it answers."""
        addresses = ["0.0.0.0", "--protected-mode", "no"] if self._launcher else [self.host]
        arguments = ["--port", str(self.port), "--bind", *addresses, "--dir", str(self._directory)]
        if self._sentinel:
            arguments = [self._options[0], "--sentinel", *arguments]
        else:
            kept = (
                ["--appendonly", "yes", "--appendfsync", "always"] if self._saves else ["--appendonly", "no"]
            )
            login = ["--requirepass", self.password, "--masterauth", self.password] if self.password else []
            arguments += ["--save", "", *kept, *login, *self._options]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*self._launcher, self._program, *arguments], stdout=log, stderr=subprocess.STDOUT
            )
        self.wait_ready()

    def wait_ready(self) -> None:
        """Wait until the server answers; fail when it has ended."""
        assert self._process is not None
        until = time.monotonic() + _PATIENCE
        while True:
            try:
                with self.client() as client:
                    client.ping()
                return
            except redis.RedisError:
                assert self._process.poll() is None, self._log.read_text()
                if time.monotonic() > until:
                    raise
                time.sleep(0.02)

    def client(self, **settings: Any) -> redis.Redis:
        """Return a blocking client for the test itself."""
        plain = {"host": self.host, "port": self.port, "password": self.password, "socket_timeout": 5}
        return redis.Redis(protocol=2, retry=Retry(NoBackoff(), 0), **{**plain, **settings})

    def freeze(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """End the server without a chance to save."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    @contextlib.contextmanager
    def killed(self) -> Iterator[None]:
        """Let the server be gone meanwhile."""
        self.kill()
        try:
            yield
        finally:
            self.start()

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """Let the server answer nothing meanwhile."""
        self.freeze()
        try:
            yield
        finally:
            self.thaw()

    @contextlib.contextmanager
    def monitored(self) -> Iterator[list[str]]:
        """Collect the commands that the server carries out meanwhile, those of scripts too."""
        found: list[str] = []
        with self.client() as client, client.monitor() as monitor:
            yield found
            client.echo(_MARKER)
            while (command := str(monitor.next_command()["command"])) != f"ECHO {_MARKER}":
                found.append(command)

    @contextlib.contextmanager
    def unsaved(self) -> Iterator[None]:
        """Let background saves fail, as on a full disk: MISCONF is the answer to writes until one works.

        A directory has the name of the file that is to be replaced.
        """
        obstacle = self._directory / "dump.rdb"
        obstacle.unlink(missing_ok=True)
        obstacle.mkdir()
        with self.client(decode_responses=True) as client:
            client.config_set("save", "3600 1")
            try:
                self._save(client, "err")
                yield
            finally:
                obstacle.rmdir()
                self._save(client, "ok")
                client.config_set("save", "")

    def _save(self, client: redis.Redis, status: str) -> None:
        until = time.monotonic() + _PATIENCE
        client.bgsave()
        while (found := _persistence(client))["rdb_last_bgsave_status"] != status or found[
            "rdb_bgsave_in_progress"
        ]:
            assert time.monotonic() < until, found
            time.sleep(0.01)

    stop = kill


def _persistence(client: redis.Redis) -> dict[str, Any]:
    found: Any = client.info("persistence")
    return dict(found)


def close_all(servers: Iterable[RedisServer]) -> None:
    for server in servers:
        server.kill()
