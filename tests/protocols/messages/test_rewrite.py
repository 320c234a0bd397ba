from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from routecodex.protocols.codec import EncodedRequest
from routecodex.protocols.dialect import Dialect
from routecodex.protocols.messages.decode_request import decode_request
from routecodex.protocols.messages.encode_request import encode_request
from routecodex.protocols.messages.rewrite import rewrite
from routecodex.protocols.messages.thinking import carry_signature
from routecodex.protocols.messages.validate import validate
from routecodex.protocols.sealed_signatures import seal
from routecodex.wire import json
from tests.protocols.messages.samples import OPTIONS, body

FOREIGN = "dropped reasoning: made by another provider"
UNSIGNED = "dropped reasoning: this provider rejects it without a signature"
CALL = {"type": "tool_use", "id": "a", "name": "f", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "a"}
BUDGET = {"type": "enabled", "budget_tokens": 1024}
STRICT = {"dialect": Dialect(unthought_turns=False)}


def thinking(signature: str | None, text: str = "t") -> dict[str, Any]:
    block = {"type": "thinking", "thinking": text}
    return block if signature is None else {**block, "signature": signature}


def rewritten(data: bytes, **options: Any) -> EncodedRequest:
    return rewrite(validate(data), replace(OPTIONS, **options))


def history(*blocks: dict[str, Any], after: Any = "next", **fields: Any) -> bytes:
    messages = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": list(blocks)},
        {"role": "user", "content": after},
    ]
    return body(messages=messages, **fields)


def blocks_of(encoded: EncodedRequest) -> list[Any]:
    messages = json.decode(encoded.body)["messages"]
    return [turn["content"] for turn in messages if turn["role"] == "assistant"]


@pytest.mark.parametrize(
    "data",
    [
        b' {\n "messages": [ {"role":"user","content":"hi"} ], "max_tokens" : 5 ,"model"\t:\n"asked"}',
        b'{"model":"asked","max_tokens":1,"messages":[{"role":"user","content":"\\"model\\": \\"asked\\""}]}',
        b'{"max_tokens":1,"messages":[{"role":"user","content":"hi"}],"x":{"b":2,"a":1e2},"model":"asked"}',
    ],
)
def test_only_the_model_changes(data: bytes) -> None:
    start = data.index(b"asked", data.index(b'"model"'))
    expected = data[:start] + b"m-1" + data[start + len(b"asked") :]
    assert rewritten(data) == EncodedRequest(expected)


def test_the_same_model_changes_nothing() -> None:
    data = history(thinking("s"), new={"x": 1.50})
    assert rewritten(data, model="asked").body is data


def test_a_model_named_twice_is_found_at_the_top() -> None:
    data = body(metadata={"user_id": "u", "model": "keep"}, messages=[{"role": "user", "content": "model"}])
    value = json.decode(rewritten(data).body)
    assert (value["model"], value["metadata"]["model"]) == ("m-1", "keep")


def test_an_escaped_model_is_replaced_all_the_same() -> None:
    data = body(model='a"b').replace(b'{"model"', b'{"mod\\u0065l"').replace(b'"hi"', b'"model"')
    assert json.decode(rewritten(data).body)["model"] == "m-1"


def test_fields_that_a_provider_rejects_are_left_out() -> None:
    options = {"dialect": Dialect(unsupported=("top_k", "metadata"))}
    encoded = rewritten(body(top_k=3, temperature=0.5), **options)
    assert encoded.notices == ("dropped top_k: this provider rejects it",)
    assert json.decode(encoded.body).keys() == {"model", "max_tokens", "messages", "temperature"}


def test_thinking_sealed_for_this_provider_is_unsealed_in_place() -> None:
    data = history(thinking(seal("acme", "s")), {"type": "text", "text": "x", "new": 1.50})
    encoded = rewritten(data)
    assert blocks_of(encoded) == [[thinking("s"), {"type": "text", "text": "x", "new": 1.5}]]
    assert b'"new":1.5' in encoded.body
    assert encoded.notices == ()
    redacted = {"type": "redacted_thinking", "data": seal("acme", "d")}
    assert blocks_of(rewritten(history(redacted))) == [[{"type": "redacted_thinking", "data": "d"}]]


@pytest.mark.parametrize(
    "foreign",
    [
        thinking(seal("other", "s")),
        thinking(seal("other", "")),
        {"type": "redacted_thinking", "data": seal("other", "d")},
        {"type": "redacted_thinking", "data": carry_signature("acme", "a", signature="s")},
    ],
)
def test_thinking_of_another_provider_is_removed(foreign: dict[str, Any]) -> None:
    encoded = rewritten(history(foreign, {"type": "text", "text": "x"}))
    assert blocks_of(encoded) == [[{"type": "text", "text": "x"}]]
    assert encoded.notices == (FOREIGN,)
    assert blocks_of(rewritten(history(foreign))) == []


