"""Parts that only Gemini answers have, over HTTP: every client gets those that its protocol can hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from routecodex.wire import json, sse
from tests.cli.process import serve
from tests.gateway.clock_gateway import OPERATOR
from tests.gateway.test_matrix import decode_answer, text_of
from tests.gateway.test_web_search import HOSTED, NONE, ON
from tests.kit import asking
from tests.kit.gateway import one_target, serving
from tests.kit.raw_client import Answer, call
from tests.kit.steps import Json, Sse
from tests.kit.upstream import Upstream

PARTS: list[dict[str, Any]] = [
    {"text": "Here:"},
    {"inlineData": {"mimeType": "image/png", "data": "QUJD"}, "thoughtSignature": "c2ln"},
    {"executableCode": {"language": "PYTHON", "code": "print(1)"}},
    {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "1"}},
]
CODE = "\n```python\nprint(1)\n```\n\n```\n1\n```\n"
OMITTED = "[image omitted: image/png, 1 KB]"
NOTICE = "dropped inlineData: answers of messages cannot have it"


def chunk(*parts: dict[str, Any], **more: Any) -> dict[str, Any]:
    candidate = {"content": {"parts": parts, "role": "model"}, "index": 0, **more}
    usage = {"promptTokenCount": 1, "candidatesTokenCount": 1, "totalTokenCount": 2}
    return {"candidates": [candidate], "responseId": "r", "modelVersion": "m", "usageMetadata": usage}


async def answered(client: str, *parts: dict[str, Any], stream: bool, armed: bool = False) -> Answer:
    frames = [sse.frame(json.encode(chunk(part))) for part in parts]
    end = sse.frame(json.encode(chunk({"text": ""}, finishReason="STOP")))
    canned = Sse([*frames, end]) if stream else Json(200, chunk(*parts, finishReason="STOP"))
    async with Upstream() as up:
        up.queue(canned)
        text = (ON if armed else "") + one_target("gemini", up, more=NONE if armed else "")
        async with serving(text) as gateway:
            body = asking.body(client, stream=stream) | (HOSTED[client] if armed else {})
            answer = await call(gateway.port, asking.path(client, stream=stream), body)
    asking.check(client, answer, stream=stream)
    return answer


def images(client: str, answer: Answer, *, stream: bool) -> list[str]:
    """Return the images of an answer as its client reads them."""
    if not stream:
        bodies = [json.decode(answer.body)]
    else:
        frames = sse.Frames().feed(answer.body)
        bodies = [json.decode(frame.data) for frame in frames if frame.data != b"[DONE]"]
    if client == "chat":
        choices = [choice for body in bodies for choice in body["choices"]]
        canned = [choice.get("delta") or choice.get("message") or {} for choice in choices]
        return [image["image_url"]["url"] for one in canned for image in one.get("images", ())]
    items = bodies[-1].get("response", bodies[-1])["output"]
    return [item["result"] for item in items if item["type"] == "image_generation_call"]


@pytest.mark.parametrize("armed", [False, True], ids=["plain", "armed"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(("client", "image"), [("chat", "data:image/png;base64,QUJD"), ("responses", "QUJD")])
async def test_images_are_shown_where_answers_may_hold_them(
    client: str, image: str, stream: bool, armed: bool
) -> None:
    answer = await answered(client, *PARTS, stream=stream, armed=armed)
    assert images(client, answer, stream=stream) == [image]
    assert text_of(decode_answer(client, answer, stream=stream)) == "Here:" + CODE
    assert "inlineData" not in answer.headers.get("x-routecodex-notice", "")


@pytest.mark.parametrize("armed", [False, True], ids=["plain", "armed"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_images_become_a_placeholder_where_answers_cannot_hold_them(stream: bool, armed: bool) -> None:
    answer = await answered("messages", *PARTS, stream=stream, armed=armed)
    assert text_of(decode_answer("messages", answer, stream=stream)) == "Here:" + OMITTED + CODE
    assert (NOTICE in answer.headers.get("x-routecodex-notice", "")) is not stream


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_an_image_alone_is_not_an_empty_answer(stream: bool) -> None:
    answer = await answered("messages", PARTS[1], stream=stream)
    assert text_of(decode_answer("messages", answer, stream=stream)) == OMITTED


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("armed", [False, True], ids=["plain", "armed"])
async def test_gemini_clients_get_the_parts_as_they_are(stream: bool, armed: bool) -> None:
    answer = await answered("gemini", *PARTS, stream=stream, armed=armed)
    bodies = (
        [json.decode(frame.data) for frame in sse.Frames().feed(answer.body)]
        if stream
        else [json.decode(answer.body)]
    )
    parts = [part for body in bodies for part in body["candidates"][0]["content"]["parts"]]
    assert [part for part in parts if part != {"text": ""}] == PARTS


@pytest.mark.parametrize("armed", [False, True])
async def test_the_log_names_the_parts_of_a_stream_that_were_dropped(tmp_path: Path, armed: bool) -> None:
    """The headers of a stream are sent before its parts arrive."""
    block = {"type": "server_tool_use", "id": "s1", "name": "code_execution", "input": {}}
    citation = {"type": "char_location", "cited_text": "x", "document_index": 0}
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": {"id": "m", "model": "c", "usage": {"input_tokens": 1}}},
        {"type": "content_block_start", "index": 0, "content_block": block},
        {"type": "content_block_stop", "index": 0},
        {"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": "So."}},
        {
            "type": "content_block_delta",
            "index": 1,
            "delta": {"type": "citations_delta", "citation": citation},
        },
        {"type": "content_block_stop", "index": 1},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 1}},
        {"type": "message_stop"},
    ]
    async with Upstream() as up:
        up.queue(Sse([sse.frame(json.encode(event), event["type"].encode()) for event in events]))
        clock = "[server_tools.clock]\nenabled = true\nntp = { enabled = false }\n" if armed else ""
        text = clock + one_target("messages", up, server='admin_token = "operator"')
        async with serve(tmp_path, text) as process:
            port = await process.port()
            answer = await call(port, "/v1/chat/completions", asking.body("chat", stream=True))
            log = await call(port, "/admin/requests", method="GET", headers=OPERATOR)
    asking.check("chat", answer, stream=True)
    (row,) = log.json["requests"]
    assert row["notices"] == [
        "dropped server_tool_use: answers of chat cannot have it",
        "dropped citations: answers of chat cannot have them",
    ]
