"""A gateway in its own process, as a user runs it, with four scripted upstreams and the demo provider."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager
from pathlib import Path
from typing import IO

from tests.clients.model import model
from tests.kit.answers import PROTOCOLS
from tests.kit.upstream import Request, Upstream

ROOT = Path(__file__).resolve().parents[2]
FAULTS = ("says-400", "says-401", "says-404", "says-429", "says-500", "says-529")
BREAKS = ("breaks-off", "reports-an-error")
CLIENT_KEY = "key-of-a-client"
UPSTREAM_KEY = "key-for-the-upstream"
_READY = re.compile(r"listens on (http://\S+)")
_BASE = {"chat": "/v1", "responses": "/v1", "messages": "", "gemini": ""}


class Upstreams:
    """Four upstreams, by protocol, served by a thread while tests and SDKs block in theirs."""

    def __init__(self) -> None:
        self.by_protocol: dict[str, Upstream] = {}
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="upstreams")

    def __enter__(self) -> Upstreams:
        self._thread.start()
        self._ready.wait()
        assert len(self.by_protocol) == len(PROTOCOLS), "the upstreams did not start"
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._serve())
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        async with AsyncExitStack() as stack:
            for protocol in PROTOCOLS:
                upstream = Upstream(model(protocol))
                self.by_protocol[protocol] = await stack.enter_async_context(upstream)
            self._ready.set()
            await self._stop.wait()

    def requests(self, protocol: str) -> list[Request]:
        """Return the requests that the upstream received since the test began."""
        return list(self.by_protocol[protocol].requests)

    def reset(self) -> None:
        """Clear the recorded requests; raise the error of a script that failed."""
        for upstream in self.by_protocol.values():
            upstream.requests.clear()
            if upstream.failures:
                raise upstream.failures.pop()


class Gateway:
    """A running gateway: its URL and its upstreams."""

    def __init__(self, url: str, upstreams: Upstreams) -> None:
        self.url = url
        self.upstreams = upstreams

    def requests(self, protocol: str) -> list[Request]:
        """Return the requests that the upstream of that protocol received since the test began."""
        return self.upstreams.requests(protocol)

    def last_request(self, protocol: str) -> Request:
        """Return the last request that the upstream received."""
        return self.upstreams.requests(protocol)[-1]


def _provider(protocol: str, name: str, models: tuple[str, ...], *, port: int) -> str:
    rows = "".join(f"[providers.{name}.models.{row}]\n" for row in models)
    return f"""
[providers.{name}]
protocol = "{protocol}"
base_url = "http://127.0.0.1:{port}{_BASE[protocol]}"
auth = [{{ value = "{UPSTREAM_KEY}" }}]
{rows}"""


def configuration(upstreams: Upstreams, *, message_stop: str, client_key: str | None) -> str:
    """Return a configuration with one provider per protocol and fault, so that faults stay apart."""
    parts = ['[providers.demo]\nprotocol = "demo"\npace = 0\n[providers.demo.models.demo-1]\n']
    for protocol, upstream in upstreams.by_protocol.items():
        parts.append(_provider(protocol, f"up_{protocol}", ("model-x",), port=upstream.port))
        for fault in (*FAULTS, *BREAKS):
            name = f"{fault.replace('-', '_')}_{protocol}"
            parts.append(_provider(protocol, name, (fault,), port=upstream.port))
    keys = f'[[server.client_keys]]\nname = "tests"\nkey = "{client_key}"\n' if client_key else ""
    return f"""
[server]
port = 0
drain_seconds = 0
{keys}
[routing]
default = ["demo.demo-1"]
[routing_options]
health = false
max_wait_ms = 0
[protocols.messages]
tool_turn_message_stop = "{message_stop}"
{"".join(parts)}"""


class Gateways:
    """Gateways by their setting, each started on first use."""

    def __init__(self, upstreams: Upstreams, folder: Path) -> None:
        self._upstreams = upstreams
        self._folder = folder
        self._stack = ExitStack()
        self._running: dict[tuple[str, str | None], Gateway] = {}

    def __enter__(self) -> Gateways:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def get(self, message_stop: str = "auto", *, client_key: str | None = None) -> Gateway:
        """Return the gateway with this `tool_turn_message_stop`, open to all or to the holder of the key."""
        setting = (message_stop, client_key)
        if setting not in self._running:
            text = configuration(self._upstreams, message_stop=message_stop, client_key=client_key)
            folder = self._folder / f"gateway{len(self._running)}"
            url = self._stack.enter_context(gateway_process(text, folder))
            self._running[setting] = Gateway(url, self._upstreams)
        return self._running[setting]


@contextmanager
def gateway_process(text: str, folder: Path) -> Iterator[str]:
    """Run the command; its log goes to a file beside its configuration."""
    folder.mkdir()
    config = folder / "gateway.toml"
    config.write_text(text)
    config.chmod(0o600)
    environ = {**os.environ, "ROUTECODEX_USER_DIR": str(folder / "user"), "PYTHONPATH": str(ROOT / "src")}
    environ.pop("ROUTECODEX_SESSION_DIR", None)
    command = [sys.executable, "-m", "routecodex", "serve", "--config", str(config), "--port", "0"]
    with (
        (folder / "log").open("w") as log,
        subprocess.Popen(command, env=environ, stderr=subprocess.PIPE, text=True) as process,
    ):
        assert process.stderr is not None
        url = _address(process.stderr, log)
        # A pipe that is not read would fill up and block the gateway.
        copying = threading.Thread(target=shutil.copyfileobj, args=(process.stderr, log))
        copying.start()
        try:
            yield url
        finally:
            process.terminate()
            copying.join()


def _address(lines: Iterable[str], log: IO[str]) -> str:
    output = ""
    for line in lines:
        log.write(line)
        output += line
        match = _READY.search(line)
        if match is not None:
            return match.group(1)
    raise AssertionError(f"the gateway did not start:\n{output}")
