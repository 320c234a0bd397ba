"""Conversations over HTTP: the same in all four protocols, against providers and through the gateway."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest

from routecodex.turns import ChatTurn, Conversation, Message, RequestFailed, TextAdded, ToolCallAdded
from routecodex.turns.http_sender import open_sender, root_of
from tests.kit import answers
from tests.kit.answers import PROTOCOLS, Call, Counts, ModelAnswer, ReasoningPiece, TextPiece
from tests.kit.answers.model_answer import frame
from tests.kit.gateway import one_target, serving
from tests.kit.steps import CloseClean, Hang, Json, Send, Sse, Steps
from tests.kit.upstream import Request, Upstream

protocols = pytest.mark.parametrize("protocol", PROTOCOLS)
foreign = pytest.mark.parametrize("protocol", ["responses", "messages", "gemini"])

LOOK = {
    "type": "function",
    "function": {
        "name": "look",
        "parameters": {"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]},
    },
}
DEMO = (
    '[server]\nport = 0\n[providers.demo]\nprotocol = "demo"\npace = 0\n'
    '[providers.demo.models.demo-1]\n[routing]\ndefault = ["demo.demo-1"]\n'
)
PATHS = {
    "chat": "/v1/chat/completions",
    "responses": "/v1/responses",
    "messages": "/v1/messages",
    "gemini": "/v1beta/models/m:streamGenerateContent?alt=sse",
}


class LookPlugin:
    """Offers the tool `look`, answers its calls, and sets what else the body shall have."""

    def __init__(self, **fields: Any) -> None:
        self.fields = fields

    def on_before_request(self, turn: ChatTurn) -> None:
        turn.request_body.update({"tools": [LOOK], **self.fields})

    def on_after_request(self, turn: ChatTurn) -> None:
        calls = turn.current_message.tool_calls or ()
        results = [{"role": "tool", "tool_call_id": call["id"], "content": "a blue sky"} for call in calls]
        if results:
            turn.append_and_request(results)


class Setting:
    """Sets fields of every request body."""

    def __init__(self, **fields: Any) -> None:
        self.fields = fields

    def on_before_request(self, turn: ChatTurn) -> None:
        turn.request_body.update(self.fields)


@contextlib.asynccontextmanager
async def start_conversation(
    protocol: str, *plugins: object, api_key: str | None = None
) -> AsyncIterator[tuple[Conversation, Upstream]]:
    """A conversation with a scripted endpoint of that protocol."""
    async with (
        Upstream() as up,
        Conversation(
            f"{up.url}/v1", model="m", protocol=protocol, plugins=plugins, api_key=api_key, max_retries=0
        ) as conversation,
    ):
        yield conversation, up


@pytest.mark.parametrize("base", ["", "/", "/v1", "/v1/", "/v1beta", "the whole path"])
@protocols
async def test_the_gateway_answers_with_and_without_a_version_in_the_url(protocol: str, base: str) -> None:
    whole = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages"}
    path = whole.get(protocol, "/v1beta") if base == "the whole path" else base
    async with serving(DEMO) as gateway:
        url = f"{gateway.url}{path}"
        async with Conversation(url, model="demo.demo-1", protocol=protocol) as conversation:
            answer = await conversation.send("demo:say hello there")
    assert answer is not None
    assert (answer.content, answer.metadata["finish_reason"]) == ("hello there", "stop")
    told = answer.metadata["headers"]
    assert (told["x-routecodex-target"], told["x-routecodex-route"]) == ("demo.key1.demo-1", "direct")
    assert conversation.usage == answer.metadata["usage"]
    assert conversation.usage["completion_tokens"] > 0


@pytest.mark.parametrize(
    ("base", "protocol", "root"),
    [
        ("https://api.openai.com/v1", "chat", "https://api.openai.com/v1"),
        ("https://api.z.ai/api/paas/v4/", "chat", "https://api.z.ai/api/paas/v4"),
        ("https://api.deepseek.com", "chat", "https://api.deepseek.com/v1"),
        ("https://api.openai.com", "responses", "https://api.openai.com/v1"),
        ("https://api.anthropic.com", "messages", "https://api.anthropic.com"),
        ("https://api.z.ai/api/anthropic", "messages", "https://api.z.ai/api/anthropic"),
        ("https://api.anthropic.com/v1/messages", "messages", "https://api.anthropic.com"),
        (
            "https://generativelanguage.googleapis.com/v1beta",
            "gemini",
            "https://generativelanguage.googleapis.com",
        ),
        ("https://host/v1?api-version=7", "chat", "https://host/v1"),
    ],
)
def test_providers_are_reached_where_they_are(base: str, protocol: str, root: str) -> None:
    assert root_of(base, protocol) == root


@protocols
async def test_a_provider_gets_its_path_its_key_and_a_session(protocol: str) -> None:
    async with start_conversation(protocol, api_key=" the-key\n") as (conversation, up):
        up.queue(answers.text(protocol, "hi", True), answers.text(protocol, "hi again", True))
        await conversation.send("one")
        answer = await conversation.send("two")
    assert answer == Message("assistant", "hi again")
    key = {"messages": ("x-api-key", "the-key"), "gemini": ("x-goog-api-key", "the-key")}
    name, value = key.get(protocol, ("authorization", "Bearer the-key"))
    assert [request.path for request in up.requests] == [PATHS[protocol]] * 2
    assert {request.headers[name] for request in up.requests} == {value}
    assert len({request.headers["x-session-id"] for request in up.requests}) == 1
    assert up.requests[0].headers.get("anthropic-version") == (
        "2023-06-01" if protocol == "messages" else None
    )


@protocols
async def test_no_key_is_no_header(protocol: str) -> None:
    async with start_conversation(protocol) as (conversation, up):
        up.queue(answers.text(protocol, "hi", True))
        await conversation.send("one")
    assert not {"authorization", "x-api-key", "x-goog-api-key"} & up.requests[0].headers.keys()


async def test_a_query_in_the_url_goes_with_every_request() -> None:
    async with Upstream() as up:
        up.queue(answers.text("chat", "hi", True))
        url = f"{up.url}/v1?api-version=7"
        async with Conversation(url, model="m") as conversation:
            await conversation.send("hello")
    assert up.requests[0].path == "/v1/chat/completions?api-version=7"


async def test_unknown_fields_pass_where_chat_is_spoken() -> None:
    odd = {"speed": "fast", "user": "ann", "stream_options": {"include_obfuscation": False}}
    async with start_conversation("chat", Setting(**odd)) as (conversation, up):
        up.queue(answers.text("chat", "hi", True))
        await conversation.send(Message("user", "hello"))
    assert up.requests[0].json == {
        "model": "m",
        "messages": [{"role": "user", "content": "hello"}],
        "speed": "fast",
        "user": "ann",
        "stream": True,
        "stream_options": {"include_obfuscation": False, "include_usage": True},
    }


async def test_unknown_fields_of_a_chat_answer_are_kept_and_its_usage_is_its_own() -> None:
    async with start_conversation("chat") as (conversation, up):
        usage = {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7, "cost": 0.5}
        head = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
        first = {"role": "assistant", "content": "hi", "mood": "good"}
        chunks = [
            head | {"choices": [{"index": 0, "delta": first, "finish_reason": None}]},
            head | {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
            head | {"choices": [], "usage": usage},
        ]
        up.queue(Sse([*map(frame, chunks), b"data: [DONE]\n\n"]))
        answer = await conversation.send("hello")
    assert answer == Message("assistant", "hi", mood="good")
    assert conversation.usage == usage


@pytest.mark.parametrize("protocol", ["chat", "responses"])
async def test_usage_nobody_told_is_not_made_up(protocol: str) -> None:
    async with start_conversation(protocol) as (conversation, up):
        frames = answers.text(protocol, "hi", True, include_usage=False)
        assert isinstance(frames, Sse)
        up.queue(Sse([frame.replace(b'"usage', b'"unused') for frame in frames.frames]))
        await conversation.send("hello")
    assert conversation.usage == {}


async def test_a_message_needs_room_on_messages_and_says_what_could_not_be_said() -> None:
    async with start_conversation("messages", Setting(seed=7)) as (conversation, up):
        up.queue(answers.text("messages", "hi", True))
        answer = await conversation.send("hello")
    assert answer is not None
    assert up.requests[0].json["max_tokens"] == 8192
    assert answer.metadata["notices"] == ["dropped seed: messages has no such field"]


@protocols
async def test_a_tool_loop_comes_to_its_end(protocol: str) -> None:
    async with start_conversation(protocol, LookPlugin()) as (conversation, up):
        up.answer_with(answers.smart(protocol))
        answer = await conversation.send("look at the sky")
    assert answer == Message("assistant", "The tool says: a blue sky")
    call = (conversation.messages[1].tool_calls or [])[0]
    assert (call["index"], call["type"], call["function"]["name"]) == (0, "function", "look")
    assert call["function"]["arguments"] == '{"at":"look at the sky"}'
    assert conversation.messages[1].metadata["finish_reason"] == "tool_calls"
    assert len(up.requests) == 2


@protocols
async def test_pieces_are_told_as_they_come(protocol: str) -> None:
    gate = asyncio.Event()
    async with start_conversation(protocol) as (conversation, up):
        whole = answers.tool_calls(
            protocol, Call("look", {"at": "it"}, "c1"), stream=True, text="a b c d e f"
        )
        assert isinstance(whole, Sse)
        up.queue(Sse(whole.frames, pace={len(whole.frames) - 1: gate}))
        told = []
        async for event in conversation.stream("hello"):
            told.append(event)
            if isinstance(event, TextAdded):
                gate.set()
    assert "".join(event.text for event in told if isinstance(event, TextAdded)) == "a b c d e f"
    assert [event.name for event in told if isinstance(event, ToolCallAdded)] == ["look"]


def _thoughts(protocol: str, request: Request) -> list[tuple[str, str]]:
    """(text, signature) of the thoughts and calls a request carries, in order."""
    body = request.json
    match protocol:
        case "messages":
            blocks = [block for message in body["messages"] for block in message["content"]]
            return [(b["thinking"], b["signature"]) for b in blocks if b["type"] == "thinking"]
        case "responses":
            items = [item for item in body["input"] if item["type"] == "reasoning"]
            return [(item["summary"][0]["text"], item["encrypted_content"]) for item in items]
        case _:
            parts = [part for content in body["contents"] for part in content["parts"]]
            return [(part.get("text", ""), s) for part in parts if (s := part.get("thoughtSignature"))]


@foreign
async def test_signed_thoughts_go_back_to_their_maker_in_a_tool_loop(protocol: str) -> None:
    signature = "c2lnbmVkLWJ5LXRoZS1tb2RlbA=="
    async with start_conversation(protocol, LookPlugin(reasoning_effort="low")) as (conversation, up):
        thought, call = ReasoningPiece("I should look."), Call("look", {"at": "it"}, "c1")
        up.queue(
            answers.compose(protocol, thought, TextPiece("Wait."), call, stream=True),
            answers.text(protocol, "blue", True),
            answers.text(protocol, "done", True),
        )
        await conversation.send("look")
        await conversation.send("and now?")
    message = conversation.messages[1]
    assert (message.content, message.reasoning_content) == ("Wait.", "I should look.")
    for request in up.requests[1:]:
        assert signature in [found for _, found in _thoughts(protocol, request)]
    assert "wire_parts" not in up.requests[1].body.decode()


@foreign
async def test_thoughts_are_not_sent_to_anybody_else(protocol: str) -> None:
    async with start_conversation(protocol, LookPlugin(reasoning_effort="low")) as (conversation, up):
        thought, call = ReasoningPiece("I should look."), Call("look", {"at": "it"}, "c1")
        up.queue(answers.compose(protocol, thought, call, stream=True), answers.text(protocol, "blue", True))
        await conversation.send("look")
        history = [message.as_dict() for message in conversation.messages]
        # Inside the block: a closed upstream frees its port, and the stranger that gets it is taken for it.
        for other in PROTOCOLS:
            async with Upstream() as stranger:
                stranger.queue(answers.text(other, "hi", True))
                async with Conversation(
                    stranger.url, model="m", protocol=other, initial_messages=history
                ) as again:
                    await again.send("hello")
            assert "c2lnbmVk" not in stranger.requests[0].body.decode()
            assert "wire_parts" not in stranger.requests[0].body.decode()


@foreign
async def test_a_saved_conversation_still_has_its_thoughts(protocol: str) -> None:
    async with start_conversation(protocol, LookPlugin(reasoning_effort="low")) as (conversation, up):
        thought, call = ReasoningPiece("I should look."), Call("look", {"at": "it"}, "c1")
        up.queue(answers.compose(protocol, thought, call, stream=True), answers.text(protocol, "blue", True))
        await conversation.send("look")
        history = [message.as_dict() for message in conversation.messages]
        up.queue(answers.text(protocol, "still here", True))
        async with Conversation(up.url, model="m", protocol=protocol, initial_messages=history) as again:
            await again.send("hello")
        assert "c2lnbmVk" in up.requests[2].body.decode()


async def test_parts_keep_their_order_and_an_edited_text_is_sent_as_it_is_now() -> None:
    async with start_conversation("messages") as (conversation, up):
        up.queue(
            answers.compose(
                "messages", TextPiece("one "), ReasoningPiece("hm"), TextPiece("two"), stream=True
            ),
            answers.text("messages", "ok", True),
            answers.text("messages", "ok", True),
        )
        await conversation.send("count")
        await conversation.send("go on")
        conversation.messages[1].content = "three"
        await conversation.send("go on")
    said = [request.json["messages"][1]["content"] for request in up.requests[1:]]
    kinds = [[block.get("text") or block["thinking"] for block in blocks] for blocks in said]
    assert kinds == [["one ", "hm", "two"], ["three", "hm"]]


async def test_gemini_signs_calls_and_gets_their_signatures_back() -> None:
    call = {"functionCall": {"name": "look", "args": {"at": "it"}}, "thoughtSignature": "b2YtdGhlLWNhbGw="}
    last = {"text": "", "thoughtSignature": "b2YtdGhlLWVuZA=="}

    def piece(*parts: dict[str, Any], **more: Any) -> bytes:
        content = {"role": "model", "parts": list(parts)}
        return frame({"candidates": [{"content": content, "index": 0, **more}]})

    async with start_conversation("gemini", LookPlugin()) as (conversation, up):
        up.queue(
            Sse([piece(call, finishReason="STOP")]),
            Sse([piece({"text": "blue"}), piece(last, finishReason="STOP")]),
            answers.text("gemini", "done", True),
        )
        await conversation.send("look")
        await conversation.send("thanks")
    model = [content for content in up.requests[2].json["contents"] if content["role"] == "model"]
    signatures = [part["thoughtSignature"] for content in model for part in content["parts"] if len(part) > 1]
    assert signatures == ["b2YtdGhlLWNhbGw=", "b2YtdGhlLWVuZA=="]


@foreign
async def test_thoughts_survive_the_gateway(protocol: str) -> None:
    signature = "c2lnbmVkLWJ5LXRoZS1tb2RlbA=="
    async with Upstream() as up, serving(one_target("messages", up)) as gateway:
        thought, call = ReasoningPiece("I should look."), Call("look", {"at": "it"}, "c1")
        up.queue(
            answers.compose("messages", thought, call, stream=True), answers.text("messages", "blue", True)
        )
        plugins = [LookPlugin(reasoning_effort="low")]
        async with Conversation(
            f"{gateway.url}/v1", model="up.m", protocol=protocol, plugins=plugins
        ) as conversation:
            await conversation.send("look")
    assert _thoughts("messages", up.requests[1]) == [("I should look.", signature)]


@pytest.mark.parametrize("status", [400, 401, 403, 404, 429, 500, 503, 529])
@protocols
async def test_a_refusal_is_raised_with_its_status_and_words(protocol: str, status: int) -> None:
    async with start_conversation(protocol, api_key="secret-key") as (conversation, up):
        up.queue(answers.error(protocol, status, "it went wrong", retry_after="7"))
        with pytest.raises(RequestFailed) as raised:
            await conversation.send("hello")
    assert (raised.value.status, raised.value.message, str(raised.value)) == (
        status,
        "it went wrong",
        "it went wrong",
    )
    assert raised.value.retry_after == (7.0 if status in (429, 500, 503, 529) else None)
    assert conversation.request_state == "error"


async def test_the_gateways_own_code_and_words_are_told() -> None:
    async with (
        serving(DEMO) as gateway,
        Conversation(gateway.url, model="demo.demo-1", protocol="messages") as conversation,
    ):
        with pytest.raises(RequestFailed) as raised:
            await conversation.send("<**!nobody.m**> hello")
    assert (raised.value.status, raised.value.code) == (404, "PROVIDER_NOT_AVAILABLE")
    assert "nobody" in raised.value.message


@protocols
async def test_an_error_in_the_stream_is_raised_and_what_came_before_is_kept(protocol: str) -> None:
    async with start_conversation(protocol) as (conversation, up):
        up.queue(answers.stream_error(protocol, "one two three four", 529, "Overloaded"))
        with pytest.raises(RequestFailed, match="Overloaded") as raised:
            await conversation.send("hello")
    assert raised.value.status >= 500
    assert "one two three four".startswith(conversation.messages[-1].content)
    assert conversation.messages[-1].content


@pytest.mark.parametrize("end", [None, CloseClean()])
@protocols
async def test_a_stream_without_its_end_is_an_error(protocol: str, end: CloseClean | None) -> None:
    async with start_conversation(protocol) as (conversation, up):
        cut = answers.cut_off(protocol, "one two three four")
        up.queue(Sse(cut.frames, end=end))
        with pytest.raises(RequestFailed) as raised:
            await conversation.send("hello")
    assert (raised.value.status, raised.value.code) == (502, "upstream_truncated")
    assert conversation.messages[-1].content


@protocols
async def test_a_connection_that_breaks_is_an_error(protocol: str) -> None:
    async with start_conversation(protocol) as (conversation, up):
        up.queue(answers.cut_off(protocol, "one two three four"))
        with pytest.raises(RequestFailed) as raised:
            await conversation.send("hello")
    assert raised.value.status == 502


async def test_nobody_there_is_an_error_that_names_the_place() -> None:
    async with Upstream() as up:
        port = up.port
    async with Conversation(f"http://127.0.0.1:{port}/v1", model="m", max_retries=0) as conversation:
        with pytest.raises(RequestFailed, match=f"127.0.0.1:{port} could not be connected to"):
            await conversation.send("hello")


@foreign
async def test_a_body_that_is_none_is_the_callers_error(protocol: str) -> None:
    async with start_conversation(protocol) as (conversation, up):
        with pytest.raises(RequestFailed, match="nobody-called-this") as raised:
            await conversation.send(Message("tool", "x", tool_call_id="nobody-called-this"))
    assert (raised.value.status, raised.value.code, up.requests) == (400, "orphan_tool_result", [])


@protocols
@pytest.mark.parametrize("content", ["bad \udcff", [{"type": "text", "text": object()}]])
async def test_a_body_that_is_no_json_is_the_callers_error(protocol: str, content: Any) -> None:
    async with start_conversation(protocol) as (conversation, up):
        with pytest.raises(RequestFailed, match="the request cannot be encoded as JSON") as raised:
            await conversation.send({"role": "user", "content": content})
    assert (raised.value.status, up.requests) == (400, [])


@protocols
async def test_an_answer_that_was_not_streamed_is_taken_all_the_same(protocol: str) -> None:
    async with start_conversation(protocol) as (conversation, up):
        call = Call("look", {"at": "it"}, "c1")
        up.queue(answers.tool_calls(protocol, call, stream=False, text="hi", counts=Counts(5, 6)))
        answer = await conversation.send("hello")
    assert answer is not None
    assert (answer.content, answer.metadata["finish_reason"]) == ("hi", "tool_calls")
    assert [call["function"]["name"] for call in answer.tool_calls or ()] == ["look"]
    assert (conversation.usage["prompt_tokens"], conversation.usage["completion_tokens"]) == (5, 6)


async def test_an_answer_that_is_no_answer_is_an_error() -> None:
    for protocol in PROTOCOLS:
        async with start_conversation(protocol) as (conversation, up):
            up.queue(Json(200, {"hello": "world"}))
            with pytest.raises(RequestFailed) as raised:
                await conversation.send("hello")
            assert raised.value.status == 502


@protocols
async def test_an_abort_leaves_the_endpoint_at_once(protocol: str) -> None:
    async with start_conversation(protocol) as (conversation, up):
        begun = answers.cut_off(protocol, "one two three four")
        up.queue(Steps([*map(Send, begun.frames), Hang()]))
        async for event in conversation.stream("hello"):
            if isinstance(event, TextAdded):
                conversation.abort()
        await up.requests[0].gone.wait()
    assert conversation.request_state == "aborted"
    assert conversation.messages[-1].content


async def test_an_abort_before_the_first_byte_leaves_too() -> None:
    async with start_conversation("chat") as (conversation, up):
        up.queue(Steps([Hang()]))
        sending = asyncio.ensure_future(conversation.send("hello"))
        request = await up.received()
        conversation.abort()
        assert await sending is None
        await request.gone.wait()


async def test_closing_the_stream_of_a_sender_closes_the_connection() -> None:
    async with Upstream() as up:
        up.queue(Steps([*map(Send, answers.cut_off("chat", "one two three").frames), Hang()]))
        sender = open_sender(up.url)
        body = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
        chunks = sender(body)
        await anext(chunks)
        await chunks.aclose()
        await up.requests[0].gone.wait()
        up.queue(answers.text("chat", "next", True))
        assert [chunk async for chunk in sender(body)]
        await sender.aclose()
    assert [(request.connection, request.disconnected) for request in up.requests] == [(1, True), (2, False)]


def test_a_conversation_may_go_on_in_another_event_loop() -> None:
    async def once(conversation: Conversation, listening: socket.socket) -> None:
        server = await asyncio.start_server(_answer_hi, sock=listening)
        await conversation.send("hello")
        server.close()
        await server.wait_closed()

    with socket.create_server(("127.0.0.1", 0)) as held:
        sender = open_sender(f"http://127.0.0.1:{held.getsockname()[1]}")
        conversation = Conversation(model="m", sender=sender)
        for _ in range(2):
            asyncio.run(once(conversation, held.dup()))
    assert [message.content for message in conversation.messages] == ["hello", "hi"] * 2


async def _answer_hi(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """One answer of an endpoint that speaks chat, and the end of the connection."""
    await reader.readuntil(b"}}")
    body = Json(200, answers.chat.whole(ModelAnswer((TextPiece("hi"),)))).data
    head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close" % len(body)
    writer.write(b"HTTP/1.1 200 OK\r\n" + head + b"\r\n\r\n" + body)
    await writer.drain()
    writer.close()
    await writer.wait_closed()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("127.0.0.1:5520",), "must look like https://host"),
        (("http://x", "soap"), "protocol is 'soap'; use one of chat, responses, messages, gemini"),
        (("http://x", "chat", "a\nb"), "api_key contains a character that is not allowed in a header value"),
    ],
)
def test_what_cannot_be_used_is_refused_at_once(arguments: tuple[str, ...], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        open_sender(*arguments)


async def test_headers_of_the_caller_are_sent_and_its_session_is_used() -> None:
    async with Upstream() as up:
        up.queue(answers.text("chat", "hi", True))
        sender = open_sender(up.url, headers={"X-Session-Id": "mine", "x-team": "blue"})
        await Conversation(model="m", sender=sender).send("hello")
        await sender.aclose()
    sent = up.requests[0].headers
    assert (sender.session, sent["x-session-id"], sent["x-team"]) == ("mine", "mine", "blue")


SYSTEM_AND_LIMIT: dict[str, Any] = {
    "chat": lambda body: (body["messages"][0]["content"], body["temperature"], body["max_tokens"]),
    "responses": lambda body: (body["instructions"], body["temperature"], body["max_output_tokens"]),
    "messages": lambda body: (body["system"][0]["text"], body["temperature"], body["max_tokens"]),
    "gemini": lambda body: (
        body["systemInstruction"]["parts"][0]["text"],
        body["generationConfig"]["temperature"],
        body["generationConfig"]["maxOutputTokens"],
    ),
}


@protocols
async def test_system_and_parameters_have_the_names_of_the_protocol(protocol: str) -> None:
    async with Upstream() as up:
        up.queue(answers.text(protocol, "hi", True))
        async with Conversation(
            up.url, model="m", protocol=protocol, system="Be brief.", parameters={"temperature": 0.5}
        ) as conversation:
            await conversation.send("one", parameters={"max_tokens": 77})
    assert SYSTEM_AND_LIMIT[protocol](up.requests[0].json) == ("Be brief.", 0.5, 77)
