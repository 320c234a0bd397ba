"""Sampled stacks: told apart by stage, drawn, and shown without a path of the machine."""

from __future__ import annotations

import sys
from collections import Counter
from fnmatch import filter
from pathlib import Path
from xml.etree import ElementTree

import pytest

from bench import flame, page, stacks
from bench import profile as profiling
from bench.cells import CELLS
from bench.flame import Box
from bench.measure import Sample, Settings
from bench.native import Load, Percentiles, mock
from bench.peers import Unavailable
from bench.profile import Profile, profile
from bench.stacks import BY_NAME, LOOP, OTHER, SHARED, SHOWN, STAGES

SOURCE = Path(__file__).parents[2] / "src" / "routecodex"
SETTINGS = Settings(rounds=1, seconds=0.2, warmup=0, repeats=0, load_core=None, gateway_core=None)

TRUNK = "<module> (routecodex/__main__.py);serve (routecodex/server/serve.py);Runner.run (asyncio/runners.py)"
SERVE = "Connection._serve (routecodex/server/http/connection.py)"
RELAY = "Relay._run (routecodex/protocols/chat/relay.py)"
WAITS = "Thread._bootstrap (threading.py);Thread.run (threading.py);_worker (concurrent/futures/thread.py)"
FOLDED = f"""\
{TRUNK} 10
{TRUNK};{SERVE} 20
{TRUNK};{SERVE};encode (email/utils.py) 10
{TRUNK};{SERVE};{RELAY};try_read (routecodex/wire/json.py) 30
{TRUNK};{SERVE};{RELAY} 20
{TRUNK};check (routecodex/wire/json.py) 5
{WAITS} 500
{WAITS};_WorkItem.run (concurrent/futures/thread.py);_write (routecodex/server/logs.py) 5
"""
CONNECTION = "routecodex.server.http.connection:Connection._serve"
RUN = "routecodex.protocols.chat.relay:Relay._run"


def taken(cpu_us: float, *, foreign: float = 0) -> Sample:
    times = Percentiles(p50=1, p99=2)
    load = Load(100, 0, 0, 1.0, 100.0, times, times, 100, "")
    return Sample("ours", "s16", 0, load, cpu_us=cpu_us, rss_mb=20, foreign_share=foreign)


def profiled(*plain: Sample) -> Profile:
    return Profile(CELLS["s16"], plain, stacks.read(FOLDED))


@pytest.mark.parametrize(
    ("frame", "label"),
    [
        ("App.__call__ (routecodex/server/app.py)", "routecodex.server.app:App.__call__"),
        ("App.__call__ (routecodex/server/app.py:107)", "routecodex.server.app:App.__call__"),
        ("take (/home/a/gateway/src/routecodex/wire/sse.py:3)", "routecodex.wire.sse:take"),
        ("take (/home/a/gateway/routecodex/wire/sse.py)", "routecodex.wire.sse:take"),
        ("invoke (/opt/.venv/lib/python3.11/site-packages/click/core.py:9)", "click.core:invoke"),
        ("run (/usr/lib/python3.12/asyncio/runners.py)", "asyncio.runners:run"),
        ("main (/home/a/tool.py)", "tool:main"),
        ("_run_code (<frozen runpy>:88)", "runpy:_run_code"),
        ("use (routecodex/gateway/__init__.py)", "routecodex.gateway:use"),
        ("f.<locals>.<listcomp> (routecodex/wire/sse.py)", "routecodex.wire.sse:f.<listcomp>"),
    ],
)
def test_a_frame_is_named_by_module_and_function_and_by_no_path(frame: str, label: str) -> None:
    assert stacks.label(frame) == label


def test_a_stack_begins_above_the_event_loop_and_threads_that_wait_are_left_out() -> None:
    assert stacks.read(FOLDED) == Counter(
        {
            (): 10,
            (CONNECTION,): 20,
            (CONNECTION, "email.utils:encode"): 10,
            (CONNECTION, RUN, "routecodex.wire.json:try_read"): 30,
            (CONNECTION, RUN): 20,
            ("routecodex.wire.json:check",): 5,
            ("routecodex.server.logs:_write",): 5,
        }
    )


