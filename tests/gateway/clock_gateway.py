"""A gateway with the clock tool and its state in files, in front of an upstream that calls the tool.

`clock_gateway(protocol, folder)` yields a GatewayHarness; `store_tasks` writes tasks to disk as the gateway
does, `stored_tasks` reads them, and `upstream_request` is a decoded request of the upstream.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from routecodex.canon.parts import Text, ToolCall, ToolResult
from routecodex.canon.request import Request as CanonRequest
from routecodex.protocols.codecs import CODECS
from routecodex.stores import file_format
from tests.cli.process import until
from tests.gateway.continuation_gateway import GatewayHarness, configuration
from tests.kit import answers
from tests.kit.gateway import serving
from tests.kit.raw_client import call
from tests.kit.steps import Answer as UpstreamAnswer
from tests.kit.upstream import Request, Upstream

SESSION = "s-1"
WINDOW = 60_000
HEAD = "Scheduled tasks of this session are due:"
TAIL = (
    "You may call tools to complete these tasks; if tools are missing, the system supplies the standard ones."
)
OPERATOR = {"authorization": "Bearer operator"}
NO_NTP = "ntp = { enabled = false }\n"


def config(clock: str = "", *, ntp: str = NO_NTP) -> str:
    """Return configuration that enables the clock, with these further lines."""
    return f"[server_tools.clock]\nenabled = true\n{clock}{ntp}"


def whole_config(
    harness: GatewayHarness, clock: str = "", *, ntp: str = NO_NTP, more: str = "", server: str = ""
) -> str:
    """Return the whole configuration of a gateway with a clock; `server` are lines of its [server] table."""
    text = configuration(harness, more=more + config(clock, ntp=ntp))
    return text.replace("[server]\n", f'[server]\nadmin_token = "operator"\n{server}')


@contextlib.asynccontextmanager
async def clock_gateway(
    protocol: str,
    folder: Path,
    *,
    upstream_protocol: str = "",
    clock: str = "",
    ntp: str = NO_NTP,
    more: str = "",
    server: str = "",
) -> AsyncIterator[GatewayHarness]:
    """Run a gateway with a clock for clients of this protocol."""
    async with Upstream() as upstream:
        harness = GatewayHarness(protocol, upstream_protocol or protocol, folder, upstream)
        async with serving(whole_config(harness, clock, ntp=ntp, more=more, server=server)) as gateway:
            harness.port = gateway.port
            yield harness


async def admin_call(harness: GatewayHarness, path: str, body: object = None) -> Any:
    """Call this path of the admin API and return the answer."""
    method = "GET" if body is None else "POST"
    return (await call(harness.port, f"/admin/{path}", body, method=method, headers=OPERATOR)).json


async def wait_until_idle(harness: GatewayHarness) -> None:
    """Wait until the gateway has no active request."""
    while (await admin_call(harness, "status"))["active"]:
        await asyncio.sleep(0.01)


def now_ms() -> int:
    return int(time.time() * 1000)


def iso(moment_ms: int) -> str:
    moment = datetime.fromtimestamp(moment_ms / 1000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def task_item(due_ms: int, task: str = "water the plants", **more: Any) -> dict[str, Any]:
    """Return a task as a model in strict mode schedules it."""
    empty = {"tool": "", "arguments": "{}", "repeat": "none", "maxRuns": 0}
    return {"dueAt": iso(due_ms), "task": task, **empty, **more}


def command(action: str, *items: dict[str, Any], task_id: str = "") -> dict[str, Any]:
    return {"action": action, "items": list(items), "taskId": task_id}


def task_file(folder: Path, session: str = SESSION) -> Path:
    return folder / "clock" / file_format.encode_name(session)


def stored_tasks(folder: Path, session: str = SESSION) -> list[dict[str, Any]]:
    """Return the tasks of a session on disk."""
    try:
        found: list[dict[str, Any]] = msgspec.json.decode(task_file(folder, session).read_bytes())["tasks"]
    except FileNotFoundError:
        return []
    return found


async def until_delivered(folder: Path, count: int = 1) -> None:
    """Wait until the delivery of the only task is on disk: that comes after the first byte of the answer."""

    def is_written() -> bool:
        (task,) = stored_tasks(folder)
        return task["deliveryCount"] == count and "reservation" not in task

    await until(is_written, "the delivery is written")


def store_tasks(folder: Path, *dues: int, session: str = SESSION, text: str = "water the plants") -> None:
    """Write tasks t1, t2, … to disk that are due at these times."""
    rows = [
        {
            "taskId": f"t{number}",
            "sessionId": session,
            "dueAtMs": due,
            "createdAtMs": 1,
            "updatedAtMs": 1,
            "task": text if number == 1 else f"{text} {number}",
            "deliveryCount": 0,
        }
        for number, due in enumerate(dues, 1)
    ]
    state = {"version": 1, "sessionId": session, "tasks": rows, "updatedAtMs": 1}
    file = task_file(folder, session)
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    file.with_name(".stored").write_bytes(msgspec.json.encode(state))
    file.with_name(".stored").rename(file)


def advance_due_times(folder: Path, task: str, due: int) -> None:
    """Set the due time of undelivered tasks with that text, in files anywhere below the folder."""
    for file in folder.rglob("clock/*.json"):
        state = msgspec.json.decode(file.read_bytes())
        undelivered = [
            row for row in state.get("tasks", ()) if row["task"] == task and not row["deliveryCount"]
        ]
        for row in undelivered:
            row["dueAtMs"] = due
        if undelivered:
            file.with_name(".advanced").write_bytes(msgspec.json.encode(state))
            file.with_name(".advanced").rename(file)


def reminder(*lines: tuple[str, int]) -> tuple[str, str]:
    """Return the reminder message for these tasks and their due times."""
    task_lines = [f'[scheduled task:"{task}"] due {iso(due)}' for task, due in lines]
    return "user", "\n".join((HEAD, *task_lines, TAIL))


def reminders(harness: GatewayHarness) -> list[list[str]]:
    """Return the reminder texts of each upstream request."""
    return [[text for _, text in texts if text.startswith(HEAD)] for texts in harness.upstream_texts]


def without_time_line(texts: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the texts without the line that gives the time."""
    return [(role, text) for role, text in texts if not text.startswith("[Time/Date]")]


