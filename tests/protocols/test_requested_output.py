"""The most output that a request asks for, in all protocols."""

from __future__ import annotations

from typing import Any

import pytest

from routecodex.protocols.codec import WireRequest
from routecodex.protocols.codecs import CODECS
from routecodex.protocols.requested_output import requested_choices, requested_mode, requested_output
from routecodex.protocols.usage import MOST_TOKENS
from routecodex.wire import json
from tests.kit import asking


def wire(protocol: str, **more: Any) -> WireRequest:
    body = {**asking.body(protocol, "Hello", stream=False), **more}
    return CODECS[protocol].validate(json.encode(body), model="up.m", stream=False)


CASES: list[tuple[str, dict[str, Any], int | None, int]] = [
    ("chat", {}, None, 1),
    ("chat", {"max_tokens": 7}, 7, 1),
    ("chat", {"max_tokens": 7, "max_completion_tokens": 9, "n": 3}, 9, 3),
    ("chat", {"n": 3}, None, 3),
    ("chat", {"max_tokens": 10**30, "n": 10**30}, MOST_TOKENS, 128),
    ("messages", {"max_tokens": 5}, 5, 1),
    ("responses", {}, None, 1),
    ("responses", {"max_output_tokens": 8}, 8, 1),
    ("gemini", {}, None, 1),
    ("gemini", {"generationConfig": {"maxOutputTokens": 6, "candidateCount": 2}}, 6, 2),
]


@pytest.mark.parametrize(("protocol", "fields", "most", "choices"), CASES)
def test_the_limit_of_each_choice_and_their_number_are_read(
    protocol: str, fields: dict[str, Any], most: int | None, choices: int
) -> None:
    request = wire(protocol, **fields)
    assert (requested_output(request), requested_choices(request)) == (most, choices)


@pytest.mark.parametrize(
    ("protocol", "fields", "mode"),
    [
        ("chat", {"service_tier": "flex"}, "flex"),
        ("chat", {"service_tier": "default"}, ""),
        ("responses", {"service_tier": "priority"}, "priority"),
        ("messages", {}, ""),
    ],
)
def test_the_mode_of_processing_is_read(protocol: str, fields: dict[str, Any], mode: str) -> None:
    assert requested_mode(wire(protocol, **fields)) == mode
