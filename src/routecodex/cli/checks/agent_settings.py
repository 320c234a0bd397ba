"""Checks the settings of a person for an agent: those that send it elsewhere, or keep it from starting.

`routecodex run` takes precedence over almost all of them, so most are warnings: they matter to an agent that
is started by itself. Which setting wins was measured with the real agents (see `cli/agents`).
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import click
from msgspec import Struct

from routecodex.cli.agents.agent import Agent
from routecodex.cli.agents.claude import settings_files
from routecodex.cli.agents.overlay import read_object
from routecodex.cli.checks.result import CheckResult, failed, passed, warned


class SettingFound(Struct, frozen=True):
    """A setting that gets in the way; `fails` if `routecodex run` cannot overrule it."""

    message: str
    fix: str
    severity: Literal["warns", "fails"] = "warns"


class PersonalFiles(Struct, frozen=True, kw_only=True):
    """Places of settings: the environment, the home and work directories, the directory of the system."""

    environ: Mapping[str, str]
    work: Path
    system: Path = Path("/etc")

    @property
    def home(self) -> Path:
        """The home directory, as agents see it."""
        return Path(self.environ.get("HOME") or Path.home())

    def folder(self, variable: str, default: str) -> Path:
        """Return the folder that a variable names, else one below the home directory."""
        return Path(self.environ.get(variable) or self.home / default)


def check_settings(agent: Agent, files: PersonalFiles) -> CheckResult:
    """Check the settings of one agent; the worst one is the result, the others are named."""
    check_id = f"{agent.name}.settings"
    try:
        found = list(_FINDERS[agent.name](files))
    except click.UsageError as exc:
        return failed(check_id, exc.message, "correct the file")
    if not found:
        return passed(check_id, f"no setting of yours sends {agent.title} elsewhere")
    found.sort(key=lambda one: one.severity)
    message = "; ".join(one.message for one in found)
    fix = "; ".join(dict.fromkeys(one.fix for one in found))
    return (failed if found[0].severity == "fails" else warned)(check_id, message, fix)


def _by_itself(command: str) -> str:
    return f"start it with `routecodex run {command}`, which overrules this"


def _variables(files: PersonalFiles, names: tuple[str, ...], command: str) -> Iterator[SettingFound]:
    given = [name for name in names if files.environ.get(name)]
    if given:
        yield SettingFound(f"the environment sets {', '.join(given)}", _by_itself(command))


_CLAUDE_ADDRESS = (
    "ANTHROPIC_BASE_URL",
    "ANTHROPIC_API_KEY",
    "CLAUDE_CODE_USE_BEDROCK",
    "CLAUDE_CODE_USE_VERTEX",
    "CLAUDE_CODE_USE_FOUNDRY",
)


def _claude(files: PersonalFiles) -> Iterator[SettingFound]:
    managed = files.system / "claude-code" / "managed-settings.json"
    names = _set_in_env(managed)
    if names:
        message = f"{managed} sets {', '.join(names)}, which nothing can overrule"
        yield SettingFound(message, "ask the administrator of this machine to remove them", "fails")
    for file in settings_files(files.environ, files.home):
        names = _set_in_env(file)
        if names:
            yield SettingFound(f"{file} sets {', '.join(names)} in env", _by_itself("claude"))
    yield from _variables(files, _CLAUDE_ADDRESS[1:], "claude")


def _set_in_env(file: Path) -> list[str]:
    variables = read_object(file).get("env")
    given = variables if isinstance(variables, dict) else {}
    return [name for name in _CLAUDE_ADDRESS if given.get(name)]


def _codex(files: PersonalFiles) -> Iterator[SettingFound]:
    file = files.folder("CODEX_HOME", ".codex") / "config.toml"
    settings = _read_toml(file)
    chosen = [name for name in ("model_provider", "profile", "openai_base_url") if settings.get(name)]
    if chosen:
        yield SettingFound(f"{file} sets {', '.join(chosen)}", _by_itself("codex"))


def _read_toml(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text("utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, UnicodeDecodeError) as exc:
        raise click.UsageError(f"cannot read {file}: {exc}") from exc
    except tomllib.TOMLDecodeError as exc:
        raise click.UsageError(
            f"{file} is not valid TOML: {exc}; the agent could not read it either"
        ) from exc


_GEMINI_LOGINS = ("GOOGLE_API_KEY", "GOOGLE_GENAI_USE_VERTEXAI", "GOOGLE_GENAI_USE_GCA")


def _gemini(files: PersonalFiles) -> Iterator[SettingFound]:
    system = files.system / "gemini-cli" / "settings.json"
    forced = _auth(read_object(system))
    method = forced.get("enforcedType") or forced.get("selectedType")
    if method and method != "gemini-api-key":
        message = f"{system} sets the sign-in method {method!r}, which nothing can overrule"
        yield SettingFound(message, "ask the administrator of this machine to remove it", "fails")
    file = files.folder("GEMINI_CLI_HOME", "") / ".gemini" / "settings.json"
    method = _auth(read_object(file)).get("selectedType")
    if method and method != "gemini-api-key":
        yield SettingFound(f"{file} sets the sign-in method {method!r}", _by_itself("gemini"))
    yield from _variables(files, _GEMINI_LOGINS, "gemini")


def _auth(settings: dict[str, Any]) -> dict[str, Any]:
    security = settings.get("security")
    auth = security.get("auth") if isinstance(security, dict) else None
    return auth if isinstance(auth, dict) else {}


def _opencode(files: PersonalFiles) -> Iterator[SettingFound]:
    folder = files.folder("XDG_CONFIG_HOME", ".config") / "opencode"
    places = (*(folder / name for name in ("opencode.json", "opencode.jsonc")), files.work / "opencode.json")
    for file in places:
        model = read_object(file).get("model")
        if model:
            yield SettingFound(f"{file} sets the model {model!r}", _by_itself("opencode"))


def _qwen(files: PersonalFiles) -> Iterator[SettingFound]:
    file = files.home / ".qwen" / "settings.json"
    method = _auth(read_object(file)).get("selectedType")
    if method and method != "openai":
        yield SettingFound(f"{file} sets the sign-in method {method!r}", _by_itself("qwen"))
    yield from _variables(files, ("OPENAI_BASE_URL",), "qwen")


def _pi(files: PersonalFiles) -> Iterator[SettingFound]:
    file = files.folder("PI_CODING_AGENT_DIR", ".pi/agent") / "settings.json"
    provider = read_object(file).get("defaultProvider")
    if provider:
        yield SettingFound(f"{file} sets the provider {provider!r}", _by_itself("pi"))


_AIDER_KEYS = ("openai-api-base", "model")


def _aider(files: PersonalFiles) -> Iterator[SettingFound]:
    for file in dict.fromkeys((files.home / ".aider.conf.yml", files.work / ".aider.conf.yml")):
        names = [name for name in _AIDER_KEYS if _has_yaml_key(file, name)]
        if names:
            yield SettingFound(f"{file} sets {', '.join(names)}", _by_itself("aider"))
    yield from _variables(files, ("OPENAI_API_BASE", "AIDER_MODEL"), "aider")


def _has_yaml_key(file: Path, name: str) -> bool:
    """Whether a YAML file sets a key at its top level; aider's file is a flat list of options."""
    try:
        lines = file.read_text("utf-8").splitlines()
    except FileNotFoundError:
        return False
    except (OSError, UnicodeDecodeError) as exc:
        raise click.UsageError(f"cannot read {file}: {exc}") from exc
    return any(line.startswith(f"{name}:") and line.partition(":")[2].strip() for line in lines)


def _crush(files: PersonalFiles) -> Iterator[SettingFound]:
    file = files.folder("XDG_CONFIG_HOME", ".config") / "crush" / "crush.json"
    for place in (file, files.work / "crush.json", files.work / ".crush.json"):
        if not read_object(place).get("models"):
            continue
        if place == file:
            yield SettingFound(f"{place} chooses models", _by_itself("crush"))
        else:
            message = f"{place} chooses models, which take precedence over those of `routecodex run`"
            yield SettingFound(message, f"remove models from {place}", "fails")


_FINDERS: dict[str, Callable[[PersonalFiles], Iterator[SettingFound]]] = {
    "claude": _claude,
    "codex": _codex,
    "gemini": _gemini,
    "opencode": _opencode,
    "qwen": _qwen,
    "pi": _pi,
    "aider": _aider,
    "crush": _crush,
}
