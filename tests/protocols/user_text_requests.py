"""One conversation written in each of the four protocols, with tags where they must go and must stay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

import msgspec

from routecodex.canon.request import ProtocolName
from routecodex.protocols.codec import WireRequest
from routecodex.protocols.codecs import CODECS

PROTOCOLS: tuple[ProtocolName, ...] = get_args(ProtocolName)
PNG = "iVBORw0KGgo="


class Verbatim(str):
    """JSON that is written as it stands."""


def written(value: Any, *, gap: str = "", ascii_only: bool = False) -> str:
    """A value as JSON, with white space wherever it may stand."""
    if isinstance(value, Verbatim):
        return value
    if isinstance(value, dict):
        inner = (
            f"{written(key)}{gap}:{gap}{written(item, gap=gap, ascii_only=ascii_only)}"
            for key, item in value.items()
        )
        return "{" + gap + f"{gap},{gap}".join(inner) + gap + "}"
    if isinstance(value, list):
        items = (written(item, gap=gap, ascii_only=ascii_only) for item in value)
        return "[" + gap + f"{gap},{gap}".join(items) + gap + "]"
    plain = msgspec.json.encode(value).decode()
    if not ascii_only:
        return plain
    units = (plain[at].encode("utf-16-be") for at in range(len(plain)))
    return "".join(
        sign if sign.isascii() else "".join(f"\\u{unit[i : i + 2].hex()}" for i in range(0, len(unit), 2))
        for sign, unit in zip(plain, units, strict=True)
    )


HEADS: dict[ProtocolName, tuple[str, dict[str, Any]]] = {
    "chat": ("messages", {"model": "m"}),
    "messages": ("messages", {"model": "m", "max_tokens": 9}),
    "responses": ("input", {"model": "m"}),
    "gemini": ("contents", {}),
}
TAIL: dict[str, Any] = {
    "x_unknown": {"n": Verbatim("1.0"), "e": Verbatim("1e3"), "s": Verbatim('"\\u003c\\/"')}
}


def body_of(protocol: ProtocolName, entries: Any, **style: Any) -> bytes:
    field, head = HEADS[protocol]
    return written({**head, field: entries, **TAIL}, **style).encode()


def heard(protocol: ProtocolName, body: bytes) -> WireRequest:
    return CODECS[protocol].validate(body, model="m", stream=False)


def inbound_of(protocol: ProtocolName, entries: Any) -> WireRequest:
    return heard(protocol, body_of(protocol, entries))


class Turn(msgspec.Struct, frozen=True):
    """What happens in one turn of a random conversation."""

    texts: list[str]
    result: str | None = None
    media: bool = False
    plain: bool = False
    answer: str = "ok"


Strip = Callable[[str], Any]


def parts_of(turn: Turn, strip: Strip, *, part: Callable[[Any], Any], media: Any) -> list[Any]:
    told = (strip(text) for text in turn.texts)
    return [part(text) for text in told if text is not None] + ([media] if turn.media else [])


def content_of(turn: Turn, strip: Strip, parts: list[Any]) -> Any:
    if turn.plain and len(turn.texts) == 1 and not turn.media:
        return strip(turn.texts[0])
    return parts or None


def chat(turns: list[Turn], strip: Strip) -> list[Any]:
    out: list[Any] = [{"role": "system", "content": "<**sys**>"}]
    for at, turn in enumerate(turns):
        if turn.result is not None:
            call = {"id": f"c{at}", "type": "function", "function": {"name": "f", "arguments": "{}"}}
            out += [
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": f"c{at}", "content": turn.result},
            ]
        media = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}}
        parts = parts_of(
            turn, strip, part=lambda text: {"text": text, "type": "text", "x": Verbatim("1.50")}, media=media
        )
        content = content_of(turn, strip, parts)
        if content is not None:
            out.append({"x": Verbatim("1e2"), "role": "user", "content": content, "name": "p"})
        out.append({"role": "assistant", "content": turn.answer})
    return out


def messages(turns: list[Turn], strip: Strip) -> list[Any]:
    out: list[Any] = []
    for at, turn in enumerate(turns):
        results: list[Any] = []
        if turn.result is not None:
            call = {"type": "tool_use", "id": f"c{at}", "name": "f", "input": {"a": Verbatim("-0.0")}}
            out.append({"role": "assistant", "content": [call]})
            inner = [{"type": "text", "text": turn.result}]
            results = [{"type": "tool_result", "tool_use_id": f"c{at}", "content": inner}]
        media = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}}
        parts = results + parts_of(turn, strip, part=lambda text: {"type": "text", "text": text}, media=media)
        content = parts if results else content_of(turn, strip, parts)
        if content is not None:
            out.append({"role": "user", "content": content})
        out.append({"role": "assistant", "content": [{"type": "text", "text": turn.answer}]})
    return out


def responses(turns: list[Turn], strip: Strip) -> list[Any]:
    out: list[Any] = [{"role": "developer", "content": "<**dev**>"}]
    for at, turn in enumerate(turns):
        if turn.result is not None:
            out += [
                {"type": "function_call", "call_id": f"c{at}", "name": "f", "arguments": "{}"},
                {"type": "function_call_output", "call_id": f"c{at}", "output": turn.result},
            ]
        media = {"type": "input_image", "image_url": f"data:image/png;base64,{PNG}"}
        parts = parts_of(turn, strip, part=lambda text: {"type": "input_text", "text": text}, media=media)
        content = content_of(turn, strip, parts)
        if content is not None:
            kind = {"type": "message"} if turn.media else {}
            out.append({**kind, "role": "user", "content": content})
        said = {"type": "output_text", "text": turn.answer, "annotations": []}
        out.append({"type": "message", "role": "assistant", "id": "msg_1", "content": [said]})
    return out


def gemini(turns: list[Turn], strip: Strip) -> list[Any]:
    out: list[Any] = []
    for turn in turns:
        results: list[Any] = []
        if turn.result is not None:
            out.append({"role": "model", "parts": [{"functionCall": {"name": "f", "args": {}}}]})
            results = [{"functionResponse": {"name": "f", "response": {"result": turn.result}}}]
        media = {"inlineData": {"mimeType": "image/png", "data": PNG}}
        parts = results + parts_of(turn, strip, part=lambda text: {"text": text}, media=media)
        if parts:
            lone = turn.plain and len(turn.texts) == 1 and not (turn.media or results)
            only = parts[0] if lone else parts
            out.append({"parts": only} if turn.media else {"role": "user", "parts": only})
        out.append({"role": "model", "parts": [{"text": turn.answer}]})
    return out


BUILDERS: dict[ProtocolName, Callable[[list[Turn], Strip], list[Any]]] = {
    "chat": chat,
    "messages": messages,
    "responses": responses,
    "gemini": gemini,
}


def as_it_is(text: str) -> Any:
    return text
