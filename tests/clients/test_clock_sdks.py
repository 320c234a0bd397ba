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
from tests.clients.python.conversation import FINISH_REASONS, Conversation, ConversationOptions
from tests.clients.python.google_genai import Gemini
from tests.clients.python.openai_chat import Chat
from tests.clients.python.openai_responses import Responses
from tests.clients.python.sdk_modes import SDK_MODES, SdkMode
from tests.gateway.clock_gateway import HEAD, NO_NTP, advance_due_times, command, config, now_ms, task_item
from tests.kit import answers
from tests.kit.answers import PROTOCOLS, Call
from tests.kit.steps import Json, Sse
from tests.kit.upstream import Request

sdk_modes = pytest.mark.parametrize(
    "sdk_mode", [pytest.param(sdk_mode, id=name) for name, sdk_mode in SDK_MODES.items()]
)
ROUND = (21, 9)
WINDOW = 1000

DUE_IN_MS = 50_000
"""Due time of a task that an answer is held for; late enough for slow machines."""
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
    """Schedule a task, alone or with a call of the client, and confirm it and its reminder.

    The due time of a lone task is moved forward during the answer, so that the test does not wait for it.
    """

    def answer(request: Request) -> Json | Sse:
        stream = answers.wants_stream(request)
        if HEAD.encode() in request.body:
            return answers.text(protocol, "Reminded.", stream)
        if _SCHEDULED.search(request.body):
            advance_due_times(folder, SOON, now_ms() + WINDOW + 200)
            return answers.text(protocol, "Noted.", stream)
        both = b"both" in request.body
        task = task_item(now_ms() + HOUR) if both else task_item(now_ms() + DUE_IN_MS, SOON)
        clock_call = Call("clock", command("schedule", task), "call_ours")
        client_calls = [Call("look_up", {"city": "Oslo"}, "call_theirs")] if both else []
        return answers.tool_calls(protocol, clock_call, *client_calls, stream=stream)

    return answer


@pytest.fixture(scope="module")
def clock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """Run a gateway with a clock in front of four models that use it."""
    folder = tmp_path_factory.mktemp("clock") / "gateway"
    with Upstreams() as upstreams:
        for protocol, upstream in upstreams.by_protocol.items():
            upstream.answer_with(model(protocol, folder))
        text = configuration(upstreams, message_stop="auto", client_key=None)
        text += config(f"due_window_ms = {WINDOW}\n", ntp=NO_NTP)
        with gateway_process(text, folder) as url:
            yield Gateway(url, upstreams)


StartConversation = Callable[..., Conversation]


@pytest.fixture
def start_conversation(clock: Gateway) -> Iterator[StartConversation]:
    """Start conversations, each in its own session with an SDK client that is closed at the end."""
    clock.upstreams.reset()
    with ExitStack() as stack:

        def begin(sdk_mode: SdkMode, upstream: str, *, session: str, tools: bool) -> Conversation:
            client, conversation = OPEN[sdk_mode.protocol]
            sdk = stack.enter_context(client(clock.url, {"x-session-id": session}))
            return conversation(
                sdk, f"up_{upstream}.model-x", mode=sdk_mode.mode, options=ConversationOptions(tools=tools)
            )

        yield begin


@sdk_modes
def test_a_held_answer_with_its_reminder_is_one_answer(
    clock: Gateway, start_conversation: StartConversation, sdk_mode: SdkMode
) -> None:
    upstream = sdk_mode.protocol
    session = f"held-{sdk_mode.protocol}-{sdk_mode.mode}"
    reply = start_conversation(sdk_mode, upstream, session=session, tools=False).send("remind me soon")
    assert reply.text == "Noted.\n\nReminded."
    assert (reply.calls, reply.end) == ([], FINISH_REASONS[sdk_mode.protocol]["stop"])
    # The round that called the clock was not shown.
    assert reply.usage == (ROUND[0], 2 * ROUND[1])
    assert len(clock.requests(upstream)) == 3


@pytest.mark.parametrize("upstream", [pytest.param(name, id=f"to-{name}") for name in PROTOCOLS])
@sdk_modes
def test_the_client_gets_only_its_own_call_beside_a_clock_call(
    clock: Gateway, start_conversation: StartConversation, sdk_mode: SdkMode, upstream: str
) -> None:
    session = f"mixed-{sdk_mode.protocol}-{sdk_mode.mode}-{upstream}"
    conversation = start_conversation(sdk_mode, upstream, session=session, tools=True)
    reply = conversation.send("both, please")
    assert [(call.name, call.arguments) for call in reply.calls] == [("look_up", {"city": "Oslo"})]
    assert reply.end == FINISH_REASONS[sdk_mode.protocol]["tools"]
    assert conversation.send_results("blue").text == "Noted."
    assert b"blue" in clock.requests(upstream)[1].body
    assert b"call_ours" in clock.requests(upstream)[1].body
