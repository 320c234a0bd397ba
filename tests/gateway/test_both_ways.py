"""A gateway answers alike with C and without it: every branch that looks at it, from socket to socket.

Without a build, references stand in for C (`tests/reference`). With one, `tests/fuzz` compares it with the
sources.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.fuzz.exchanges import PROTOCOLS, comparable, exchanging
from tests.kit import asking
from tests.reference.installed import WAYS, using

LONG = 'A long text with → signs, "quotes" and \\ in it.\n' * 900
"""Makes a request large: its texts are cut out before it is read, where there is C."""

TOOL_LOOP: list[dict[str, Any]] = [
    {"role": "user", "content": "Read it."},
    {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "read", "input": {}}]},
    {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": LONG}]}
        ],
    },
]


def bodies(protocol: str, model: str, *, stream: bool) -> list[bytes]:
    """Return requests of a protocol: small, large, with a tool, wrong in a late field."""
    small = asking.body(protocol, stream=stream, model=model, tools=True)
    large = asking.body(protocol, LONG, stream=stream, model=model)
    made = [small, large]
    if protocol == "messages":
        made.append({**large, "messages": TOOL_LOOP})
    if protocol in ("chat", "messages"):
        made.append({**large, "messages": [*large["messages"], {"role": "user", "content": [5]}]})
    return [msgspec.json.encode(body) for body in made]


async def answered(client: str, target: str) -> list[Any]:
    """Return what a gateway did with every request of a client for a provider."""
    seen: list[Any] = []
    async with exchanging() as exchanges:
        for stream in (False, True):
            path = asking.path(client, stream=stream, model=f"{target}.m")
            for body in bodies(client, f"{target}.m", stream=stream):
                answer = await exchanges.call(path, body)
                assert answer.complete
                seen.append([*comparable(answer, exchanges.sent()), b"Fine." in answer.body])
        assert exchanges.problems == []
    return seen


@pytest.mark.parametrize("target", PROTOCOLS)
@pytest.mark.parametrize("client", PROTOCOLS)
async def test_every_way_answers_alike(client: str, target: str) -> None:
    results = []
    for way in WAYS:
        with using(way):
            results.append(await answered(client, target))
    assert all(result == results[0] for result in results)
    statuses = {result[0] for result in results[0]}
    assert statuses == ({200, 400} if client in ("chat", "messages") else {200})
    assert all(text is (status == 200) for status, _, _, text in results[0])
