"""A gateway with a clock, its state in files, before an upstream that calls the tool as it is told.

`clocked(protocol, folder)` gives a Talk of `continued`; `plant` puts tasks on disk as the gateway itself
writes them, `tasks` reads them there, and `asked` is what the upstream was asked, in no protocol's words.
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
from routecodex.canon.request import Request as Asked
from routecodex.protocols.codecs import CODECS
from routecodex.stores import file_format
from tests.gateway.continuation_gateway import Talk, configuration
from tests.kit import answers
from tests.kit.gateway import serving
from tests.kit.raw_client import call
from tests.kit.steps import Answer as Given
from tests.kit.upstream import Request, Upstream

SESSION = "s-1"
WINDOW = 60_000
HEAD = "Scheduled tasks of this session are due:"
TAIL = "You may call tools to complete these tasks."
OPERATOR = {"authorization": "Bearer operator"}
NO_NTP = "ntp = { enabled = false }\n"


def config(clock: str = "", *, ntp: str = NO_NTP) -> str:
    """The clock turned on, with these lines more."""
    return f"[server_tools.clock]\nenabled = true\n{clock}{ntp}"


def whole_config(talk: Talk, clock: str = "", *, ntp: str = NO_NTP, more: str = "", server: str = "") -> str:
    """The whole file of a gateway with a clock; `server` are lines of its first table."""
    text = configuration(talk, more=more + config(clock, ntp=ntp))
    return text.replace("[server]\n", f'[server]\nadmin_token = "operator"\n{server}')


@contextlib.asynccontextmanager
async def clocked(
    protocol: str,
    folder: Path,
    *,
    speaks: str = "",
    clock: str = "",
    ntp: str = NO_NTP,
    more: str = "",
    server: str = "",
) -> AsyncIterator[Talk]:
    """A running gateway with a clock for clients of this protocol."""
    async with Upstream() as upstream:
        talk = Talk(protocol, speaks or protocol, folder, upstream)
        async with serving(whole_config(talk, clock, ntp=ntp, more=more, server=server)) as gateway:
            talk.port = gateway.port
            yield talk


async def operate(talk: Talk, path: str, body: object = None) -> Any:
    """What an operator is told at this path of the admin API."""
    method = "GET" if body is None else "POST"
    return (await call(talk.port, f"/admin/{path}", body, method=method, headers=OPERATOR)).json


async def is_idle(talk: Talk) -> None:
    """Waits until no request is under way any more."""
    while (await operate(talk, "status"))["active"]:
        await asyncio.sleep(0.01)


def now_ms() -> int:
    return int(time.time() * 1000)


def iso(moment_ms: int) -> str:
    moment = datetime.fromtimestamp(moment_ms / 1000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def item(due_ms: int, task: str = "water the plants", **more: Any) -> dict[str, Any]:
    """A task as a model in strict mode asks for it."""
    empty = {"tool": "", "arguments": "{}", "repeat": "none", "maxRuns": 0}
    return {"dueAt": iso(due_ms), "task": task, **empty, **more}


def command(action: str, *items: dict[str, Any], task_id: str = "") -> dict[str, Any]:
    return {"action": action, "items": list(items), "taskId": task_id}


def file_of(folder: Path, session: str = SESSION) -> Path:
    return folder / "clock" / file_format.encode_name(session)


def tasks(folder: Path, session: str = SESSION) -> list[dict[str, Any]]:
    """The tasks of a session on disk."""
    try:
        found: list[dict[str, Any]] = msgspec.json.decode(file_of(folder, session).read_bytes())["tasks"]
    except FileNotFoundError:
        return []
    return found


def plant(folder: Path, *dues: int, session: str = SESSION, text: str = "water the plants") -> None:
    """Puts tasks t1, t2, … on disk that are due at these times."""
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
    file = file_of(folder, session)
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    file.with_name(".planted").write_bytes(msgspec.json.encode(state))
    file.with_name(".planted").rename(file)


def hasten(folder: Path, task: str, due: int) -> None:
    """Brings forward the tasks of that text nobody has been told of, in files anywhere below the folder."""
    for file in folder.rglob("clock/*.json"):
        state = msgspec.json.decode(file.read_bytes())
        ahead = [row for row in state.get("tasks", ()) if row["task"] == task and not row["deliveryCount"]]
        for row in ahead:
            row["dueAtMs"] = due
        if ahead:
            file.with_name(".hastened").write_bytes(msgspec.json.encode(state))
            file.with_name(".hastened").rename(file)


def reminder(*lines: tuple[str, int]) -> tuple[str, str]:
    """The message that tells of these tasks and when they are due."""
    told = [f'[scheduled task:"{task}"] due {iso(due)}' for task, due in lines]
    return "user", "\n".join((HEAD, *told, TAIL))


def reminders(talk: Talk) -> list[list[str]]:
    """The messages of each request that tell of due tasks."""
    return [[text for _, text in said if text.startswith(HEAD)] for said in talk.heard]


def untimed(said: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """What was said, but for the time."""
    return [(role, text) for role, text in said if not text.startswith("[Time/Date]")]


def asked(talk: Talk, number: int) -> Asked:
    """What the upstream was asked in its request of that number."""
    codec = CODECS[talk.speaks]
    named = {"model": "m", "stream": False} if talk.speaks == "gemini" else {}
    return codec.decode_request(codec.validate(talk.upstream.requests[number].body, **named))


def told_results(talk: Talk, number: int) -> list[Any]:
    """The results of tools in a request, one after the other."""
    parts = [part for message in asked(talk, number).messages for part in message.parts]
    texts = [
        "".join(inner.text for inner in part.parts if isinstance(inner, Text))
        for part in parts
        if isinstance(part, ToolResult)
    ]
    return [msgspec.json.decode(text) if text.startswith("{") else text for text in texts]


def told_calls(talk: Talk, number: int) -> list[tuple[str, str]]:
    """The calls in the history of a request: their ids and names."""
    parts = [part for message in asked(talk, number).messages for part in message.parts]
    return [(part.id, part.name) for part in parts if isinstance(part, ToolCall)]


Command = dict[str, Any] | str | Callable[[], dict[str, Any]]


def calls(talk: Talk, *commands: Command, name: str = "clock", then: str = "done") -> None:
    """The upstream calls the tool with these arguments, one answer each, and then says `then`."""

    def answer(request: Request, number: int) -> Given:
        if number >= len(commands):
            return talk.text(then, request)
        given = commands[number]
        arguments = given() if callable(given) else given
        return answers.tool_call(
            talk.speaks, name, arguments, f"call_{number}", stream=answers.wants_stream(request)
        )

    talk.script(answer)
