"""Gemini chat sessions of the official SDKs on held answers: kept alive, and recorded whole in the history.

A session drops a turn with an invalid chunk from its curated history, so the tests check that as well.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from google import genai
from google.genai import types

from tests.clients.gateway import Gateway, Upstreams, configuration, gateway_process
from tests.clients.node_sdks import run
from tests.gateway.clock_gateway import HEAD, NO_NTP, advance_due_times, command, config, now_ms, task_item
from tests.kit import answers
from tests.kit.answers import PROTOCOLS, Call
from tests.kit.steps import Json, Sse
from tests.kit.upstream import Request

WINDOW = 1000
DUE_IN_MS = 50_000
HELD_MS = 1800
SOON = "call home"
KEEP_ALIVE = "keepalive_ms = 100\n"
ANSWER = "Noted.\n\nReminded."
upstreams = pytest.mark.parametrize("upstream", [pytest.param(name, id=f"to-{name}") for name in PROTOCOLS])


def model(protocol: str, folder: Path) -> Callable[[Request], Json | Sse]:
    """Schedule a task, move it to just after the next answer, and confirm it and its reminder."""

    def answer(request: Request) -> Json | Sse:
        stream = answers.wants_stream(request)
        if b"and now?" in request.body:
            return answers.text(protocol, "Nothing new.", stream)
        if HEAD.encode() in request.body:
            return answers.text(protocol, "Reminded.", stream)
        if b'scheduled\\"' in request.body or b'"scheduled"' in request.body:
            advance_due_times(folder, SOON, now_ms() + WINDOW + HELD_MS)
            return answers.text(protocol, "Noted.", stream)
        arguments = command("schedule", task_item(now_ms() + DUE_IN_MS, SOON))
        return answers.tool_calls(protocol, Call("clock", arguments, "call_ours"), stream=stream)

    return answer


@pytest.fixture(scope="module")
def clock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """Run a gateway that sends ten keep-alives a second, in front of four models."""
    folder = tmp_path_factory.mktemp("held") / "gateway"
    with Upstreams() as upstreams:
        for protocol, upstream in upstreams.by_protocol.items():
            upstream.answer_with(model(protocol, folder))
        text = configuration(upstreams, message_stop="auto", client_key=None)
        text = text.replace("[server]\n", f"[server]\n{KEEP_ALIVE}")
        text += config(f"due_window_ms = {WINDOW}\n", ntp=NO_NTP)
        with gateway_process(text, folder) as url:
            yield Gateway(url, upstreams)


def sdk(clock: Gateway, session: str) -> genai.Client:
    options = types.HttpOptions(base_url=clock.url, timeout=20_000, headers={"x-session-id": session})
    return genai.Client(api_key="any", http_options=options)


def texts(history: Iterable[types.Content]) -> list[tuple[str | None, list[str | None]]]:
    return [(content.role, [part.text for part in content.parts or ()]) for content in history]


def check_kept_alive(pieces: Sequence[str | None]) -> None:
    """Check that there were keep-alives and that they have no text."""
    assert "".join(piece or "" for piece in pieces) == ANSWER
    first, second = (
        pieces.index("Noted."),
        next(at for at, piece in enumerate(pieces) if "Rem" in (piece or "")),
    )
    assert len(pieces[first + 1 : second]) >= 2
    assert None not in pieces, "a program that prints every piece would print None"


def check_history(history: Sequence[Any]) -> None:
    (role, texts), *answer = history
    assert (role, texts) == ("user", ["remind me soon"])
    assert {role for role, _ in answer} == {"model"}
    assert "".join(text for _, parts in answer for text in parts) == ANSWER


@upstreams
def test_a_chat_of_the_python_sdk_records_a_held_answer(clock: Gateway, upstream: str) -> None:
    with sdk(clock, f"held-{upstream}") as client:
        chat = client.chats.create(model=f"up_{upstream}.model-x")
        check_kept_alive([piece.text for piece in chat.send_message_stream("remind me soon")])
        check_history(texts(chat.get_history(curated=True)))
        assert chat.send_message("and now?").text == "Nothing new."


async def test_an_asynchronous_chat_of_the_python_sdk_records_a_held_answer(clock: Gateway) -> None:
    async with sdk(clock, "held-async").aio as client:
        chat = client.chats.create(model="up_gemini.model-x")
        pieces = await _pieces(await chat.send_message_stream("remind me soon"))
        check_kept_alive(pieces)
        check_history(texts(chat.get_history(curated=True)))
        assert (await chat.send_message("and now?")).text == "Nothing new."


async def _pieces(stream: AsyncIterator[types.GenerateContentResponse]) -> list[str | None]:
    return [piece.text async for piece in stream]


def test_a_chat_of_the_node_sdk_records_a_held_answer(clock: Gateway) -> None:
    named = "up_gemini.model-x"
    results = run("google_chat.mjs", clock, [named])[named, "held-chat"]
    assert "error" not in results, results
    check_kept_alive(results["pieces"])
    check_history([tuple(turn) for turn in results["remembered"]])
    assert results["then"] == "Nothing new."