def test_time_goes_to_the_innermost_frame_that_has_a_stage() -> None:
    assert stacks.shares(stacks.read(FOLDED)) == dict.fromkeys(SHOWN, 0.0) | {
        "HTTP server, in and out": 0.30,
        "answer relayed or translated": 0.50,
        "records, logs, metrics": 0.05,
        "event loop and system calls": 0.15,
    }


@pytest.mark.parametrize(
    ("label", "stage"),
    [
        ("server.app:App._generate", "HTTP server, in and out"),
        ("server.metrics:Metrics.observe", "records, logs, metrics"),
        ("protocols.messages.validate:validate", "request read, checked, rewritten"),
        ("protocols.responses.decode_request:decode_request", "request read, checked, rewritten"),
        ("protocols.messages.encode_stream:StreamEncoder._take", "answer relayed or translated"),
        ("protocols.large_body:may_hold_tags", "session, instructions, plan"),
        ("gateway.gateway:Gateway._planned", "session, instructions, plan"),
        ("gateway.gateway:Gateway.answer", "attempts and answers"),
        ("providers.http.client:ConnectionPool.take", "HTTP client"),
        ("providers.upstream:Upstream.head", "attempts and answers"),
        ("cli.serve:serve", "other"),
        ("wire.json:read", None),
    ],
)
def test_a_frame_of_ours_has_the_stage_of_its_module(label: str, stage: str | None) -> None:
    found = stacks.stage_of_frame(f"routecodex.{label}")
    assert (found.name if found else None) == stage


def test_every_pattern_of_a_stage_names_a_module_that_exists() -> None:
    modules = [".".join(path.relative_to(SOURCE).with_suffix("").parts) for path in SOURCE.rglob("*.py")]
    patterns = [pattern for stage in STAGES for pattern in stage.frames] + list(SHARED)
    wanted = [pattern.partition(":")[0] for pattern in patterns]
    assert [name for name in wanted if not filter(modules, name)] == []


def test_every_stage_is_shown_in_a_colour_of_its_own() -> None:
    assert sorted(SHOWN) == sorted(stage.name for stage in (*STAGES, LOOP, OTHER))
    assert len({stage.colour for stage in BY_NAME.values()}) == len(SHOWN)


def test_boxes_stand_below_their_callers_the_widest_left_and_small_ones_nowhere() -> None:
    server, relay = BY_NAME["HTTP server, in and out"], BY_NAME["answer relayed or translated"]
    logs = BY_NAME["records, logs, metrics"]
    assert flame.boxes(stacks.read(FOLDED), smallest=0.1) == [
        Box("event loop", 0.0, 1.0, 0, LOOP),
        Box("server.http.connection:Connection._serve", 0.0, 0.8, 1, server),
        Box("protocols.chat.relay:Relay._run", 0.0, 0.5, 2, relay),
        Box("wire.json:try_read", 0.0, 0.3, 3, relay),
        Box("email.utils:encode", 0.5, 0.1, 2, server),
    ]
    small = flame.boxes(stacks.read(FOLDED), smallest=0.05)[-2:]
    assert [(box.label, box.stage) for box in small] == [
        ("server.logs:_write", logs),
        ("wire.json:check", LOOP),
    ]


@pytest.mark.parametrize(
    ("letters", "text"),
    [(30, "server.app:App.answer"), (12, "App.answer"), (5, "App.…"), (3, ""), (0, "")],
)
def test_a_label_is_as_long_as_its_box_allows(letters: int, text: str) -> None:
    assert flame.fitted("server.app:App.answer", letters) == text


def test_the_same_stacks_give_the_same_picture_and_its_texts_are_texts(tmp_path: Path) -> None:
    first, second = tmp_path / "first.svg", tmp_path / "second.svg"
    for path in (first, second):
        flame.draw(stacks.read(FOLDED), path, title="s16: a stream, 400 µs a request")
    assert first.read_bytes() == second.read_bytes()
    texts = [element.text for element in ElementTree.parse(first).iter() if element.tag.endswith("}text")]
    assert {"event loop", "protocols.chat.relay:Relay._run"} <= set(texts)
    assert "s16: a stream, 400 µs a request" in texts
    assert "answer relayed or translated 50%" in texts


