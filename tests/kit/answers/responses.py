"""Answers as OpenAI's responses send them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.kit.answers.said import CREATED, Call, Counts, No, Piece, Said, Thought, frame, made_id, morsels


def _usage(counts: Counts) -> dict[str, Any]:
    return {
        "input_tokens": counts.input,
        "input_tokens_details": {"cached_tokens": counts.cached, "cache_write_tokens": counts.cache_write},
        "output_tokens": counts.output,
        "output_tokens_details": {"reasoning_tokens": counts.reasoning},
        "total_tokens": counts.input + counts.output,
    }


def _response(said: Said, status: str, output: list[Any]) -> dict[str, Any]:
    cut = {"reason": "max_output_tokens"} if status == "incomplete" else None
    return {
        "id": made_id("resp_", said.number, size=48),
        "object": "response",
        "created_at": CREATED,
        "status": status,
        "background": False,
        "completed_at": CREATED + 2 if status == "completed" else None,
        "error": None,
        "incomplete_details": cut,
        "instructions": None,
        "max_output_tokens": None,
        "max_tool_calls": None,
        "model": said.model or "gpt-5.2-2026-09-01",
        "output": output,
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "prompt_cache_key": None,
        "reasoning": {"effort": "medium", "summary": "detailed"},
        "safety_identifier": None,
        "service_tier": "default",
        "store": True,
        "temperature": 1.0,
        "text": {"format": {"type": "text"}, "verbosity": "medium"},
        "tool_choice": "auto",
        "tools": [],
        "top_logprobs": 0,
        "top_p": 1.0,
        "truncation": "disabled",
        "usage": None if status == "in_progress" else _usage(said.counts),
        "user": None,
        "metadata": {},
    }


def _item_id(said: Said, piece: Piece, prefix: str) -> str:
    return made_id(prefix, said.number * 100 + said.place(piece), size=48)


def _part(piece: Piece, text: str) -> dict[str, Any]:
    if isinstance(piece, No):
        return {"type": "refusal", "refusal": text}
    return {"type": "output_text", "annotations": [], "logprobs": [], "text": text}


def _item(said: Said, piece: Piece, *, done: bool) -> dict[str, Any]:
    """The output item for a piece, as it is added (empty) or as it is when done."""
    status = _status(said, piece) if done else "in_progress"
    match piece:
        case Thought():
            summary = [{"type": "summary_text", "text": piece.text}] if done and piece.text else []
            return {
                "id": _item_id(said, piece, "rs_"),
                "type": "reasoning",
                "encrypted_content": piece.signature if done else "",
                "summary": summary,
            }
        case Call(custom=True):
            return {
                "id": _item_id(said, piece, "ctc_"),
                "type": "custom_tool_call",
                "status": status,
                "call_id": said.call_id(piece, "call_"),
                "input": piece.text if done else "",
                "name": piece.name,
            }
        case Call():
            return {
                "id": _item_id(said, piece, "fc_"),
                "type": "function_call",
                "status": status,
                "arguments": piece.text if done else "",
                "call_id": said.call_id(piece, "call_"),
                "name": piece.name,
            }
        case _:
            return {
                "id": _item_id(said, piece, "msg_"),
                "type": "message",
                "status": status,
                "content": [_part(piece, piece.text)] if done else [],
                "role": "assistant",
            }


def _status(said: Said, piece: Piece) -> str:
    cut = said.end == "length" and piece is said.pieces[-1]
    return "incomplete" if cut else "completed"


def _end(said: Said) -> str:
    return "incomplete" if said.end == "length" else "completed"


def whole(said: Said) -> dict[str, Any]:
    """The answer as one body."""
    return _response(said, _end(said), [_item(said, piece, done=True) for piece in said.pieces])


def stream(said: Said) -> list[bytes]:
    """The answer as frames."""
    numbered = (event | {"sequence_number": number} for number, event in enumerate(_events(said)))
    return [frame(event, event=event["type"]) for event in numbered]


def _events(said: Said) -> Iterator[dict[str, Any]]:
    for kind in ("created", "in_progress"):
        yield {"type": f"response.{kind}", "response": _response(said, "in_progress", [])}
    for index, piece in enumerate(said.pieces):
        yield from _item_events(said, piece, index)
    yield {"type": f"response.{_end(said)}", "response": whole(said)}


def _item_events(said: Said, piece: Piece, index: int) -> Iterator[dict[str, Any]]:
    item = _item(said, piece, done=False)
    yield {"type": "response.output_item.added", "output_index": index, "item": item}
    place = {"item_id": item["id"], "output_index": index}
    inside = _INSIDE.get(type(piece), _text_events)
    yield from (event | place for event in inside(piece))
    done = _item(said, piece, done=True)
    yield {"type": "response.output_item.done", "output_index": index, "item": done}


def _text_events(piece: Piece) -> Iterator[dict[str, Any]]:
    at = {"content_index": 0}
    refused = isinstance(piece, No)
    stem, name = ("response.refusal", "refusal") if refused else ("response.output_text", "text")
    more: dict[str, Any] = at if refused else {**at, "logprobs": []}
    yield {"type": "response.content_part.added", **at, "part": _part(piece, "")}
    for text in morsels(piece.text):
        yield {"type": f"{stem}.delta", **more, "delta": text, "obfuscation": "q7Zk"}
    yield {"type": f"{stem}.done", **more, name: piece.text}
    yield {"type": "response.content_part.done", **at, "part": _part(piece, piece.text)}


def _thought_events(piece: Piece) -> Iterator[dict[str, Any]]:
    if not piece.text:
        return
    at, stem = {"summary_index": 0}, "response.reasoning_summary"
    yield {"type": f"{stem}_part.added", **at, "part": {"type": "summary_text", "text": ""}}
    for text in morsels(piece.text):
        yield {"type": f"{stem}_text.delta", **at, "delta": text, "obfuscation": "q7Zk"}
    yield {"type": f"{stem}_text.done", **at, "text": piece.text}
    yield {"type": f"{stem}_part.done", **at, "part": {"type": "summary_text", "text": piece.text}}


def _call_events(piece: Piece) -> Iterator[dict[str, Any]]:
    custom = isinstance(piece, Call) and piece.custom
    stem = "response.custom_tool_call_input" if custom else "response.function_call_arguments"
    for text in morsels(piece.text):
        yield {"type": f"{stem}.delta", "delta": text, "obfuscation": "q7Zk"}
    yield {"type": f"{stem}.done", "input" if custom else "arguments": piece.text}


_INSIDE = {Thought: _thought_events, Call: _call_events}


def error(status: int, message: str) -> dict[str, Any]:
    """An error body."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    code = {401: "invalid_api_key", 429: "rate_limit_exceeded"}.get(status)
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def error_frame(status: int, message: str) -> bytes:
    """An error in the middle of a stream."""
    code = "rate_limit_exceeded" if status == 429 else "server_error"
    event = {"type": "error", "code": code, "message": message, "param": None, "sequence_number": 4}
    return frame(event, event="error")
