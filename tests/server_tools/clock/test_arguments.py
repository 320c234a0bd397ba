"""Arguments of the clock tool, valid and rejected."""

from __future__ import annotations

import json
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routecodex.server_tools.clock.arguments import (
    ACTIONS,
    SCHEMA,
    ActionRefused,
    CancelTask,
    ClearTasks,
    GetTime,
    ListTasks,
    ScheduleTasks,
    TaskFields,
    UpdateTask,
    read_arguments,
)
from tests.server_tools.clock.world import START

ITEM: dict[str, Any] = {
    "dueAt": "2026-01-21T12:30:00-08:00",
    "task": "water the plants",
    "tool": "",
    "arguments": "{}",
    "repeat": "none",
    "maxRuns": 0,
}
FULL = {**ITEM, "tool": "shell", "arguments": '{"cmd":"make"}', "repeat": "Daily", "maxRuns": 3}


def call(action: str, *items: dict[str, Any], task_id: str = "") -> str:
    return json.dumps({"action": action, "items": items, "taskId": task_id})


GOOD = {
    "get": (call("get"), GetTime()),
    "list": (call("list"), ListTasks()),
    "clear": (call("clear"), ClearTasks()),
    "cancel": (call("cancel", task_id=" t1 "), CancelTask("t1")),
    "schedule": (
        call("schedule", ITEM),
        ScheduleTasks((TaskFields(due_at_ms=START, task="water the plants"),)),
    ),
    "every field": (
        call("schedule", FULL),
        ScheduleTasks(
            (
                TaskFields(
                    due_at_ms=START,
                    task="water the plants",
                    tool="shell",
                    arguments={"cmd": "make"},
                    repeat="daily",
                    max_runs=3,
                ),
            )
        ),
    ),
    "only what the schema demands": (
        call("schedule", {name: ITEM[name] for name in ("dueAt", "task", "tool", "arguments")}),
        ScheduleTasks((TaskFields(due_at_ms=START, task="water the plants"),)),
    ),
    "maxRuns without repeat": (
        call("schedule", {**ITEM, "maxRuns": 5}),
        ScheduleTasks((TaskFields(due_at_ms=START, task="water the plants"),)),
    ),
    "fields left out": ('{"action":"get"}', GetTime()),
    "nulls": ('{"action":"list","items":null,"taskId":null}', ListTasks()),
    "update": (
        call("update", {**FULL, "dueAt": "", "task": " ", "repeat": "none"}, task_id="t1"),
        UpdateTask(
            "t1", {"tool": "shell", "arguments": {"cmd": "make"}, "repeat": "none", "max_runs": 3}
        ),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("text", "command"), GOOD.values(), ids=GOOD)
def test_what_is_understood(text: str, command: object) -> None:
    assert read_arguments(text) == command


BAD = {
    "not JSON": ("{", "invalid_json"),
    "nothing": ("", "invalid_json"),
    "half a character": ('{"action":"\\ud800"}', "invalid_json"),
    "too deep": ("[" * 100_000, "invalid_json"),
    "no object": ("[]", "invalid_type"),
    "no action": ("{}", "unknown_action"),
    "another action": (call("snooze"), "unknown_action"),
    "an action of another type": ('{"action":["get"]}', "unknown_action"),
    "another field": ('{"action":"get","items":[],"taskId":"","when":1}', "unknown_field"),
    "another field of an item": (call("schedule", {**ITEM, "when": 1}), "unknown_field"),
    "items of another type": ('{"action":"schedule","items":{}}', "invalid_type"),
    "an item of another type": ('{"action":"schedule","items":["x"]}', "invalid_type"),
    "an id of another type": ('{"action":"cancel","taskId":7}', "invalid_type"),
    "nothing to schedule": (call("schedule"), "missing_items"),
    "no time": (call("schedule", {**ITEM, "dueAt": ""}), "missing_due_at"),
    "no task": (call("schedule", {**ITEM, "task": " "}), "missing_task"),
    "a number for a time": (call("schedule", {**ITEM, "dueAt": START}), "due_at_is_a_number"),
    "a large number": (call("schedule", {**ITEM, "dueAt": 1.7e30}), "due_at_is_a_number"),
    "a number as text": (call("schedule", {**ITEM, "dueAt": str(START)}), "due_at_is_a_number"),
    "a truth for a time": (call("schedule", {**ITEM, "dueAt": True}), "invalid_type"),
    "no offset": (call("schedule", {**ITEM, "dueAt": "2026-01-21T12:30:00"}), "due_at_without_offset"),
    "no such day": (call("schedule", {**ITEM, "dueAt": "2026-02-30T12:30:00Z"}), "due_at_invalid"),
    "arguments that are not JSON": (call("schedule", {**ITEM, "arguments": "{"}), "bad_arguments"),
    "arguments that are no object": (call("schedule", {**ITEM, "arguments": "[]"}), "bad_arguments"),
    "arguments that are no text": (call("schedule", {**ITEM, "arguments": {}}), "invalid_type"),
    "no rhythm": (call("schedule", {**ITEM, "repeat": "hourly"}), "bad_repeat"),
    "less than no run": (call("schedule", {**FULL, "maxRuns": -1}), "bad_max_runs"),
    "half a run": (call("schedule", {**FULL, "maxRuns": 1.5}), "bad_max_runs"),
    "a truth for runs": (call("schedule", {**FULL, "maxRuns": True}), "bad_max_runs"),
    "the second item is bad": (call("schedule", ITEM, {**ITEM, "dueAt": "soon"}), "due_at_invalid"),
    "which one": (call("cancel", task_id=" "), "missing_task_id"),
    "update what": (call("update", ITEM), "missing_task_id"),
    "update with nothing": (call("update", task_id="t1"), "missing_items"),
    "update with two": (call("update", ITEM, ITEM, task_id="t1"), "missing_items"),
    "update without a change": (
        call("update", {**ITEM, "dueAt": "", "task": "", "repeat": ""}, task_id="t1"),
        "nothing_to_change",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("text", "code"), BAD.values(), ids=BAD)
def test_what_is_refused(text: str, code: str) -> None:
    with pytest.raises(ActionRefused) as caught:
        read_arguments(text)
    assert caught.value.code == code


def test_a_refusal_names_the_place() -> None:
    with pytest.raises(ActionRefused, match=r"^items\[1\]\.dueAt: 'soon' is not a time; use ISO 8601"):
        read_arguments(call("schedule", ITEM, {**ITEM, "dueAt": "soon"}))


def objects(schema: Any) -> list[dict[str, Any]]:
    """Every schema of an object in a schema."""
    if isinstance(schema, list):
        return [found for each in schema for found in objects(each)]
    if not isinstance(schema, dict):
        return []
    inner = [found for each in schema.values() for found in objects(each)]
    return [schema, *inner] if schema.get("type") == "object" else inner


def test_the_schema_fits_strict_mode() -> None:
    assert [list(each["properties"]) for each in objects(SCHEMA)] == [
        ["action", "items", "taskId"],
        ["dueAt", "task", "tool", "arguments", "repeat", "maxRuns"],
    ]
    for each in objects(SCHEMA):
        assert each["required"] == list(each["properties"])
        assert each["additionalProperties"] is False
    assert '"default"' not in json.dumps(SCHEMA)
    assert SCHEMA["properties"]["action"]["enum"] == list(ACTIONS)


def test_calls_that_fit_the_schema_are_what_we_read() -> None:
    validator = jsonschema_rs.validator_for(SCHEMA)
    fitting = [call(action, ITEM, task_id="t1") for action in ACTIONS]
    assert [validator.is_valid(json.loads(text)) for text in fitting] == [True] * len(ACTIONS)
    assert [type(read_arguments(text)) for text in fitting] == list(COMMANDS.values())


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.sampled_from(sorted(ITEM)), inner),
    max_leaves=10,
)
ITEMS = st.dictionaries(st.sampled_from(sorted(ITEM)), JSON)
COMMANDS = {
    "get": GetTime,
    "schedule": ScheduleTasks,
    "list": ListTasks,
    "cancel": CancelTask,
    "clear": ClearTasks,
    "update": UpdateTask,
}
REFUSALS = frozenset(
    {
        "bad_arguments",
        "bad_max_runs",
        "bad_repeat",
        "due_at_invalid",
        "due_at_is_a_number",
        "due_at_without_offset",
        "invalid_json",
        "invalid_type",
        "missing_due_at",
        "missing_items",
        "missing_task",
        "missing_task_id",
        "nothing_to_change",
        "unknown_action",
        "unknown_field",
    }
)


@given(
    st.text()
    | JSON.map(json.dumps)
    | st.fixed_dictionaries(
        {"action": st.sampled_from(ACTIONS)},
        optional={"taskId": JSON, "items": JSON | st.lists(ITEMS)},
    ).map(json.dumps)
)  # fmt: skip
def test_anything_at_all_is_read_or_refused(text: str) -> None:
    found: object
    try:
        found = type(read_arguments(text))
    except ActionRefused as refusal:
        found = refusal.code
    assert found in (*COMMANDS.values(), *REFUSALS)