def upstream_request(harness: GatewayHarness, number: int) -> CanonRequest:
    """Return the upstream's request of that number, decoded."""
    codec = CODECS[harness.upstream_protocol]
    path_fields = {"model": "m", "stream": False} if harness.upstream_protocol == "gemini" else {}
    return codec.decode_request(codec.validate(harness.upstream.requests[number].body, **path_fields))


def tool_results(harness: GatewayHarness, number: int) -> list[Any]:
    """Return the tool results in an upstream request."""
    parts = [part for message in upstream_request(harness, number).messages for part in message.parts]
    texts = [
        "".join(inner.text for inner in part.parts if isinstance(inner, Text))
        for part in parts
        if isinstance(part, ToolResult)
    ]
    return [msgspec.json.decode(text) if text.startswith("{") else text for text in texts]


def tool_calls(harness: GatewayHarness, number: int) -> list[tuple[str, str]]:
    """Return the ids and names of the tool calls in the history of an upstream request."""
    parts = [part for message in upstream_request(harness, number).messages for part in message.parts]
    return [(part.id, part.name) for part in parts if isinstance(part, ToolCall)]


Command = dict[str, Any] | str | Callable[[], dict[str, Any]]


def script_tool_calls(
    harness: GatewayHarness, *commands: Command, name: str = "clock", then: str = "done"
) -> None:
    """Answer with one tool call for each of these arguments, then with the text `then`."""

    def answer(request: Request, number: int) -> UpstreamAnswer:
        if number >= len(commands):
            return harness.text_answer(then, request)
        command = commands[number]
        arguments = command() if callable(command) else command
        return answers.tool_call(
            harness.upstream_protocol, name, arguments, f"call_{number}", stream=answers.wants_stream(request)
        )

    harness.script(answer)
