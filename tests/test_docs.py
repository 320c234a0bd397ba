"""The documents are correct: links, commands, settings, metrics, and the first steps of a reader."""

from __future__ import annotations

import asyncio
import functools
import os
import re
import shlex
import sys
import tomllib
from asyncio.subprocess import PIPE
from importlib import resources
from inspect import signature
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import pytest

from routecodex.canon.finish import encode, infer
from routecodex.cli import COMMANDS as CLI_COMMANDS
from routecodex.cli import reference
from routecodex.config import examine
from routecodex.gateway.context.gateway_replies import REPLY_PREFIX
from routecodex.gateway.context.identity import CONVERSATION_HEADERS, SESSION_HEADERS
from routecodex.protocols import grammar
from routecodex.protocols.dialect import Dialect
from routecodex.protocols.messages.client_quirks import NEEDS_MESSAGE_STOP
from routecodex.protocols.reference import with_tables
from routecodex.providers import demo as demo_model
from routecodex.providers.catalog import PRESETS
from routecodex.providers.demo.script import COMMANDS
from routecodex.routing import classify, cooldown
from routecodex.server import admin, paths
from routecodex.turns import ToolPlugin
from tests.kit.gateway import serving
from tests.kit.raw_client import call

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "routecodex"
PAGES = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
    *sorted((ROOT / "docs").glob("*.md")),
]
CHINESE = sorted([*ROOT.glob("README.zh-CN.md"), *(ROOT / "docs" / "zh").glob("*.md")])
pages = pytest.mark.parametrize(
    "page", [pytest.param(page, id=str(page.relative_to(ROOT))) for page in (*PAGES, *CHINESE)]
)

FENCE = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ +(.+)$", re.MULTILINE)
VARIABLE = re.compile(r'\$\{(\w+)|env = "(\w+)"')
DEMO = (
    '[providers.demo]\nprotocol = "demo"\nmodels = { "demo-1" = {} }\n[routing]\ndefault = ["demo.demo-1"]\n'
)


def prose(page: Path) -> str:
    """Return the page without its fenced blocks."""
    return FENCE.sub("", page.read_text("utf-8"))


def blocks(page: Path, language: str = "") -> list[str]:
    """Return the fenced blocks of a language."""
    return [text for named, text in FENCE.findall(page.read_text("utf-8")) if named == language]


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub generates them."""
    headings = HEADING.findall(prose(page))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def table(page: Path, heading: str) -> list[list[str]]:
    """Return the rows of the first table below a heading, each cell as its text."""
    below = page.read_text("utf-8").partition(f"\n## {heading}\n")[2]
    rows = re.search(r"^\|[- |]+\|\n((?:\|.*\n)+)", below, re.MULTILINE)
    assert rows, f"{page.name} has no table below {heading!r}"
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows[1].splitlines()]


@pages
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    broken = []
    for link in LINK.findall(prose(page)):
        target = urlsplit(link)
        if target.scheme:
            continue
        file = (page.parent / target.path) if target.path else page
        if not file.exists() or (target.fragment and target.fragment not in anchors(file)):
            broken.append(link)
    assert broken == []


@pages
def test_every_source_file_that_is_named_exists(page: Path) -> None:
    named = re.findall(r"`([\w/]+\.(?:py|c|h))`", prose(page))
    assert [name for name in named if not any(file.endswith(f"/{name}") for file in source_files())] == []


@functools.cache
def source_files() -> list[str]:
    """Return the paths of all files of the project's code, without what npm installed."""
    found = []
    for folder in ("src", "tests", "bench", "compile"):
        for place, folders, names in os.walk(ROOT / folder):
            folders[:] = [name for name in folders if name != "node_modules"]
            found += [f"/{Path(place).relative_to(ROOT)}/{name}" for name in names]
    return found


@pages
def test_every_make_target_that_is_named_exists(page: Path) -> None:
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    text = page.read_text("utf-8")
    named = re.findall(r"`make ([\w-]+)", text)
    named += [name for block in blocks(page) for name in re.findall(r"^make ([\w-]+)", block, re.MULTILINE)]
    assert sorted(set(named) - set(targets)) == []
    if page.name == "README.md":
        assert {"demo", "test"} <= set(named)


