"""Arguments and results of the clock tool.

The schema fits strict mode: every property is required and no other is allowed, so the fields that an action
does not need are empty lists or strings. Models without strict mode may leave them out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec
from msgspec import Struct

from routecodex.canon.parts import Json
from routecodex.server_tools.clock import due_rules, timestamps
from routecodex.server_tools.clock.task import Task
from routecodex.server_tools.clock.timestamps import utc_text


class ActionRefused(Exception):
    """The tool rejected a call; nothing was changed."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


ACTIONS = ("get", "schedule", "list", "cancel", "clear", "update")

_ITEM = {
    "dueAt": {
        "type": "string",
        "description": "ISO 8601 time with an offset, for example 2026-01-21T20:30:00-08:00.",
    },
    "task": {
        "type": "string",
        "description": "What you want to be reminded of; best name the tool or action to take.",
    },
    "tool": {
        "type": "string",
        "description": "A tool you suggest to yourself, or an empty string. It is a hint; nothing is run.",
    },
    "arguments": {
        "type": "string",
        "description": "Suggested arguments for that tool, as a JSON string such as {}.",
    },
    "repeat": {
        "type": "string",
        "description": "none, daily, weekly, or every N minutes (for example: every 15 minutes).",
    },
    "maxRuns": {
        "type": "integer",
        "description": "How many times a repeated task is delivered at most; 0 for no limit.",
    },
}

SCHEMA: dict[str, Json] = {
    "type": "object",
    "properties": {
        "action": {"type": "string", "enum": list(ACTIONS)},
        "items": {
            "type": "array",
            "description": (
                "The tasks to schedule. For update: one item, in which an empty string, or 0, leaves a "
                "field as it is. Empty for every other action."
            ),
            "items": {
                "type": "object",
                "properties": _ITEM,
                "required": list(_ITEM),
                "additionalProperties": False,
            },
        },
        "taskId": {"type": "string", "description": "The task to cancel or update; else an empty string."},
    },
    "required": ["action", "items", "taskId"],
    "additionalProperties": False,
}


class TaskFields(Struct, frozen=True, kw_only=True):
    """The fields of a task in a call."""

    due_at_ms: int
    task: str
    tool: str | None = None
    arguments: dict[str, Json] | None = None
    repeat: str | None = None
    max_runs: int | None = None


class GetTime(Struct, frozen=True):
    """Return the current time."""


class ScheduleTasks(Struct, frozen=True):
    """Add these tasks."""

    items: tuple[TaskFields, ...]


class ListTasks(Struct, frozen=True):
    """Return the tasks."""


class CancelTask(Struct, frozen=True):
    """Delete one task."""

    task_id: str


class ClearTasks(Struct, frozen=True):
    """Delete all tasks."""


class UpdateTask(Struct, frozen=True):
    """Change some fields of one task."""

    task_id: str
    changes: dict[str, Any]


ClockCommand = GetTime | ScheduleTasks | ListTasks | CancelTask | ClearTasks | UpdateTask


def read_arguments(text: str) -> ClockCommand:
    """Parse the arguments of a call; ActionRefused explains what is wrong."""
    fields = _object(text)
    _check_fields(fields, SCHEMA["properties"], "the arguments")
    action = fields.get("action")
    if action not in ACTIONS:
        raise ActionRefused("unknown_action", f"action: {_shown(action)} is not one of {', '.join(ACTIONS)}")
    items = _items(fields.get("items"))
    task_id = _text(fields.get("taskId"), "taskId")
    return _READERS[action](items, task_id)


def _parse_schedule(items: list[dict[str, Any]], task_id: str) -> ScheduleTasks:
    if not items:
        raise ActionRefused("missing_items", "items: name at least one task to schedule")
    return ScheduleTasks(tuple(_task_fields(item, f"items[{at}]") for at, item in enumerate(items)))


def _parse_cancel(items: list[dict[str, Any]], task_id: str) -> CancelTask:
    return CancelTask(_required_id(task_id, "cancel"))


def _parse_update(items: list[dict[str, Any]], task_id: str) -> UpdateTask:
    if len(items) != 1:
        raise ActionRefused("missing_items", f"items: update takes exactly one item, not {len(items)}")
    return UpdateTask(_required_id(task_id, "update"), _changes(items[0], "items[0]"))


_READERS: dict[str, Callable[[list[dict[str, Any]], str], ClockCommand]] = {
    "get": lambda items, task_id: GetTime(),
    "schedule": _parse_schedule,
    "list": lambda items, task_id: ListTasks(),
    "cancel": _parse_cancel,
    "clear": lambda items, task_id: ClearTasks(),
    "update": _parse_update,
}


