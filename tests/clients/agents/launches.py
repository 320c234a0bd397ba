"""Real agents started by `routecodex run`: how they work without a terminal, and what a person may set."""

from __future__ import annotations

import hashlib
import shlex
import sys
from dataclasses import dataclass, field
from pathlib import Path

from tests.clients.agents.programs import Ended, command, environment, run
from tests.clients.agents.scene import Scene
from tests.clients.gateway import ROOT
from tests.kit.answers import Call, Piece, TextPiece

ELSEWHERE = "http://127.0.0.1:9"
"""Nothing listens there: an agent that goes there fails."""


@dataclass(frozen=True)
class LaunchCase:
    """One agent without a terminal."""

    name: str
    speaks: str
    """The protocol of its requests."""
    arguments: tuple[str, ...]
    """Its arguments before a prompt."""
    reads: Piece
    """The model's call that makes it read a.txt; for an agent without tools, an answer that writes a file."""
    settings: dict[str, str] = field(default_factory=dict)
    """Files of a person, below the home directory, that lead elsewhere."""
    variables: dict[str, str] = field(default_factory=dict)
    """Variables of a person that lead elsewhere."""
    names: tuple[str, ...] = ()
    """Options of the run: agents that keep their own model names are given one."""
    own: tuple[str, ...] = ()
    """Files of the settings above that the agent itself changes, launched by us or not."""


_CLAUDE_SETTINGS = f"""{{
  "env": {{"ANTHROPIC_BASE_URL": "{ELSEWHERE}", "ANTHROPIC_AUTH_TOKEN": "mine",
    "ANTHROPIC_API_KEY": "sk-mine", "CLAUDE_CODE_USE_BEDROCK": "1"}},
  "apiKeyHelper": "echo key-of-a-helper"
}}"""
_CODEX_SETTINGS = f"""
model = "gpt-6-sol"
model_provider = "elsewhere"
[model_providers.elsewhere]
name = "Elsewhere"
base_url = "{ELSEWHERE}"
wire_api = "responses"
"""
_OPENCODE_SETTINGS = f"""{{
  "$schema": "https://opencode.ai/config.json",
  "model": "elsewhere/m",
  "agent": {{"build": {{"model": "elsewhere/m"}}}},
  "provider": {{"elsewhere": {{"npm": "@ai-sdk/openai-compatible", "options": {{"baseURL": "{ELSEWHERE}"}},
    "models": {{"m": {{}}}}}}}}
}}"""
_AIDER_SETTINGS = f"""
model: gpt-4o
weak-model: anthropic/claude-3-5-haiku-latest
editor-model: anthropic/claude-3-5-haiku-latest
openai-api-base: {ELSEWHERE}
openai-api-key: sk-mine
"""
_QUIET_AIDER = ("--no-git", "--yes-always", "--no-check-update", "--no-stream", "--analytics-disable")

CASES = {
    case.name: case
    for case in (
        LaunchCase(
            name="claude",
            speaks="messages",
            arguments=("-p",),
            reads=Call("Read", {"file_path": "a.txt"}),
            settings={".claude/settings.json": _CLAUDE_SETTINGS},
            variables={"ANTHROPIC_API_KEY": "sk-mine", "ANTHROPIC_BASE_URL": ELSEWHERE},
        ),
        LaunchCase(
            name="codex",
            speaks="responses",
            arguments=("exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"),
            reads=Call("exec_command", {"cmd": "cat a.txt"}),
            settings={".codex/config.toml": _CODEX_SETTINGS},
            variables={"OPENAI_API_KEY": "sk-mine", "OPENAI_BASE_URL": ELSEWHERE},
        ),
        LaunchCase(
            name="gemini",
            speaks="gemini",
            arguments=("--skip-trust", "--approval-mode", "yolo", "-p"),
            reads=Call("read_file", {"file_path": "a.txt"}),
            settings={
                ".gemini/settings.json": '{"security": {"auth": {"selectedType": "oauth-personal"}}}',
                ".gemini/.env": f"GOOGLE_GEMINI_BASE_URL={ELSEWHERE}\nGOOGLE_API_KEY=mine\n",
            },
            variables={"GOOGLE_API_KEY": "mine", "GOOGLE_GENAI_USE_VERTEXAI": "true"},
            names=("--model", "up.main"),
        ),
        LaunchCase(
            name="opencode",
            speaks="chat",
            arguments=("run",),
            reads=Call("read", {"filePath": "a.txt"}),
            settings={".config/opencode/opencode.json": _OPENCODE_SETTINGS},
            names=("--small-model", "up.small"),
        ),
        LaunchCase(
            name="qwen",
            speaks="chat",
            arguments=("--approval-mode", "yolo", "-p"),
            # Qwen Code may lose what a command prints just before it ends: let it read first.
            reads=Call("run_shell_command", {"command": "cat a.txt && sleep 0.3", "is_background": False}),
            settings={".qwen/settings.json": '{"security": {"auth": {"selectedType": "qwen-oauth"}}}'},
            variables={"OPENAI_BASE_URL": ELSEWHERE, "OPENAI_MODEL": "other"},
            own=(".qwen/settings.json",),
        ),
        LaunchCase(
            name="pi",
            speaks="chat",
            arguments=("-p",),
            reads=Call("read", {"path": "a.txt"}),
            settings={
                ".pi/agent/settings.json": '{"defaultProvider": "anthropic", "defaultModel": "claude-x"}'
            },
            variables={"ANTHROPIC_API_KEY": "sk-mine"},
        ),
        LaunchCase(
            name="aider",
            speaks="chat",
            arguments=(*_QUIET_AIDER, "--message"),
            reads=TextPiece("b.txt\n```\nsunny\n```\n"),
            settings={".aider.conf.yml": _AIDER_SETTINGS},
            variables={"OPENAI_API_BASE": ELSEWHERE},
        ),
    )
}


def launch_environment(scene: Scene, case: LaunchCase) -> dict[str, str]:
    """Return an environment with the agent in PATH, the user dir of the scene, and what a person has set."""
    programs = scene.home.parent / "programs"
    programs.mkdir(exist_ok=True)
    program = programs / case.name
    program.write_text(f'#!/bin/sh\nexec {shlex.join(command(case.name))} "$@"\n')
    program.chmod(0o755)
    user = scene.home.parent / "gateway" / "user"
    env = environment(
        scene.home, ROUTECODEX_USER_DIR=str(user), PYTHONPATH=str(ROOT / "src"), **case.variables
    )
    for name, text in case.settings.items():
        file = scene.home / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return env | {"PATH": f"{programs}:{env['PATH']}"}


async def launch(scene: Scene, case: LaunchCase, prompt: str, *options: str) -> Ended:
    """Run a prompt by the real command and the real agent."""
    return await launch_with(scene, case, (*case.arguments, prompt), *case.names, *options)


async def launch_with(scene: Scene, case: LaunchCase, arguments: tuple[str, ...], *options: str) -> Ended:
    """Run the agent with these arguments."""
    env = launch_environment(scene, case)
    argv = [sys.executable, "-m", "routecodex", "run", case.name, *options, "--", *arguments]
    return await run(argv, env=env, cwd=scene.work)


def digests(folder: Path) -> dict[str, str]:
    """Return the hash of every file below a folder."""
    files = [file for file in sorted(folder.rglob("*")) if file.is_file() and not file.is_symlink()]
    return {str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}
