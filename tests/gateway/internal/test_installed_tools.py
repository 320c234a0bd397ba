"""Tools of other packages: the sound ones are loaded, broken ones are reported and left out."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from routecodex.gateway.internal.installed_tools import InstalledTool, load
from tests.gateway.installed_tool import PEEK, PeekTool, install
from tests.kit import answers, asking
from tests.kit.gateway import one_target, serving
from tests.kit.raw_client import call
from tests.kit.upstream import Upstream

HERE = "tests.gateway.internal.test_installed_tools"
SOUND = "tests.gateway.installed_tool:PeekTool"


class UndecidedTool(PeekTool):
    """Fails when it is asked whether it takes part."""

    def wants(self, turn: object) -> bool:
        raise RuntimeError("undecided")


def broken() -> PeekTool:
    raise ValueError("no licence")


def leaving() -> PeekTool:
    raise SystemExit("goodbye")


def interrupting() -> PeekTool:
    raise KeyboardInterrupt


class Unforeseen(BaseException):
    """An exception outside the tree of Exception, as some libraries define them."""


def unforeseen() -> PeekTool:
    raise Unforeseen("no way")


def point(name: str, value: str) -> EntryPoint:
    return EntryPoint(name, value, "routecodex.server_tools")


POINTS = [
    point("peek", SOUND),
    point("gone", "no_such_package:Tool"),
    point("nameless", f"{HERE}:Missing"),
    point("broken", f"{HERE}:broken"),
    point("leaving", f"{HERE}:leaving"),
    point("interrupting", f"{HERE}:interrupting"),
    point("unforeseen", f"{HERE}:unforeseen"),
    point("wrong", "builtins:dict"),
]


def test_a_broken_tool_is_reported_and_left_out(caplog: pytest.LogCaptureFixture) -> None:
    tools, rows = load(POINTS, ["*"])
    assert [type(tool) for tool in tools] == [PeekTool]
    assert [(row.name, row.status, row.error) for row in rows] == [
        ("peek", "loaded", ""),
        ("gone", "failed", "ModuleNotFoundError: No module named 'no_such_package'"),
        ("nameless", "failed", f"AttributeError: module {HERE!r} has no attribute 'Missing'"),
        ("broken", "failed", "ValueError: no licence"),
        ("leaving", "failed", "SystemExit: goodbye"),
        ("interrupting", "failed", "KeyboardInterrupt: "),
        ("unforeseen", "failed", "Unforeseen: no way"),
        ("wrong", "failed", "TypeError: it is a dict, not a ServerTool"),
    ]
    assert caplog.text.count("cannot be loaded and is left out") == 7


@pytest.mark.parametrize(
    ("allowed", "expected"), [([], []), (["pe*"], ["peek"]), (["PEEK"], []), (["x", "peek"], ["peek"])]
)
def test_only_what_is_allowed_is_loaded(allowed: list[str], expected: list[str]) -> None:
    tools, rows = load(POINTS[:2], allowed)
    assert [tool.name for tool in tools] == expected
    status = "loaded" if expected else "not allowed"
    assert rows == (
        InstalledTool("peek", SOUND, status),  # type: ignore[arg-type]  # one of two literals
        InstalledTool("gone", "no_such_package:Tool", "not allowed"),
    )


async def test_the_gateway_serves_with_broken_tools_and_shows_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = (PEEK, f"broken = {HERE}:broken", f"undecided = {HERE}:UndecidedTool")
    monkeypatch.syspath_prepend(str(install(tmp_path / "site", *points)))
    async with Upstream(lambda _: answers.text("chat", "hi", False)) as up:
        config = one_target("chat", up, server='admin_token = "t"')
        async with serving(config) as gateway:
            answer = await call(gateway.port, "/v1/chat/completions", asking.body("chat", stream=False))
            status = await call(
                gateway.port, "/admin/status", method="GET", headers={"authorization": "Bearer t"}
            )
    assert answer.status == 200
    assert b'"peek"' in up.requests[0].body
    assert status.json["server_tools"] == [
        {"name": "peek", "entry_point": SOUND, "status": "loaded"},
        {
            "name": "broken",
            "entry_point": f"{HERE}:broken",
            "status": "failed",
            "error": "ValueError: no licence",
        },
        {"name": "undecided", "entry_point": f"{HERE}:UndecidedTool", "status": "loaded"},
    ]