def test_every_dependency_has_its_reason_and_no_other_is_listed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    groups = project["dependency-groups"]
    grouped = [line for group in groups.values() for line in group if isinstance(line, str)]
    requirements = [*project["project"]["dependencies"], *grouped]
    names = {name[0] for line in requirements if (name := re.match(r"[\w-]+", line))}
    rows = re.findall(r"^\| `([\w-]+)` \| \S.{10,} \|$", prose(ROOT / "docs/dependencies.md"), re.MULTILINE)
    assert sorted(rows) == sorted(names)


@pages
def test_every_configuration_shown_can_be_used(page: Path) -> None:
    wrong = []
    for block in blocks(page, "toml"):
        # A piece of a file is completed by the demo provider.
        text = block if "[providers" in block else f"{block}\n{DEMO}"
        names = [name for pair in VARIABLE.findall(text) for name in pair if name]
        names += [name for preset in PRESETS.values() for name in preset.env]
        _, problems = examine(
            text, environ={name: f"key-of-{name}" for name in names}, presets=PRESETS, dialect_type=Dialect
        )
        wrong += [problem for problem in problems if problem.severity == "error"]
    assert wrong == []


def test_the_second_provider_of_the_readme_can_be_pasted_below_the_first() -> None:
    text = "\n".join(blocks(ROOT / "README.md", "toml"))
    environ = {name: "k" for preset in PRESETS.values() for name in preset.env}
    config, problems = examine(text, environ=environ, presets=PRESETS, dialect_type=Dialect)
    assert problems == []
    assert config is not None
    assert len(config.providers) == 2


@pages
def test_every_command_that_is_named_exists(page: Path) -> None:
    code = [*re.findall(r"`([^`\n]+)`", prose(page)), *blocks(page)]
    named = {
        name for text in code for name in re.findall(r"(?:^|[\s/(])routecodex ([a-z]+)", text, re.MULTILINE)
    }
    # The gateway prints "routecodex listens on …".
    assert named - {"listens"} <= CLI_COMMANDS.keys()


class Curl:
    """A curl command of a page: its URL, headers and body."""

    def __init__(self, command: str) -> None:
        arguments = shlex.split(command)
        self.url = urlsplit(next(argument for argument in arguments if argument.startswith("http")))
        upstream_reasons = [arguments[at + 1] for at, argument in enumerate(arguments) if argument == "-H"]
        self.headers = dict(line.split(": ", 1) for line in upstream_reasons)
        self.body = msgspec.json.decode(arguments[arguments.index("-d") + 1])


def curls(page: Path) -> list[Curl]:
    """Return the curl commands of a page, in order."""
    return [Curl(text) for text in blocks(page) if text.startswith("curl ")]


def demo(port: int | None) -> str:
    """Return the configuration of the demo, without delays between words."""
    config = resources.files("routecodex.cli").joinpath("demo.toml").read_text("utf-8")
    assert f"port = {port}" in config
    return config.replace(f"port = {port}", "port = 0").replace(
        'protocol = "demo"', 'protocol = "demo"\npace = 0'
    )


async def test_the_first_curl_of_the_readme_is_answered() -> None:
    first = curls(ROOT / "README.md")[0]
    async with serving(demo(first.url.port)) as gateway:
        answer = await call(gateway.port, first.url.path, first.body)
    assert answer.status == 200
    grammar.check_json("chat", answer.body)
    assert first.body["messages"][-1]["content"] in answer.json["choices"][0]["message"]["content"]


async def test_the_instruction_of_the_readme_is_applied() -> None:
    second = curls(ROOT / "README.md")[1]
    async with serving(demo(second.url.port)) as gateway:
        answer = await call(gateway.port, second.url.path, second.body, headers=second.headers)
    documented = answer.json["choices"][0]["message"]["content"]
    assert documented.startswith(REPLY_PREFIX)
    assert "| sticky | spare.spare-1 |" in documented


async def test_the_first_look_at_routing_gives_the_headers_shown() -> None:
    page = ROOT / "docs/routing.md"
    first = curls(page)[0]
    shown = next(text for text in blocks(page) if text.startswith("x-routecodex-"))
    async with serving(demo(first.url.port)) as gateway:
        answer = await call(gateway.port, first.url.path, first.body, headers=first.headers)
    sent = [f"{name}: {value}" for name, value in answer.headers.items() if name.startswith("x-routecodex-")]
    assert sent == shown.splitlines()


