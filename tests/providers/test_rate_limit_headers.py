"""Rate-limit headers of providers, in each of their forms."""

from __future__ import annotations

import pytest

from routecodex.providers.rate_limit_headers import KeyAllowance, rate_limit_headers, read_allowance

NOW = 1_795_000_000.0


def headers(**fields: str) -> list[tuple[bytes, bytes]]:
    return [(name.replace("_", "-").encode(), value.encode()) for name, value in fields.items()]


OPENAI = headers(
    x_ratelimit_limit_requests="60",
    x_ratelimit_remaining_requests="59",
    x_ratelimit_reset_requests="1s",
    x_ratelimit_limit_tokens="1000",
    x_ratelimit_remaining_tokens="10",
    x_ratelimit_reset_tokens="6m0s",
)
ANTHROPIC = headers(
    anthropic_ratelimit_requests_limit="50",
    anthropic_ratelimit_requests_remaining="0",
    anthropic_ratelimit_requests_reset="2026-11-18T10:13:30Z",
    anthropic_ratelimit_input_tokens_limit="1000",
    anthropic_ratelimit_input_tokens_remaining="900",
    anthropic_ratelimit_input_tokens_reset="2026-11-18T10:13:30Z",
)
SUBSCRIPTION = headers(
    anthropic_ratelimit_unified_5h_status="allowed",
    anthropic_ratelimit_unified_5h_utilization="0.75",
    anthropic_ratelimit_unified_5h_reset="1795000060",
    anthropic_ratelimit_unified_7d_utilization="0.5",
)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (OPENAI, KeyAllowance(0.01, 360.0, "tokens")),
        (ANTHROPIC, KeyAllowance(0.0, 10.0, "requests")),
        (SUBSCRIPTION, KeyAllowance(0.25, 60.0, "unified-5h")),
        (headers(anthropic_ratelimit_unified_5h_status="rejected"), KeyAllowance(0.0, 0.0, "unified-5h")),
        ([], None),
        (headers(x_ratelimit_remaining_requests="5"), None),
        (headers(x_ratelimit_limit_requests="0", x_ratelimit_remaining_requests="0"), None),
        (headers(x_ratelimit_limit_requests="many", x_ratelimit_remaining_requests="0"), None),
        (headers(x_ratelimit_limit_requests="-1", x_ratelimit_remaining_requests="nan"), None),
    ],
)
def test_the_scarcest_limit_of_a_key_is_read(
    found: list[tuple[bytes, bytes]], expected: KeyAllowance | None
) -> None:
    assert read_allowance(found, 1_794_996_800.0 if found is ANTHROPIC else NOW) == expected


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("12ms", 0.012),
        ("1s", 1.0),
        ("2m59.56s", 179.56),
        ("6m0s", 360.0),
        ("1h0m5s", 3605.0),
        ("30", 30.0),
        ("1795000060", 60.0),
        ("soon", 0.0),
        ("9999999h", 0.0),
        ("99999h", 604_800.0),
        ("2026-13-45T00:00:00Z", 0.0),
    ],
)
def test_resets_are_read_in_every_form(text: str, seconds: float) -> None:
    found = headers(
        x_ratelimit_limit_requests="2", x_ratelimit_remaining_requests="1", x_ratelimit_reset_requests=text
    )
    allowance = read_allowance(found, NOW)
    assert allowance is not None
    assert allowance.resets_in == pytest.approx(seconds)


def test_other_headers_are_left_alone() -> None:
    others = [(b"content-type", b"text/plain"), (b"x-request-id", b"1")]
    assert rate_limit_headers([*others, *OPENAI]) == OPENAI
