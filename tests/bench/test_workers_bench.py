"""Several workers on one port: all are found, their requests counted, and compared with one worker."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import workers
from bench.cells import CELLS
from bench.measure import Sample, Settings
from bench.native import Load, Percentiles, mock
from bench.peers import Unavailable
from bench.workers import Figures, Taken, figures

SETTINGS = Settings(rounds=1, seconds=0.3, warmup=0, repeats=0, load_core=None, gateway_core=None)
METRICS = """\
# TYPE routecodex_requests_total counter
routecodex_requests_total{model="m",protocol="chat",provider="mock",status="200",worker="1"} 40.0
routecodex_requests_total{model="m",protocol="chat",provider="mock",status="502",worker="1"} 2.0
routecodex_active_requests{worker="1"} 0.0
"""


def taken(
    count: int, cell: str, rps: float, *, us: float, answered: tuple[int, ...], errors: int = 0
) -> Taken:
    times = Percentiles(p50=1, p99=2)
    load = Load(int(rps), errors, 0, 1.0, rps, times, times, 100, "broken" if errors else "")
    name = "ours" if count == 1 else f"ours-{count}"
    return Taken(count, Sample(name, cell, 0, load, cpu_us=us, rss_mb=20, foreign_share=0), answered)


def test_metrics_tell_the_worker_and_all_its_answers() -> None:
    assert workers.told(METRICS) == ("1", 42)
    assert workers.told('routecodex_active_requests{worker="0"} 1.0\n') == ("0", 0)


def test_metrics_of_something_else_are_no_worker() -> None:
    with pytest.raises(Unavailable):
        workers.told("other 1.0\n")


def test_medians_are_compared_with_those_of_one_worker() -> None:
    rounds = [
        taken(2, "s64", 150, us=250, answered=(60, 40)),
        taken(1, "s64", 100, us=187.5, answered=(100,)),
        taken(1, "n64", 1_000, us=100, answered=(1_000,)),
        taken(2, "n64", 1_400, us=110, answered=(750, 650)),
        taken(2, "n64", 1_600, us=90, answered=(1_000, 600)),
        taken(2, "n64", 1_500, us=100, answered=(750, 750)),
    ]
    found = figures(rounds)
    assert [(one.cell, one.workers) for one in found] == [("n64", 1), ("n64", 2), ("s64", 1), ("s64", 2)]
    assert found[0] == Figures("n64", 1, 1_000, 100, (1.0,), 1.0, 1.0, 0)
    assert found[1] == Figures("n64", 2, 1_500, 100, (750 / 1_400, 650 / 1_400), 1.5, 1.0, 0)
    assert (found[3].capacity, found[3].capacity_ratio) == (4_000, 0.75)
    assert [one.holds for one in found] == [True, True, True, False]


def test_a_wrong_answer_is_never_fast_enough() -> None:
    one = taken(1, "n64", 1_000, us=100, answered=(1_000,), errors=1)
    assert [row.holds for row in figures([one])] == [False]


def test_the_table_says_how_evenly_the_requests_fell() -> None:
    rounds = [
        taken(1, "n64", 1_000, us=100, answered=(1_000,)),
        taken(2, "n64", 1_512.4, us=125, answered=(90, 60)),
    ]
    text = workers.markdown(figures(rounds), SETTINGS)
    assert text.splitlines()[2:] == [
        "| cell | workers | rps | × one | µs CPU | requests per CPU s | × one | shares of the requests |",
        "|---|---|---|---|---|---|---|---|",
        "| n64 | 1 | 1 000 | 1.00 | 100 | 10 000 | 1.00 | 100 % |",
        "| n64 | 2 | 1 510 | 1.51 | 125 | 8 000 | 0.80 | 60 % : 40 % |",
    ]
    assert text.splitlines()[0].endswith("; medians of 1 rounds, 0.3 s each.")


@pytest.mark.parametrize(
    ("cores", "counts"),
    [(1, [1, 2]), (2, [1, 2]), (4, [1, 2, 4]), (6, [1, 2, 4, 6]), (8, [1, 2, 4, 8])],
)
def test_there_are_at_most_as_many_workers_as_cores_but_two_at_least(cores: int, counts: list[int]) -> None:
    assert workers.default_counts(cores) == counts


def test_one_worker_is_always_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert workers._parser().parse_args(["--workers", "4,2"]).workers == [1, 2, 4]
    with pytest.raises(SystemExit):
        workers.main(["--workers", "none"])
    assert "'none' is no comma list" in capsys.readouterr().err


def test_all_workers_are_met_and_every_answer_is_counted_once(tmp_path: Path) -> None:
    with mock() as provider:
        rounds = list(workers.measure([1, 2], settings=SETTINGS, mock=provider, folder=tmp_path))
    assert [(one.sample.cell, one.workers, len(one.answered)) for one in rounds] == [
        ("n64", 1, 1),
        ("n64", 2, 2),
        ("s64", 1, 1),
        ("s64", 2, 2),
    ]
    for one in rounds:
        load = one.sample.load
        unseen = sum(one.answered) - load.requests
        # On each connection one may be answered before the measured time and one after it.
        assert (load.first_error, 0 <= unseen <= 2 * CELLS[one.sample.cell].connections) == ("", True)
        assert one.sample.cpu_us > 0
