"""What the tool answers: JSON a machine can read."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from routecodex.server_tools.clock.moments import utc_text
from routecodex.server_tools.clock.task import Task


class ActionRefused(Exception):
    """The tool does not do what it was asked for; nothing was changed."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def result_text(value: dict[str, Any]) -> str:
    """A result as the model gets it."""
    return msgspec.json.encode(value).decode()


def refusal_text(exc: ActionRefused) -> dict[str, Any]:
    return {"ok": False, "error": {"code": exc.code, "message": str(exc)}}


def scheduled_text(tasks: Iterable[Task]) -> dict[str, Any]:
    return {"ok": True, "scheduled": [_item(task) for task in tasks]}


def updated_text(task: Task) -> dict[str, Any]:
    return {"ok": True, "updated": _item(task)}


def listed_text(tasks: Iterable[Task]) -> dict[str, Any]:
    return {"ok": True, "items": [_item(task) | _delivery(task) for task in tasks]}


def removed_text(task_id: str) -> dict[str, Any]:
    return {"ok": True, "removed": task_id}


def cleared_text(count: int) -> dict[str, Any]:
    return {"ok": True, "removedCount": count}


def _item(task: Task) -> dict[str, Any]:
    item: dict[str, Any] = {"taskId": task.task_id, "dueAt": utc_text(task.due_at_ms), "task": task.task}
    if task.repeat is not None:
        item["repeat"] = task.repeat
    if task.max_runs is not None:
        item["maxRuns"] = task.max_runs
    return item


def _delivery(task: Task) -> dict[str, Any]:
    return {} if task.delivered_at_ms is None else {"deliveredAt": utc_text(task.delivered_at_ms)}
