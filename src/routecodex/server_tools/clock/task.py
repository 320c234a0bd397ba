"""What is stored for a session: version 1, in camel case, readable by a person.

    {"version": 1, "sessionId": "…", "tasks": [{"taskId": "…", "dueAtMs": 1769027400000, …}],
     "updatedAtMs": 1769027000000}

`repeat`, `maxRuns` and `reservation` are there only for a task that comes again or that is being delivered.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from routecodex.canon.parts import Json

LATEST_MS = 253_370_764_800_000
"""The year 9999: a time up to it can be written in every time zone."""

Timestamp = Annotated[int, Meta(ge=0, le=LATEST_MS)]
Count = Annotated[int, Meta(ge=0)]
Recurrence = Annotated[str, Meta(pattern=r"^(daily|weekly|every [1-9][0-9]{0,5} minutes)$")]


class DeliveryMark(Struct, frozen=True, omit_defaults=True, rename="camel"):
    """A request is about to deliver the task; nobody else may until the time is up.

    `until_up_ms` is that time by the clock of the machine's `start`, see leases.py.
    """

    id: str
    until_ms: int
    start: str = ""
    until_up_ms: int = 0


class Task(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """One alarm."""

    task_id: Annotated[str, Meta(min_length=1)]
    session_id: str
    due_at_ms: Timestamp
    created_at_ms: Timestamp
    updated_at_ms: Timestamp
    task: str
    tool: str | None = None
    arguments: dict[str, Json] | None = None
    delivered_at_ms: Timestamp | None = None
    delivery_count: Count
    not_before_request_id: str | None = None
    repeat: Recurrence | None = None
    max_runs: Annotated[int, Meta(ge=1)] | None = None
    reservation: DeliveryMark | None = None


class SessionTasks(Struct, frozen=True, kw_only=True, rename="camel"):
    """The alarms of one session."""

    version: Literal[1]
    session_id: str
    tasks: tuple[Task, ...]
    updated_at_ms: Timestamp


_STATES = msgspec.json.Decoder(SessionTasks)
_ENCODER = msgspec.json.Encoder()


def no_tasks(session: str) -> SessionTasks:
    """A session without tasks."""
    return SessionTasks(version=1, session_id=session, tasks=(), updated_at_ms=0)


def encode(state: SessionTasks) -> bytes:
    """The state as it is written."""
    return msgspec.json.format(_ENCODER.encode(state), indent=2) + b"\n"


def decode(raw: bytes) -> SessionTasks:
    """The state that was written; ValueError when it is something else."""
    try:
        state = _STATES.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise ValueError(f"it does not hold the tasks of a session: {exc}") from exc
    if len({task.task_id for task in state.tasks}) != len(state.tasks):
        raise ValueError("it does not hold the tasks of a session: two have the same id")
    return state


def session_tasks_name(raw: bytes) -> str:
    """Whose tasks these are; ValueError when they are none."""
    return decode(raw).session_id
