from __future__ import annotations

from typing import Any

import pytest
from msgspec import convert

from routecodex.protocols.chat.decode_request import decode_request
from routecodex.protocols.chat.encode_request import encode_request
from routecodex.protocols.chat.rewrite import rewrite
from routecodex.protocols.codec import EncodeOptions
from routecodex.protocols.dialect import Dialect
from routecodex.providers.catalog import PRESETS
from routecodex.wire import json
from tests.protocols.chat.samples import value_of, wire_request, with_dialect

HI = {"role": "user", "content": "hi"}
FUNCTION: dict[str, Any] = {"name": "f", "parameters": {"type": "object"}}
TOOL = {"type": "function", "function": FUNCTION}
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}
INSTRUCTION = f"Answer with one JSON object that fits this JSON schema: {json.encode(SCHEMA).decode()}"
FORMAT = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, "strict": True}}

Case = tuple[str, dict[str, Any], dict[str, Any], dict[str, Any], tuple[str, ...]]
"""Name, dialect, fields of the request, expected fields, notices."""

CASES: list[Case] = [
    (
        "developers speak as the system",
        {"n": False},
        {"messages": [{"role": "developer", "content": "d", "x": 1.50}, HI]},
        {"messages": [{"role": "system", "content": "d", "x": 1.50}, HI]},
        (),
    ),
    (
        "a developer in the middle stays there",
        {"n": False},
        {"messages": [HI, {"role": "developer", "content": "d"}]},
        {"messages": [HI, {"role": "system", "content": "d"}]},
        (),
    ),
    (
        "whoever knows developers hears both",
        {"system_role": "developer"},
        {"messages": [{"role": "system", "content": "s"}, {"role": "developer", "content": "d"}, HI]},
        {"messages": [{"role": "system", "content": "s"}, {"role": "developer", "content": "d"}, HI]},
        (),
    ),
    (
        "leading system texts become one",
        {"merge_system": True},
        {
            "messages": [
                {"role": "system", "content": "a", "x": 1},
                {"role": "system", "content": [{"type": "text", "text": "b"}, {"type": "text", "text": "c"}]},
                HI,
                {"role": "system", "content": "d"},
            ]
        },
        {
            "messages": [
                {"role": "system", "content": "a\n\nb\n\nc", "x": 1},
                HI,
                {"role": "user", "content": "<system>\nd\n</system>"},
            ]
        },
        (),
    ),
    (
        "a schema becomes an instruction",
        {"response_format": "json_object"},
        {"response_format": FORMAT},
        {
            "messages": [{"role": "system", "content": INSTRUCTION}, HI],
            "response_format": {"type": "json_object"},
        },
        (),
    ),
    (
        "the instruction joins the system text",
        {"response_format": "json_object"},
        {"messages": [{"role": "developer", "content": "Be brief."}, HI], "response_format": FORMAT},
        {
            "messages": [{"role": "system", "content": f"Be brief.\n\n{INSTRUCTION}"}, HI],
            "response_format": {"type": "json_object"},
        },
        (),
    ),
    (
        "the instruction joins the parts of the system text",
        {"response_format": "json_object"},
        {
            "messages": [{"role": "system", "content": [{"type": "text", "text": "a", "x": 1}]}, HI],
            "response_format": FORMAT,
        },
        {
            "messages": [
                {
                    "role": "system",
                    "content": [{"type": "text", "text": "a", "x": 1}, {"type": "text", "text": INSTRUCTION}],
                },
                HI,
            ],
            "response_format": {"type": "json_object"},
        },
        (),
    ),
    (
        "plain JSON needs no instruction",
        {"response_format": "json_object"},
        {"response_format": {"type": "json_object"}},
        {"response_format": {"type": "json_object"}},
        (),
    ),
    (
        "no structured output",
        {"response_format": "none"},
        {"response_format": FORMAT},
        {},
        ("dropped response_format: this upstream has no structured output",),
    ),
    (
        "no choice of a tool",
        {"tool_choice": "auto_only"},
        {"tools": [TOOL], "tool_choice": "required"},
        {"tools": [TOOL], "tool_choice": "auto"},
        ("dropped tool_choice: this upstream accepts only auto and none",),
    ),
    (
        "no tool at all can always be chosen",
        {"tool_choice": "auto_only"},
        {"tools": [TOOL], "tool_choice": "none"},
        {"tools": [TOOL], "tool_choice": "none"},
        (),
    ),
    (
        "one tool, but not any",
        {"tool_choice": "no_required"},
        {"tools": [TOOL], "tool_choice": "required"},
        {"tools": [TOOL], "tool_choice": "auto"},
        ("dropped tool_choice required: this upstream has no such mode",),
    ),
    (
        "a certain tool",
        {"tool_choice": "no_required"},
        {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "f"}}},
        {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "f"}}},
        (),
    ),
    (
        "no parallel_tool_calls",
        {"parallel_tool_calls": False},
        {"tools": [TOOL], "parallel_tool_calls": True},
        {"tools": [TOOL]},
        ("dropped parallel_tool_calls: this upstream has no such setting",),
    ),
    (
        "tools are not strict",
        {"strict_tools": False},
        {
            "tools": [
                {**TOOL, "x": 1, "function": {"y": 2, **FUNCTION, "strict": True}},
                {"type": "h"},
            ]
        },
        {"tools": [{**TOOL, "x": 1, "function": {"y": 2, **FUNCTION}}, {"type": "h"}]},
        (),
    ),
    (
        "thinking is switched on",
        {"reasoning_field": "thinking"},
        {"reasoning_effort": "high"},
        {"thinking": {"type": "enabled"}},
        ("dropped reasoning_effort: this upstream only switches thinking on and off",),
    ),
    (
        "thinking is switched on, and its effort stays",
        {"reasoning_field": "thinking_and_effort"},
        {"reasoning_effort": "high"},
        {"thinking": {"type": "enabled"}, "reasoning_effort": "high"},
        (),
    ),
    (
        "an effort that only the upstream knows",
        {"reasoning_field": "thinking_and_effort"},
        {"reasoning_effort": "ultra"},
        {"reasoning_effort": "ultra"},
        (),
    ),
    (
        "no effort is no thinking",
        {"reasoning_field": "thinking_and_effort"},
        {"reasoning_effort": "none"},
        {"thinking": {"type": "disabled"}},
        (),
    ),
    (
        "both fields of the upstream stay",
        {"reasoning_field": "thinking_and_effort"},
        {"reasoning_effort": "high", "thinking": {"type": "enabled"}},
        {"reasoning_effort": "high", "thinking": {"type": "enabled"}},
        (),
    ),
    (
        "thinking is switched off",
        {"reasoning_field": "enable_thinking"},
        {"reasoning_effort": "none"},
        {"enable_thinking": False},
        (),
    ),
    (
        "the upstream's own field wins",
        {"reasoning_field": "thinking"},
        {"reasoning_effort": "high", "thinking": {"type": "enabled", "budget_tokens": 9}},
        {"thinking": {"type": "enabled", "budget_tokens": 9}},
        ("dropped reasoning_effort: this upstream only switches thinking on and off",),
    ),
    (
        "no switch for thinking",
        {"reasoning_field": "none"},
        {"reasoning_effort": "low"},
        {},
        ("dropped thinking: this upstream has no setting for it",),
    ),
]


