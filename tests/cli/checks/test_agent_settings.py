from __future__ import annotations

import json
from pathlib import Path

import pytest

from routecodex.cli.agents import AGENTS
from routecodex.cli.checks.agent_settings import PersonalFiles, check_settings
from routecodex.cli.checks.result import CheckResult

agents = pytest.mark.parametrize("agent", AGENTS)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home directory; the work directory is empty too."""
    folder = tmp_path / "home"
    work = tmp_path / "work"
    folder.mkdir()
    work.mkdir()
    monkeypatch.chdir(work)
    return folder


def check(agent: str, home: Path, **environ: str) -> CheckResult:
    files = PersonalFiles(
        environ={"HOME": str(home), **environ}, work=home.parent / "work", system=home.parent / "etc"
    )
    return check_settings(AGENTS[agent], files)


def write(file: Path, content: object) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    return file


@agents
def test_a_person_without_settings_is_ok(agent: str, home: Path) -> None:
    result = check(agent, home)
    assert (result.id, result.status) == (f"{agent}.settings", "ok")


SETTINGS: dict[str, tuple[str, str, object]] = {
    "claude": ("claude", ".claude/settings.json", {"env": {"ANTHROPIC_BASE_URL": "https://elsewhere"}}),
    "codex provider": ("codex", ".codex/config.toml", 'model_provider = "mine"\n'),
    "codex profile": ("codex", ".codex/config.toml", 'profile = "mine"\n'),
    "gemini": ("gemini", ".gemini/settings.json", {"security": {"auth": {"selectedType": "oauth-personal"}}}),
    "opencode": ("opencode", ".config/opencode/opencode.json", {"model": "anthropic/claude"}),
    "qwen": ("qwen", ".qwen/settings.json", {"security": {"auth": {"selectedType": "qwen-oauth"}}}),
    "pi": ("pi", ".pi/agent/settings.json", {"defaultProvider": "anthropic"}),
    "aider": ("aider", ".aider.conf.yml", "openai-api-base: https://elsewhere\n"),
    "crush": ("crush", ".config/crush/crush.json", {"models": {"large": {"model": "gpt"}}}),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_that_send_an_agent_elsewhere_are_a_warning(name: str, home: Path) -> None:
    agent, path, content = SETTINGS[name]
    file = write(home / path, content)
    result = check(agent, home)
    assert result.status == "warn"
    assert str(file) in result.message
    assert result.fix == f"start it with `routecodex run {agent}`, which overrules this"


VARIABLES = {
    "claude": "ANTHROPIC_API_KEY",
    "gemini": "GOOGLE_GENAI_USE_VERTEXAI",
    "qwen": "OPENAI_BASE_URL",
    "aider": "OPENAI_API_BASE",
}


@pytest.mark.parametrize("agent", VARIABLES)
def test_variables_that_send_an_agent_elsewhere_are_a_warning(agent: str, home: Path) -> None:
    result = check(agent, home, **{VARIABLES[agent]: "something"})
    assert result.status == "warn"
    assert result.message == f"the environment sets {VARIABLES[agent]}"


BROKEN = {
    "claude": (".claude/settings.json", '{"env": '),
    "codex": (".codex/config.toml", "model_provider = \n"),
    "gemini": (".gemini/settings.json", "[]"),
    "opencode": (".config/opencode/opencode.json", '{"model": '),
    "qwen": (".qwen/settings.json", "no"),
    "pi": (".pi/agent/settings.json", "{"),
    "crush": (".config/crush/crush.json", "{"),
}


@pytest.mark.parametrize("agent", BROKEN)
def test_a_broken_file_fails(agent: str, home: Path) -> None:
    path, content = BROKEN[agent]
    file = write(home / path, content)
    result = check(agent, home)
    assert (result.status, result.fix) == ("fail", "correct the file")
    assert str(file) in result.message


def test_settings_of_an_administrator_fail(home: Path) -> None:
    etc = home.parent / "etc"
    write(etc / "claude-code" / "managed-settings.json", {"env": {"ANTHROPIC_BASE_URL": "https://company"}})
    write(etc / "gemini-cli" / "settings.json", {"security": {"auth": {"enforcedType": "vertex-ai"}}})
    for agent in ("claude", "gemini"):
        result = check(agent, home)
        assert result.status == "fail"
        assert "nothing can overrule" in result.message
        assert "administrator" in result.fix


def test_models_in_the_work_tree_of_crush_fail(home: Path) -> None:
    file = write(home.parent / "work" / "crush.json", {"models": {"large": {"model": "gpt"}}})
    result = check("crush", home)
    assert (result.status, result.fix) == ("fail", f"remove models from {file}")


def test_moved_folders_are_found(home: Path) -> None:
    moved = home / "moved"
    write(moved / "config.toml", 'profile = "mine"\n')
    assert check("codex", home, CODEX_HOME=str(moved)).status == "warn"
    write(moved / "settings.json", {"env": {"ANTHROPIC_BASE_URL": "https://elsewhere"}})
    assert check("claude", home, CLAUDE_CONFIG_DIR=str(moved)).status == "warn"


def test_the_worst_setting_decides_and_all_are_named(home: Path) -> None:
    write(home / ".claude/settings.json", {"env": {"ANTHROPIC_BASE_URL": "https://elsewhere"}})
    managed = home.parent / "etc" / "claude-code" / "managed-settings.json"
    write(managed, {"env": {"CLAUDE_CODE_USE_BEDROCK": "1"}})
    result = check("claude", home)
    assert result.status == "fail"
    assert result.message.startswith(f"{managed} sets CLAUDE_CODE_USE_BEDROCK")
    assert "ANTHROPIC_BASE_URL" in result.message
