"""The budget's verdicts and the figures that the documentation is given."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import budget, report
from bench.budget import Above, Added, AtLeast, Below, Check, Growth, Rule
from bench.measure import Findings, Sample, Settings, Start
from bench.memory import Memory
from bench.native import Load, Percentiles
from bench.store_writes import StoreWrites
from bench.summary import summarise

SETTINGS = Settings(rounds=1, seconds=1, warmup=0, repeats=0, load_core=0, gateway_core=1)
MEMORY = Memory(idle_mb=30, requests=100_000, growth_mb=1, streams=1_000, stream_kb=20, errors=0)


def taken(
    system: str, cell: str, rps: float, *, us: float = 100, foreign: float = 0, errors: int = 0
) -> Sample:
    times = Percentiles(p50=us, p99=2 * us, p90=us)
    load = Load(int(rps), errors, 0, 1.0, rps, times, times, 100, "broken" if errors else "")
    return Sample(system, cell, 0, load, cpu_us=us, rss_mb=20, foreign_share=foreign)


def verdict(rule: Rule, samples: list[Sample], memory: Memory | None = None) -> str:
    writes = [StoreWrites("file", 32, 1_000, 300), StoreWrites("redis", 32, 6_000, 30)]
    findings = Findings(samples, [Start("ours", 0.4, 40)], writes=writes)
    return budget.check(findings, memory, [rule])[1].verdict


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (AtLeast("n16", "nginx", 1 / 5), "pass"),
        (AtLeast("n16", "nginx", 1 / 3), "fail"),
        (AtLeast("n16", "litellm", 80), "not run"),
        (Added("n16", "latency_p50_us", 500), "pass"),
        (Added("n16", "latency_p50_us", 300), "fail"),
        (Growth("2MB", "n16", 5), "fail"),
        (Growth("2MB", "n16", 7), "pass"),
        (Below("startup", 1, "s"), "pass"),
        (Below("idle memory", 30, "MB"), "fail"),
        (Below("memory per open stream, 1 000 open", 60, "KB"), "not run"),
        (Above("writes to Redis, 32 at once", 5, "×"), "pass"),
        (Above("writes to Redis, 32 at once", 7, "×"), "fail"),
        (Above("writes to Redis, 1 at once", 5, "×"), "not run"),
    ],
)
def test_a_rule_is_judged_by_the_systems_that_ran(rule: Rule, expected: str) -> None:
    samples = [
        taken("ours", "n16", 250, us=500),
        taken("ours", "2MB", 50, us=3_000),
        taken("nginx", "n16", 1_000),
        taken("direct", "n16", 2_000, us=100),
    ]
    assert verdict(rule, samples) == expected


@pytest.mark.parametrize(
    ("requests", "streams", "expected"),
    [
        (100_000, 1_000, ["pass", "pass"]),
        (99_999, 1_000, ["not run", "pass"]),
        (100_000, 999, ["pass", "not run"]),
    ],
)
def test_a_memory_examination_that_fell_short_proves_nothing(
    requests: int, streams: int, expected: list[str]
) -> None:
    memory = Memory(30, requests=requests, growth_mb=1, streams=streams, stream_kb=20, errors=0)
    rules = [
        Below("memory growth over 100 000 requests", 4, "MB"),
        Below("memory per open stream, 1 000 open", 60, "KB"),
    ]
    checks = budget.check(Findings(), memory, rules)
    assert [check.verdict for check in checks[1:]] == expected


def test_fast_but_wrong_answers_fail_the_rule() -> None:
    samples = [taken("ours", "n16", 900, errors=3), taken("nginx", "n16", 1_000)]
    assert verdict(AtLeast("n16", "nginx", 1 / 5), samples) == "fail"
    assert budget.check(Findings(samples), None, [])[0].verdict == "fail"


def test_a_peer_with_errors_is_no_yardstick() -> None:
    samples = [taken("ours", "n16", 900), taken("litellm", "n16", 1_000, errors=3)]
    assert verdict(AtLeast("n16", "litellm", 80), samples) == "not run"


def test_noisy_samples_count_only_when_there_is_nothing_better() -> None:
    samples = [taken("ours", "n16", 900), taken("ours", "n16", 100, foreign=0.4)]
    samples.append(taken("nginx", "n16", 500, foreign=0.4))
    table = summarise(samples)
    ours, nginx = table["ours", "n16"], table["nginx", "n16"]
    assert (ours["rps"], ours.rounds, ours.noisy) == (900, 1, False)
    assert (nginx["rps"], nginx.rounds, nginx.noisy) == (500, 1, True)


def test_first_tokens_are_told_by_the_quietest_samples_there_are() -> None:
    shares = {"ours": (0.01, 0.1, 0.4), "nginx": (0.1, 0.4), "direct": (0.4, 0.5)}
    samples = [
        taken(name, "p64", 10 / share, foreign=share) for name, found in shares.items() for share in found
    ]
    table = summarise(samples)
    found = {name: (table[name, "p64"]["rps"], table[name, "p64"].noisy) for name in shares}
    assert found == {"ours": (1_000, False), "nginx": (100, True), "direct": (22.5, True)}


def test_writing_the_figures_leaves_the_rest_of_the_page_alone(tmp_path: Path) -> None:
    page = tmp_path / "performance.md"
    page.write_text("before\n<!-- figures: begin -->\nold\n<!-- figures: end -->\nafter\n")
    findings = Findings([taken("ours", "n16", 900), taken("nginx", "n16", 1_000)])
    checks = [Check("n16: fast", "pass", "0.9 ×")]
    results = report.Results(report.this_machine(), SETTINGS, findings, MEMORY, checks)
    report.write_docs(results, page)
    report.write_docs(results, page)
    text = page.read_text()
    assert text.startswith("before\n<!-- figures: begin -->\n")
    assert text.endswith("<!-- figures: end -->\nafter\n")
    assert "old" not in text
    assert "| **RouteCodex** | 900 |" in text
    assert "| n16: fast | 0.9 × | pass |" in text
