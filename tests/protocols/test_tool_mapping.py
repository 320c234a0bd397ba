from __future__ import annotations

import json
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from routecodex.canon.parts import ToolCall
from routecodex.canon.request import Message, Request, Tool, ToolChoice
from routecodex.protocols.tool_mapping import (
    CUSTOM_PARAMETERS,
    InputUnwrapper,
    ToolNames,
    description_of,
    distinct_names,
    flat,
    flat_call,
    flat_name,
    unwrap_input,
    wrap_input,
)

LEGAL = re.compile(r"[A-Za-z0-9_-]{1,64}")


GRAMMAR = {"type": "grammar", "syntax": "lark", "definition": "start: x"}
TOLD = "The input must follow this lark grammar:\nstart: x"


@pytest.mark.parametrize(
    ("tool", "told"),
    [
        (Tool("f"), ""),
        (Tool("f", description="Does."), "Does."),
        (Tool("p", "custom", description="Patches."), "Patches."),
        (Tool("p", "custom", description="Patches.", format={"type": "text"}), "Patches."),
        (Tool("p", "custom", description="Patches.", format=GRAMMAR), f"Patches.\n\n{TOLD}"),
        (Tool("p", "custom", format={"type": "grammar", "grammar": GRAMMAR}), TOLD),
        (Tool("p", "custom", format={"definition": "x"}), "The input must follow this grammar:\nx"),
        (Tool("p", "custom", format="odd"), ""),
    ],
)
def test_the_grammar_of_a_custom_tool_is_told_in_words(tool: Tool, told: str) -> None:
    assert description_of(tool) == told


def streamed(pieces: list[str]) -> str:
    unwrapper = InputUnwrapper()
    return "".join(unwrapper.feed(piece) for piece in pieces) + unwrapper.close()


def test_plain_name_stays_itself() -> None:
    assert flat_name(Tool("shell")) == "shell"


def test_namespace_and_name_become_one_name_for_tools_and_calls_alike() -> None:
    assert flat_name(Tool("spawn", namespace="agents")) == "agents__spawn"
    assert flat_call(ToolCall("c1", "spawn", namespace="agents")) == "agents__spawn"


@given(st.text(min_size=1, max_size=90), st.none() | st.text(min_size=1, max_size=90))
def test_flat_names_are_legal_whatever_the_tool_is_called(name: str, namespace: str | None) -> None:
    assert LEGAL.fullmatch(flat(name, namespace))


PAIRS = st.tuples(st.text("a_", min_size=1, max_size=6), st.text("a_", min_size=1, max_size=6))


@given(PAIRS, PAIRS)
@example(("b__c", "a"), ("c", "a__b"))
@example(("_b", "a"), ("b", "a_"))
def test_tools_of_namespaces_never_share_a_flat_name(one: tuple[str, str], other: tuple[str, str]) -> None:
    assert (flat(*one) == flat(*other)) == (one == other)


def test_tools_whose_joined_names_are_equal_find_the_way_back() -> None:
    tools = [
        Tool("b__read", namespace="a"),
        Tool("read", namespace="a__b"),
        Tool("b__c__read", namespace="a"),
        Tool("c__read", namespace="a__b"),
    ]
    names = ToolNames(tools)
    assert flat_name(tools[1]) == "a__b__read"
    assert [names.resolve(flat_name(tool))[:2] for tool in tools] == [
        (tool.name, tool.namespace) for tool in tools
    ]


def test_a_namespaced_tool_gives_way_to_a_plain_tool_of_its_flat_name() -> None:
    tools = (Tool("read", namespace="a"), Tool("a__read"), Tool("wait", namespace="functions"), Tool("wait"))
    calls = tuple(ToolCall(f"c{at}", tool.name, namespace=tool.namespace) for at, tool in enumerate(tools))
    request = Request(model="m", source="responses", messages=(Message("assistant", calls),), tools=tools)
    distinct = distinct_names(request)
    sent = [flat_name(tool) for tool in distinct.tools]
    assert len(set(sent)) == 4
    assert (sent[1], sent[3]) == ("a__read", "wait")
    parts = distinct.messages[0].parts
    assert [flat_call(part) for part in parts if isinstance(part, ToolCall)] == sent
    names = ToolNames(tools)
    assert [names.resolve(name)[:2] for name in sent] == [(tool.name, tool.namespace) for tool in tools]
    for chosen, name in (("read", sent[0]), ("a__read", "a__read"), ("wait", "wait")):
        choice = distinct_names(replace(request, tool_choice=ToolChoice("tool", (chosen,)))).tool_choice
        assert choice == ToolChoice("tool", (name,))


