from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from routecodex.canon.parts import Media, Part, Reasoning, Text, ToolCall, ToolResult
from routecodex.canon.request import Message, Output, Request, Thinking, Tool, ToolChoice
from routecodex.protocols.codec import EncodeOptions
from routecodex.protocols.gemini import CODEC

OPTIONS = EncodeOptions(model="gemini-2.5-flash", provider="google")

texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
names = st.text("abc_", min_size=1, max_size=8).map(lambda name: f"t_{name}")
signatures = st.none() | st.text("ABCDabcd0123", min_size=4, max_size=8)
values = st.dictionaries(texts, st.integers(-9, 9) | texts | st.booleans(), min_size=2, max_size=3)
objects = values.map(lambda value: json.dumps(value, ensure_ascii=False, separators=(",", ":")))
images = st.builds(Media, st.just("image"), media_type=st.just("image/png"), data=st.just("AAAA"))
text_or_reasoning: st.SearchStrategy[Part] = st.one_of(
    st.builds(Text, texts, signature=signatures), st.builds(Reasoning, texts, signature=signatures)
)
plain_results = texts.filter(lambda text: not text.lstrip().startswith("{"))


@st.composite
def turns(draw: st.DrawFn) -> tuple[Message, ...]:
    """Draw a conversation of whole turns: question, calls, results, answer."""
    messages: list[Message] = []
    for at in range(draw(st.integers(1, 3))):
        question = draw(st.lists(st.builds(Text, texts) | images, min_size=1, max_size=2))
        messages.append(Message("user", tuple(question)))
        calls = [
            ToolCall(f"c{at}_{n}", draw(names), draw(objects), signature=draw(signatures))
            for n in range(draw(st.integers(0, 3)))
        ]
        if calls:
            before = draw(st.lists(text_or_reasoning, max_size=1))
            messages.append(Message("assistant", (*before, *calls)))
            messages.append(Message("tool", tuple(draw(results(call)) for call in calls)))
        messages.append(
            Message("assistant", tuple(draw(st.lists(text_or_reasoning, min_size=1, max_size=2))))
        )
    return tuple(messages)


def results(call: ToolCall) -> st.SearchStrategy[ToolResult]:
    return st.one_of(
        st.builds(lambda text: ToolResult(call.id, (Text(text),), name=call.name), plain_results | objects),
        st.builds(lambda text: ToolResult(call.id, (Text(text),), is_error=True, name=call.name), texts),
    )


schemas = st.just({"type": "object", "properties": {"q": {"type": "string"}}})
tools = st.lists(st.builds(Tool, names, description=texts, parameters=schemas), max_size=2)
thinking = st.one_of(
    st.none(),
    st.builds(Thinking, budget=st.integers(1, 24576), visible=st.booleans()),
    st.just(Thinking(adaptive=True)),
    st.just(Thinking(enabled=False, visible=False)),
)
requests = st.builds(
    Request,
    model=st.just("gemini-2.5-flash"),
    messages=turns(),
    source=st.just("gemini"),
    system=st.lists(st.builds(Text, texts), max_size=2).map(tuple),
    max_tokens=st.none() | st.integers(1, 9999),
    temperature=st.none() | st.floats(0, 2),
    top_k=st.none() | st.integers(1, 40),
    stop=st.lists(texts, max_size=5).map(tuple),
    output=st.none()
    | st.just(Output("json_object"))
    | st.builds(Output, st.just("json_schema"), schema=schemas),
    thinking=thinking,
    include_usage=st.just(True),
    extras=st.none() | st.just({"safetySettings": [{"category": "x"}]}),
)


@given(requests)
def test_supported_requests_survive_the_round_trip(request: Request) -> None:
    encoded = CODEC.encode_request(request, OPTIONS)
    assert encoded.notices == ()
    assert CODEC.decode_request(CODEC.validate(encoded.body, model=request.model, stream=False)) == request


@given(tools, st.sampled_from(["auto", "none", "required"]))
def test_tools_survive_the_round_trip(offered: list[Tool], mode: str) -> None:
    choice = ToolChoice(mode) if offered else None  # type: ignore[arg-type]  # drawn from the literals
    request = Request(
        model="m",
        messages=(Message("user", (Text("Hi"),)),),
        source="gemini",
        tools=tuple(offered),
        tool_choice=choice,
        include_usage=True,
    )
    encoded = CODEC.encode_request(request, OPTIONS)
    assert CODEC.decode_request(CODEC.validate(encoded.body, model="m", stream=False)) == request
