"""The catalogue of Codex: rows of the installed Codex, of the gateway, or of both."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from routecodex.cli.agents import AGENTS
from routecodex.cli.agents.agent import LaunchRequest, ModelFacts
from routecodex.cli.agents.codex import catalogue_rows, installed_template

NEWER = {"slug": "gpt-6", "visibility": "list", "tool_mode": "code_mode_only", "use_responses_lite": True}
HIDDEN = {"slug": "hidden", "visibility": "hide"}
PLAIN = {
    "slug": "gpt-5.5",
    "display_name": "GPT",
    "description": "Legacy",
    "visibility": "list",
    "tool_mode": None,
    "priority": 13,
    "base_instructions": "You are Codex.",
    "shell_type": "unified_exec",
    "context_window": 272_000,
    "max_context_window": 272_000,
    "supports_search_tool": True,
    "service_tiers": [{"id": "priority"}],
    "upgrade": {"model": "gpt-6"},
}
GATEWAY_ROW = {
    "slug": "glm.big",
    "display_name": "GLM",
    "description": "of the gateway",
    "priority": 1,
    "base_instructions": "You are an agent.",
    "shell_type": "shell_command",
    "context_window": 100_000,
    "max_context_window": 100_000,
    "input_modalities": ["text"],
}


def request(folder: Path, **changes: Any) -> LaunchRequest:
    defaults: dict[str, Any] = {
        "url": "http://127.0.0.1:4141",
        "key": "k",
        "models": (
            ModelFacts(id="glm.big", context_tokens=200_000),
            ModelFacts(id="glm.small", vision=False),
        ),
        "folder": folder,
        "environ": {"PATH": "/usr/bin:/bin"},
        "generated_session": "run-0a1b2c3d",
        "model": "glm.big",
    }
    return LaunchRequest(**(defaults | changes))


def codex(folder: Path, *rows: dict[str, Any], code: int = 0) -> str:
    """Install a Codex that lists these rows, from a home that is not the person's."""
    file = folder / "codex"
    listed = msgspec.json.encode({"models": rows}).decode()
    file.write_text(
        f"#!{sys.executable}\n"
        "import os, sys\n"
        "assert sys.argv[1:] == ['debug', 'models']\n"
        "assert os.listdir(os.environ['CODEX_HOME']) == []\n"
        f"print({listed!r})\nsys.exit({code})\n"
    )
    file.chmod(0o755)
    return str(file)


def test_the_first_listed_row_with_plain_tools_is_the_template(tmp_path: Path) -> None:
    assert installed_template(codex(tmp_path, NEWER, HIDDEN, PLAIN), {}) == PLAIN


@pytest.mark.parametrize("rows", [(), (NEWER,), (HIDDEN,)])
def test_without_such_a_row_there_is_no_template(tmp_path: Path, rows: tuple[dict[str, Any], ...]) -> None:
    assert installed_template(codex(tmp_path, *rows), {}) is None


def test_a_codex_that_fails_or_is_missing_has_no_template(tmp_path: Path) -> None:
    assert installed_template(codex(tmp_path, PLAIN, code=1), {}) is None
    assert installed_template(str(tmp_path / "nothing"), {}) is None
    assert installed_template(None, {}) is None


def test_a_template_gives_every_model_the_prompt_of_codex(tmp_path: Path) -> None:
    big, small = catalogue_rows(request(tmp_path), PLAIN)
    shared = {
        "base_instructions": "You are Codex.",
        "shell_type": "unified_exec",
        "visibility": "list",
        "supported_in_api": True,
        "availability_nux": None,
        "upgrade": None,
        "apply_patch_tool_type": "freeform",
        "use_responses_lite": False,
        "supports_search_tool": False,
    }
    assert {name: big[name] for name in shared} == shared
    assert not {"tool_mode", "service_tiers"} & big.keys()
    assert [level["effort"] for level in big["supported_reasoning_levels"]] == ["low", "medium", "high"]
    names = ("slug", "display_name", "priority", "context_window", "max_context_window", "input_modalities")
    assert [big[name] for name in names] == [
        "glm.big",
        "glm.big",
        1,
        200_000,
        200_000,
        ["text", "image"],
    ]
    assert [small[name] for name in names] == ["glm.small", "glm.small", 2, 128_000, 128_000, ["text"]]


def test_rows_of_the_gateway_describe_models_and_the_template_the_tools(tmp_path: Path) -> None:
    row, other = catalogue_rows(request(tmp_path, codex_rows=(GATEWAY_ROW,)), PLAIN)
    assert (other["slug"], other["base_instructions"]) == ("glm.small", "You are Codex.")
    assert (row["display_name"], row["context_window"], row["input_modalities"]) == ("GLM", 100_000, ["text"])
    assert (row["base_instructions"], row["shell_type"]) == ("You are Codex.", "unified_exec")


def test_rows_of_the_gateway_are_used_as_they_are_without_a_template(tmp_path: Path) -> None:
    row, other = catalogue_rows(request(tmp_path, codex_rows=(GATEWAY_ROW, {"slug": "not.given"})), None)
    assert row == GATEWAY_ROW
    assert (other["slug"], other["base_instructions"]) == ("glm.small", "You are an agent.")


def test_a_model_whose_size_is_unknown_to_the_gateway_gets_a_cautious_one(tmp_path: Path) -> None:
    unknown = GATEWAY_ROW | {"slug": "glm.small", "context_window": None, "max_context_window": None}
    rows = catalogue_rows(request(tmp_path, codex_rows=(unknown,)), PLAIN)
    assert [row["context_window"] for row in rows] == [200_000, 128_000]


def test_flags_stand_for_provider_model_and_catalogue(tmp_path: Path) -> None:
    plan = AGENTS["codex"].plan(request(tmp_path, executable=codex(tmp_path, PLAIN)))
    (file,) = plan.files
    assert file.path.parent == tmp_path
    assert [row["slug"] for row in msgspec.json.decode(file.content)["models"]] == ["glm.big", "glm.small"]
    assert plan.flags == (
        *("-c", 'model_provider="routecodex"'),
        "-c",
        'model_providers.routecodex={name="RouteCodex",base_url="http://127.0.0.1:4141/v1",'
        'env_key="ROUTECODEX_CLIENT_KEY",wire_api="responses"}',
        *("-c", 'model="glm.big"'),
        *("-c", f'model_catalog_json="{file.path}"'),
    )
    assert plan.env == {"ROUTECODEX_CLIENT_KEY": "k"}


def test_without_any_row_codex_starts_without_a_catalogue(tmp_path: Path) -> None:
    plan = AGENTS["codex"].plan(request(tmp_path))
    assert plan.files == ()
    assert not any("model_catalog_json" in flag for flag in plan.flags)


def test_other_models_get_a_file_of_their_own(tmp_path: Path) -> None:
    executable = codex(tmp_path, PLAIN)
    first = AGENTS["codex"].plan(request(tmp_path, executable=executable))
    other = AGENTS["codex"].plan(request(tmp_path, executable=executable, models=(ModelFacts(id="x.y"),)))
    assert first.files[0].path != other.files[0].path