async def test_the_server_tools_of_the_readme_are_those_of_their_page() -> None:
    third = curls(ROOT / "README.md")[2]
    first = curls(ROOT / "docs/server-tools.md")[0]
    assert (third.url, third.headers, third.body) == (first.url, first.headers, first.body)


async def test_the_conversation_of_the_readme_runs_as_a_script_and_uses_its_tool(tmp_path: Path) -> None:
    (source,) = blocks(ROOT / "README.md", "python")
    url = "http://127.0.0.1:5520"
    assert url in source
    script = tmp_path / "conversation.py"
    async with serving(demo(5520)) as gateway:
        script.write_text(source.replace(url, gateway.url))
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            script,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(SOURCE.parent)},
            stdout=PIPE,
        )
        upstream_reasons, _ = await asyncio.wait_for(process.communicate(), 30)
    assert upstream_reasons.decode().startswith(
        "read_file answered: " + (ROOT / ".gitignore").read_text("utf-8").rstrip()
    )


def test_the_commands_of_the_demo_are_documented_and_no_other() -> None:
    rows = table(ROOT / "docs/clients.md", "The demo")
    documented = re.findall(r"^    (demo:.*?)  +(.*)$", demo_model.__doc__ or "", re.MULTILINE)
    assert [(row[0].strip("`"), row[1]) for row in rows] == documented
    assert {command.partition(":")[2].split()[0] for command, _ in documented} == COMMANDS


def test_the_readme_leads_to_every_page() -> None:
    links = {link.partition("#")[0] for link in LINK.findall(prose(ROOT / "README.md"))}
    assert [page.name for page in PAGES if page.name != "README.md"] == [
        page.name for page in PAGES if str(page.relative_to(ROOT)) in links
    ]


def test_every_directory_of_the_state_is_listed_and_no_other() -> None:
    listed = [row[0].strip("`") for row in table(ROOT / "docs/operations.md", "State on disk")]
    files = [file for part in ("gateway", "server_tools") for file in (SOURCE / part).rglob("*.py")]
    spaces = (
        re.findall(r'^_?(?:ITEM_)?SPACE = "([\w.]+)"$', file.read_text("utf-8"), re.MULTILINE)
        for file in files
    )
    assert sorted(listed) == sorted(name for found in spaces for name in found)


def test_the_calls_of_the_admin_api_are_documented_and_no_other() -> None:
    documented = re.findall(
        r"^\| `(/admin/[\w/]+)` *\| ([^|]*)\| ([^|]*)\|$", admin.__doc__ or "", re.MULTILINE
    )
    known = {("GET", path) for path, get, _ in documented if get.strip()}
    known |= {("POST", path) for path, _, post in documented if post.strip()}
    rows = table(ROOT / "docs/operations.md", "Admin API")
    shown = {tuple(call) for row in rows for call in re.findall(r"`(GET|POST) (/admin/[\w/]+)`", row[0])}
    assert shown == known


def test_the_options_of_the_tool_plugin_are_those_it_has() -> None:
    text = (ROOT / "docs/turns.md").read_text("utf-8")
    rows = re.findall(r"^\| `(\w+)` \| `?([^|`]+)`? \| .* \|$", text.partition("| Option |")[2], re.MULTILINE)
    options = signature(ToolPlugin).parameters.values()
    hooks = ("tools", "get_tools", "before_call_tools", "call_tool")
    known = {option.name: str(option.default).replace("None", "none") for option in options}
    assert dict(rows) == {name: value for name, value in known.items() if name not in hooks}


def test_the_table_of_instructions_is_current() -> None:
    page = (ROOT / "docs/routing.md").read_text("utf-8")
    assert reference.with_instruction_table(page) == page, "run `make docs`"


def test_the_tables_of_lost_fields_are_current() -> None:
    page = (ROOT / "docs/protocols.md").read_text("utf-8")
    assert with_tables(page) == page, "run `make docs`"


