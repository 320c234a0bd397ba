"""docs/turns.md: its examples print the output on the page, its tables match the code."""

from __future__ import annotations

import ast
import asyncio
import re
from importlib import resources
from inspect import CO_COROUTINE
from pathlib import Path
from types import CodeType, FunctionType

import pytest

import routecodex.turns
from routecodex.turns import Plugin, Turn
from tests.kit.gateway import serving

PAGE = (Path(__file__).parents[2] / "docs" / "turns.md").read_text("utf-8")
EXAMPLE = re.compile(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```$)?", re.MULTILINE | re.DOTALL)
EXAMPLES = EXAMPLE.findall(PAGE)
URL = "http://127.0.0.1:5520"


def compiled(source: str) -> CodeType:
    """The example, as a coroutine if it awaits where a program would be inside a function."""
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    code = compile(source, "docs/turns.md", "exec", flags=flags, dont_inherit=True)
    assert isinstance(code, CodeType)
    return code


@pytest.mark.parametrize(("source", "printed"), EXAMPLES, ids=[str(n) for n in range(len(EXAMPLES))])
async def test_an_example_prints_what_the_page_says(
    source: str, printed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert printed, "an example shows what it prints"
    config = resources.files("routecodex.cli").joinpath("demo.toml").read_text("utf-8")
    quick = config.replace("port = 5520", "port = 0").replace(
        'protocol = "demo"', 'protocol = "demo"\npace = 0'
    )
    async with serving(quick) as gateway:
        code = compiled(source.replace(URL, gateway.url))
        example = FunctionType(code, {"__name__": "example"})
        if code.co_flags & CO_COROUTINE:
            await example()
        else:
            await asyncio.to_thread(example)  # a program without an event loop
    assert capsys.readouterr().out == printed


def test_no_example_was_missed() -> None:
    assert len(EXAMPLES) == PAGE.count("```python") > 5


def test_the_table_of_hooks_is_what_plugins_may_have() -> None:
    rows = re.findall(r"^\| `(on_\w+)` \|", PAGE, re.MULTILINE)
    assert rows == [name for name in vars(Plugin) if name.startswith("on_")]


def test_every_name_of_the_context_is_there_and_every_plugin_is_exported() -> None:
    below = PAGE.partition("## Hooks")[2].partition("```python")[0]
    named = set(re.findall(r"`([a-z_]+)`", below)) - set(vars(Plugin)) - {"turn"}
    assert {name for name in named if not hasattr(Turn, name)} == set()
    plugins = re.findall(r"^\| `([A-Z]\w+)` \|", PAGE, re.MULTILINE)
    assert {name for name in plugins if name not in routecodex.turns.__all__} == set()
