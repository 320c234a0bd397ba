"""Agents take the usage of an answer for the size of the conversation, however many rounds it had."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.clients.agents.claude_code import HINTS, claude_code
from tests.clients.agents.codex import answers_of, codex
from tests.clients.agents.scene import FOLLOWUP, TWICE, open_scene, rule
from tests.kit.answers import Counts

pytestmark = pytest.mark.agents

ROUNDS = (
    rule(FOLLOWUP, "Done.", counts=Counts(input=100_030, output=10)),
    rule("hello", "Hi.", counts=Counts(input=100_000, output=20)),
)


async def test_rounds_do_not_inflate_the_meter_of_claude_code(tmp_path: Path) -> None:
    async with open_scene(tmp_path, "messages", *ROUNDS) as scene, claude_code(scene, **HINTS) as session:
        await session.control("initialize")
        await session.say(TWICE)
        answered = await session.say("hello")
        meter = await session.control("get_context_usage")
    assert answered["result"] == "Hi.\n\nDone.\n\nDone."
    usage = answered["usage"]
    assert (usage["input_tokens"], usage["output_tokens"], usage["iterations"]) == (100_000, 40, [])
    assert meter["percentage"] == 50


async def test_rounds_do_not_make_codex_compact(tmp_path: Path) -> None:
    """Codex compacts before a turn when the total of the last answer passes the limit."""
    async with open_scene(tmp_path, "chat", *ROUNDS) as scene:
        limit = {"model_auto_compact_token_limit": "150000"}
        ended = await codex(scene, f"{TWICE} hello", **limit)
        await codex(scene, "and now?", "resume", "--last", **limit)
        assert answers_of(ended) == ["Hi.\n\nDone.\n\nDone."]
        assert scene.models() == ["main"] * 4