def test_every_header_that_names_a_session_is_documented_and_no_other() -> None:
    rows = table(ROOT / "docs/routing.md", "Sessions")
    shown = {name for row in rows for name in re.findall(r"`([\w-]+)`", row[1])}
    fields = {"prompt_cache_key"}
    assert shown - fields == {*SESSION_HEADERS, *CONVERSATION_HEADERS}


def test_the_classes_listed_are_those_of_the_classifier() -> None:
    rows = table(ROOT / "docs/routing.md", "Classes")
    documented = re.findall(r"^(\w+) {2,}", classify.__doc__ or "", re.MULTILINE)
    assert [row[0].strip("`") for row in rows] == documented
    assert str(classify.DEFAULTS.longcontext_tokens) in rows[documented.index("longcontext")][1]


def test_the_times_of_health_are_those_in_use() -> None:
    options = cooldown.DEFAULT
    rows = [row[2] for row in table(ROOT / "docs/routing.md", "Health")]
    assert f"({options.retry_after_max / 60:g} min)" in rows[0]
    assert ", ".join(f"{seconds:g}" for seconds in options.ladder) + " s" in rows[0]
    assert rows[1].startswith(f"{options.quota / 60:g} min")
    assert f"{options.quota_max / 3600:g} h" in rows[1]
    assert f"every {options.probe_every / 60:g} min" in rows[2]
    opening = ", ".join(f"{seconds:g}" for seconds in options.opening)
    assert rows[4] == f"after {options.failures} in a row: {opening} s"


def test_the_clients_listed_are_those_that_get_message_stop() -> None:
    rows = table(ROOT / "docs/protocols.md", "The end of a tool turn")
    headers = {header for row in rows for header in re.findall(r"`([a-z-]+)(?:`|: )", row[2])}
    assert headers - {"ai-sdk/"} == {name for client in NEEDS_MESSAGE_STOP for name in client.headers}
    assert len(rows) == len({client.name for client in NEEDS_MESSAGE_STOP})


def test_the_table_of_finish_reasons_is_correct() -> None:
    upstream_reasons = {
        "stop": "end_turn",
        "length": "max_tokens",
        "tool_calls": "tool_use",
        "refusal": "refusal",
        "pause": "pause_turn",
    }
    rows = {row[0].strip("`"): row[1:] for row in table(ROOT / "docs/protocols.md", "Finish reasons")}
    assert len(rows) == 7
    for reason, cells in rows.items():
        if reason not in upstream_reasons:
            continue
        finish = infer("messages", upstream_reasons[reason], has_calls=reason == "tool_calls")
        for protocol, cell in zip(("chat", "messages", "responses", "gemini"), cells, strict=True):
            assert f"`{encode(protocol, finish)}`" in cell


def test_every_endpoint_is_documented() -> None:
    rows = table(ROOT / "docs/protocols.md", "Endpoints")
    shown = [path for row in rows for path in re.findall(r"(/[\w./:{}]*)`", row[0])]
    found = [paths.find(re.sub(r"\{\w+\}", "x", path)) for path in shown]
    assert None not in found
    assert {endpoint.name for endpoint in found if endpoint} == set(paths.METHODS)


NODE = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")


def test_every_test_that_the_threat_model_names_exists() -> None:
    named = NODE.findall((ROOT / "docs" / "security.md").read_text("utf-8"))
    missing = [
        f"{file}::{name}"
        for file, name in named
        if not (ROOT / file).exists()
        or not re.search(rf"^(?:async )?def {name}\(", (ROOT / file).read_text("utf-8"), re.MULTILINE)
    ]
    assert len(named) > 40
    assert missing == []


def test_every_row_of_the_threat_model_names_a_test() -> None:
    text = (ROOT / "docs" / "security.md").read_text("utf-8")
    rows = [
        line
        for line in text.splitlines()
        if line.startswith("|") and not line.startswith(("|---", "| Could"))
    ]
    assert [row for row in rows if not NODE.search(row.split("|")[3])] == []


def test_no_page_has_marks_of_a_conflict() -> None:
    mark = re.compile(r"^(?:<{7}|>{7}) ", re.MULTILINE)
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    assert [page.name for page in pages if mark.search(page.read_text("utf-8"))] == []
