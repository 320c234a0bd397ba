"""Replies the gateway writes itself.

What the gateway says by itself in a conversation: confirmations, the state of things, the help.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Sequence

from msgspec import Struct

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
from routecodex.routing.state import ServerState, SessionState, StopMessageState
from routecodex.server_tools.clock.network_time import NtpState
from routecodex.server_tools.clock.task import Task
from routecodex.server_tools.clock.timestamps import Zone, local_text

REPLY_PREFIX = "[RouteCodex] "
"""How everything begins that the gateway says by itself: so it is known again in the history."""

GATEWAY_ROUTE, GATEWAY_REASON = "gateway", "the message is for the gateway itself"
"""The route of what the gateway answers by itself, and why it does."""
_SHOWN = 60
_LISTED = 10


class ClockSummary(Struct, frozen=True):
    """The clock as one conversation sees it; `tasks` is None when they cannot be read."""

    tasks: tuple[Task, ...] | None
    zone: Zone
    ntp: NtpState


def ignored_notice(malformed: Sequence[MalformedInstruction]) -> list[str]:
    """What was not understood, one line each; of very many the first ones."""
    lines = [f"ignored {said.raw}: {said.reason}" for said in malformed[:_LISTED]]
    more = len(malformed) - _LISTED
    return [*lines, f"and {more} more"] if more > 0 else lines


def confirmation(
    state: SessionState, malformed: Sequence[MalformedInstruction], notices: Iterable[str]
) -> str:
    """What is set now, in a few lines."""
    rows = [f"{name}: {value}" for name, value in _session_rows(state)]
    told = ignored_notice(malformed)
    told += [notice for notice in notices if notice not in told]
    head = "set for this conversation:" if rows else "nothing is set."
    return REPLY_PREFIX + "\n- ".join((head, *rows, *told))


def status(
    state: SessionState,
    server: ServerState,
    health: Iterable[KeyHealthRow],
    *,
    session: str,
    clock: ClockSummary | None = None,
) -> str:
    """The state of this conversation and of the keys, as markdown."""
    lines = [f"{REPLY_PREFIX}status of {session}", ""]
    lines += _table(("setting", "this conversation"), _session_rows(state) or [("routing", "nothing is set")])
    orders = _routing_rows(server)
    if orders:
        lines += ["", *_table(("setting", "whole server"), orders)]
    ill = [(row.name, row.state, f"{row.seconds:.0f} s", row.error) for row in health]
    if ill:
        lines += ["", *_table(("key", "health", "for", "last error"), ill)]
    else:
        lines += ["", "All keys are healthy."]
    return "\n".join([*lines, *(() if clock is None else _clock_lines(clock))])


def _clock_lines(clock: ClockSummary) -> list[str]:
    if clock.tasks is None:
        told = ["The clock tasks cannot be read now."]
    elif clock.tasks:
        earliest_first = sorted(clock.tasks, key=lambda task: task.due_at_ms)
        rows = [_task_row(task, clock.zone) for task in earliest_first[:_LISTED]]
        more = len(earliest_first) - _LISTED
        told = _table(("clock task", "due", "state"), rows)
        told += ["", f"and {more} more clock tasks"] if more > 0 else []
    else:
        told = ["There are no clock tasks."]
    return ["", *told, "", f"Network time: {_ntp_words(clock.ntp)}."]


def _task_row(task: Task, zone: Zone) -> tuple[str, ...]:
    delivered = task.delivered_at_ms
    state = "waiting" if delivered is None else f"delivered {local_text(delivered, zone)}"
    again = f", {task.repeat}" if task.repeat else ""
    return _shortened(task.task), local_text(task.due_at_ms, zone), state + again


def _ntp_words(ntp: NtpState) -> str:
    told = f"{ntp.status}, offset {ntp.offset_ms} ms"
    return told if ntp.last_error is None else f"{told}, {_shortened(ntp.last_error)}"


def help_reply() -> str:
    """The table of instructions."""
    return f"{REPLY_PREFIX}instructions\n\n{help_text()}"


def _session_rows(state: SessionState) -> list[tuple[str, str]]:
    rows = [("force", f"{state.force.target}, for this message alone")] if state.force is not None else []
    rows += _routing_rows(state)
    if state.stop_message is not None:
        rows.append(("stopMessage", _stop_row(state.stop_message)))
    return rows


def _routing_rows(state: SessionState | ServerState) -> list[tuple[str, str]]:
    named = (("sticky", state.sticky or ""), ("allow", ", ".join(state.allow)))
    rows = (*named, ("disabled", ", ".join(state.disable)))
    return [(name, value) for name, value in rows if value]


def _stop_row(stop: StopMessageState) -> str:
    return f'"{_shortened(stop.text)}", {stop.used} of {stop.max_repeats} used'


def _shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _SHOWN else line[: _SHOWN - 1] + "…"


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    lines = [head, tuple("---" for _ in head), *rows]
    return ["| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines]


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


async def reply_events(text: str) -> AsyncGenerator[Event, None]:
    """The text as an answer."""
    yield Started()
    yield PartStarted(0, Text(""))
    yield TextDelta(0, text)
    yield PartFinished(0)
    yield UsageReported(Usage(input=0, output=0))
    yield Finished(Finish("stop"))
