"""What the person wrote, found in every protocol and changed without touching a byte beside it."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routecodex.canon.request import ProtocolName
from routecodex.protocols.codec import WireRequest
from routecodex.protocols.large_body import may_hold_tags
from routecodex.protocols.message_shapes import MessageText, UserMessage
from routecodex.protocols.user_text import (
    model_text_at,
    model_texts,
    rewrite_texts,
    user_messages,
)
from routecodex.wire.json_edit import JsonObject, replace_items
from tests.protocols.user_text_requests import (
    BUILDERS,
    PROTOCOLS,
    Turn,
    Verbatim,
    as_it_is,
    body_of,
    heard,
    inbound_of,
    written,
)

TAG = re.compile(r"<\*\*.*?\*\*>", re.DOTALL)
every_protocol = pytest.mark.parametrize("protocol", PROTOCOLS)


def without_tags(text: str) -> Any:
    """The text without its tags as it will be written; None when nothing is left of it."""
    left = TAG.sub("", text)
    return text if left == text else Verbatim(msgspec.json.encode(left).decode()) if left else None


def stripped(inbound: WireRequest) -> bytes:
    """The body as a caller strips it."""
    texts: dict[tuple[int, int | None], str] = {}
    parts: set[tuple[int, int]] = set()
    gone: set[int] = set()
    for message in user_messages(inbound):
        for place in message.texts:
            left = TAG.sub("", place.text)
            if left == place.text:
                continue
            if left:
                texts[message.index, place.part] = left
            elif place.part is None:
                gone.add(message.index)
            else:
                parts.add((message.index, place.part))
    return rewrite_texts(inbound, texts=texts, drop_parts=parts, drop_messages=gone)


def user(protocol: ProtocolName, *texts: str, answer: str = "ok") -> WireRequest:
    return inbound_of(protocol, BUILDERS[protocol]([Turn(list(texts), answer=answer)], as_it_is))


SCRAPS = ["<**glm**>", "<**a\nb**>", "hi", "世界", "é", "😀", "<*", "*>", '"', "\\", "\n", " ", "`<**x.y**>`"]
TEXTS = st.lists(st.sampled_from(SCRAPS), min_size=1, max_size=5).map("".join)
TURNS = st.builds(
    Turn,
    st.lists(TEXTS, min_size=1, max_size=4),
    st.none() | TEXTS,
    st.booleans(),
    st.booleans(),
    TEXTS,
)


@every_protocol
@given(turns=st.lists(TURNS, max_size=5), gap=st.sampled_from(["", " ", "\n\t"]), ascii_only=st.booleans())
def test_a_stripped_body_is_the_body_written_without_its_tags(
    protocol: ProtocolName, turns: list[Turn], gap: str, ascii_only: bool
) -> None:
    build = BUILDERS[protocol]
    turns = [*turns, Turn(["end"])]
    body = body_of(protocol, build(turns, as_it_is), gap=gap, ascii_only=ascii_only)
    expected = body_of(protocol, build(turns, without_tags), gap=gap, ascii_only=ascii_only)
    told = stripped(heard(protocol, body))
    assert told == expected
    again = heard(protocol, told)
    assert not any(TAG.search(text.text) for message in user_messages(again) for text in message.texts)
    assert stripped(again) is told


@pytest.mark.parametrize(
    ("body", "may"),
    [
        (b'{"a":"<**x**>"}', True),
        (b'{"a":"\\u003c**x"}', True),
        (b'{"a":"\\u003C**x"}', True),
        (b'{"a":"<\\u002a*x"}', True),
        (b'{"a":"<*\\u002Ax"}', True),
        (b'{"a":"\\u003c\\u002A\\u002a"}', True),
        (b'{"a":"<","b":"\\u001b\\u003c\\u003c**x"}', True),
        (b'{"a":"<<\\u002A\\u002a"}', True),
        (b'{"a":"\\u001b<*\\u002 \\u003*\\u002a"}', False),
        (b'{"a":"\\u003c* *\\u002a"}', False),
        (b'{"a":"\\u003cb\\u003e **x**"}', False),
        (b'{"a":"< ** <* *"}', False),
        (b"{}", False),
        (b"", False),
    ],
)
def test_tags_are_suspected_however_they_are_escaped(body: bytes, may: bool) -> None:
    assert may_hold_tags(body) is may


RESULT = {"type": "tool_result", "tool_use_id": "c", "content": [{"type": "text", "text": "<**no**>"}]}
CALL = {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "f", "input": {}}]}
DOCUMENT = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "<**no**>"}}


def message(index: int, *texts: tuple[int | None, str], **more: bool) -> UserMessage:
    return UserMessage(index=index, texts=tuple(MessageText(part, text) for part, text in texts), **more)


@pytest.mark.parametrize(
    ("protocol", "entries", "expected"),
    [
        ("chat", [{"role": "user", "content": "hi"}], [message(0, (None, "hi"))]),
        (
            "chat",
            [
                {"role": "system", "content": "s"},
                {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": ""}]},
                {"role": "assistant", "content": "b"},
            ],
            [message(1, (0, "a"), (1, ""))],
        ),
        (
            "chat",
            [{"role": "user", "content": [{"type": "file", "file": {"file_id": "f"}}]}],
            [message(0, has_other_parts=True)],
        ),
        (
            "messages",
            [{"role": "user", "content": "q"}, CALL, {"role": "user", "content": [RESULT]}],
            [message(0, (None, "q")), message(2, has_other_parts=True, has_results=True)],
        ),
        (
            "messages",
            [CALL, {"role": "user", "content": [RESULT, DOCUMENT, {"type": "text", "text": "t"}]}],
            [message(1, (2, "t"), has_other_parts=True, has_results=True)],
        ),
        ("responses", "all \u00e9", [message(0, (None, "all é"))]),
        (
            "responses",
            [
                {"role": "developer", "content": "d"},
                {"role": "user", "content": "a"},
                {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "b"}]},
                {"type": "message", "role": "user", "content": [{"type": "text", "text": "c"}]},
                {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c", "output": "<**no**>"},
            ],
            [message(1, (None, "a")), message(2, (0, "b")), message(3, (0, "c"))],
        ),
        (
            "responses",
            [{"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}],
            [message(0, has_other_parts=True)],
        ),
        ("gemini", {"parts": {"text": "one"}}, [message(0, (0, "one"))]),
        (
            "gemini",
            [
                {"parts": [{"text": "a"}, {"text": "thought", "thought": True}]},
                {"role": "model", "parts": [{"functionCall": {"name": "f"}}]},
                {"role": "function", "parts": [{"functionResponse": {"name": "f", "response": {}}}]},
                {"role": "model", "parts": [{"function_call": {"name": "f"}}]},
                {"role": "user", "parts": [{"function_response": {"name": "f"}}, {"text": "b"}]},
            ],
            [
                message(0, (0, "a"), has_other_parts=True),
                message(4, (1, "b"), has_other_parts=True, has_results=True),
            ],
        ),
        (
            "gemini",
            [{"role": None, "parts": [{"text": "caption", "inline_data": {"mime_type": "a/b", "data": ""}}]}],
            [message(0, has_other_parts=True)],
        ),
    ],
)
def test_what_the_person_wrote_is_listed(
    protocol: ProtocolName, entries: Any, expected: list[UserMessage]
) -> None:
    assert user_messages(inbound_of(protocol, entries)) == expected


def test_texts_are_decoded_as_json_wants_it() -> None:
    entry = b'{"\\u0072ole":"us\\u0065r","content":"\\u003c**a\\ud83d\\ude00\\n\\/**>"}'
    body = b'{"model":"m","messages":[' + entry + b"]}"
    assert user_messages(heard("chat", body)) == [message(0, (None, "<**a😀\n/**>"))]


@pytest.mark.parametrize(
    ("protocol", "entry", "expected"),
    [
        ("chat", {"role": "assistant", "content": "a", "tool_calls": None, "refusal": None}, "a"),
        ("chat", {"role": "assistant", "content": [{"type": "text", "text": "a"}]}, "a"),
        ("chat", {"role": "assistant", "content": "a", "refusal": "no"}, None),
        (
            "chat",
            {
                "role": "assistant",
                "content": "a",
                "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f"}}],
            },
            None,
        ),
        ("chat", {"role": "assistant", "content": None}, None),
        ("chat", {"role": "user", "content": "a"}, None),
        ("messages", {"role": "assistant", "content": "a"}, "a"),
        ("messages", {"role": "assistant", "content": [{"type": "text", "text": "a"}]}, "a"),
        ("messages", {"role": "assistant", "content": [{"type": "text", "text": "a"}] * 2}, None),
        ("messages", CALL, None),
        ("responses", {"role": "assistant", "content": "a"}, "a"),
        (
            "responses",
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "a"}]},
            "a",
        ),
        (
            "responses",
            {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "a"}]},
            None,
        ),
        ("gemini", {"role": "model", "parts": [{"text": "a", "thoughtSignature": "s"}]}, "a"),
        ("gemini", {"role": "model", "parts": {"text": "a"}}, "a"),
        ("gemini", {"role": "model", "parts": [{"text": "a", "thought": True}]}, None),
    ],
)
def test_an_answer_of_one_text_is_told(protocol: ProtocolName, entry: Any, expected: str | None) -> None:
    inbound = inbound_of(protocol, [entry])
    assert model_text_at(inbound, 0) == expected
    assert model_texts(inbound) == ({} if expected is None else {0: expected})
    assert model_text_at(inbound, 1) is None


def test_a_bare_input_has_no_answer_before_it() -> None:
    assert model_texts(inbound_of("responses", "hi")) == {}


@every_protocol
def test_nothing_to_change_gives_the_same_bytes(protocol: ProtocolName) -> None:
    inbound = user(protocol, "<**a**>", "b")
    assert rewrite_texts(inbound, texts={}) is inbound.body


@every_protocol
def test_messages_of_anybody_can_be_left_out(protocol: ProtocolName) -> None:
    turns = [Turn(["<**a**>"]), Turn(["b"], answer="fine")]
    entries = BUILDERS[protocol](turns, as_it_is)
    first = user_messages(inbound_of(protocol, entries))[0].index
    told = rewrite_texts(inbound_of(protocol, entries), texts={}, drop_messages=[first, first + 1])
    assert told == body_of(protocol, entries[:first] + entries[first + 2 :])
    heard(protocol, told)


@pytest.mark.parametrize(
    ("drop", "texts", "expected"), [([0], {}, ""), ([], {(0, None): "b"}, "b"), ([], {}, "a")]
)
def test_a_bare_input_is_replaced_in_its_place(drop: list[int], texts: Any, expected: str) -> None:
    inbound = inbound_of("responses", "a")
    told = rewrite_texts(inbound, texts=texts, drop_messages=drop)
    assert told == body_of("responses", expected)
    heard("responses", told)


def test_a_single_object_of_gemini_stays_one() -> None:
    inbound = inbound_of("gemini", {"parts": {"text": "<**a**>b"}, "role": "user"})
    assert rewrite_texts(inbound, texts={(0, 0): "b"}) == body_of(
        "gemini", {"parts": {"text": "b"}, "role": "user"}
    )
    assert rewrite_texts(inbound, texts={}, drop_parts=[(0, 0)]) == body_of("gemini", [])


def test_snake_case_bodies_stay_in_snake_case() -> None:
    body = (
        b'{"system_instruction":{"parts":{"text":"<**s**>"}}, "contents":[{"parts":[{"text":"<**a**>b"}]}]}'
    )
    expected = b'{"system_instruction":{"parts":{"text":"<**s**>"}}, "contents":[{"parts":[{"text":"b"}]}]}'
    assert stripped(heard("gemini", body)) == expected


@pytest.mark.parametrize(
    ("protocol", "body", "expected"),
    [
        (
            "chat",
            b'{"messages":[{"role":"user","content":"<**a**>"}],"model":"m","messages":[{"role":"user","content":"b"}]}',
            b'{"messages":[{"role":"user","content":"b"}],"model":"m"}',
        ),
        (
            "chat",
            b'{"model":"m","messages":[{"role":"user","content":"<**a**>", "c\\u006fntent":"b"}] }',
            b'{"model":"m","messages":[{"role":"user","content":"b"}] }',
        ),
        (
            "messages",
            b'{"model":"m","max_tokens":9,"messages":[{"role":"user","content":[{"type":"text","text":"<**a**>",'
            b'"text":"b<**c**>"}]}]}',
            b'{"model":"m","max_tokens":9,"messages":[{"role":"user","content":[{"type":"text","text":"b"}]}]}',
        ),
        (
            "responses",
            b'{"model":"m","input":"<**a**>","input":"b<**c**>"}',
            b'{"model":"m","input":"b"}',
        ),
        (
            "gemini",
            b'{"service_tier":"x","contents":[{"parts":{"text":"<**a**>"}}],'
            b' "contents_":[{"parts":{"text":"b"}}]}',
            b'{"service_tier":"x","contents_":[{"parts":{"text":"b"}}]}',
        ),
        (
            "gemini",
            b'{"contents":[{"parts":[{"text":"b","text":"b"},{"text":"1","text":"<**c**>"}],"n":1.0,"n":1}]}',
            b'{"contents":[{"parts":[{"text":"b"}],"n":1}]}',
        ),
    ],
)
def test_no_tag_survives_in_a_field_said_twice(protocol: ProtocolName, body: bytes, expected: bytes) -> None:
    assert stripped(heard(protocol, body)) == expected


MARK = {"type": "ephemeral", "ttl": "1h"}


@pytest.mark.parametrize(
    ("parts", "drops", "expected"),
    [
        ([{"text": "a"}, {"text": "t", "cache_control": MARK}], [1], [{"text": "a", "cache_control": MARK}]),
        (
            [{"text": "a", "cache_control": None}, {"text": "t", "cache_control": MARK}],
            [1],
            [{"text": "a", "cache_control": MARK}],
        ),
        (
            [{"text": "a"}, {"text": "t"}, {"text": "t", "cache_control": MARK}, {"text": "b"}],
            [1, 2],
            [{"text": "a", "cache_control": MARK}, {"text": "b"}],
        ),
        (
            [{"text": "a", "cache_control": {"type": "own"}}, {"text": "t", "cache_control": MARK}],
            [1],
            [{"text": "a", "cache_control": {"type": "own"}}],
        ),
        ([{"text": "a"}, {"text": "t"}], [1], [{"text": "a"}]),
        ([{"text": "t", "cache_control": MARK}, {"text": "b"}], [0], [{"text": "b"}]),
    ],
)
@pytest.mark.parametrize("protocol", ["messages", "chat"])
def test_a_cache_point_moves_to_the_part_before(
    protocol: ProtocolName, parts: list[Any], drops: list[int], expected: list[Any]
) -> None:
    def entries(content: list[Any]) -> list[Any]:
        return [{"role": "user", "content": [{"type": "text", **part} for part in content]}]

    inbound = inbound_of(protocol, entries(parts))
    told = rewrite_texts(inbound, texts={}, drop_parts=[(0, at) for at in drops])
    assert told == body_of(protocol, entries(expected))
    heard(protocol, told)


@pytest.mark.parametrize(
    ("texts", "drops"),
    [
        ({(9, None): "x"}, []),
        ({(1, None): "x"}, []),
        ({(1, 7): "x"}, []),
        ({(2, 0): "x"}, []),
        ({}, [(2, 0)]),
    ],
)
def test_a_place_without_a_text_is_an_error(texts: Any, drops: list[tuple[int, int]]) -> None:
    entries = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": [{"type": "text", "text": "a"}]},
        {"role": "user", "content": "b"},
    ]
    with pytest.raises(ValueError, match=r"no text|plain string"):
        rewrite_texts(inbound_of("chat", entries), texts=texts, drop_parts=drops)


@every_protocol
def test_ten_thousand_messages_are_told_again(protocol: ProtocolName) -> None:
    turns = [Turn([f"<**p{at}**>{at}", "<**gone**>"], answer="<**kept**>") for at in range(5_000)]
    build = BUILDERS[protocol]
    told = stripped(inbound_of(protocol, build(turns, as_it_is)))
    assert told == body_of(protocol, build(turns, without_tags))


@every_protocol
@pytest.mark.parametrize("scrap", ["<**", "<**a**>", '\\"<**', "\n"])
def test_a_megabyte_of_scraps_is_one_text(protocol: ProtocolName, scrap: str) -> None:
    text = scrap * (1_000_000 // len(scrap))
    inbound = user(protocol, text, "b")
    first = user_messages(inbound)[0]
    assert first.texts == (MessageText(0, text), MessageText(1, "b"))
    told = rewrite_texts(inbound, texts={}, drop_parts=[(first.index, 0)])
    assert told == user(protocol, "b").body


@every_protocol
def test_deep_nesting_beside_the_texts_stays(protocol: ProtocolName) -> None:
    deep = b'"deep" :' + b"[" * 200 + b'{ "a" : 1.0 }' + b"]" * 200
    body = user(protocol, "<**a**>b").body
    nested = body.replace(b'"x_unknown":', deep + b', "x_unknown":')
    assert stripped(heard(protocol, nested)) == nested.replace(b"<**a**>", b"")


FIELDS = st.dictionaries(st.text(max_size=3), st.integers() | st.text(max_size=3), max_size=5)


@given(
    value=FIELDS,
    changes=st.dictionaries(st.text(max_size=1), st.none() | st.integers(), max_size=4),
    gap=st.sampled_from(["", " "]),
)
def test_an_object_changes_like_a_dict(
    value: dict[str, Any], changes: dict[str, int | None], gap: str
) -> None:
    data = written(value, gap=gap).encode()
    told = JsonObject(data).changed(
        {name: None if new is None else b"%d" % new for name, new in changes.items()}
    )
    merged = {**value, **changes}
    assert msgspec.json.decode(told) == {
        name: item for name, item in merged.items() if name not in changes or item is not None
    }


@given(
    st.lists(st.integers() | st.lists(st.integers())),
    st.dictionaries(st.integers(0, 6), st.none() | st.integers()),
)
def test_a_list_changes_like_a_list(items: list[Any], changes: dict[int, int | None]) -> None:
    wanted = {at: new for at, new in changes.items() if at < len(items)}
    told = replace_items(
        msgspec.Raw(written(items, gap=" ").encode()),
        {at: None if new is None else b"%d" % new for at, new in wanted.items()},
    )
    replaced = [wanted.get(at, item) for at, item in enumerate(items)]
    assert msgspec.json.decode(told) == [item for item in replaced if item is not None]
