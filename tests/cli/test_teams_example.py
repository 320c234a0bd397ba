"""The example of docs/teams.md, three people and one budget: its commands print what the page shows."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.cli.process import ROOT, running, serve
from tests.kit import answers, asking
from tests.kit.answers import Counts
from tests.kit.raw_client import Answer, call
from tests.kit.steps import Json, Sse
from tests.kit.upstream import Request, Upstream

MORNING = (("ann", 23), ("bob", 39), ("ci", 21))
"""Requests of each person."""
OPUS, GLM = Counts(input=41_000, output=4_300), Counts(input=12_000, output=1_800)
_TIME = re.compile(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ")


@pytest.fixture(scope="module")
def section() -> str:
    page = (ROOT / "docs" / "teams.md").read_text("utf-8")
    return page[page.index("### Three people, one budget") :]


def block(section: str, language: str, after: str = "") -> str:
    """Return the first block of this language after a text."""
    found = re.search(rf"```{language}\n(.*?)```", section[section.index(after) :], re.DOTALL)
    assert found is not None
    return found[1]


def answer_with_counts(request: Request) -> Json | Sse:
    is_opus = request.path.endswith("/messages")
    return answers.text("messages" if is_opus else "chat", "Done.", False, counts=OPUS if is_opus else GLM)


def with_addresses(config: str, upstream: Upstream) -> str:
    """Return the configuration with the address of an upstream in place of those of both providers."""
    glm = f'[providers.glm]\npreset = "glm"\nbase_url = "{upstream.url}/v1"\n'
    claude = f'[providers.claude]\nbase_url = "{upstream.url}"\n'
    config = f'[server]\nid = "main"\n{config}'
    return config.replace("[providers.glm]\n", glm).replace("[providers.claude]\n", claude)


def timeless(text: str) -> str:
    return _TIME.sub("TIME", text)


async def ask(port: int, name: str, model: str = "auto", protocol: str = "messages") -> Answer:
    body = asking.body(protocol, stream=False, model=model)
    headers = {"authorization": f"Bearer rcx-{name}"}
    return await call(port, asking.path(protocol, stream=False), body, headers=headers)


async def printed(folder: Path, *arguments: str) -> str:
    async with running(folder, *arguments) as command:
        assert await command.ended() == 0, command.text
    return "\n".join(command.out)


async def test_the_example_of_three_people_is_reproducible(tmp_path: Path, section: str) -> None:
    where = ("--config", str(tmp_path / "gateway.toml"))
    async with Upstream(answer_with_counts) as up:
        config = with_addresses(block(section, "toml"), up)
        async with serve(tmp_path, config, "--workers", "2") as server:
            port = await server.port()
            found = {name: [await ask(port, name) for _ in range(count)] for name, count in MORNING}
            refused = await ask(port, "bob", "claude.claude-opus-4-8", "chat")
            server.signal()
            await server.ended()
    shown = block(section, "", "A morning later")
    usage, _, keys = shown.partition("$ routecodex keys show bob\n")
    arguments, _, table = usage.removeprefix("$ routecodex ").partition("\n")
    assert timeless(await printed(tmp_path, *arguments.split(), *where)) == timeless(table).rstrip()
    limits = (await printed(tmp_path, "keys", "show", "bob", *where)).splitlines()
    assert [timeless(line) for line in limits if line.startswith("limit")] == timeless(keys).split("\n")[1:-1]
    notice = block(section, "", "Bob's next requests").strip()
    assert f"x-routecodex-notice: {found['bob'][-1].headers['x-routecodex-notice']}" == notice
    assert refused.status == 429
    assert comparable(refused.json) == comparable(
        msgspec.json.decode(block(section, "json", "### At the limit"))
    )


def comparable(error: Any) -> Any:
    """Return an error without times, and without the need of its request."""
    text = re.sub(r"may need \$[0-9.]+[0-9]", "may need $N", msgspec.json.encode(error).decode())
    return msgspec.json.decode(timeless(text))