def _task_fields(item: dict[str, Any], at: str) -> TaskFields:
    values = _values(item, at)
    if values["due_at_ms"] is None:
        raise ActionRefused("missing_due_at", f"{at}.dueAt: say when, in ISO 8601 with an offset")
    if values["task"] is None:
        raise ActionRefused("missing_task", f"{at}.task: say what to be reminded of")
    fields = TaskFields(**values)
    if fields.repeat in (None, "none"):
        return msgspec.structs.replace(fields, repeat=None, max_runs=None)
    return fields


def _values(item: dict[str, Any], at: str) -> dict[str, Any]:
    return {name: reader(item.get(field), f"{at}.{field}") for field, (name, reader) in _FIELDS.items()}


def _changes(item: dict[str, Any], at: str) -> dict[str, Any]:
    """Return the fields that are not empty."""
    changes = {name: value for name, value in _values(item, at).items() if value is not None}
    if not changes:
        raise ActionRefused("nothing_to_change", f"{at}: every field is empty, so there is nothing to change")
    return changes


def _due_at(value: Any, at: str) -> int | None:
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = str(value)
    text = _text(value, at)
    if not text.strip():
        return None
    try:
        return timestamps.parse_timestamp(text)
    except timestamps.BadTimestamp as exc:
        raise ActionRefused(exc.code, f"{at}: {exc}") from exc


def _optional_text(value: Any, at: str) -> str | None:
    return _text(value, at).strip() or None


def _arguments(value: Any, at: str) -> dict[str, Json] | None:
    text = _text(value, at).strip()
    if not text:
        return None
    try:
        found = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as exc:
        raise ActionRefused(
            "bad_arguments", f"{at}: not JSON: {exc}; use a JSON object as a string, such as {{}}"
        ) from exc
    if not isinstance(found, dict):
        raise ActionRefused("bad_arguments", f"{at}: must be a JSON object as a string, such as {{}}")
    return found or None


def _repeat(value: Any, at: str) -> str | None:
    text = _text(value, at)
    if not text.strip():
        return None
    try:
        return due_rules.normalize_recurrence(text) or "none"
    except ValueError as exc:
        raise ActionRefused("bad_repeat", f"{at}: {exc}") from exc


def _max_runs(value: Any, at: str) -> int | None:
    if value is None:
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= 1_000_000:
        raise ActionRefused("bad_max_runs", f"{at}: {_shown(value)} is not a whole number from 0 to 1000000")
    return value or None


_FIELDS: dict[str, tuple[str, Callable[[Any, str], Any]]] = {
    "dueAt": ("due_at_ms", _due_at),
    "task": ("task", _optional_text),
    "tool": ("tool", _optional_text),
    "arguments": ("arguments", _arguments),
    "repeat": ("repeat", _repeat),
    "maxRuns": ("max_runs", _max_runs),
}


def _object(text: str) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as exc:
        raise ActionRefused("invalid_json", f"the arguments are not JSON: {exc}") from exc
    if not isinstance(found, dict):
        raise ActionRefused("invalid_type", "the arguments must be a JSON object")
    return found


def _items(value: Any) -> list[dict[str, Any]]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise ActionRefused("invalid_type", "items: must be a list of tasks")
    for at, item in enumerate(value):
        if not isinstance(item, dict):
            raise ActionRefused("invalid_type", f"items[{at}]: must be an object with {', '.join(_ITEM)}")
        _check_fields(item, _ITEM, f"items[{at}]")
    return value


def _check_fields(fields: dict[str, Any], known: dict[str, Any], at: str) -> None:
    for name in fields:
        if name not in known:
            raise ActionRefused(
                "unknown_field", f"{at}: unknown field {name[:80]!r}; the fields are {', '.join(known)}"
            )


def _text(value: Any, at: str) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise ActionRefused("invalid_type", f"{at}: must be a string, not {_shown(value)}")
    return value


def _required_id(task_id: str, action: str) -> str:
    if not task_id.strip():
        raise ActionRefused(
            "missing_task_id", f"taskId: name the task to {action}; use list to see the tasks"
        )
    return task_id.strip()


def _shown(value: Any) -> str:
    return msgspec.json.encode(value).decode()[:80]


def encode_result(value: dict[str, Any]) -> str:
    """Encode a result for the model."""
    return msgspec.json.encode(value).decode()


def refusal_result(exc: ActionRefused) -> dict[str, Any]:
    return {"ok": False, "error": {"code": exc.code, "message": str(exc)}}


def schedule_result(tasks: Iterable[Task]) -> dict[str, Any]:
    return {"ok": True, "scheduled": [_item(task) for task in tasks]}


def update_result(task: Task) -> dict[str, Any]:
    return {"ok": True, "updated": _item(task)}


def list_result(tasks: Iterable[Task]) -> dict[str, Any]:
    return {"ok": True, "items": [_item(task) | _delivery(task) for task in tasks]}


def cancel_result(task_id: str) -> dict[str, Any]:
    return {"ok": True, "removed": task_id}


def clear_result(count: int) -> dict[str, Any]:
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
