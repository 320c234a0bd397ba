"""What one worker learned, as the admin API, the instructions and the commands of any worker show it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from click.testing import CliRunner

from routecodex.cli import main
from tests.cli.process import serve, until
from tests.kit import answers, asking
from tests.kit.gateway import provider
from tests.kit.raw_client import Answer, call
from tests.kit.upstream import Upstream

CALLS = 20
"""So many connections reach both workers, as the kernel distributes them."""


def config(up: Upstream) -> str:
    return (
        '[server]\nport = 0\ndrain_seconds = 1\nadmin_token = "operator"\n'
        + provider("up", "chat", up)
        + '[routing]\ndefault = ["up.m"]\n'
    )


async def health(port: int) -> Any:
    shown = await call(port, "/admin/health", method="GET", headers={"authorization": "Bearer operator"})
    return shown.json["health"]


async def ask(port: int, text: str) -> Answer:
    return await call(port, "/v1/chat/completions", asking.body("chat", text, stream=False, model="auto"))


async def test_every_worker_shows_a_refused_key_and_its_end(tmp_path: Path, user: Path) -> None:
    async with (
        Upstream(lambda _: answers.error("chat", 401, "invalid api key")) as up,
        serve(tmp_path, config(up), "--workers", "2") as command,
    ):
        port = await command.port()
        assert [await health(port) for _ in range(CALLS)] == [[]] * CALLS
        assert (await ask(port, "hi")).status == 424
        await until(lambda: list(user.glob("sessions/*/health/*.json")), "the health is saved")
        rows = [await health(port) for _ in range(CALLS)]
        assert [[(row["name"], row["state"]) for row in shown] for shown in rows] == [
            [("up.primary", "refused")]
        ] * CALLS
        texts = [(await ask(port, "<**status**>")).body for _ in range(CALLS)]
        assert [b"up.primary" in text for text in texts] == [True] * CALLS
        for _ in range(5):
            listed = CliRunner().invoke(main, ["daemon", "status", "health", "--json"])
            (server,) = msgspec.json.decode(listed.stdout)["servers"]
            assert [row["name"] for row in server["health"]] == ["up.primary"]
        reset = CliRunner().invoke(main, ["daemon", "reset", "health", "--json"])
        assert reset.exit_code == 0
        assert [await health(port) for _ in range(CALLS)] == [[]] * CALLS
