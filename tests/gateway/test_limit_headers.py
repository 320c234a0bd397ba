"""Headers of limits: durations as Go writes them, and headers of providers beside ours."""

from __future__ import annotations

import pytest

from routecodex.gateway.limit_headers import go_duration, kind_of, passed_on


@pytest.mark.parametrize(
    ("micros", "text"),
    [
        (-5, b"0s"),
        (0, b"0s"),
        (1, b"1ms"),
        (850_000, b"850ms"),
        (999_001, b"1s"),
        (1_000_000, b"1s"),
        (59_000_001, b"1m0s"),
        (360_000_000, b"6m0s"),
        (82_805_000_000, b"23h0m5s"),
    ],
)
def test_durations_are_rounded_up(micros: int, text: bytes) -> None:
    assert go_duration(micros) == text


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        (b"x-ratelimit-remaining-tokens", b"tokens"),
        (b"x-ratelimit-limit-tokens_usage_based", b"tokens_usage_based"),
        (b"anthropic-ratelimit-input-tokens-reset", b"input-tokens"),
        (b"anthropic-ratelimit-unified-5h-status", b""),
    ],
)
def test_headers_name_their_kind(name: bytes, kind: bytes) -> None:
    assert kind_of(name) == kind


def test_only_kinds_without_a_limit_of_ours_are_passed_on() -> None:
    own = b"anthropic-ratelimit-tokens-limit: 5\r\n"
    theirs = [
        (b"anthropic-ratelimit-tokens-limit", b"9"),
        (b"anthropic-ratelimit-input-tokens-limit", b"9"),
        (b"anthropic-ratelimit-unified-5h-status", b"allowed"),
    ]
    assert passed_on(theirs, own) == (
        b"anthropic-ratelimit-input-tokens-limit: 9\r\nanthropic-ratelimit-unified-5h-status: allowed\r\n"
    )
