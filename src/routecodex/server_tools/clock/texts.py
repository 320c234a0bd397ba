"""What the model is told of the time and of its due tasks."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from routecodex.server_tools.clock.moments import Zone, local_text, utc_text
from routecodex.server_tools.clock.task import Task

_HEAD = "Scheduled tasks of this session are due:"
_TAIL = "You may call tools to complete these tasks."


def time_tag(now_ms: int, *, zone: Zone, offset_ms: int) -> str:
    """The time as one line; `now_ms` is corrected already."""
    return (
        f"[Time/Date]: utc=`{utc_text(now_ms)}` local=`{local_text(now_ms, zone)}` tz=`{zone.name}` "
        f"nowMs=`{now_ms}` ntpOffsetMs=`{offset_ms}`"
    )


def reminder(tasks: Sequence[Task]) -> str:
    """Every due task, and that tools may be used."""
    return "\n".join([_HEAD, *map(_line, tasks), _TAIL])


def _line(task: Task) -> str:
    said = f"[scheduled task:{_quoted(task.task)}] due {utc_text(task.due_at_ms)}"
    if task.tool:
        said += f", suggested tool: {_quoted(task.tool)}"
    if task.arguments:
        said += f", suggested arguments: {msgspec.json.encode(task.arguments).decode()}"
    return said


def _quoted(text: str) -> str:
    """In quotes that the text cannot break out of, on one line."""
    return msgspec.json.encode(text).decode()
