"""docs/server-tools.md: its examples work as described, its tables match the code."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path
from zoneinfo import ZoneInfo

import msgspec
import pytest

from routecodex.config.server_tools import ClockConfig, ServerToolsConfig, VisionAutoConfig, WebSearchConfig
from routecodex.gateway.context import message_files
from routecodex.gateway.internal.clock_service import BARE
from routecodex.routing.state import StopMessageState
from routecodex.server_tools import beads, hidden_calls
from routecodex.server_tools import clock as clock_package
from routecodex.server_tools.clock.actions import ClockActions
from routecodex.server_tools.clock.arguments import ACTIONS
from routecodex.server_tools.clock.clock_tool import ClockTool, reminder, time_tag
from routecodex.server_tools.clock.due_rules import DueRules
from routecodex.server_tools.clock.network_time import NetworkTime
from routecodex.server_tools.clock.task_store import TaskStore
from routecodex.server_tools.clock.timestamps import Zone
from routecodex.server_tools.empty_reply import EmptyReplyTool
from routecodex.server_tools.framework import ServerTool
from routecodex.server_tools.stop_message import StopMessageTool as StopTool
from routecodex.stores.file import FileStore
from tests.kit.gateway import serving
from tests.kit.raw_client import call
from tests.test_docs import ROOT, blocks, curls, demo, table

PAGE = ROOT / "docs/server-tools.md"
TEXT = PAGE.read_text("utf-8")
NOW_MS = 1_769_056_200_000
TASK_ID = "6f1d2c3e-0b7a-4c55-9f0e-2f7f0d3b8a11"
ZONE = Zone("America/Los_Angeles", ZoneInfo("America/Los_Angeles"))


def section(heading: str) -> str:
    """Return the text below a heading, up to the next one."""
    return TEXT.partition(f"# {heading}\n")[2].partition("\n#")[0]


def first_cells(heading: str) -> list[str]:
    """The code in the first cells of a section's table, row by row."""
    return re.findall(r"^\| ((?:`[^`]+`(?:, )?)+)", section(heading), re.MULTILINE)


async def said(config: str, number: int) -> str:
    """What the answer to a request of the page says."""
    shown = curls(PAGE)[number]
    async with serving(config) as gateway:
        answer = await call(gateway.port, shown.url.path, shown.body, headers=shown.headers)
    assert answer.status == 200
    content: str = answer.json["choices"][0]["message"]["content"]
    return content


async def test_the_first_look_gives_the_answer_shown() -> None:
    assert await said(demo(5520), 0) + "\n" == blocks(PAGE, "text")[0]


def lay_out(folder: Path) -> Path:
    """The package of the page as an installer leaves it: its module, and who it is."""
    (project,) = [tomllib.loads(text) for text in blocks(PAGE) if text.startswith("[project]")]
    about = project["project"]
    (group,) = about["entry-points"].items()
    (module,) = {value.partition(":")[0] for value in group[1].values()}
    folder.mkdir()
    (folder / f"{module}.py").write_text(blocks(PAGE, "python")[0])
    dist = folder / f"{about['name'].replace('-', '_')}-{about['version']}.dist-info"
    dist.mkdir()
    (dist / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {about['name']}\nVersion: {about['version']}\n"
    )
    rows = "\n".join(f"{name} = {value}" for name, value in group[1].items())
    (dist / "entry_points.txt").write_text(f"[{group[0]}]\n{rows}\n")
    return folder


async def test_the_tool_of_the_page_can_be_installed_and_does_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(lay_out(tmp_path / "site")))
    try:
        assert await said(demo(5520), 1) + "\n" == blocks(PAGE, "text")[-1]
    finally:
        sys.modules.pop("routecodex_checklist", None)


