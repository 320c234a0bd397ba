from __future__ import annotations

from typing import Any

import pytest

from routecodex.canon.events import AnswerPart, PartStarted
from routecodex.canon.parts import Media, Opaque, Text
from routecodex.canon.response import Response, fold, unfold
from routecodex.protocols.codec import AnswerOutcome, ReplyContext
from routecodex.protocols.codecs import CODECS
from routecodex.protocols.translation import replace_foreign_part, replace_foreign_parts
from routecodex.wire import json

IMAGE = {"inlineData": {"mimeType": "image/png", "data": "QUJD"}}
DRAWN = Opaque("gemini", IMAGE, Media("image", media_type="image/png", data="QUJD"))
SPOKEN = Opaque("gemini", {"inlineData": {}}, Media("audio", media_type="audio/L16", data="A" * 4000))
CODE = Opaque("gemini", {"executableCode": {"code": "1"}}, Text("\n```\n1\n```\n"))
OWN = Opaque("gemini", {"thoughtSignature": "s", "toolCall": {"id": "1"}})

IMAGE_URL = {"type": "image_url", "image_url": {"url": "data:image/png;base64,QUJD"}}
GENERATED = {"type": "image_generation_call", "status": "completed", "result": "QUJD"}
PAINTED = fold(
    CODECS["responses"].decode_response(
        json.encode({"status": "completed", "output": [{**GENERATED, "id": "ig_1", "output_format": "webp"}]})
    )
).parts[0]
CASES: list[tuple[str, AnswerPart, AnswerPart, str]] = [
    ("chat", DRAWN, Opaque("chat", IMAGE_URL), ""),
    ("responses", DRAWN, Opaque("responses", GENERATED), ""),
    ("messages", DRAWN, Text("[image omitted: image/png, 1 KB]"), "dropped inlineData"),
    ("gemini", DRAWN, DRAWN, ""),
    ("chat", SPOKEN, Text("[audio omitted: audio/L16, 3 KB]"), "dropped inlineData"),
    ("responses", SPOKEN, Text("[audio omitted: audio/L16, 3 KB]"), "dropped inlineData"),
    ("chat", PAINTED, Opaque("chat", {**IMAGE_URL, "image_url": {"url": "data:image/webp;base64,QUJD"}}), ""),
    ("gemini", PAINTED, Opaque("gemini", {"inlineData": {"mimeType": "image/webp", "data": "QUJD"}}), ""),
    ("messages", PAINTED, Text("[image omitted: image/webp, 1 KB]"), "dropped image_generation_call"),
    ("responses", PAINTED, PAINTED, ""),
    ("messages", CODE, Text("\n```\n1\n```\n"), ""),
    ("gemini", CODE, CODE, ""),
    ("chat", OWN, OWN, "dropped toolCall"),
    (
        "responses",
        Opaque("messages", {"type": "server_tool_use"}),
        Opaque("messages", {"type": "server_tool_use"}),
        "dropped server_tool_use",
    ),
    ("chat", Text("Hi"), Text("Hi"), ""),
]


@pytest.mark.parametrize(("client", "part", "told", "lost"), CASES, ids=range(len(CASES)))
def test_each_client_gets_what_its_protocol_has(client: str, part: Any, told: Any, lost: str) -> None:
    codec = CODECS[client]
    assert replace_foreign_part(PartStarted(3, part), codec, AnswerOutcome()) == PartStarted(3, told)
    notices = (f"{lost}: answers of {client} cannot have it",) if lost else ()
    assert replace_foreign_parts(Response(parts=(part,)), codec) == (Response(parts=(told,)), notices)


def test_media_that_is_elsewhere_is_named_by_its_address() -> None:
    film = Opaque("gemini", {}, Media("video", url="https://a.example/film.mp4"))
    said = replace_foreign_part(PartStarted(0, film), CODECS["chat"], AnswerOutcome()).part
    assert said == Text("[video omitted: https://a.example/film.mp4]")


URL = "https://a.example/page"
PAGE = {"type": "url_citation", "url": URL, "title": "A", "start_index": 0, "end_index": 5}
NESTED = {
    "type": "url_citation",
    "url_citation": {"url": URL, "title": "A", "start_index": 0, "end_index": 5},
}
DOCUMENT = {"type": "char_location", "cited_text": "x", "document_index": 0, "document_title": "A"}
RESULT = {"type": "search_result_location", "cited_text": "x", "source": URL, "title": "A"}
INTERNAL = {**RESULT, "source": "wiki/page"}
FILE = {"type": "file_citation", "file_id": "f", "filename": "a.pdf", "index": 5}
TAKEN: list[tuple[dict[str, Any], set[str]]] = [
    (PAGE, {"chat", "responses", "messages", "gemini"}),
    (NESTED, {"chat", "responses", "messages", "gemini"}),
    (RESULT, {"chat", "responses", "messages", "gemini"}),
    (INTERNAL, {"messages"}),
    (DOCUMENT, {"messages"}),
    (FILE, {"responses"}),
]


@pytest.mark.parametrize(("citation", "clients"), TAKEN, ids=range(len(TAKEN)))
def test_a_citation_reaches_the_client_or_a_notice_names_its_loss(
    citation: dict[str, Any], clients: set[str]
) -> None:
    response = Response(parts=(Text("Hello", annotations=(citation,)),))
    for name, codec in CODECS.items():
        lost = () if name in clients else (f"dropped citations: answers of {name} cannot have them",)
        assert replace_foreign_parts(response, codec) == (response, lost)
        reply = ReplyContext(id="abc", created=7, model="m")
        sent = codec.encode_response(response, reply)
        encoder = codec.stream_encoder(reply)
        streamed = b"".join(map(encoder.encode, unfold(response)))
        if citation not in (INTERNAL, DOCUMENT, FILE):
            assert URL.encode() in sent
            assert URL.encode() in streamed