@pytest.mark.parametrize(
    ("dialect", "fields", "expected", "notices"), [row[1:] for row in CASES], ids=[row[0] for row in CASES]
)
def test_settings_are_converted_to_the_upstreams_dialect(
    dialect: dict[str, Any], fields: dict[str, Any], expected: dict[str, Any], notices: tuple[str, ...]
) -> None:
    encoded = rewrite(wire_request(**fields, unheard_of={"a": [1.50]}), with_dialect(**dialect))
    assert value_of(encoded) == {"model": "m-1", "messages": [HI], "unheard_of": {"a": [1.50]}, **expected}
    assert encoded.notices == notices


ALL = {
    "messages": [{"role": "developer", "content": "d"}, HI],
    "response_format": FORMAT,
    "tools": [{"type": "function", "function": {**FUNCTION, "strict": True}}],
    "tool_choice": "required",
    "parallel_tool_calls": False,
    "reasoning_effort": "high",
    "max_tokens": 9,
}


@pytest.mark.parametrize("name", [name for name, row in PRESETS.items() if row.protocol == "chat"])
def test_a_rewritten_request_equals_a_converted_one(name: str) -> None:
    to = EncodeOptions(model="m-1", provider=name, dialect=convert(dict(PRESETS[name].dialect), Dialect))
    passed, converted = (
        rewrite(wire_request(**ALL), to),
        encode_request(decode_request(wire_request(**ALL)), to),
    )
    # Which of two fields limits the answer is left to the client where the upstream knows both.
    limits = ("max_tokens", "max_completion_tokens")
    free = to.dialect.max_tokens_field is None
    values = [
        {key: item for key, item in value_of(encoded).items() if not (free and key in limits)}
        for encoded in (passed, converted)
    ]
    assert values[0] == values[1]
    assert passed.notices == converted.notices


def test_marker_words_in_the_text_change_nothing() -> None:
    text = '"developer" "strict" "system" "system"'
    fields = {"messages": [{"role": "user", "content": text}], "tools": [TOOL]}
    to = with_dialect(strict_tools=False, merge_system=True)
    assert value_of(rewrite(wire_request(**fields), to)) == {"model": "m-1", **fields}


def test_an_upstream_without_a_dialect_gets_the_clients_request() -> None:
    body = wire_request(
        messages=[{"role": "developer", "content": "d"}, HI], max_tokens=9, reasoning_effort="low"
    )
    assert value_of(rewrite(body, with_dialect())) == {**json.decode(body.body), "model": "m-1"}


@pytest.mark.parametrize("preset", ["deepseek", "glm"])
def test_the_effort_reaches_deepseek_and_glm(preset: str) -> None:
    dialect = convert(dict(PRESETS[preset].dialect), Dialect)
    to = EncodeOptions(model="m-1", provider=preset, dialect=dialect)
    encoded = rewrite(wire_request(reasoning_effort="high"), to)
    assert value_of(encoded) == {
        "model": "m-1",
        "messages": [HI],
        "thinking": {"type": "enabled"},
        "reasoning_effort": "high",
    }
    assert encoded.notices == ()