def test_a_request_whose_names_differ_stays_as_it_is() -> None:
    tools = (Tool("read", namespace="a"), Tool("read"), Tool("wait", namespace="functions"))
    request = Request(model="m", source="responses", messages=(), tools=tools)
    assert distinct_names(request) is request
    assert [flat_name(tool) for tool in tools] == ["a__read", "read", "wait"]


def test_long_names_with_one_beginning_stay_apart() -> None:
    assert flat("x" * 70 + "a", None) != flat("x" * 70 + "b", None)


def test_call_names_find_the_way_back() -> None:
    names = ToolNames(
        [
            Tool("apply_patch", kind="custom"),
            Tool("spawn", namespace="agents"),
            Tool("read", namespace="a"),
            Tool("read", namespace="b"),
            Tool("web_search", kind="hosted"),
        ]
    )
    assert names.resolve("apply_patch") == ("apply_patch", None, True)
    assert names.resolve("agents__spawn") == ("spawn", "agents", False)
    assert names.resolve("spawn") == ("spawn", "agents", False)
    assert names.resolve("read") == ("read", None, False)
    assert names.resolve("unknown") == ("unknown", None, False)


def test_plain_tool_wins_over_a_namespaced_one_of_its_name() -> None:
    names = ToolNames([Tool("read", namespace="a"), Tool("read")])
    assert names.resolve("read") == ("read", None, False)
    assert names.resolve("a__read") == ("read", "a", False)


@given(st.text())
def test_wrapped_text_comes_back(text: str) -> None:
    assert unwrap_input(wrap_input(text)) == text


@given(st.text(), st.booleans(), st.integers(1, 5))
def test_streamed_fragments_of_any_size_give_the_same_text(text: str, ascii_only: bool, size: int) -> None:
    arguments = json.dumps({"input": text}, ensure_ascii=ascii_only)
    assert streamed([arguments[i : i + size] for i in range(0, len(arguments), size)]) == text


def test_text_streams_before_the_arguments_end() -> None:
    unwrapper = InputUnwrapper()
    assert unwrapper.feed('{"inp') == ""
    assert unwrapper.feed('ut": "one\\') == "one"
    assert unwrapper.feed("ntwo") == "\ntwo"
    assert unwrapper.feed('"}') == ""
    assert unwrapper.close() == ""


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("", ""),
        ("{}", ""),
        ("*** Begin Patch", "*** Begin Patch"),
        ('"only a string"', "only a string"),
        ('{"patch": "other key"}', "other key"),
        ('{"why": 1, "input": "second key"}', "second key"),
        ('{"input": {"a": 1}}', '{"a":1}'),
        ('{"input": null}', ""),
        ('{"a": "1", "b": "2"}', '{"a": "1", "b": "2"}'),
        ('{"input": "raw\nnewline"}', "raw\nnewline"),
        ('{"input": "cut of', "cut of"),
        ('{"input": "lone \\ud83d surrogate"}', "lone \ufffd surrogate"),
        ('{"input": "back\\\\"}', "back\\"),
    ],
)
def test_arguments_of_careless_models_are_understood(arguments: str, text: str) -> None:
    assert unwrap_input(arguments) == text
    assert streamed(list(arguments)) == text


def test_custom_parameters_ask_for_one_string() -> None:
    assert CUSTOM_PARAMETERS["required"] == ["input"]
    assert CUSTOM_PARAMETERS["properties"]["input"]["type"] == "string"
