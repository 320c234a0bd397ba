"""Shapes that single providers send beside OpenAI's, relayed to chat clients."""

from __future__ import annotations

from typing import Any

import pytest

from routecodex.canon.events import Usage
from routecodex.protocols.chat.relay import Relay
from routecodex.protocols.grammar import check_chat
from tests.protocols.chat.samples import COUNTS, DONE, choice, chunks, frame, reply, role, usage
from tests.protocols.chat.test_relay import passed, relayed


def cited(*urls: str, index: int | None = None, **more: Any) -> dict[str, Any]:
    """Return a delta with citations, as OpenRouter streams them."""
    citations: list[dict[str, Any]] = [{"type": "url_citation", "url_citation": {"url": url}} for url in urls]
    for at, citation in enumerate(citations if index is not None else ()):
        citation["index"] = (index or 0) + at
    return {"annotations": citations, **more}


@pytest.mark.parametrize("step", [1, 1 << 30])
@pytest.mark.parametrize("space", [b"", b" "])
def test_citations_after_the_first_delta_get_an_index(step: int, space: bytes) -> None:
    deltas = [cited("a", "b"), cited("c", content="!"), cited(), cited("d", "e")]
    stream = role() + choice(content="Hi") + b"".join(choice(**delta) for delta in deltas) + choice("stop")
    stream = stream.replace(b'"annotations":[', b'"annotations":' + space + b"[")
    out = passed(stream + DONE, reply(include_usage=False), step)
    check_chat(out, include_usage=False)
    sent = [chunk["choices"][0]["delta"] for chunk in chunks(out)[2:-1]]
    assert sent == [
        deltas[0],
        cited("c", index=2, content="!"),
        deltas[2],
        cited("d", "e", index=3),
    ]


def test_citations_in_one_delta_or_with_an_index_pass_byte_for_byte() -> None:
    streams = [[cited("a", "b")], [cited("a", index=0), cited("b", index=1)], [cited(), cited(), cited()]]
    for deltas in streams:
        stream = role() + choice(content="Hi") + b"".join(choice(**delta) for delta in deltas)
        stream += choice("stop") + DONE
        assert passed(stream, reply(include_usage=False)) == stream


def test_each_choice_counts_its_own_citations() -> None:
    stream = role() + choice(index=1, role="assistant", content="") + choice(**cited("a"))
    stream += choice(index=1, **cited("b")) + choice(**cited("c")) + choice("stop") + choice("stop", 1)
    sent = [chunk["choices"][0] for chunk in chunks(passed(stream + DONE, reply(include_usage=False)))]
    assert [item["delta"] for item in sent[2:5]] == [cited("a"), cited("b"), cited("c", index=1)]


GLUED = frame(choices=[{"index": 0, "delta": {}, "finish_reason": "stop"}], usage=COUNTS)
RUNNING = frame(choices=[{"index": 0, "delta": {"content": "!"}, "finish_reason": None}], usage=COUNTS)
LATE = frame(choices=[{"index": 0, "delta": {}, "finish_reason": None}], usage=COUNTS)
# Mistral, Together and Databricks send it with the finish, Perplexity in every chunk, others after that.
COUNTED = [GLUED, RUNNING + GLUED, RUNNING + choice("stop"), choice("stop") + LATE]


@pytest.mark.parametrize("end", COUNTED, ids=["at the end", "always", "before the end", "after the end"])
@pytest.mark.parametrize("step", [1, 1 << 30])
def test_usage_in_a_chunk_with_choices_stays_there(end: bytes, step: int) -> None:
    stream = role() + choice(content="Hi") + end + DONE
    to = reply(include_usage=False)
    assert passed(stream, to, step) == stream
    check_chat(stream, include_usage=False)
    assert relayed(stream, include_usage=False).outcome.usage == Usage(3, 2)


@pytest.mark.parametrize("end", COUNTED, ids=["at the end", "always", "before the end", "after the end"])
def test_requested_usage_is_sent_once_in_the_last_chunk(end: bytes) -> None:
    # OpenAI API reference, `include_usage`: null in all chunks but the last. Clients add up all they get.
    out = passed(role() + choice(content="Hi") + end + DONE, reply(include_usage=True))
    check_chat(out, include_usage=True)
    assert [chunk.get("usage") for chunk in chunks(out) if chunk.get("usage")] == [COUNTS]
    assert chunks(out)[-1]["choices"] == []


def test_a_second_finish_with_usage_is_sent_without_the_finish() -> None:
    stream = role() + choice(content="Hi") + choice("stop")
    out = passed(stream + GLUED + DONE, reply(include_usage=False))
    assert out == stream + LATE + DONE


def test_a_chunk_with_usage_is_repaired_where_it_must_be() -> None:
    broken = frame(choices=[{"index": 0, "delta": {}, "finish_reason": "eos"}], usage=COUNTS)
    stream = role() + choice(content="Hi")
    assert passed(stream + broken + DONE, reply(include_usage=False)) == stream + GLUED + DONE


def test_usage_alone_is_sent_only_if_requested() -> None:
    stream = role() + choice(content="Hi") + choice("stop")
    assert passed(stream + usage() + DONE, reply(include_usage=False)) == stream + DONE
    assert passed(stream + usage() + DONE, reply(include_usage=True)) == stream + usage() + DONE


@pytest.mark.parametrize("delta", [{}, None, {"role": "assistant", "content": ""}])
def test_a_completion_sent_as_one_chunk_arrives_as_a_delta(delta: dict[str, Any] | None) -> None:
    """Servers that cannot stream send the message of a completion; clients read deltas only."""
    called = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    message = {"role": "assistant", "content": "Hello", "tool_calls": [called]}
    sent = {"index": 0, "delta": delta, "message": message, "finish_reason": "tool_calls"}
    relay = Relay(reply(include_usage=False))
    out = relay.feed(frame(choices=[sent]) + DONE)
    (chunk,) = chunks(out)
    received = {**message, "tool_calls": [{"index": 0, **called}]}
    assert chunk["choices"] == [{"index": 0, "delta": received, "finish_reason": "tool_calls"}]
    assert not relay.outcome.empty


def test_a_message_that_repeats_the_deltas_is_not_sent_twice() -> None:
    """Perplexity repeats the text so far beside every delta."""
    whole = {"role": "assistant", "content": "Hello"}
    stream = choice(content="Hello") + frame(
        choices=[{"index": 0, "delta": {"content": ""}, "message": whole, "finish_reason": "stop"}]
    )
    relay = Relay(reply(include_usage=False))
    assert relay.feed(stream + DONE) == stream + DONE
