"""A real gateway for the console's tests: two workers, the demo provider, its own user dir, real requests."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from bench.ports import free_port
from tests.cli.process import Command, running
from tests.kit import asking
from tests.kit.raw_client import Answer, call

TOKEN = "token-of-the-console-tests"
BEARER = {"authorization": f"Bearer {TOKEN}"}
KEYS = {"laptop": "key-of-laptop", "ci": "key-of-ci", "reader": "key-of-reader", "steerer": "key-of-steerer"}
_PATIENCE = 20.0
HOSTILE = "<img src=x onerror=alert(1)>"
"""A text that would run as a script if a page made HTML of it; it is valid in headers and names of models."""

_CONFIG = f"""
[server]
id = "main"
admin_token = "{TOKEN}"
drain_seconds = 1

[store]
url = "file:"

[capture]
mode = "all"

[server_tools.clock]
enabled = true

[providers.demo]
protocol = "demo"
pace = 0.01
auth = [{{ alias = "primary", value = "unused-1" }}, {{ alias = "backup", value = "unused-2" }}]

[providers.demo.models.demo-1]
context_tokens = 200000
price = {{ input = 3.0, output = 15.0, cache_read = 0.3 }}

[providers.demo.models.demo-coder]
price = {{ input = 1.0, output = 5.0 }}

[providers.spare]
protocol = "demo"
pace = 0.01

[providers.spare.models.spare-1]
price = {{ input = 0.5, output = 2.0 }}

[models]
"gpt-*" = "demo.demo-1"

[routing]
default = [{{ id = "all", mode = "priority", targets = ["demo.demo-1", "spare.spare-1"] }}]
coding = [
  {{ id = "main", targets = ["demo.demo-coder"] }},
  {{ id = "spare", targets = ["spare.spare-1"], backup = true }},
]

[clients.laptop]
key = "{KEYS["laptop"]}"
team = "core"
limits = ["$20/day"]

[clients.ci]
key = "{KEYS["ci"]}"

[clients.reader]
key = "{KEYS["reader"]}"
role = "viewer"

[clients.steerer]
key = "{KEYS["steerer"]}"
role = "operator"

[clients.anonymous]

[teams.core]
limits = ["1000000 tokens/day"]
"""


class ConsoleGateway:
    """The gateway; `start` and `stop` make a restart on the same port."""

    def __init__(
        self,
        folder: Path,
        *,
        workers: int = 2,
        pace: float = 0.01,
        id: str = "main",
        home: Path | None = None,
    ) -> None:
        self.port = free_port()
        self.origin = f"http://127.0.0.1:{self.port}"
        self.file = folder / "gateway.toml"
        text = _CONFIG.replace("pace = 0.01", f"pace = {pace}").replace('id = "main"', f'id = "{id}"')
        self.file.write_text(text, "utf-8")
        self._environ = {} if home is None else {"ROUTECODEX_USER_DIR": str(home)}
        self.file.chmod(0o600)
        self._folder, self._workers = folder, workers
        self._stack = contextlib.AsyncExitStack()
        self.command: Command | None = None

    async def start(self) -> None:
        arguments = ("--config", str(self.file), "--port", str(self.port), "--workers", str(self._workers))
        command = running(self._folder, "serve", *arguments, environ=self._environ)
        self.command = await self._stack.enter_async_context(command)
        await self.command.port()

    async def stop(self) -> None:
        """End the gateway as an operator does, and wait for its end."""
        assert self.command is not None
        self.command.signal()
        await self.command.ended()

    async def close(self) -> None:
        await self._stack.aclose()

    async def ask(
        self,
        text: str = "Hello",
        *,
        protocol: str = "chat",
        model: str = "auto",
        session: str = "",
        client: str = "laptop",
        key: str = "",
        stream: bool = True,
    ) -> Answer:
        """Send one request of a client and read its answer."""
        headers = {"authorization": f"Bearer {key or KEYS[client]}"}
        if session:
            headers["x-session-id"] = session
        body = asking.body(protocol, text, stream=stream, model=model)
        path = asking.path(protocol, stream=stream, model=model)
        return await call(self.port, path, body, headers=headers)

    async def target(self, text: str = "Hello", **options: Any) -> str:
        """Send one request that must succeed; return the target that answered."""
        answer = await self.ask(text, **options)
        assert answer.status == 200, answer.body
        return answer.headers["x-routecodex-target"]

    async def targets(self, count: int = 6) -> set[str]:
        """Return the providers of some requests, each on a new connection, so that both workers answer."""
        return {(await self.target()).partition(".")[0] for _ in range(count)}

    async def get(self, path: str) -> Any:
        answer = await call(self.port, f"/admin/{path}", method="GET", headers=BEARER)
        assert answer.status == 200, answer.body
        return answer.json

    async def post(self, path: str, body: Any = None) -> Any:
        answer = await call(self.port, f"/admin/{path}", {} if body is None else body, headers=BEARER)
        assert answer.status < 300, answer.body
        return answer.json

    async def until_row(self, fits: Callable[[Any], bool]) -> Any:
        """Wait until the ledger has a request that fits; rows are written a moment after the answer."""
        async with asyncio.timeout(_PATIENCE):
            while True:
                rows = (await self.get("requests?limit=20"))["requests"]
                found = next((row for row in reversed(rows) if fits({"session": "", **row})), None)
                if found is not None:
                    return found
                await asyncio.sleep(0.05)

    async def login_url(self) -> str:
        """Return an address that logs in once."""
        return str((await self.post("login/code"))["url"])

    def slow_request(self, seconds: float, *, session: str) -> asyncio.Task[Answer]:
        """Begin a request whose answer takes a while."""
        return asyncio.ensure_future(self.ask(f"demo:slow {seconds}", session=session))


@contextlib.asynccontextmanager
async def console_gateway(folder: Path, **options: Any) -> AsyncIterator[ConsoleGateway]:
    """Run a gateway in this folder; at `pace` 1 the demo model is as slow as a real one.

    `home` is the user dir if it is that of another gateway, which then lists this one by its `id`.
    """
    gateway = ConsoleGateway(folder, **options)
    try:
        await gateway.start()
        yield gateway
    finally:
        await gateway.close()
