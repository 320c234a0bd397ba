"""Claude Code in its headless session: messages and control requests in, events out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from tests.clients.agents.programs import SECONDS, command, environment, started
from tests.clients.agents.scene import Scene

HINTS = {"CLAUDE_CODE_GATEWAY_HINT_HEADERS": "1"}
_FLAGS = ("-p", "--verbose", "--input-format", "stream-json", "--output-format", "stream-json")


class Session:
    """A running session."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._controls = 0

    async def say(self, text: str) -> dict[str, Any]:
        """Send a message or a slash command; return the result event of the turn."""
        content = [{"type": "text", "text": text}]
        await self._send({"type": "user", "message": {"role": "user", "content": content}})
        return await self.until("result")

    async def control(self, subtype: str, **fields: Any) -> dict[str, Any]:
        """Send a control request, as the Agent SDK does; return the response."""
        self._controls += 1
        request = {"subtype": subtype, **fields}
        await self._send({"type": "control_request", "request_id": str(self._controls), "request": request})
        event = await self.until("control_response")
        assert event["response"]["subtype"] == "success", event
        return dict(event["response"]["response"])

    async def _send(self, event: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode(event) + b"\n")
        await self._process.stdin.drain()

    async def until(self, kind: str) -> dict[str, Any]:
        """Read events up to one of that type."""
        assert self._process.stdout is not None
        async with asyncio.timeout(SECONDS):
            async for line in self._process.stdout:
                event = msgspec.json.decode(line, type=dict[str, Any])
                if event["type"] == kind:
                    return event
        assert self._process.stderr is not None
        raise AssertionError((await self._process.stderr.read()).decode())


@asynccontextmanager
async def claude_code(
    scene: Scene, *flags: str, model: str = "claude-sonnet-4-6", **variables: str
) -> AsyncIterator[Session]:
    """Start a session with the gateway as Anthropic."""
    address = {"ANTHROPIC_BASE_URL": scene.url, "ANTHROPIC_AUTH_TOKEN": "any"}
    quiet = {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"}
    env = environment(scene.home, **(address | quiet | variables))
    argv = [*command("claude"), *_FLAGS, "--model", model, *flags]
    pipe = asyncio.subprocess.PIPE
    async with started(argv, env=env, cwd=scene.work, stdin=pipe) as process:
        yield Session(process)
