"""Claude Code: the address in its environment and again as settings, which beat those of the person.

`env` in a settings file takes precedence over the environment of the process; only `--settings` takes
precedence over the files. `CLAUDE_CONFIG_DIR` is not used: it hides history, MCP servers and login.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import msgspec

from routecodex.cli.agents.addresses import base_url
from routecodex.cli.agents.agent import Agent, LaunchPlan, LaunchRequest
from routecodex.cli.agents.overlay import merge, peek_object, read_object

SWITCHES = {
    "CLAUDE_CODE_GATEWAY_HINT_HEADERS": "1",
    "CLAUDE_CODE_SIMPLE_SYSTEM_PROMPT": "0",
    "ENABLE_TOOL_SEARCH": "false",
    "CLAUDE_CODE_DISABLE_NONSTREAMING_FALLBACK": "1",
    "CLAUDE_CODE_ENABLE_GATEWAY_MODEL_DISCOVERY": "1",
    "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
}
"""Switches for a gateway; one that the person has set is kept."""

_API_KEY = "ANTHROPIC_API_KEY"
_OTHER_CLOUDS = ("CLAUDE_CODE_USE_BEDROCK", "CLAUDE_CODE_USE_VERTEX", "CLAUDE_CODE_USE_FOUNDRY")
"""Variables that send Claude Code to a cloud whatever its base URL."""
_SETTINGS = "--settings"


def _plan(request: LaunchRequest) -> LaunchPlan:
    address = {
        "ANTHROPIC_BASE_URL": base_url(request, request.session),
        "ANTHROPIC_AUTH_TOKEN": request.key,
    }
    if request.small_model is not None:
        address["ANTHROPIC_DEFAULT_HAIKU_MODEL"] = request.small_model
    switches = SWITCHES | _context(request)
    kept = {name: value for name, value in switches.items() if not request.environ.get(name)}
    given, arguments = _take_settings(request.arguments)
    settings = merge(given, {"env": address | dict.fromkeys(_elsewhere(request), "")})
    model = ("--model", request.model) if request.model is not None else ()
    return LaunchPlan(
        flags=(_SETTINGS, msgspec.json.encode(settings).decode(), *model),
        env=address | kept,
        unset=(_API_KEY, *(name for name in _OTHER_CLOUDS if name in request.environ)),
        arguments=arguments,
    )


def _context(request: LaunchRequest) -> dict[str, str]:
    """Return the size of the model's context; for a name that it does not know, Claude Code assumes 1M."""
    sizes = {model.id: model.context_tokens for model in request.models}
    size = sizes.get(request.model or "")
    return {"CLAUDE_CODE_MAX_CONTEXT_TOKENS": str(size)} if size else {}


def _elsewhere(request: LaunchRequest) -> list[str]:
    """Return the variables of the person's settings files that would send Claude Code elsewhere."""
    present = {name for file in settings_files(request.environ, request.home) for name in _variables(file)}
    return sorted(present & {_API_KEY, *_OTHER_CLOUDS})


def settings_files(environ: Mapping[str, str], home: Path) -> tuple[Path, ...]:
    """Return the settings files that Claude Code reads, those of the work tree included."""
    folder = Path(environ.get("CLAUDE_CONFIG_DIR") or home / ".claude")
    project = Path.cwd() / ".claude"
    return (folder / "settings.json", project / "settings.json", project / "settings.local.json")


def _variables(file: Path) -> dict[str, Any]:
    variables = peek_object(file).get("env")
    return variables if isinstance(variables, dict) else {}


def _take_settings(arguments: tuple[str, ...]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Split `--settings` off the person's arguments: of two such flags Claude Code reads only the last."""
    settings: dict[str, Any] = {}
    left: list[str] = []
    rest = iter(arguments)
    for argument in rest:
        name, equals, value = argument.partition("=")
        if argument == "--":
            return settings, (*left, argument, *rest)
        if name == _SETTINGS:
            settings = merge(settings, _given_settings(value if equals else next(rest, "")))
        else:
            left.append(argument)
    return settings, tuple(left)


def _given_settings(value: str) -> dict[str, Any]:
    """Return settings as the flag takes them: JSON, or a file."""
    if not value.lstrip().startswith("{"):
        return read_object(Path(value))
    try:
        return msgspec.json.decode(value, type=dict[str, Any])
    except msgspec.DecodeError as exc:
        raise click.UsageError(f"--settings is neither a file nor valid JSON: {exc}") from exc


CLAUDE = Agent(
    name="claude",
    title="Claude Code",
    executables=("claude",),
    package="@anthropic-ai/claude-code",
    install="npm install -g @anthropic-ai/claude-code",
    tested="2.1.326",
    places=(".local/bin/claude", ".claude/local/claude"),
    plan=_plan,
    keeps_models=True,
    has_small_model=True,
)
