"""The plan of each agent: flags, variables, removed variables and files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import msgspec
import pytest
from msgspec.structs import replace

from routecodex.cli.agents import AGENTS
from routecodex.cli.agents.agent import LaunchPlan, LaunchRequest, ModelFacts, PlannedFile
from routecodex.cli.agents.claude import SWITCHES

URL = "http://127.0.0.1:4141"
MODELS = (
    ModelFacts(id="glm.big", context_tokens=200_000, max_output_tokens=32_000),
    ModelFacts(id="glm.small", vision=False, reasoning=False),
)


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LaunchRequest:
    """A request for the first model, in a home and a work tree of its own."""
    (tmp_path / "home").mkdir()
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return LaunchRequest(
        url=URL,
        key="k",
        models=MODELS,
        folder=tmp_path / "ours",
        environ={"HOME": str(tmp_path / "home")},
        generated_session="run-0a1b2c3d",
        model="glm.big",
    )


def plan(agent: str, request: LaunchRequest, **changes: Any) -> LaunchPlan:
    return AGENTS[agent].plan(replace(request, **changes))


def content(file: PlannedFile) -> Any:
    return msgspec.json.decode(file.content)


def settings_of(made: LaunchPlan) -> dict[str, Any]:
    """Return the object that Claude Code gets by `--settings`."""
    assert made.flags[0] == "--settings"
    return msgspec.json.decode(made.flags[1], type=dict[str, Any])


def test_claude_code_keeps_its_names_without_a_model(asked: LaunchRequest) -> None:
    made = plan("claude", asked, model=None)
    address = {"ANTHROPIC_BASE_URL": URL, "ANTHROPIC_AUTH_TOKEN": "k"}
    assert made == LaunchPlan(
        flags=(
            "--settings",
            '{"env":{"ANTHROPIC_BASE_URL":"http://127.0.0.1:4141","ANTHROPIC_AUTH_TOKEN":"k"}}',
        ),
        env=address | SWITCHES,
        unset=("ANTHROPIC_API_KEY",),
        arguments=(),
    )


def test_claude_code_gets_the_size_of_its_model(asked: LaunchRequest) -> None:
    made = plan("claude", asked, small_model="glm.small")
    assert made.flags[2:] == ("--model", "glm.big")
    assert made.env["CLAUDE_CODE_MAX_CONTEXT_TOKENS"] == "200000"
    assert settings_of(made)["env"]["ANTHROPIC_DEFAULT_HAIKU_MODEL"] == "glm.small"
    assert made.env["ANTHROPIC_DEFAULT_HAIKU_MODEL"] == "glm.small"
    unknown_size = plan("claude", asked, model="glm.small")
    assert "CLAUDE_CODE_MAX_CONTEXT_TOKENS" not in unknown_size.env


def test_switches_that_the_person_has_set_are_kept(asked: LaunchRequest) -> None:
    environ = {**asked.environ, "ENABLE_TOOL_SEARCH": "true", "CLAUDE_CODE_MAX_CONTEXT_TOKENS": "90000"}
    made = plan("claude", asked, environ=environ)
    assert not {"ENABLE_TOOL_SEARCH", "CLAUDE_CODE_MAX_CONTEXT_TOKENS"} & made.env.keys()


def test_settings_of_claude_code_that_lead_elsewhere_are_overridden(asked: LaunchRequest) -> None:
    elsewhere = {"ANTHROPIC_API_KEY": "sk", "CLAUDE_CODE_USE_BEDROCK": "1", "OTHER": "stays"}
    for folder in (asked.home, Path.cwd()):
        (folder / ".claude").mkdir()
    (asked.home / ".claude" / "settings.json").write_bytes(msgspec.json.encode({"env": elsewhere}))
    project = '// of the project\n{"env": {"CLAUDE_CODE_USE_VERTEX": "1"}}'
    (Path.cwd() / ".claude" / "settings.local.json").write_text(project)
    made = plan("claude", asked, environ={**asked.environ, "CLAUDE_CODE_USE_FOUNDRY": "1"})
    assert settings_of(made)["env"] == {
        "ANTHROPIC_BASE_URL": URL,
        "ANTHROPIC_AUTH_TOKEN": "k",
        "ANTHROPIC_API_KEY": "",
        "CLAUDE_CODE_USE_BEDROCK": "",
        "CLAUDE_CODE_USE_VERTEX": "",
    }
    assert made.unset == ("ANTHROPIC_API_KEY", "CLAUDE_CODE_USE_FOUNDRY")


def test_settings_among_the_arguments_are_merged(asked: LaunchRequest, tmp_path: Path) -> None:
    file = tmp_path / "mine.json"
    file.write_text('{"model": "opus", "env": {"A": "1"}}')
    inline = '--settings={"env": {"ANTHROPIC_BASE_URL": "http://elsewhere", "B": "2"}}'
    arguments = ("--settings", str(file), "-p", inline, "hi", "--", "--settings", "stays")
    made = plan("claude", asked, arguments=arguments)
    assert made.arguments == ("-p", "hi", "--", "--settings", "stays")
    address = {"ANTHROPIC_BASE_URL": URL, "ANTHROPIC_AUTH_TOKEN": "k"}
    assert settings_of(made) == {"model": "opus", "env": {"A": "1", "B": "2", **address}}


@pytest.mark.parametrize("text", ["{", "[1]", '"x"'])
def test_a_settings_file_that_the_agent_cannot_read_is_a_usage_error(asked: LaunchRequest, text: str) -> None:
    (asked.home / ".gemini").mkdir()
    (asked.home / ".gemini" / "settings.json").write_text(text)
    with pytest.raises(click.UsageError, match="the agent could not read it either"):
        plan("gemini", asked)


@pytest.mark.parametrize("agent", ["claude", "codex", "opencode", "qwen", "aider", "crush"])
def test_a_session_is_named_by_the_path(asked: LaunchRequest, agent: str) -> None:
    made = plan(agent, asked, session="my work/ü")
    assert f"{URL}/s/my%20work%2F%C3%BC" in repr(made)


@pytest.mark.parametrize("agent", ["gemini", "pi"])
def test_a_session_is_named_by_a_header_where_there_are_headers(asked: LaunchRequest, agent: str) -> None:
    made = repr(plan(agent, asked, session="my-work"))
    assert "x-session-id" in made
    assert "my-work" in made
    assert "/s/" not in made
    # A comma would end the header in Gemini CLI.
    assert f"{URL}/s/a%2C%20b" in repr(plan(agent, asked, session="a, b"))


@pytest.mark.parametrize(
    ("agent", "named"), [("gemini", True), ("qwen", True), ("pi", True), ("aider", True)]
)
def test_agents_without_a_session_get_one(asked: LaunchRequest, agent: str, named: bool) -> None:
    assert ("run-0a1b2c3d" in repr(plan(agent, asked))) is named


@pytest.mark.parametrize("agent", ["claude", "codex", "opencode", "crush"])
def test_agents_that_name_their_session_get_none(asked: LaunchRequest, agent: str) -> None:
    assert "run-0a1b2c3d" not in repr(plan(agent, asked))


def test_gemini_cli_gets_a_home_with_another_sign_in_method(asked: LaunchRequest) -> None:
    person = asked.home / ".gemini"
    (person / "tmp").mkdir(parents=True)
    (person / "settings.json").write_text(
        '{"security": {"auth": {"selectedType": "oauth-personal", "enforcedType": "oauth-personal"}},'
        ' "ui": {"theme": "x"}}'
    )
    made = plan(
        "gemini", asked, environ={**asked.environ, "GEMINI_CLI_CUSTOM_HEADERS": "a: 1, X-Session-Id: 2"}
    )
    ours = asked.folder / "home" / ".gemini"
    assert made.flags == ("-m", "glm.big")
    assert made.env == {
        "GOOGLE_GEMINI_BASE_URL": URL,
        "GEMINI_API_KEY": "k",
        "GEMINI_CLI_HOME": str(asked.folder / "home"),
        "GEMINI_CLI_CUSTOM_HEADERS": "a: 1,x-session-id: run-0a1b2c3d",
    }
    assert made.unset == ("GOOGLE_API_KEY", "GOOGLE_GENAI_USE_VERTEXAI", "GOOGLE_GENAI_USE_GCA")
    settings, link = made.files
    assert link == PlannedFile(path=ours / "tmp", link=person / "tmp")
    assert (settings.path, content(settings)) == (
        ours / "settings.json",
        {
            "security": {"auth": {"selectedType": "gemini-api-key"}},
            "ui": {"theme": "x"},
        },
    )
    again = plan("gemini", asked, environ={**asked.environ, "GEMINI_CLI_HOME": str(asked.folder / "home")})
    assert again.files == made.files
    assert plan("gemini", asked, model=None).flags == ()


def test_opencode_gets_a_provider_with_limits(asked: LaunchRequest) -> None:
    given = '{"theme": "x", "provider": {"mine": {}}, "model": "mine/m"}'
    environ = {**asked.environ, "OPENCODE_CONFIG_CONTENT": given, "OPENCODE_DISABLE_AUTOUPDATE": "0"}
    made = plan("opencode", asked, small_model="glm.small", environ=environ)
    row = {"tool_call": True, "reasoning": True, "attachment": True}
    assert msgspec.json.decode(made.env.pop("OPENCODE_CONFIG_CONTENT")) == {
        "theme": "x",
        "provider": {
            "mine": {},
            "routecodex": {
                "npm": "@ai-sdk/openai-compatible",
                "name": "RouteCodex",
                "options": {"baseURL": f"{URL}/v1", "apiKey": "k"},
                "models": {
                    "glm.big": {"name": "glm.big", **row, "limit": {"context": 200_000, "output": 32_000}},
                    "glm.small": {
                        "name": "glm.small",
                        "tool_call": True,
                        "reasoning": False,
                        "attachment": False,
                        "limit": {"context": 128_000, "output": 16_000},
                    },
                },
            },
        },
        "model": "routecodex/glm.big",
        "small_model": "routecodex/glm.small",
        "agent": {"build": {"model": "routecodex/glm.big"}, "plan": {"model": "routecodex/glm.big"}},
    }
    assert made == LaunchPlan(env={"OPENCODE_DISABLE_MODELS_FETCH": "1"})


def test_opencode_keeps_the_providers_that_a_person_has_enabled(asked: LaunchRequest) -> None:
    folder = asked.home / ".config" / "opencode"
    folder.mkdir(parents=True)
    (folder / "opencode.json").write_text('{"enabled_providers": ["openai"]}')
    (Path.cwd() / "opencode.jsonc").write_text('{"enabled_providers": ["anthropic",], /* mine */ }')
    (Path.cwd() / "opencode.json").write_text("not JSON: opencode says so itself")
    config = msgspec.json.decode(plan("opencode", asked).env["OPENCODE_CONFIG_CONTENT"])
    assert config["enabled_providers"] == ["anthropic", "routecodex"]


def test_qwen_code_gets_flags(asked: LaunchRequest) -> None:
    url = f"{URL}/s/run-0a1b2c3d/v1"
    flags = ("--auth-type", "openai", "--openai-base-url", url, "--openai-api-key", "k", "-m", "glm.big")
    assert plan("qwen", asked) == LaunchPlan(flags=flags)


def test_aider_gets_flags_for_all_its_models(asked: LaunchRequest) -> None:
    model = "openai/glm.big"
    assert plan("aider", asked) == LaunchPlan(
        flags=(
            *("--openai-api-base", f"{URL}/s/run-0a1b2c3d/v1", "--openai-api-key", "k"),
            *("--model", model, "--weak-model", model, "--editor-model", model, "--no-show-model-warnings"),
        )
    )


def test_pi_gets_an_extension_that_is_the_same_for_every_run(asked: LaunchRequest) -> None:
    made, other = (
        plan("pi", asked),
        plan("pi", asked, url="http://127.0.0.1:1", session="s", model="glm.small"),
    )
    file = asked.folder / "routecodex.ts"
    assert made.flags == ("-e", str(file), "--provider", "routecodex", "--model", "glm.big")
    assert made.files == other.files
    assert made.env["ROUTECODEX_CLIENT_KEY"] == "k"
    provider = msgspec.json.decode(made.env["ROUTECODEX_PI_PROVIDER"])
    models = provider.pop("models")
    assert provider == {
        "baseUrl": f"{URL}/v1",
        "api": "openai-completions",
        "headers": {"x-session-id": "run-0a1b2c3d"},
    }
    assert [(row["id"], row["contextWindow"], row["maxTokens"], row["input"]) for row in models] == [
        ("glm.big", 200_000, 32_000, ["text", "image"]),
        ("glm.small", 128_000, 16_000, ["text"]),
    ]


def test_crush_gets_the_persons_configuration_with_a_provider(asked: LaunchRequest) -> None:
    config, data = asked.home / ".config" / "crush", asked.home / "data" / "crush"
    for folder in (config, data):
        folder.mkdir(parents=True)
    (config / "crush.json").write_text(
        '{"options": {"debug": true}, "models": {"large": {"model": "other"}}}'
    )
    (config / "crushrc").write_text("")
    (data / "crush.json").write_text('{"models": {"large": {"provider": "other"}}, "recent": 1}')
    (data / "projects.json").write_text("{}")
    made = plan("crush", asked, environ={**asked.environ, "XDG_DATA_HOME": str(asked.home / "data")})
    ours = {"config": asked.folder / "config", "data": asked.folder / "data"}
    assert made.env == {
        "CRUSH_GLOBAL_CONFIG": str(ours["config"]),
        "CRUSH_GLOBAL_DATA": str(ours["data"]),
        "ROUTECODEX_BASE_URL": f"{URL}/v1",
        "ROUTECODEX_CLIENT_KEY": "k",
    }
    chosen = {"model": "glm.big", "provider": "routecodex"}
    settings, shell, state, projects = made.files
    merged = content(settings)
    rows = merged["providers"]["routecodex"].pop("models")
    assert merged == {
        "options": {"debug": True},
        "models": {"large": chosen, "small": chosen},
        "providers": {
            "routecodex": {
                "name": "RouteCodex",
                "type": "openai-compat",
                "base_url": "$ROUTECODEX_BASE_URL",
                "api_key": "$ROUTECODEX_CLIENT_KEY",
                "discover_models": False,
            }
        },
    }
    assert rows[0] == {
        "id": "glm.big",
        "name": "glm.big",
        "context_window": 200_000,
        "default_max_tokens": 32_000,
        "can_reason": True,
        "supports_attachments": True,
    }
    assert content(state) == {"models": {"large": chosen, "small": chosen}, "recent": 1}
    assert shell == PlannedFile(path=ours["config"] / "crushrc", link=config / "crushrc")
    assert projects == PlannedFile(path=ours["data"] / "projects.json", link=data / "projects.json")
