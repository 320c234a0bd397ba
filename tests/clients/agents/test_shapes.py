"""Compares the request shapes of `routecodex doctor` with requests of the real agents."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from routecodex.cli.agents import AGENTS
from routecodex.cli.agents.agent import LaunchRequest, ModelFacts
from routecodex.cli.checks.shapes import AGENT_SHAPES
from routecodex.cli.checks.shapes.shape import RequestShape, ShapeInput, ShapeName
from tests.clients.agents.claude_code import HINTS, claude_code
from tests.clients.agents.codex import codex
from tests.clients.agents.gemini_cli import gemini_cli
from tests.clients.agents.opencode import opencode
from tests.clients.agents.programs import command, environment, run
from tests.clients.agents.scene import Scene, news
from tests.kit import answers
from tests.kit.answers import Call, Counts, TextPiece
from tests.kit.steps import Answer, Json
from tests.kit.upstream import Request, Upstream

pytestmark = pytest.mark.agents

GIVEN = ShapeInput(model="up.m", key="any", session="doctor-1", turn_id="turn-1", summary="It was short.")
TRANSPORT = frozenset({"host", "connection", "accept-encoding", "content-length", "transfer-encoding"})
LARGE = Counts(input=90_000, output=10)
"""Tokens that make Codex and opencode compact at once."""


def shape_of(agent: str, name: ShapeName) -> RequestShape:
    return AGENT_SHAPES[agent].shapes[name](GIVEN)


def check_same(
    shape: RequestShape, request: Request, *, added: Iterable[str] = (), absent: Iterable[str] = ()
) -> None:
    """Check path, headers, fields and tools; `added` and `absent` are names that differ."""
    assert _path(shape.path) == _path(request.path)
    assert shape.headers.keys() - set(added) == request.headers.keys() - TRANSPORT - set(absent)
    assert shape.body.keys() == request.json.keys()
    real = {_name(tool): tool for tool in _tools(request.json)}
    for tool in _tools(shape.body):
        if _name(tool) not in set(added):
            check_tool(tool, real[_name(tool)])


def check_tool(ours: dict[str, Any], real: dict[str, Any]) -> None:
    assert ours.keys() == real.keys()
    for key in ("input_schema", "parameters", "parametersJsonSchema"):
        if key in real:
            assert ours[key].keys() == real[key].keys(), ours
            assert ours[key]["properties"].keys() <= real[key]["properties"].keys()
            assert ours[key].get("required") == real[key].get("required")
    if "function" in ours:
        check_tool(ours["function"], real["function"])


def _path(path: str) -> str:
    return path.rpartition(":")[2] if ":" in path else path[path.index("/v1") :]


def _name(tool: dict[str, Any]) -> str:
    return str(tool.get("name") or tool.get("function", {}).get("name") or tool.get("type"))


def _tools(body: dict[str, Any]) -> list[dict[str, Any]]:
    listed = body.get("tools", [])
    return [one for tool in listed for one in tool.get("functionDeclarations", [tool])]


def _model(protocol: str, pieces: dict[str, Any], request: Request) -> Answer:
    """Answer by the first phrase in what is new since the last answer."""
    if request.method != "POST" or "count_tokens" in request.path:
        return Json(200, {"input_tokens": 42, "data": []})
    new = news(protocol, request.json)
    piece = next((piece for phrase, piece in pieces.items() if phrase in new), "Hello.")
    counts = LARGE if isinstance(piece, Call) else Counts()
    made = piece if isinstance(piece, Call) else TextPiece(piece)
    return answers.compose(protocol, made, stream=answers.wants_stream(request), counts=counts)


@asynccontextmanager
async def recording(folder: Path, protocol: str, **pieces: Any) -> AsyncIterator[Scene]:
    """Run a model in place of the gateway, so that the agent's own bytes are recorded."""
    work = folder / "work"
    work.mkdir()
    (work / "a.txt").write_text("sunny\n")
    phrases = {phrase.replace("_", " "): piece for phrase, piece in pieces.items()}
    async with Upstream(partial(_model, protocol, phrases)) as upstream:
        yield Scene(upstream.url, protocol, folder / "home", work, upstream, folder / "log")


def posted(scene: Scene) -> list[Request]:
    return [request for request in scene.upstream.requests if request.method == "POST"]


async def test_claude_code_sends_these_shapes(tmp_path: Path) -> None:
    from routecodex.cli.agents.claude import SWITCHES

    read = Call("Read", {"file_path": "a.txt"})
    pieces = {
        "Respond with TEXT ONLY": "<summary>Short.</summary>",
        "<session>": '{"title":"T"}',
        "READ it": read,
    }
    async with recording(tmp_path, "messages", **pieces) as scene:
        size = {"CLAUDE_CODE_MAX_CONTEXT_TOKENS": "200000"}
        async with claude_code(scene, model="up.m", **(SWITCHES | HINTS | size)) as session:
            await session.control("initialize")
            await session.say("hello")
            await session.say("READ it")
            await session.control(
                "generate_session_title", description="Say hello to the world", persist=False
            )
            await session.say("/context")
            await session.say("/compact")
        requests = posted(scene)
    by_class = {
        name: [one for one in requests if one.headers.get("x-claude-code-request-class") == name]
        for name in ("main", "auxiliary", "compaction")
    }
    counted = [one for one in by_class["auxiliary"] if "count_tokens" in one.path and one.json["tools"]]
    titled = [one for one in by_class["auxiliary"] if "count_tokens" not in one.path]
    check_same(shape_of("claude", "text"), by_class["main"][0])
    check_same(shape_of("claude", "tool_call"), by_class["main"][1])
    check_same(shape_of("claude", "tool_result"), by_class["main"][2])
    check_same(shape_of("claude", "title"), titled[0])
    check_same(shape_of("claude", "compaction"), by_class["compaction"][0])
    assert shape_of("claude", "count_tokens").body.keys() == counted[0].json.keys()
    assert shape_of("claude", "count_tokens").headers.keys() == counted[0].headers.keys() - TRANSPORT


