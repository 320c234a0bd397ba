"""Answers of a gateway with a clock, read by the official SDKs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
from google import genai
from google.genai import types

from tests.clients.gateway import Gateway, Upstreams, configuration, gateway_process
from tests.clients.python.anthropic_messages import Messages
from tests.clients.python.google_genai import Gemini
from tests.clients.python.openai_chat import Chat
from tests.clients.python.openai_responses import Responses
from tests.clients.python.speakers import SPEAKERS, Speaker
from tests.clients.python.talk import ENDS, Conversation, Wish
from tests.gateway.clock_gateway import HEAD, NO_NTP, advance_due_times, command, config, now_ms, task_item
from tests.kit import answers
from tests.kit.answers import PROTOCOLS, Call
from tests.kit.steps import Json, Sse
from tests.kit.upstream import Request

speakers = pytest.mark.parametrize(
    "speaker", [pytest.param(speaker, id=name) for name, speaker in SPEAKERS.items()]
)
ROUND = (21, 9)
WINDOW = 1000

AHEAD = 50_000
"""So far ahead an answer is held for a task, and no machine is so slow that its window opens before that."""
SOON = "call home"
HOUR = 3_600_000
_SCHEDULED = re.compile(rb'\\?"scheduled\\?"')


def _openai(url: str, headers: dict[str, str]) -> openai.OpenAI:
    return openai.OpenAI(
        base_url=f"{url}/v1", api_key="any", max_retries=0, timeout=20, default_headers=headers
    )


def _anthropic(url: str, headers: dict[str, str]) -> anthropic.Anthropic:
    return anthropic.Anthropic(
        base_url=url, api_key="any", max_retries=0, timeout=20, default_headers=headers
    )


def _google(url: str, headers: dict[str, str]) -> genai.Client:
    options = types.HttpOptions(base_url=url, timeout=20_000, headers=headers)
    return genai.Client(api_key="any", http_options=options)


OPEN: dict[str, tuple[Callable[..., Any], Callable[..., Conversation]]] = {
    "chat": (_openai, Chat),
    "responses": (_openai, Responses),
    "messages": (_anthropic, Messages),
    "gemini": (_google, Gemini),
}


def model(protocol: str, folder: Path) -> Callable[[Request], Json | Sse]:
    """Sets a task, alone or beside a call of the client, and says what it has heard of since.

    A task alone is brought forward while its answer is on the way, so that nobody waits for it.
    """

    def answer(request: Request) -> Json | Sse:
        stream = answers.wants_stream(request)
        if HEAD.encode() in request.body:
            return answers.text(protocol, "Reminded.", stream)
        if _SCHEDULED.search(request.body):
            advance_due_times(folder, SOON, now_ms() + WINDOW + 200)
            return answers.text(protocol, "Noted.", stream)
        both = b"both" in request.body
        task = task_item(now_ms() + HOUR) if both else task_item(now_ms() + AHEAD, SOON)
        ours = Call("clock", command("schedule", task), "call_ours")
        theirs = [Call("look_up", {"city": "Oslo"}, "call_theirs")] if both else []
        return answers.tool_calls(protocol, ours, *theirs, stream=stream)

    return answer


@pytest.fixture(scope="module")
def clock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A gateway with a clock before four models that use it."""
    folder = tmp_path_factory.mktemp("clock") / "gateway"
    with Upstreams() as upstreams:
        for protocol, upstream in upstreams.by_protocol.items():
            upstream.answer_with(model(protocol, folder))
        text = configuration(upstreams, message_stop="auto", client_key=None)
        text += config(f"due_window_ms = {WINDOW}\n", ntp=NO_NTP)
        with gateway_process(text, folder) as url:
            yield Gateway(url, upstreams)


Talk = Callable[..., Conversation]


@pytest.fixture
def talk(clock: Gateway) -> Iterator[Talk]:
    """Begins conversations in a session of their own, each with an SDK that is closed in the end."""
    clock.upstreams.forget()
    with ExitStack() as stack:

        def begin(speaker: Speaker, upstream: str, *, session: str, tools: bool) -> Conversation:
            client, conversation = OPEN[speaker.protocol]
            sdk = stack.enter_context(client(clock.url, {"x-session-id": session}))
            return conversation(sdk, f"up_{upstream}.model-x", mode=speaker.mode, wish=Wish(tools=tools))

        yield begin


@speakers
def test_a_held_answer_with_its_reminder_is_one_answer(clock: Gateway, talk: Talk, speaker: Speaker) -> None:
    upstream = speaker.protocol
    session = f"held-{speaker.protocol}-{speaker.mode}"
    reply = talk(speaker, upstream, session=session, tools=False).say("remind me soon")
    assert reply.text == "Noted.\n\nReminded."
    assert (reply.calls, reply.end) == ([], ENDS[speaker.protocol]["stop"])
    assert reply.usage == (3 * ROUND[0], 3 * ROUND[1])
    assert len(clock.heard(upstream)) == 3


@pytest.mark.parametrize("upstream", [pytest.param(name, id=f"to-{name}") for name in PROTOCOLS])
@speakers
def test_beside_a_call_of_the_clock_the_client_has_its_own(
    clock: Gateway, talk: Talk, speaker: Speaker, upstream: str
) -> None:
    session = f"mixed-{speaker.protocol}-{speaker.mode}-{upstream}"
    conversation = talk(speaker, upstream, session=session, tools=True)
    reply = conversation.say("both, please")
    assert [(call.name, call.arguments) for call in reply.calls] == [("look_up", {"city": "Oslo"})]
    assert reply.end == ENDS[speaker.protocol]["tools"]
    assert conversation.give("blue").text == "Noted."
    assert b"blue" in clock.heard(upstream)[1].body
    assert b"call_ours" in clock.heard(upstream)[1].body
