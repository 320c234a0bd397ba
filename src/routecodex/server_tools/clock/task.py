"""Task, SessionTasks: the stored format of a session's tasks, version 1.

    {"version": 1, "sessionId": "…", "tasks": [{"taskId": "…", "dueAtMs": 1769027400000, …}],
     "updatedAtMs": 1769027000000}

`repeat` and `maxRuns` are present only for a repeated task, `reservation` only during a delivery.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from routecodex.canon.parts import Json

LATEST_MS = 253_370_764_800_000
"""The start of the year 9999: times up to it can be formatted in every time zone."""

Timestamp = Annotated[int, Meta(ge=0, le=LATEST_MS)]
Count = Annotated[int, Meta(ge=0)]
Recurrence = Annotated[str, Meta(pattern=r"^(daily|weekly|every [1-9][0-9]{0,5} minutes)$")]


class DeliveryMark(Struct, frozen=True, omit_defaults=True, rename="camel"):
    """Reservation of a task by a request that is about to deliver it.

    `until_up_ms` is its end by the uptime of the machine's `start`, see reservations.py.
    """

    id: str
    until_ms: int
    start: str = ""
    until_up_ms: int = 0


class Task(Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """One scheduled task."""

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
    """The tasks of one session."""

    version: Literal[1]
    session_id: str
    tasks: tuple[Task, ...]
    updated_at_ms: Timestamp


_STATES = msgspec.json.Decoder(SessionTasks)
_ENCODER = msgspec.json.Encoder()


def no_tasks(session: str) -> SessionTasks:
    """Return a session without tasks."""
    return SessionTasks(version=1, session_id=session, tasks=(), updated_at_ms=0)


def encode(state: SessionTasks) -> bytes:
    """Encode the tasks of a session, indented for people."""
    return msgspec.json.format(_ENCODER.encode(state), indent=2) + b"\n"


def decode(raw: bytes) -> SessionTasks:
    """Decode the tasks of a session; ValueError if the bytes are something else."""
    try:
        state = _STATES.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise ValueError(f"it does not contain the tasks of a session: {exc}") from exc
    if len({task.task_id for task in state.tasks}) != len(state.tasks):
        raise ValueError("it does not contain the tasks of a session: two have the same id")
    return state


def session_tasks_name(raw: bytes) -> str:
    """Return the session id of encoded tasks; ValueError if the bytes are something else."""
    return decode(raw).session_id
