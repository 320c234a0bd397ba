"""A real Chromium, headless: runs scripts in pages that a server of the test serves.

Chromium comes from the system's packages and is installed when it is missing (Debian: `chromium`).
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

_NAMES = ("chromium", "chromium-browser", "google-chrome")
_INSTALL = ["apt-get", "-o", "DPkg::Lock::Timeout=300", "install", "-y", "-q", "--no-install-recommends"]
_INSTALL_SECONDS = 600
_PATIENCE = 60.0
_OPTIONS = (
    "--headless=new",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-sync",
    "--no-first-run",
    "--no-default-browser-check",
    "--no-proxy-server",
    "--remote-debugging-port=0",
)


@functools.cache
def chromium() -> str:
    """Return the path of Chromium; install it if it is missing, skip the test where that is impossible."""
    found = _found()
    if found is None and shutil.which("apt-get") and os.geteuid() == 0:
        for command in ([*_INSTALL, "chromium"], ["apt-get", "update", "-q"], [*_INSTALL, "chromium"]):
            subprocess.run(command, capture_output=True, timeout=_INSTALL_SECONDS, check=False)
            found = _found()
            if found is not None:
                break
    if found is None:
        pytest.skip("Chromium is missing and cannot be installed here: `apt-get install chromium`")
    return found


def _found() -> str | None:
    return next(filter(None, map(shutil.which, _NAMES)), None)


@contextlib.asynccontextmanager
async def browsing(url: str) -> AsyncIterator[None]:
    """Show a page in a Chromium of its own, with an empty profile, and end it afterwards."""
    path = await asyncio.to_thread(chromium)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        # Chromium's sandbox does not work for root.
        root = ["--no-sandbox"] if os.geteuid() == 0 else []
        process = await asyncio.create_subprocess_exec(
            path,
            *_OPTIONS,
            *root,
            f"--user-data-dir={profile}",
            url,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            yield
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


_PAGE = """<!doctype html><meta charset="utf-8"><title>test</title>
<script type="module">
const run = async () => {{ {script} }};
let result;
try {{ result = {{value: (await run()) ?? null}}; }} catch (error) {{ result = {{error: String(error)}}; }}
await fetch("/result", {{method: "POST", body: JSON.stringify(result)}});
</script>
"""


class Page:
    """One page on a port of its own; its script runs when Chromium opens it."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._content = b""
        self._result: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self.origin = ""

    @contextlib.asynccontextmanager
    async def served(self) -> AsyncIterator[Page]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.origin = f"http://{self._host}:{server.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            server.close()
            await server.wait_closed()

    async def run(self, script: str) -> Any:
        """Open the page with the body of an asynchronous function as its script; return its result."""
        self._content = _PAGE.format(script=script).encode()
        async with browsing(f"{self.origin}/"):
            found = await asyncio.wait_for(self._result, _PATIENCE)
        assert "error" not in found, found["error"]
        return found["value"]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
            if head.startswith("post /result "):
                length = next(line for line in head.split("\r\n") if line.startswith("content-length:"))
                body = await reader.readexactly(int(length.partition(":")[2]))
                self._result.set_result(msgspec.json.decode(body))
            content = self._content if head.startswith("get / ") else b""
            writer.write(
                b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\nconnection: close\r\n"
                b"content-length: %d\r\n\r\n%b" % (len(content), content)
            )
            await writer.drain()
        writer.close()


async def run_in_page(script: str, *, host: str = "localhost") -> Any:
    """Run the body of an asynchronous function in a page of `http://host:<free port>`; return its result."""
    async with Page(host).served() as page:
        return await page.run(script)
