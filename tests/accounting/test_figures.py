"""Figures as people read them."""

from __future__ import annotations

import pytest

from routecodex.accounting.figures import FIGURE_NAMES, Figures, figures_of, show_usd, usage_line

SOME = Figures(12, 1, 34_567, 2345, 28_000, 100, 50, 0.1234, 0, 0.0)


def test_the_names_of_figures_are_these() -> None:
    assert FIGURE_NAMES == (
        "requests",
        "errors",
        "input_tokens",
        "output_tokens",
        "cache_read_tokens",
        "cache_write_tokens",
        "reasoning_tokens",
        "cost",
        "cost_unknown",
        "cost_estimated",
        "cache_hit_rate",
    )


def test_figures_read_from_their_dict_are_the_same() -> None:
    assert figures_of(SOME.as_dict()) == SOME


def test_the_rate_of_cache_hits_is_a_share_of_the_whole_input() -> None:
    assert SOME.cache_hit_rate == pytest.approx(0.810021)
    assert Figures().cache_hit_rate is None


@pytest.mark.parametrize(
    ("usd", "text"),
    [(0.0, "$0.00"), (16.79, "$16.79"), (0.1234, "$0.1234"), (0.000_12, "$0.00012"), (1e-7, "<$0.00001")],
)
def test_an_amount_is_short_and_never_looks_like_nothing(usd: float, text: str) -> None:
    assert show_usd(usd) == text


@pytest.mark.parametrize(
    ("figures", "line"),
    [
        (SOME, "12 requests, 34567 in (81% cached), 2345 out, $0.1234"),
        (Figures(1, 0, 10, 5, cost_unknown=1), "1 request, 10 in (0% cached), 5 out, unknown"),
        (
            Figures(2, 0, 10, 5, cost=0.5, cost_unknown=1),
            "2 requests, 10 in (0% cached), 5 out, $0.5000 (1 without a price)",
        ),
        (Figures(), "0 requests, 0 in, 0 out, $0.00"),
    ],
    ids=["all", "unknown", "partly unknown", "none"],
)
def test_the_line_of_the_status(figures: Figures, line: str) -> None:
    assert usage_line(figures) == line
