from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from routecodex.canon.events import (
    ArgumentsDelta,
    Event,
    Failed,
    Finished,
    PartFinished,
    PartStarted,
    ReasoningDelta,
    SignatureDelta,
    Started,
    TextDelta,
    UsageReported,
)
from routecodex.canon.finish import Finish
from routecodex.canon.parts import Media, Reasoning, Refusal, Text, ToolCall, ToolResult
from routecodex.canon.request import Message, Output, Request, Thinking, Tool, ToolChoice
from routecodex.canon.response import Response, fold
from routecodex.providers.demo import MODELS, PACE, answer, respond

WEATHER = Tool(
    "get_weather",
    parameters={
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        "required": ["city", "days"],
    },
)
READ = Tool("Read", parameters={"type": "object", "properties": {"path": {"type": "string"}}})


def user_request(text: str, **more: Any) -> Request:
    messages = (*more.pop("messages", ()), Message("user", (Text(text),)))
    return Request(model="demo-1", source="chat", messages=messages, **more)


def response_to(text: str, **more: Any) -> Response:
    return fold(checked(respond(user_request(text, **more))))


def text_of(response: Response) -> str:
    return "".join(part.text for part in response.parts if isinstance(part, Text))


def calls_of(response: Response) -> list[tuple[str, Any]]:
    calls = (part for part in response.parts if isinstance(part, ToolCall))
    return [(call.name, msgspec.json.decode(call.arguments)) for call in calls]


def checked(events: list[Event]) -> list[Event]:
    """Check the events against the grammar of canon events and return them."""
    assert isinstance(events[0], Started)
    assert isinstance(events[-1], Finished | Failed)
    opened: list[int] = []
    closed: list[int] = []
    for event in events[1:-1]:
        match event:
            case PartStarted():
                assert event.index == len(opened)
                opened.append(event.index)
            case PartFinished():
                closed.append(event.index)
            case UsageReported():
                pass
            case TextDelta() | ArgumentsDelta() | ReasoningDelta() | SignatureDelta():
                assert event.index in opened
                assert event.index not in closed
            case _:
                raise AssertionError(event)
    assert closed == opened or isinstance(events[-1], Failed)
    return events


def test_it_echoes_the_user_and_says_what_it_saw() -> None:
    image = Message("user", (Media("image", url="https://example.com/a.png"),))
    answered = response_to("Hello there", messages=(image,), tools=(WEATHER,), system=(Text("Be kind."),))
    assert text_of(answered) == (
        'You said: "Hello there". I am the demo model demo-1, '
        "and I saw 2 messages, 1 tool, 1 image and a system prompt."
    )
    assert answered.finish == Finish("stop")
    assert answered.usage is not None
    assert answered.usage.input > 0
    assert answered.usage.output > 10


def test_the_same_request_gives_the_same_events() -> None:
    assert respond(user_request("use get_weather", tools=(WEATHER,))) == respond(
        user_request("use get_weather", tools=(WEATHER,))
    )


def test_of_a_long_text_both_ends_are_echoed() -> None:
    text = text_of(response_to("begin " + "word " * 100_000 + "and end"))
    assert text.startswith('You said: "begin word ')
    assert " … " in text
    assert 'and end". I am' in text
    assert len(text) < 1200


def test_notes_of_agents_are_not_the_user() -> None:
    note = "<system-reminder>use get_weather</system-reminder>"
    assert text_of(response_to(f"{note}Hi", tools=(WEATHER,))).startswith('You said: "Hi".')


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ("get_weather for 'Paris' over 3 days", [("get_weather", {"city": "Paris", "days": 3})]),
        ("What will Get Weather say in Rome for 2 days?", [("get_weather", {"city": "Rome", "days": 2})]),
        ("use `get_weather` for `Bonn`", [("get_weather", {"city": "Bonn", "days": 1})]),
        ("please use some tool", [("get_weather", {"city": "city", "days": 1})]),
        (
            'Read "a.txt", then get_weather',
            [("Read", {"path": "a.txt"}), ("get_weather", {"city": "a.txt", "days": 1})],
        ),
        ("I read the news", []),
        ("What about tools?", []),
        ("Do not use tools.", []),
        ("Don't ever call a tool!", []),
        ("Answer without using any tools", []),
        ("Use no tools, please", []),
        ("Do not use get_weather.", []),
        ("Never call get_weather, use Read 'a.txt'", [("Read", {"path": "a.txt"})]),
        ("Do not wait. Use a tool.", [("get_weather", {"city": "city", "days": 1})]),
    ],
)
def test_it_calls_the_tools_the_user_asks_for(text: str, calls: list[Any]) -> None:
    answered = response_to(text, tools=(WEATHER, READ))
    assert calls_of(answered) == calls
    assert answered.finish == Finish("tool_calls" if calls else "stop")


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        (ToolChoice("none"), []),
        (ToolChoice("required"), ["get_weather"]),
        (ToolChoice("tool", ("Read",)), ["Read"]),
        (ToolChoice("auto"), []),
    ],
)
def test_tool_choice_is_obeyed(choice: ToolChoice, names: list[str]) -> None:
    answered = response_to("Hello", tools=(WEATHER, READ), tool_choice=choice)
    assert [name for name, _ in calls_of(answered)] == names


