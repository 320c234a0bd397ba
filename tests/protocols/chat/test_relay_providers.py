"""Shapes that single providers send beside OpenAI's, relayed to chat clients."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kit.grammar import check_chat
from tests.protocols.chat.samples import DONE, choice, chunks, reply, role
from tests.protocols.chat.test_relay import passed


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