async def test_the_example_of_the_clock_is_what_the_clock_does(tmp_path: Path) -> None:
    asked, told, kept = blocks(PAGE, "json")
    _, due, tag, _ = blocks(PAGE, "text")
    store = FileStore(tmp_path, bare=BARE)
    shelf = TaskStore(store, now_ms=lambda: NOW_MS)
    time = NetworkTime(lambda: NOW_MS / 1000)
    tool = ClockActions(shelf, time=time, rules=DueRules(), zone=ZONE, new_id=lambda: TASK_ID)
    result = await tool.call(asked, session="try-2", request_id="req_1")
    tasks = await tool.tasks("try-2")
    await store.close()
    assert msgspec.json.decode(result) == msgspec.json.decode(told)
    assert (tmp_path / "clock" / "try-2.json").read_text() == kept
    assert reminder(tasks) + "\n" == due
    assert time_tag(NOW_MS, zone=ZONE, offset_ms=0) + "\n" == tag


def test_the_actions_of_the_clock_are_those_it_has() -> None:
    named = [row.strip("`") for row in first_cells("What the tool can do")]
    assert set(named[: len(ACTIONS)]) == set(ACTIONS)


def test_every_code_the_clock_may_answer_with_is_listed_and_no_other() -> None:
    raised = re.compile(r"(?:ActionRefused|BadTimestamp)\(\s*\"(\w+)\"")
    files = [Path(folder).glob("*.py") for folder in clock_package.__path__]
    found = {code for folder in files for file in folder for code in raised.findall(file.read_text("utf-8"))}
    rows = first_cells("What the tool can do")[len(ACTIONS) :]
    assert {code for row in rows for code in re.findall(r"`(\w+)`", row)} == found


def test_every_server_tool_is_in_the_table_and_whether_it_is_on() -> None:
    defaults = ServerToolsConfig()
    rows = re.findall(r"^\| \[`(\w+)`\]\(#\w+\) \| .* \| (on|off) \|", TEXT, re.MULTILINE)
    tools = [
        name for name in ServerToolsConfig.__struct_fields__ if hasattr(getattr(defaults, name), "enabled")
    ]
    assert dict(rows) == {name: "on" if getattr(defaults, name).enabled else "off" for name in tools}


def test_the_limits_are_those_in_use() -> None:
    assert [row[2] for row in table(PAGE, "Limits")] == [
        f"{ServerToolsConfig().max_turn_ms // 60_000} min",
        str(StopMessageState(text="").max_repeats),
        "",
        "1",
        f"{message_files.MOST_BYTES // 1024} KB",
        f"{ClockConfig().hold_max_ms // 1000} s",
        str(VisionAutoConfig().max_images),
        str(WebSearchConfig().max_uses),
    ]
    assert hidden_calls.TTL == 7 * 24 * 3600


def test_the_variables_of_bd_and_their_defaults_are_those_it_reads() -> None:
    rows = re.findall(r"^\| `(ROUTECODEX_\w+)` \| `?([\w' ]+?)`? \|", TEXT, re.MULTILINE)
    known = beads.BeadsSettings()
    assert dict(rows) == {
        f"{beads.PREFIX}MODE": known.mode,
        f"{beads.PREFIX}TIMEOUT_MS": f"{known.timeout * 1000:g}",
        f"{beads.PREFIX}CACHE_TTL_MS": f"{known.ttl * 1000:g}",
        f"{beads.PREFIX}WORKDIR": "the gateway's own",
    }


def test_the_table_of_methods_is_what_a_tool_may_have() -> None:
    methods = [name for name, value in vars(ServerTool).items() if callable(value) and name[0] != "_"]
    assert [row.strip("`") for row in first_cells("What a tool may do")] == methods


def test_the_priorities_told_are_those_in_use() -> None:
    told = re.search(r"stopMessage has (\d+), .* (-?\d+)\s+unless .* (-\d+), the\s+clock (-\d+)", TEXT, re.S)
    assert told
    used = [tool.priority for tool in (StopTool, ServerTool, EmptyReplyTool, ClockTool)]
    assert [int(number) for number in told.groups()] == used