def test_one_call_at_a_time_when_parallel_calls_are_off() -> None:
    answered = response_to("Read and get_weather", tools=(WEATHER, READ), parallel_tool_calls=False)
    assert [name for name, _ in calls_of(answered)] == ["Read"]


def test_custom_tools_get_text_and_hosted_ones_are_left_alone() -> None:
    tools = (Tool("web_search", kind="hosted"), Tool("patch", kind="custom", namespace="files"))
    call = next(
        part
        for part in response_to("use patch with 'x = 1'", tools=tools).parts
        if isinstance(part, ToolCall)
    )
    assert (call.name, call.arguments, call.custom, call.namespace) == ("patch", "x = 1", True, "files")
    assert calls_of(response_to("web_search", tools=tools[:1])) == []


def after_results(*results: ToolResult, role: Any = "tool", **more: Any) -> Response:
    calls = tuple(ToolCall(f"c{n}", "get_weather", "{}") for n in range(2))
    messages = (
        Message("user", (Text("get_weather twice, demo:tool get_weather"),)),
        Message("assistant", calls),
        Message(role, results),
    )
    request = Request(model="demo-1", source="chat", messages=messages, tools=(WEATHER,), **more)
    return fold(checked(respond(request)))


@pytest.mark.parametrize("role", ["tool", "user"])
def test_results_are_quoted_and_end_the_loop(role: str) -> None:
    results = (ToolResult("c0", (Text("sunny"),)), ToolResult("c1", (Text("no net"),), is_error=True))
    answered = after_results(*results, role=role)
    assert text_of(answered) == (
        "get_weather answered: sunny\nget_weather failed with: no net\nThat is all I needed."
    )
    assert answered.finish == Finish("stop")


def test_call_ids_differ_between_turns() -> None:
    first = [part.id for part in response_to("Read and get_weather", tools=(WEATHER, READ)).parts[1:]]  # type: ignore[union-attr]  # calls
    history = (Message("user", (Text("x"),)),)
    more = response_to("Read and get_weather", tools=(WEATHER, READ), messages=history)
    ids = [*first, *(part.id for part in more.parts[1:])]  # type: ignore[union-attr]  # calls
    assert len(set(ids)) == 4


def test_it_thinks_first_when_asked() -> None:
    thought, *rest = response_to("Hello", thinking=Thinking(budget=1000)).parts
    assert isinstance(thought, Reasoning)
    assert thought.text
    assert thought.signature
    assert isinstance(rest[0], Text)
    assert isinstance(response_to("demo:think").parts[0], Reasoning)
    for off in (Thinking(enabled=False), Thinking(effort="none"), None):
        assert not isinstance(response_to("Hello", thinking=off).parts[0], Reasoning)
    hidden = response_to("Hello", thinking=Thinking(visible=False)).parts[0]
    assert isinstance(hidden, Reasoning)
    assert (hidden.text, bool(hidden.signature)) == ("", True)


def test_thoughts_are_counted() -> None:
    usage = response_to("Hello", thinking=Thinking()).usage
    assert usage is not None
    assert 0 < usage.reasoning < usage.output


