"""Model pickers of Claude Code and Codex: the lists that they read, and the names that they send back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from routecodex.gateway.codex_catalog import base_instructions
from tests.kit import answers, asking
from tests.kit.gateway import provider, serving
from tests.kit.raw_client import call
from tests.kit.steps import Json
from tests.kit.upstream import Upstream

CONFIG = """
[server]
port = 0
[providers.glm]
protocol = "demo"
[providers.glm.models."glm-4.7"]
context_tokens = 200000
vision = false
[providers.glm.models."glm-5"]
[providers.router]
protocol = "demo"
[providers.router.models."anthropic/sonnet"]
[providers.router.models."Claude-Opus"]
context_tokens = 9000
[models]
"gpt-5" = "glm.glm-4.7"
"claude-fast" = "route:default"
"smart" = "route:thinking"
"claude-*haiku*" = "router.Claude-Opus"
[routing]
default = ["router.Claude-Opus", "glm.glm-5"]
thinking = ["glm.glm-4.7", "router.Claude-Opus"]
"""
IDS = [
    *("glm.glm-4.7", "glm.glm-5", "router.anthropic/sonnet", "router.Claude-Opus"),
    *("gpt-5", "claude-fast", "smart"),
]
CLAUDES = ["router.anthropic/sonnet", "router.Claude-Opus", "claude-fast"]
OTHERS = ["glm.glm-4.7", "glm.glm-5", "gpt-5", "smart"]
VIA = ["claude-via-glm.glm-4.7", "claude-via-glm.glm-5"]
ANTHROPIC = {"anthropic-version": "2023-06-01"}
CLAUDE_CODE = {**ANTHROPIC, "user-agent": "claude-code/2.1.326"}

LISTS: list[tuple[str, dict[str, str], list[str]]] = [
    ("/v1/models", {}, IDS),
    ("/v1/models?limit=1000", {"user-agent": "claude-code/2.1.326"}, IDS),
    ("/v1/models", ANTHROPIC, [*CLAUDES, *OTHERS]),
    ("/v1/models?limit=1000", ANTHROPIC, [*CLAUDES, *OTHERS]),
    ("/v1/models", CLAUDE_CODE, [*CLAUDES, *OTHERS]),
    ("/v1/models?limit=20", CLAUDE_CODE, [*CLAUDES, *OTHERS]),
    ("/v1/models?limit=1000", {**ANTHROPIC, "user-agent": "anthropic/1"}, [*CLAUDES, *OTHERS]),
    ("/v1/models?limit=1000", CLAUDE_CODE, [*CLAUDES, *VIA, *OTHERS]),
]


@pytest.mark.parametrize(("path", "headers", "ids"), LISTS)
async def test_claude_comes_first_for_anthropic_clients_and_stands_for_the_rest_in_claude_code(
    path: str, headers: dict[str, str], ids: list[str]
) -> None:
    async with serving(CONFIG) as gateway:
        answer = await call(gateway.port, path, method="GET", headers=headers)
    assert [row["id"] for row in answer.json["data"]] == ids
    if "anthropic-version" in headers:
        assert (answer.json["first_id"], answer.json["last_id"]) == (ids[0], ids[-1])


async def test_the_picker_shows_the_target_behind_the_name() -> None:
    async with serving(CONFIG) as gateway:
        one = await call(gateway.port, f"/v1/models/{VIA[0]}", method="GET", headers=CLAUDE_CODE)
    assert (one.json["id"], one.json["display_name"]) == (VIA[0], "glm.glm-4.7")


def one_target(up: Upstream, protocol: str) -> str:
    aliases = '[models]\n"claude-*" = "spare.m"\n"claude-via-mine" = "up.m"\n'
    return (
        "[server]\nport = 0\ndrain_seconds = 1\n"
        + provider("up", protocol, up)
        + provider("spare", "chat", up, more='headers = { x-name = "spare" }')
        + f'[routing]\ndefault = ["spare.m"]\n{aliases}'
    )


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("client", ["chat", "responses", "messages", "gemini"])
async def test_the_name_of_the_picker_is_accepted_as_its_target(client: str, stream: bool) -> None:
    async with (
        Upstream(lambda request: answers.text("messages", "hi", answers.wants_stream(request))) as up,
        serving(one_target(up, "messages")) as gateway,
    ):
        for model in ("claude-via-up.m", "claude-via-up.primary.m", "claude-via-mine"):
            answer = await call(
                gateway.port,
                asking.path(client, stream=stream, model=model),
                asking.body(client, stream=stream, model=model),
            )
            assert (answer.status, answer.headers["x-routecodex-target"]) == (200, "up.primary.m")
    assert [request.json["model"] for request in up.requests] == ["m"] * 3


async def test_tokens_and_embeddings_take_the_name_of_the_picker_too() -> None:
    async with (
        Upstream(lambda _: Json(200, {"input_tokens": 42, "data": []})) as up,
        serving(one_target(up, "messages")) as gateway,
        serving(one_target(up, "chat")) as embedding,
    ):
        body = {"model": "claude-via-up.m", "messages": [{"role": "user", "content": "hi"}]}
        counted = await call(gateway.port, "/v1/messages/count_tokens", body, headers=ANTHROPIC)
        embedded = await call(embedding.port, "/v1/embeddings", {"model": "claude-via-up.m", "input": "hi"})
    assert (counted.json, embedded.status) == ({"input_tokens": 42}, 200)
    assert [request.json["model"] for request in up.requests] == ["m", "m"]


async def test_an_unknown_model_behind_the_prefix_is_the_404_with_near_targets() -> None:
    async with Upstream() as up, serving(one_target(up, "chat")) as gateway:
        answer = await call(
            gateway.port, "/v1/chat/completions", asking.body("chat", stream=False, model="claude-via-up.x")
        )
    assert (answer.status, answer.json["details"]) == (
        404,
        {"provider": "up.x", "near": ["up.m"]},
    )


async def catalog(text: str, *, path: str = "/v1/models?client_version=0.169.0", **headers: str) -> Any:
    async with serving(text) as gateway:
        return (await call(gateway.port, path, method="GET", headers=headers)).json


async def test_codex_gets_its_catalog_beside_the_ordinary_list() -> None:
    plain = await catalog(CONFIG, path="/v1/models")
    asked = await catalog(CONFIG)
    rows = asked.pop("models")
    assert asked == plain
    assert [row["slug"] for row in rows] == [
        *("router.Claude-Opus", "glm.glm-5", "glm.glm-4.7", "router.anthropic/sonnet"),
        *("gpt-5", "claude-fast", "smart"),
    ]
    assert [row["priority"] for row in rows] == list(range(7))
    row = next(row for row in rows if row["slug"] == "glm.glm-4.7")
    assert row.pop("base_instructions") == base_instructions()
    assert [level["effort"] for level in row.pop("supported_reasoning_levels")] == ["low", "medium", "high"]
    assert row == {
        "slug": "glm.glm-4.7",
        "display_name": "glm.glm-4.7",
        "description": "Model of provider glm",
        "default_reasoning_level": "medium",
        "shell_type": "unified_exec",
        "visibility": "list",
        "supported_in_api": True,
        "priority": 2,
        "availability_nux": None,
        "upgrade": None,
        "support_verbosity": False,
        "default_verbosity": None,
        "apply_patch_tool_type": "freeform",
        "truncation_policy": {"mode": "tokens", "limit": 10_000},
        "context_window": 200_000,
        "max_context_window": 200_000,
        "experimental_supported_tools": [],
        "input_modalities": ["text"],
        "supports_search_tool": False,
        "use_responses_lite": False,
        "supports_parallel_tool_calls": True,
    }
    contexts = {row["slug"]: row["context_window"] for row in rows}
    assert (contexts["gpt-5"], contexts["glm.glm-5"]) == (200_000, None)
    assert (contexts["claude-fast"], contexts["smart"]) == (9000, 9000)
    assert {row["slug"]: row["input_modalities"] for row in rows}["glm.glm-5"] == ["text", "image"]


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("/v1/models", {}),
        ("/v1/models?client=0.169.0", {}),
        ("/v1/models?client_version=0.169.0", ANTHROPIC),
    ],
)
async def test_nobody_else_gets_the_catalog(path: str, headers: dict[str, str]) -> None:
    assert "models" not in await catalog(CONFIG, path=path, **headers)


def test_the_instructions_of_the_gateway_tell_an_agent_how_to_edit_files() -> None:
    text = base_instructions()
    assert len(text) > 2000
    for word in ("apply_patch", "*** Begin Patch", "*** End Patch", "shell", "AGENTS.md"):
        assert word in text


async def test_the_configured_instructions_are_sent_as_they_are_now(tmp_path: Path) -> None:
    file = tmp_path / "prompt.md"
    file.write_text("Be brief. Ünïcode.")
    text = f'{CONFIG}[codex]\ninstructions_file = "{file}"\n'
    async with serving(text) as gateway:
        texts = []
        for content in ("Be brief. Ünïcode.", "Be long.", " \n", None):
            if content is not None:
                file.write_text(content)
            else:
                file.unlink()
            listed = await call(gateway.port, "/v1/models?client_version=1", method="GET")
            texts.append({row["base_instructions"] for row in listed.json["models"]})
    own = {base_instructions()}
    assert texts == [{"Be brief. Ünïcode."}, {"Be long."}, own, own]


async def test_a_gateway_with_ten_thousand_models_still_lists_them_for_codex() -> None:
    rows = [{"id": f"m-{at}"} for at in range(10_000)]
    text = (
        '[server]\nport = 0\n[providers.up]\nprotocol = "chat"\nmodels = "discover"\n'
        'base_url = "{url}/v1"\nauth_style = "none"\n[routing]\ndefault = ["up.m-7"]\n'
    )
    async with (
        Upstream(lambda _: Json(200, {"data": rows})) as up,
        serving(text.replace("{url}", up.url)) as gateway,
    ):
        await gateway.service.gateway.model_lists.settle(20)
        answer = await call(gateway.port, "/v1/models?client_version=1", method="GET")
    models = msgspec.json.decode(answer.body)["models"]
    assert (len(models), models[0]["slug"], models[1]["slug"]) == (10_000, "up.m-7", "up.m-0")