def test_a_picture_of_many_frames_stays_small(tmp_path: Path) -> None:
    names = [f"routecodex.server.app:App._handler_number_{number:03}" for number in range(300)]
    many = {tuple(names[one : one + 10]): 1 for one in range(0, 300, 10)}
    assert len(flame.boxes(many)) == 301
    flame.draw(many, tmp_path / "many.svg", title="many")
    assert (tmp_path / "many.svg").stat().st_size < 150_000


def test_the_cost_of_the_stages_adds_up_to_that_of_a_request() -> None:
    one = profiled(taken(390), taken(410))
    costs = one.stages_us
    assert one.cpu_us == 400
    assert sum(costs.values()) == pytest.approx(400)
    assert costs["answer relayed or translated"] == pytest.approx(200)
    assert ["answer relayed or translated", "200.0"] in profiling.rows([one])
    assert profiling.rows([one])[-1] == ["all", "400.0"]


def test_the_documentation_gets_the_table_and_the_pictures(tmp_path: Path) -> None:
    text = profiling.markdown([profiled(taken(400))], seconds=2)
    assert "from the sources, sampled 500 times a second for 2 s." in text
    assert "| | s16 |\n|---|---|\n| HTTP server, in and out | 120.0 |\n" in text
    assert text.endswith("\n| all | 400.0 |\n\n![s16: stream in one write, 16 connections](flame-s16.svg)")
    noisy = profiling.markdown([profiled(taken(400, foreign=0.5))], seconds=2)
    assert noisy.endswith("\n\nOther processes disturbed the measurement of: s16.")


def test_a_part_of_the_page_is_replaced_and_the_rest_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "performance.md"
    file.write_text(
        "a\n<!-- one: begin -->\nold\n<!-- one: end -->\nb\n<!-- two: begin -->\n<!-- two: end -->\n"
    )
    page.put("two", "second", file)
    page.put("one", "first", file)
    page.put("one", "first", file)
    assert file.read_text() == (
        "a\n<!-- one: begin -->\nfirst\n<!-- one: end -->\n"
        "b\n<!-- two: begin -->\nsecond\n<!-- two: end -->\n"
    )


@pytest.mark.parametrize("mark", ["profile: begin", "profile: end", "workers: begin", "workers: end"])
def test_the_page_has_a_place_for_what_is_written(mark: str) -> None:
    assert page.PAGE.read_text().count(f"<!-- {mark} -->") == 1


def sampler(folder: Path, program: str) -> list[str]:
    """A program that is called as py-spy is."""
    file = folder / "sampler.py"
    file.write_text(program)
    return [sys.executable, str(file)]


def test_a_cell_is_measured_and_sampled_in_the_process_of_the_gateway(tmp_path: Path) -> None:
    program = f"""
import sys
from pathlib import Path
arguments = sys.argv
options = dict(zip(arguments[2::1], arguments[3::1]))
environ = Path("/proc", options["--pid"], "environ").read_bytes().split(b"\\0")
assert b"ROUTECODEX_PURE=1" in environ, environ
assert (arguments[1], options["--format"], options["--rate"]) == ("record", "raw", "500")
Path(options["--output"]).write_text({FOLDED!r})
"""
    with mock() as provider:
        one = profile(
            CELLS["n16"],
            settings=SETTINGS,
            mock=provider,
            folder=tmp_path,
            sampler=sampler(tmp_path, program),
            spare=0.3,
        )
    assert one.seen == stacks.read(FOLDED)
    assert [(taken.cell, taken.load.errors, taken.load.requests > 0) for taken in one.plain] == [
        ("n16", 0, True),
        ("n16", 0, True),
    ]


def test_a_sampler_that_fails_is_named_with_its_last_words(tmp_path: Path) -> None:
    program = "import sys; sys.exit('Permission denied: try again elsewhere')"
    with mock() as provider, pytest.raises(Unavailable, match=r"ended with 1: Permission denied"):
        profile(
            CELLS["n16"],
            settings=SETTINGS,
            mock=provider,
            folder=tmp_path,
            sampler=sampler(tmp_path, program),
            spare=0.3,
        )


def test_an_unknown_cell_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        profiling.main(["--cells", "n16,x9"])
    assert "unknown cell 'x9'" in capsys.readouterr().err
