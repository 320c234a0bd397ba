"""Real coding agents: where they are installed, and how they start with a home of their own."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.clients.gateway import ROOT
from tests.clients.node_sdks import NODE

PACKAGES = Path(__file__).parent / "node_modules"
SECONDS = 60
"""Longest run of an agent; they take one to five seconds."""

_SCRIPTS = {
    "codex": "@openai/codex/bin/codex.js",
    "gemini": "@google/gemini-cli/bundle/gemini.js",
    "qwen": "@qwen-code/qwen-code/cli-entry.js",
    "pi": "@mariozechner/pi-coding-agent/dist/cli.js",
}
# `npm ci --ignore-scripts` leaves out the step that links these from their platform packages.
_BINARIES = {
    "claude": "@anthropic-ai/claude-code-*/claude*",
    "opencode": "opencode-*-*/bin/opencode*",
}
# aider is from PyPI; its pins conflict with ours, so it has an environment of its own.
_AIDER = ROOT / ".venv-aider" / "bin" / "aider"


def command(agent: str) -> list[str]:
    """Return the command that starts the agent; skip the test when it is not installed."""
    if agent in _SCRIPTS:
        script = PACKAGES / _SCRIPTS[agent]
        found = [str(NODE), str(script)] if script.exists() else []
    elif agent == "aider":
        found = [str(_AIDER)] if _AIDER.exists() else []
    else:
        # The last of several is `-baseline`, which runs on processors without AVX2 too.
        found = [str(path) for path in sorted(PACKAGES.glob(_BINARIES[agent]))[-1:]]
    if not found:
        pytest.skip(f"{agent} is not installed; `make test-agents` installs it")
    return found


def environment(home: Path, **variables: str) -> dict[str, str]:
    """Return an environment without the caller's settings, which reaches nothing but this machine."""
    home.mkdir(exist_ok=True)
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "TERM": "xterm-256color",
        # Port 9 refuses connections: whatever leaves the machine fails at once.
        "HTTP_PROXY": "http://127.0.0.1:9",
        "HTTPS_PROXY": "http://127.0.0.1:9",
        "NO_PROXY": "127.0.0.1,localhost",
        **variables,
    }


@dataclass(frozen=True)
class Ended:
    """A program that has ended."""

    code: int
    out: str
    err: str


@asynccontextmanager
async def started(
    argv: list[str], *, env: Mapping[str, str], cwd: Path, stdin: int = asyncio.subprocess.DEVNULL
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Start a program in a group of its own; end the whole group, tools and servers included."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *argv, env=env, cwd=cwd, stdin=stdin, stdout=pipe, stderr=pipe, start_new_session=True, limit=1 << 26
    )
    try:
        yield process
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            """It has ended, and so has everything that it started."""
        await process.wait()


async def run(argv: list[str], *, env: Mapping[str, str], cwd: Path) -> Ended:
    """Run a program to its end."""
    async with started(argv, env=env, cwd=cwd) as process, asyncio.timeout(SECONDS):
        out, err = await process.communicate()
    assert process.returncode is not None
    return Ended(process.returncode, out.decode(), err.decode())