def test_thinking_of_another_provider_is_removed_with_escaped_keys_too() -> None:
    data = history(thinking("theirs"), {"type": "text", "text": "x"})
    sly = data.replace(b'"signature"', b'"\\u0073ignature"')
    assert sly != data
    encoded = rewritten(sly, accepts_signature=lambda signature: False)
    assert blocks_of(encoded) == [[{"type": "text", "text": "x"}]]
    assert encoded.notices == (FOREIGN,)


def test_unsealed_thinking_known_to_be_anothers_is_removed() -> None:
    data = history(thinking("theirs"), thinking("ours"), thinking(""), thinking(None))
    encoded = rewritten(data, accepts_signature=lambda signature: signature == "ours")
    assert blocks_of(encoded) == [[thinking("ours"), thinking(""), thinking(None)]]


def test_a_tool_turn_that_lost_its_thinking_blocks_continues_without_thinking() -> None:
    call, result = CALL, [RESULT]
    settings = {
        "thinking": BUDGET,
        "context_management": {"edits": [{"type": "clear_thinking_20251015"}]},
    }
    lost = rewritten(history(thinking(seal("other", "s")), call, after=result, **settings))
    assert lost.notices == (FOREIGN, "dropped thinking: the current tool turn began at another provider")
    assert json.decode(lost.body).keys() == {"model", "max_tokens", "messages"}
    unchanged = rewritten(history(thinking(seal("acme", "s")), call, after=result, **settings))
    assert json.decode(unchanged.body)["thinking"] == settings["thinking"]
    over = rewritten(history(thinking(seal("other", "s")), {"type": "text", "text": "x"}, **settings))
    assert json.decode(over.body)["thinking"] == settings["thinking"]


@pytest.mark.parametrize("unsigned", [thinking(""), thinking(None), thinking(seal("acme", ""))])
def test_unsigned_thinking_goes_only_to_a_provider_that_accepts_it(
    unsigned: dict[str, Any],
) -> None:
    data = history(unsigned, thinking("s"), {"type": "text", "text": "x"})
    signed = [thinking("s"), {"type": "text", "text": "x"}]
    encoded = rewritten(data, dialect=Dialect(unsigned_thoughts=False))
    assert blocks_of(encoded) == [signed]
    assert encoded.notices == (UNSIGNED,)
    [[first, *rest]] = blocks_of(rewritten(data))
    assert (first.get("signature", ""), rest) == ("", signed)


def test_a_tool_turn_that_lost_unsigned_thinking_continues_without_thinking() -> None:
    data = history(thinking(""), CALL, after=[RESULT], thinking=BUDGET)
    encoded = rewritten(data, dialect=Dialect(unsigned_thoughts=False))
    assert encoded.notices == (
        UNSIGNED,
        "dropped thinking: the current tool turn began at another provider",
    )
    assert json.decode(encoded.body).keys() == {"model", "max_tokens", "messages"}


def turns(*contents: Any, **fields: Any) -> bytes:
    """Return the body of a conversation in which user and assistant alternate."""
    roles = ("user", "assistant")
    messages = [{"role": roles[n % 2], "content": content} for n, content in enumerate(contents)]
    return body(messages=messages, thinking=BUDGET, **fields)


def call(id: str) -> dict[str, Any]:
    return {**CALL, "id": id}


def result(id: str) -> dict[str, Any]:
    return {**RESULT, "tool_use_id": id}


TEXT = {"type": "text", "text": "x"}


@pytest.mark.parametrize(
    "contents",
    [
        ("hi", [CALL], [RESULT]),
        ("hi", [TEXT, CALL], [RESULT, TEXT]),
        ("hi", [call("a")], [result("a")], [call("b")], [result("b")]),
        ("hi", [thinking("s"), TEXT], "next", [CALL], [RESULT]),
        ("hi", [thinking("s"), CALL], [RESULT], "done", "next", [call("b")], [result("b")]),
        ("hi", [thinking(seal("other", "s")), CALL], [RESULT], [call("b")], [result("b")]),
    ],
)
def test_a_tool_turn_without_a_thinking_block_continues_without_thinking(contents: tuple[Any, ...]) -> None:
    edits = {"edits": [{"type": "clear_thinking_20251015"}]}
    encoded = rewritten(turns(*contents, context_management=edits), **STRICT)
    assert encoded.notices[-1] == "dropped thinking: the current tool turn began without it"
    assert json.decode(encoded.body).keys() == {"model", "max_tokens", "messages"}
    lenient = json.decode(rewritten(turns(*contents)).body)
    assert lenient["thinking"] == BUDGET