async def test_codex_sends_these_shapes(tmp_path: Path) -> None:
    read = Call("exec_command", {"cmd": "cat a.txt"})
    pieces = {
        "CONTEXT CHECKPOINT COMPACTION": "Short.",
        "Another language model": "Went on.",
        "READ it": read,
    }
    async with recording(tmp_path, "responses", **pieces) as scene:
        await codex(scene, "READ it", model="up.m", model_auto_compact_token_limit="50000")
        turn, compaction, after = posted(scene)
    # An unknown model gets no apply_patch; the launcher's catalogue adds it.
    check_same(shape_of("codex", "tool_call"), turn, added=["apply_patch"])
    check_same(shape_of("codex", "compaction"), compaction)
    check_same(AGENT_SHAPES["codex"].after["compaction"](GIVEN), after, added=["apply_patch"])
    kinds = [item["type"] for item in compaction.json["input"]]
    assert kinds == [item["type"] for item in shape_of("codex", "compaction").body["input"]]


async def test_gemini_cli_sends_these_shapes(tmp_path: Path) -> None:
    read = Call("read_file", {"file_path": "a.txt"})
    async with recording(tmp_path, "gemini", **{"READ it": read}) as scene:
        await gemini_cli(scene, "READ it", "-m", "up.m")
        call, result = posted(scene)
    # The launcher adds the session by a variable for headers.
    check_same(shape_of("gemini", "tool_call"), call, added=["x-session-id"])
    check_same(shape_of("gemini", "tool_result"), result, added=["x-session-id"])
    ours, real = (
        body["contents"][1]["parts"][0] for body in (shape_of("gemini", "tool_result").body, result.json)
    )
    assert ours.keys() == real.keys()
    assert ours["functionCall"].keys() == real["functionCall"].keys()


async def test_opencode_sends_these_shapes(tmp_path: Path) -> None:
    read = Call("read", {"filePath": "a.txt"})
    pieces = {"Generate a title": "A title", "conversation so far": "Short.", "READ it": read}
    async with recording(tmp_path, "chat", **pieces) as scene:
        await opencode(scene, "READ it", context=30_000)
        requests = posted(scene)
    openings = {str(one.json["messages"][0]["content"])[:24]: one for one in requests}
    check_same(shape_of("opencode", "title"), openings["You are a title generato"])
    check_same(shape_of("opencode", "tool_call"), openings["You are opencode, an int"])
    check_same(shape_of("opencode", "compaction"), openings["You are a context summar"])


_QUIET_AIDER = ("--no-git", "--yes-always", "--no-check-update", "--analytics-disable", "--map-tokens", "0")
_ARGUMENTS = {"qwen": ("--yolo", "-p"), "pi": ("-p",), "aider": (*_QUIET_AIDER, "--message")}
_CALLS = {"qwen": Call("read_file", {"file_path": "/a.txt"}), "pi": Call("read", {"path": "a.txt"})}


async def launched(agent: str, scene: Scene) -> list[Request]:
    """Run an agent by the launcher's plan; return its requests."""
    program = command(agent)
    env = environment(scene.home)
    model = ModelFacts(id="up.m", context_tokens=200_000, max_output_tokens=8000)
    plan = AGENTS[agent].plan(
        LaunchRequest(
            url=scene.url,
            key="any",
            models=(model,),
            folder=scene.home / "ours",
            environ=env,
            generated_session="run-12345678",
            model="up.m",
        )
    )
    for file in plan.files:
        file.path.parent.mkdir(parents=True, exist_ok=True)
        file.path.write_text(file.content)
    argv = [*program, *plan.flags, *_ARGUMENTS[agent], "READ it"]
    ended = await run(argv, env={**env, **plan.env}, cwd=scene.work)
    assert ended.code == 0, ended
    return posted(scene)


@pytest.mark.parametrize("agent", _CALLS)
async def test_agents_on_chat_send_these_shapes(tmp_path: Path, agent: str) -> None:
    async with recording(tmp_path, "chat", **{"READ it": _CALLS[agent]}) as scene:
        call, result = await launched(agent, scene)
    check_same(shape_of(agent, "tool_call"), call)
    check_same(shape_of(agent, "tool_result"), result)
    ours, real = shape_of(agent, "tool_result").body["messages"], result.json["messages"]
    assert [message["role"] for message in ours] == [message["role"] for message in real]
    assert [type(message["content"]) for message in ours] == [type(message["content"]) for message in real]


async def test_aider_sends_this_shape(tmp_path: Path) -> None:
    async with recording(tmp_path, "chat") as scene:
        first, *_ = await launched("aider", scene)
    check_same(shape_of("aider", "text"), first)
