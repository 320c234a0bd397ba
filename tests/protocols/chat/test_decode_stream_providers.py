"""Shapes that single providers send beside OpenAI's, as streams and as whole answers."""

from __future__ import annotations

from typing import Any

import pytest

from routecodex.canon.parts import Text
from routecodex.canon.response import Response, fold
from routecodex.protocols.chat.whole import decode_response
from routecodex.wire import json
from tests.protocols.chat.samples import COUNTS, DONE, HEAD, choice, events, frame, role


def completion(finish: str | None = "stop", *, delta: Any = None, **message: Any) -> dict[str, Any]:
    """Return a whole answer; `delta` stands beside its message."""
    entry: dict[str, Any] = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish}
    if delta is not None:
        entry["delta"] = delta
    return {**HEAD, "object": "chat.completion", "choices": [entry], "usage": COUNTS}


def decoded(answer: dict[str, Any]) -> Response:
    return fold(decode_response(json.encode(answer)))


def streamed(*deltas: dict[str, Any]) -> Response:
    return fold(events(role() + b"".join(choice(**delta) for delta in deltas) + choice("stop") + DONE))


@pytest.mark.parametrize("delta", [{}, {"role": "assistant", "content": ""}, {"content": "Hi"}])
def test_the_message_of_a_whole_answer_counts_beside_a_delta(delta: dict[str, Any]) -> None:
    # Perplexity (sonar): message and delta in one choice.
    assert decoded(completion(content="Hi there", delta=delta)).parts == (Text("Hi there"),)


def test_the_delta_of_a_chunk_counts_beside_the_message_so_far() -> None:
    # Perplexity (sonar): every chunk repeats the message so far, the last one with an empty delta.
    texts = [("Hi", "Hi"), (" there", "Hi there"), ("", "Hi there")]
    stream = b"".join(
        frame(choices=[{"index": 0, "delta": {"content": new}, "message": {"content": so_far}}])
        for new, so_far in texts
    )
    assert fold(events(stream + choice("stop") + DONE)).parts == (Text("Hi there"),)
