"""Nodes of the gateway as processes of their own, and nginx in front of them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
from pathlib import Path

from bench.peers import system_nginx
from bench.ports import free_port
from tests.cli.process import Command, running
from tests.cluster.timeline import Timeline, Window, close
from tests.kit.raw_client import call

_PATIENCE = 30.0
_POLL = 0.05
_DOWN = re.compile(r"the redis store (is down|cannot be written)")
_EXPECTED = re.compile(r"the Redis store lost its data|limits cannot be counted")
_BACK = re.compile(r"the redis store works again")


class GatewayNode:
    """One node with its own folder and a port that it keeps; it can be killed, frozen and restarted."""

    def __init__(self, number: int, folder: Path, *, workers: int, timeline: Timeline) -> None:
        self.name = f"gw-{number}"
        self.port = free_port()
        self.workers = workers
        self.folder = folder / self.name
        self.folder.mkdir()
        self.errors: list[str] = []
        self._timeline = timeline
        self._stack = contextlib.AsyncExitStack()
        self._command: Command | None = None
        self._outages: list[Window] = []
        self._lines_read = 0

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._command is not None
        return self._command.process.pid

    def configure(self, text: str) -> None:
        file = self.folder / "gateway.toml"
        file.write_text(text, "utf-8")
        file.chmod(0o600)

    async def start(self) -> None:
        arguments = ("--config", str(self.folder / "gateway.toml"), "--port", str(self.port))
        self._command = await self._stack.enter_async_context(
            running(self.folder, "serve", *arguments, "--workers", str(self.workers))
        )
        self._lines_read = 0
        await self._command.port()

    async def is_ready(self) -> bool:
        """Return whether every worker that answers says that all is well."""
        try:
            for _ in range(1 if self.workers == 1 else 4 * self.workers):
                answer = await asyncio.wait_for(call(self.port, "/health/ready", method="GET"), 2)
                if answer.status != 200 or answer.json["status"] != "ok":
                    return False
        except (OSError, EOFError, TimeoutError):
            return False
        return True

    async def until_ready(self) -> None:
        async with asyncio.timeout(_PATIENCE):
            while not await self.is_ready():
                await asyncio.sleep(_POLL)

    async def kill(self) -> None:
        """Kill the node and its workers."""
        self.note_outages()
        await self._stack.aclose()
        self._end_outages()

    async def stop(self) -> int:
        """Ask the node to end, as a deployment does, and wait for it."""
        assert self._command is not None
        self._command.signal()
        code = await self._command.ended()
        await self.kill()
        return code

    def freeze(self) -> None:
        os.killpg(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.killpg(self.pid, signal.SIGCONT)

    def note_outages(self) -> None:
        """Read what the node has logged since: its own view of the store, and tracebacks."""
        if self._command is None:
            return
        for line in self._command.err[self._lines_read :]:
            self._lines_read += 1
            if _DOWN.search(line):
                self._outages.append(self._timeline.open("store", self.name))
            elif _BACK.search(line) and self._outages:
                close(self._outages.pop())
            elif _EXPECTED.search(line):
                continue
            elif "Traceback" in line or '"level":"error"' in line.replace(" ", "").lower():
                self.errors.append(line)

    def _end_outages(self) -> None:
        while self._outages:
            close(self._outages.pop())


_NGINX = """
daemon off;
worker_processes 1;
error_log stderr crit;
pid {folder}/nginx.pid;
events {{ worker_connections 512; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    upstream nodes {{
{servers}
    }}
    server {{
        listen 127.0.0.1:{port};
        location = /balancer {{ return 200; }}
        location / {{
            proxy_pass http://nodes;
            proxy_http_version 1.1;
            proxy_set_header Host $http_host;
            proxy_buffering off;
            proxy_connect_timeout 2s;
            proxy_read_timeout 60s;
            add_header x-trial-node $upstream_addr always;
        }}
    }}
}}
"""


class Balancer:
    """nginx, round robin over the nodes; each answer says which node it came from."""

    def __init__(self, folder: Path, nodes: list[GatewayNode]) -> None:
        self.port = free_port()
        self._folder = folder / "nginx"
        self._folder.mkdir()
        self._names = {node.address: node.name for node in nodes}
        self._process: asyncio.subprocess.Process | None = None

    def node_of(self, header: str) -> str:
        """Return the name of the node that answered: the last one that nginx tried."""
        return self._names.get(header.rsplit(",", 1)[-1].strip(), "")

    async def start(self) -> None:
        servers = "\n".join(
            f"        server {address} max_fails=1 fail_timeout=1s;" for address in self._names
        )
        file = self._folder / "nginx.conf"
        file.write_text(_NGINX.format(folder=self._folder, port=self.port, servers=servers))
        with (self._folder / "output.log").open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                *(system_nginx(), "-c", str(file), "-p", str(self._folder), "-e", "stderr"),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        async with asyncio.timeout(_PATIENCE):
            while not await self._answers():
                await asyncio.sleep(_POLL)

    async def _answers(self) -> bool:
        try:
            return (await call(self.port, "/balancer", method="GET")).status == 200
        except (OSError, EOFError):
            return False

    async def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            await asyncio.wait_for(self._process.wait(), _PATIENCE)