@pytest.mark.parametrize("limit", [1, 2, 5, 10])
def test_max_tokens_is_kept(limit: int) -> None:
    answered = response_to("demo:long 100", max_tokens=limit)
    assert answered.finish == Finish("length")
    assert answered.usage is not None
    assert answered.usage.output <= limit
    assert text_of(response_to("demo:long 100")).startswith(text_of(answered))


def test_a_call_that_does_not_fit_is_not_begun() -> None:
    answered = response_to("get_weather 'Paris'", tools=(WEATHER,), max_tokens=9)
    assert calls_of(answered) == []
    assert answered.finish == Finish("length")


def test_stop_sequences_end_the_answer() -> None:
    answered = response_to("demo:say one two three four", stop=("four", "three"))
    assert text_of(answered) == "one two "
    assert answered.finish == Finish("stop", sequence="three")


def test_structured_output_is_json() -> None:
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    assert text_of(response_to("Hi", output=Output("json_schema", schema=schema))) == '{"ok":true}'
    loose = msgspec.json.decode(text_of(response_to("Hi", output=Output("json_object"))))
    assert loose == {"text": "Hi", "messages": 1, "tools": 0, "images": 0}
    late = after_results(ToolResult("c0", (Text("sunny"),)), output=Output("json_object"))
    assert msgspec.json.decode(text_of(late))["results"] == ["sunny"]


@pytest.mark.parametrize(
    ("command", "parts", "finish"),
    [
        ("demo:stop", (Text("Stopped, as you asked."),), "stop"),
        ("please demo:length now", (Text("This answer is cut off by the token limit before it"),), "length"),
        ("demo:empty", (), "stop"),
        ("demo:refuse", (Refusal("I will not help with that."),), "refusal"),
        ("demo:filter", (Text("This answer was"),), "content_filter"),
    ],
)
def test_commands_end_an_answer_in_each_way(command: str, parts: Any, finish: Any) -> None:
    answered = response_to(command)
    assert (answered.parts, answered.finish) == (parts, Finish(finish))


def test_long_answers_have_exactly_so_many_words() -> None:
    assert len(text_of(response_to("demo:long 123")).split()) == 123


def test_tool_commands_are_calls_word_for_word() -> None:
    text = 'demo:tool look {"at": {"x": 1}} please demo:tool get_weather\ndemo:tool other'
    answered = response_to(text, tools=(WEATHER,))
    assert calls_of(answered) == [
        ("look", {"at": {"x": 1}}),
        ("get_weather", {"city": "at", "days": 1}),
        ("other", {}),
    ]
    assert answered.finish == Finish("tool_calls")


@pytest.mark.parametrize(
    ("status", "kind"),
    [(429, "rate_limit"), (500, "api"), (503, "api"), (529, "overloaded"), (400, "invalid_request")],
)
def test_errors_come_before_the_first_word(status: int, kind: str) -> None:
    events = checked(respond(user_request(f"demo:error {status}")))
    last = events[-1]
    assert isinstance(last, Failed)
    assert last.error.kind == kind
    assert not any(isinstance(event, PartStarted) for event in events)


def test_a_cutoff_breaks_in_the_middle_of_a_part() -> None:
    events = checked(respond(user_request("demo:cutoff")))
    assert isinstance(events[-1], Failed)
    assert isinstance(events[-2], TextDelta)
    assert events[-1].error.code == "upstream_truncated"


class Clock:
    """Counts seconds instead of sleeping."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


async def test_the_answer_is_the_same_events_at_a_pace() -> None:
    clock = Clock()
    request = user_request("demo:long 10")
    events = [event async for event in answer(request, pace=PACE, sleep=clock.sleep)]
    assert events == respond(request)
    assert clock.slept == [PACE] * 10


async def test_slow_is_silent_before_the_first_word() -> None:
    clock = Clock()
    kinds: list[str] = []
    async for event in answer(user_request("demo:slow 5 demo:stop"), pace=0, sleep=clock.sleep):
        kinds.append(type(event).__name__)
        if isinstance(event, PartStarted):
            assert clock.slept == [5.0]
    assert kinds[0] == "Started"


def names(models: Iterable[str]) -> list[str]:
    return [fold(respond(Request(model=m, source="chat", messages=()))).model for m in models]


def test_all_its_models_run_the_same_script() -> None:
    assert names(MODELS) == list(MODELS) == ["demo-1", "demo-vision", "demo-thinking"]