@pytest.mark.parametrize("block", [CALL, thinking(seal("other", "s"))], ids=["none", "foreign"])
def test_system_messages_of_claude_code_do_not_hide_a_tool_turn(block: dict[str, Any]) -> None:
    note = {"role": "system", "content": "note"}
    plain = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": [block, call("b")]},
        {"role": "user", "content": [result("b")]},
    ]
    noted = [one for message in plain for one in (message, note)]
    without, among = (body(messages=messages, thinking=BUDGET) for messages in (plain, noted))
    assert rewritten(among, **STRICT).notices == rewritten(without, **STRICT).notices
    assert b'"thinking":{' not in rewritten(among, **STRICT).body
    options = replace(OPTIONS, model="claude-sonnet-4-5", dialect=STRICT["dialect"])
    encoded = encode_request(decode_request(validate(among)), options)
    assert "thinking" not in json.decode(encoded.body)


@pytest.mark.parametrize(
    "contents",
    [
        ("hi",),
        ([TEXT],),
        ("hi", [TEXT], "next"),
        ("hi", [thinking("s"), CALL], [RESULT]),
        ("hi", [{"type": "redacted_thinking", "data": "d"}, CALL], [RESULT]),
        ("hi", [thinking("s"), call("a")], [result("a"), TEXT], [call("b")], [result("b")]),
        ("hi", [call("a")], [result("a")], [thinking("s"), call("b")], [result("b")]),
        ("hi", [CALL], [RESULT], "done", "next"),
    ],
)
def test_a_tool_turn_with_a_thinking_block_continues_with_thinking(contents: tuple[Any, ...]) -> None:
    data = turns(*contents)
    assert rewritten(data, model="asked", **STRICT).body is data


def test_adaptive_thinking_needs_no_thinking_block_before_a_call() -> None:
    data = history(CALL, after=[RESULT], thinking={"type": "adaptive"})
    assert rewritten(data, model="asked", **STRICT).body is data


def test_thinking_that_a_provider_refuses_is_left_out_once() -> None:
    dialect = Dialect(unthought_turns=False, unsupported=("thinking",))
    encoded = rewritten(history(CALL, after=[RESULT], thinking=BUDGET), dialect=dialect)
    assert encoded.notices == ("dropped thinking: this provider rejects it",)


COMPOSED = {"type": "object", "properties": {"a": {"type": "string"}}, "anyOf": [{"required": ["a"]}, {}]}
PLAIN = b'{"name" : "plain", "input_schema": {"type":"object", "properties": {"oneOf": {"anyOf": []}}} }'


def with_tools(*tools: bytes) -> bytes:
    return body(tools=[]).replace(b'"tools":[]', b'"tools": [' + b" , ".join(tools) + b"]")


def test_a_schema_that_anthropic_rejects_is_rewritten_for_anthropic_alone() -> None:
    composed = json.encode({"name": "composed", "type": "custom", "input_schema": COMPOSED})
    data = with_tools(PLAIN, composed, PLAIN)
    as_sent = rewritten(data)
    assert as_sent == EncodedRequest(data.replace(b'"asked"', b'"m-1"'))
    encoded = rewritten(data, dialect=Dialect(composed_schemas=False))
    tools = bytes(json.read_fields(encoded.body)["tools"])
    assert tools.startswith(b"[" + PLAIN + b",")
    assert json.decode(tools)[1] == {
        "name": "composed",
        "type": "custom",
        "input_schema": {
            "type": "object",
            "properties": {"a": {"type": "string"}},
            "description": '{"anyOf":[{"required":["a"]},{}]}',
        },
    }
    assert encoded.notices == (
        "dropped anyOf of tool composed: messages does not accept it at the root of a schema",
    )


def test_schemas_without_compositions_at_their_root_stay_byte_for_byte() -> None:
    data = with_tools(PLAIN, b'{"name":"none"}', b'{"name":"null","input_schema":null}')
    encoded = rewritten(data, dialect=Dialect(composed_schemas=False))
    assert encoded == EncodedRequest(data.replace(b'"asked"', b'"m-1"'))


def test_citations_that_the_gateway_made_are_removed() -> None:
    own = {
        "type": "web_search_result_location",
        "url": "https://a",
        "encrypted_index": "Eo8B",
        "cited_text": "",
    }
    made = {**own, "encrypted_index": "rcx1.citation"}
    both, alone, plain = (
        {"type": "text", "text": "x", "citations": [own, made]},
        {"type": "text", "text": "y", "citations": [made]},
        {"type": "text", "text": "z", "citations": [own]},
    )
    data = history(both, alone, plain)
    again = json.decode(encode_request(decode_request(validate(data)), OPTIONS).body)
    sent = rewritten(data)
    assert again["messages"][1] == json.decode(sent.body)["messages"][1]
    assert sent.notices == ()
    assert json.decode(sent.body)["messages"][1]["content"] == [
        {"type": "text", "text": "x", "citations": [own]},
        {"type": "text", "text": "y"},
        plain,
    ]
