"""Replies the gateway writes itself: confirmations, the status, the help."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Sequence

from msgspec import Struct

from routecodex.accounting.figures import Figures, usage_line
from routecodex.canon.events import (
    Event,
    Finished,
    PartFinished,
    PartStarted,
    Started,
    TextDelta,
    Usage,
    UsageReported,
)
from routecodex.canon.finish import Finish
from routecodex.canon.parts import Text
from routecodex.gateway.records import KeyHealthRow
from routecodex.routing.instructions import MalformedInstruction, help_text
from routecodex.routing.state import AgentsState, ServerState, SessionState, StopMessageState
from routecodex.server_tools.clock.network_time import NtpState
from routecodex.server_tools.clock.task import Task
from routecodex.server_tools.clock.timestamps import Zone, local_text

REPLY_PREFIX = "[RouteCodex] "
"""Prefix of every reply of the gateway, by which later requests recognise it in their history."""

GATEWAY_ROUTE, GATEWAY_REASON = "gateway", "the message is for the gateway itself"
"""Route and reason of a request that the gateway answers itself."""
_SET, _NOTHING_SET, _STATUS, _HELP = (
    "set for this conversation:",
    "nothing is set.",
    "status of",
    "instructions",
)
_REPLIES = tuple(f"{REPLY_PREFIX}{head}" for head in (_SET, _NOTHING_SET, _STATUS, _HELP))
_IGNORED = "instruction ignored: "
_TEXT_WIDTH = 60
_MOST_ROWS = 10


class ClockSummary(Struct, frozen=True):
    """Clock tasks of one session, and the state of network time; `tasks` is None if they cannot be read."""

    tasks: tuple[Task, ...] | None
    zone: Zone
    ntp: NtpState


def ignored_notices(ignored: Sequence[str], malformed: Sequence[MalformedInstruction]) -> list[str]:
    """Return one line for each reason, and for each malformed instruction, up to ten."""
    lines = [f"{_IGNORED}{reason}" for reason in ignored]
    lines += [f"{_IGNORED}{one.raw}: {one.reason}" for one in malformed[:_MOST_ROWS]]
    more = len(malformed) - _MOST_ROWS
    return [*lines, f"and {more} more"] if more > 0 else lines


def is_gateway_reply(text: str) -> bool:
    """Return whether a text is a reply that the gateway wrote itself."""
    return text.lstrip().startswith(_REPLIES)


def confirmation(
    state: SessionState,
    ignored: Sequence[str],
    malformed: Sequence[MalformedInstruction],
    notices: Iterable[str],
) -> str:
    """Return the settings of the session now, and the notices, in a few lines."""
    rows = [f"{name}: {value}" for name, value in _session_rows(state)]
    lines = ignored_notices(ignored, malformed)
    lines += [notice for notice in notices if notice not in lines]
    head = _SET if rows else _NOTHING_SET
    return REPLY_PREFIX + "\n- ".join((head, *rows, *lines))


def status(
    state: SessionState,
    server: ServerState,
    health: Iterable[KeyHealthRow],
    *,
    session: str,
    clock: ClockSummary | None = None,
    usage: Figures | None = None,
    limits: Sequence[str] = (),
) -> str:
    """Return the state of the session, the server, the keys, usage, limits and the clock as Markdown."""
    lines = [f"{REPLY_PREFIX}{_STATUS} {session}", ""]
    lines += _table(("setting", "this conversation"), _session_rows(state) or [("routing", "nothing is set")])
    server_rows = _routing_rows(server)
    if server_rows:
        lines += ["", *_table(("setting", "whole server"), server_rows)]
    key_rows = [(row.name, row.state, f"{row.seconds:.0f} s", row.error) for row in health]
    if key_rows:
        lines += ["", *_table(("key", "health", "for", "last error"), key_rows)]
    else:
        lines += ["", "All keys are healthy."]
    figures = [] if usage is None else [f"usage: {usage_line(usage)}"]
    if figures or limits:
        lines += ["", *(f"- {line}" for line in (*figures, *limits))]
    return "\n".join([*lines, *(() if clock is None else _clock_lines(clock))])


def help_reply() -> str:
    """Return the table of instructions."""
    return f"{REPLY_PREFIX}{_HELP}\n\n{help_text()}"


async def reply_events(text: str) -> AsyncGenerator[Event, None]:
    """Yield a text as the events of an answer."""
    yield Started()
    yield PartStarted(0, Text(""))
    yield TextDelta(0, text)
    yield PartFinished(0)
    yield UsageReported(Usage(input=0, output=0))
    yield Finished(Finish("stop"))


def _clock_lines(clock: ClockSummary) -> list[str]:
    if clock.tasks is None:
        lines = ["The clock tasks cannot be read now."]
    elif clock.tasks:
        earliest_first = sorted(clock.tasks, key=lambda task: task.due_at_ms)
        rows = [_task_row(task, clock.zone) for task in earliest_first[:_MOST_ROWS]]
        more = len(earliest_first) - _MOST_ROWS
        lines = _table(("clock task", "due", "state"), rows)
        lines += ["", f"and {more} more clock tasks"] if more > 0 else []
    else:
        lines = ["There are no clock tasks."]
    return ["", *lines, "", f"Network time: {_ntp_text(clock.ntp)}."]


def _task_row(task: Task, zone: Zone) -> tuple[str, ...]:
    delivered = task.delivered_at_ms
    state = "waiting" if delivered is None else f"delivered {local_text(delivered, zone)}"
    repeat = f", {task.repeat}" if task.repeat else ""
    return _shortened(task.task), local_text(task.due_at_ms, zone), state + repeat


def _ntp_text(ntp: NtpState) -> str:
    text = f"{ntp.status}, offset {ntp.offset_ms} ms"
    return text if ntp.last_error is None else f"{text}, {_shortened(ntp.last_error)}"


def _session_rows(state: SessionState) -> list[tuple[str, str]]:
    rows = [("force", f"{state.force.target}, for this message alone")] if state.force is not None else []
    rows += _routing_rows(state)
    if state.agents is not None:
        rows += [(f"sub-agents {name}", value) for name, value in _routing_rows(state.agents)]
    if state.stop_message is not None:
        rows.append(("stopMessage", _stop_row(state.stop_message)))
    return rows


def _routing_rows(state: SessionState | ServerState | AgentsState) -> list[tuple[str, str]]:
    rows = (
        ("sticky", state.sticky or ""),
        ("allow", ", ".join(state.allow)),
        ("disabled", ", ".join(state.disable)),
    )
    return [(name, value) for name, value in rows if value]


def _stop_row(stop: StopMessageState) -> str:
    return f'"{_shortened(stop.text)}", {stop.used} of {stop.max_repeats} used'


def _shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _TEXT_WIDTH else line[: _TEXT_WIDTH - 1] + "…"


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    lines = [head, tuple("---" for _ in head), *rows]
    return ["| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines]


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
