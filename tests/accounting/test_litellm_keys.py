"""LiteLLM's exports of virtual keys, in all their shapes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from routecodex.accounting.litellm_keys import LiteLlmKeysError, convert_keys
from routecodex.config import key_digest

NOW = 1_800_000_000.0
DIGEST = key_digest("sk-1234")
ROW: dict[str, Any] = {"token": DIGEST, "key_alias": "laptop", "key_name": "sk-...1234"}


def converted(value: Any) -> list[tuple[str, dict[str, Any] | None, str]]:
    rows = convert_keys(json.dumps(value).encode(), NOW)
    return [(row.name, row.body, row.reason) for row in rows]


def body(**fields: Any) -> dict[str, Any] | None:
    [(_, found, _)] = converted({"keys": [{**ROW, **fields}]})
    return found


def reason(**fields: Any) -> str:
    [(_, found, why)] = converted({"keys": [{**ROW, **fields}]})
    assert found is None
    return why


PLAIN = {"name": "laptop", "key_sha256": DIGEST}


@pytest.mark.parametrize(
    "value",
    [
        {"keys": [ROW], "total_count": 1},
        [ROW],
        {"key": DIGEST, "info": {"key_alias": "laptop"}},
        [{"key": DIGEST, "info": {"key_alias": "laptop"}}],
        ROW,
    ],
)
def test_a_list_and_the_answer_for_one_key_are_read(value: Any) -> None:
    assert converted(value) == [("laptop", PLAIN, "")]


def test_everything_that_has_a_meaning_here_is_taken_over() -> None:
    assert body(
        team_id="core",
        max_budget=20.5,
        budget_duration="30d",
        rpm_limit=60,
        tpm_limit=1000,
        max_parallel_requests=4,
        models=["gpt-4o", "claude-*"],
        expires="2027-06-01T00:00:00+00:00",
        blocked=True,
        spend=12.0,
        metadata={"x": 1},
    ) == {
        **PLAIN,
        "team": "core",
        "limits": ["$20.5/month"],
        "rpm": 60,
        "tpm": 1000,
        "concurrent": 4,
        "allow": {"models": ["gpt-4o", "claude-*"]},
        "expires": "2027-06-01T00:00:00Z",
        "blocked": True,
    }


@pytest.mark.parametrize(
    ("duration", "window"),
    [
        ("1d", "day"),
        ("7d", "week"),
        ("30d", "month"),
        ("1mo", "month"),
        ("12h", "12h"),
        ("60s", "60s"),
        ("15m", "15m"),
        ("90d", "90d"),
        ("2w", "14d"),
        ("3mo", "90d"),
    ],
)
def test_a_budget_has_a_calendar_window_or_rolls(duration: str, window: str) -> None:
    assert body(max_budget=20, budget_duration=duration) == {**PLAIN, "limits": [f"$20/{window}"]}


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        (
            {"max_budget": 5},
            "its max_budget has no budget_duration; a budget needs a window, such as 30d",
        ),
        ({"max_budget": 5, "budget_duration": "often"}, "its budget_duration is not a duration: 'often'"),
        ({"max_budget": "5", "budget_duration": "1d"}, "its max_budget is not a number: '5'"),
        ({"token": None}, "has no token"),
        ({"token": "sk-...1234"}, "its token is neither a SHA-256 nor a key"),
        ({"expires": "2020-01-01T00:00:00Z"}, "it expired at 2020-01-01T00:00:00Z"),
        ({"expires": "never"}, "its expires is not a time: 'never'"),
    ],
)
def test_a_key_that_cannot_be_taken_over_has_a_reason(fields: dict[str, Any], why: str) -> None:
    assert reason(**fields) == why


def test_a_time_without_a_zone_is_utc_as_in_their_database() -> None:
    assert body(expires="2027-06-01T12:00:00.5") == {**PLAIN, "expires": "2027-06-01T12:00:00Z"}


def test_a_key_in_the_clear_is_taken_over_by_its_digest() -> None:
    assert body(token="sk-1234") == PLAIN


@pytest.mark.parametrize("models", [[], ["all-team-models"], ["all-proxy-models"], None])
def test_all_models_are_all_models(models: Any) -> None:
    assert body(models=models) == PLAIN


def test_a_name_is_the_alias_then_the_masked_key_then_a_number() -> None:
    rows = [
        {"token": DIGEST, "key_alias": "Ann's laptop / work"},
        {"token": DIGEST, "key_name": "sk-...1234"},
        {"token": DIGEST},
        {"token": DIGEST, "key_alias": "x" * 100},
        DIGEST,
        7,
    ]
    assert [name for name, _, _ in converted(rows)] == [
        *("Ann-s-laptop-work", "sk-...1234", "litellm-3", "x" * 64, DIGEST, "key 6"),
    ]


def test_a_list_of_digests_alone_says_how_to_export() -> None:
    [(_, found, why)] = converted({"keys": [DIGEST]})
    assert (found, why) == (None, "has no fields; export with /key/list?return_full_object=true")


def test_a_file_that_is_not_json_is_refused() -> None:
    with pytest.raises(LiteLlmKeysError, match="is not JSON"):
        convert_keys(b"keys:\n- a\n", NOW)
