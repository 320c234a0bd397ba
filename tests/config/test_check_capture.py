"""Checks of [capture]."""

from __future__ import annotations

import pytest

from routecodex.config import CaptureConfig, loads
from tests.config.checked import BASE, problems_of


def rows(text: str) -> list[tuple[str, str]]:
    return [(severity, path) for severity, path, _, _ in problems_of(BASE + text)]


def test_nothing_is_captured_unless_the_file_says_so() -> None:
    config = loads(BASE)
    assert config.capture == CaptureConfig(
        mode="off", sample=0.01, keep_hours=24, max_mb=256, max_body_kb=512
    )
    assert not config.capture.is_on


@pytest.mark.parametrize("mode", ["errors", "sample", "all"])
def test_every_other_mode_captures(mode: str) -> None:
    assert loads(f'{BASE}[capture]\nmode = "{mode}"\n').capture.is_on


@pytest.mark.parametrize(
    ("line", "path"),
    [
        ('mode = "some"', "capture.mode"),
        ("sample = 1.5", "capture.sample"),
        ("sample = -0.1", "capture.sample"),
        ("keep_hours = 0", "capture.keep_hours"),
        ("max_mb = 0", "capture.max_mb"),
        ("max_body_kb = 0", "capture.max_body_kb"),
        ("max_body_kb = 100000", "capture.max_body_kb"),
        ("keep_days = 1", "capture.keep_days"),
    ],
)
def test_a_wrong_value_is_reported_with_its_place(line: str, path: str) -> None:
    assert rows(f"[capture]\n{line}\n") == [("error", path)]


def test_a_sample_of_nothing_is_a_warning() -> None:
    assert rows('[capture]\nmode = "sample"\nsample = 0\n') == [("warning", "capture.sample")]
    assert rows("[capture]\nsample = 0\n") == []


def test_one_body_must_fit_into_the_space_of_all() -> None:
    assert rows('[capture]\nmode = "all"\nmax_mb = 1\nmax_body_kb = 2048\n') == [
        ("error", "capture.max_body_kb")
    ]
    assert rows('[capture]\nmode = "all"\nmax_mb = 2\nmax_body_kb = 2048\n') == []
