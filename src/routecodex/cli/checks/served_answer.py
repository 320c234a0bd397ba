"""Reads the answer to a shape: text, tool calls, how it ended, and the turn that the agent would keep.

The bytes have passed the grammar of their protocol before, so fields that it requires are there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal

import msgspec
from msgspec import Struct

from routecodex.canon.request import ProtocolName
from routecodex.cli.checks.shapes.shape import AssistantTurn
from routecodex.protocols.grammar.frames import read
from routecodex.wire import json

AnswerEnd = Literal["stop", "tool", "length", "refused"]


class ServedCall(Struct, frozen=True):
    """A tool call of an answer; `arguments` is None if they are not a JSON object."""

    id: str
    name: str
    arguments: dict[str, Any] | None


class ServedAnswer(Struct, frozen=True, kw_only=True):
    """An answer as the agent reads it; `items` are what it sends back in the next turn."""

    text: str
    calls: list[ServedCall]
    end: AnswerEnd
    items: list[dict[str, Any]]

    @property
    def turn(self) -> AssistantTurn | None:
        """The turn to go on with if it called a tool."""
        if not self.calls:
            return None
        return AssistantTurn(self.items, self.calls[0].id, self.calls[0].name)


def read_answer(protocol: ProtocolName, body: bytes, *, stream: bool) -> ServedAnswer:
    """Read an answer that follows the grammar of its protocol."""
    return _READERS[protocol](_values(body, stream=stream), stream)


def _values(body: bytes, *, stream: bool) -> list[dict[str, Any]]:
    if not stream:
        return [msgspec.json.decode(body, type=dict[str, Any])]
    return [frame.json for frame in read(body) if frame.data != "[DONE]"]


def _object(text: str) -> dict[str, Any] | None:
    try:
        value = msgspec.json.decode(text or "{}")
    except msgspec.DecodeError:
        return None
    return value if isinstance(value, dict) else None


_MESSAGES_ENDS: dict[str, AnswerEnd] = {
    "tool_use": "tool",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "refused",
}
_DELTA_FIELDS = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature"}


def _messages(values: list[dict[str, Any]], stream: bool) -> ServedAnswer:
    if stream:
        blocks, reason = _folded_blocks(values)
    else:
        blocks, reason = values[0]["content"], values[0]["stop_reason"]
    calls = [
        ServedCall(block["id"], block["name"], block["input"])
        for block in blocks
        if block["type"] == "tool_use"
    ]
    text = "".join(block["text"] for block in blocks if block["type"] == "text")
    items = [{"role": "assistant", "content": [block for block in blocks if _is_kept(block)]}]
    return ServedAnswer(text=text, calls=calls, end=_MESSAGES_ENDS.get(reason, "stop"), items=items)


def _is_kept(block: dict[str, Any]) -> bool:
    """Whether Claude Code sends the block back: empty texts it leaves out."""
    return block["type"] != "text" or bool(block["text"])


def _folded_blocks(events: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], str]:
    blocks: list[dict[str, Any]] = []
    inputs: list[str] = []
    reason = ""
    for event in events:
        if event["type"] == "content_block_start":
            blocks.append(dict(event["content_block"]))
            inputs.append("")
        elif event["type"] == "content_block_delta":
            _add_delta(blocks[-1], inputs, event["delta"])
        elif event["type"] == "message_delta":
            reason = event["delta"]["stop_reason"]
    for block, text in zip(blocks, inputs, strict=True):
        if block["type"] == "tool_use":
            block["input"] = _object(text) or {}
    return blocks, reason


def _add_delta(block: dict[str, Any], inputs: list[str], delta: dict[str, Any]) -> None:
    if delta["type"] == "input_json_delta":
        inputs[-1] += delta["partial_json"]
    elif delta["type"] in _DELTA_FIELDS:
        name = _DELTA_FIELDS[delta["type"]]
        block[name] = block.get(name, "") + delta[name]


def _responses(values: list[dict[str, Any]], stream: bool) -> ServedAnswer:
    response = values[-1]["response"] if stream else values[0]
    output = response["output"]
    calls = [
        ServedCall(item["call_id"], item["name"], _object(item["arguments"]))
        for item in output
        if item["type"] == "function_call"
    ]
    parts = [part for item in output if item["type"] == "message" for part in item["content"]]
    text = "".join(part["text"] for part in parts if part["type"] == "output_text")
    refused = any(part["type"] == "refusal" for part in parts)
    cut = (response.get("incomplete_details") or {}).get("reason")
    end: AnswerEnd = "refused" if refused or cut == "content_filter" else "length" if cut else "stop"
    return ServedAnswer(text=text, calls=calls, end="tool" if calls and end == "stop" else end, items=output)


_GEMINI_ENDS: dict[str, AnswerEnd] = {"STOP": "stop", "MAX_TOKENS": "length"}


def _gemini(values: list[dict[str, Any]], _stream: bool) -> ServedAnswer:
    candidates = [one for value in values for one in value.get("candidates", ())][:]
    parts = [part for one in candidates for part in (one.get("content") or {}).get("parts", ())]
    found = [part["functionCall"] for part in parts if "functionCall" in part]
    calls = [ServedCall(call.get("id", ""), call["name"], call.get("args", {})) for call in found]
    text = "".join(part["text"] for part in parts if "text" in part and not part.get("thought"))
    reasons = [one["finishReason"] for one in candidates if "finishReason" in one]
    end = _GEMINI_ENDS.get(reasons[-1], "refused") if reasons else "refused"
    kept = [part for part in parts if not part.get("thought")]
    items = [{"parts": kept, "role": "model"}]
    return ServedAnswer(text=text, calls=calls, end="tool" if calls and end == "stop" else end, items=items)


_CHAT_ENDS: dict[str, AnswerEnd] = {
    "tool_calls": "tool",
    "function_call": "tool",
    "length": "length",
    "content_filter": "refused",
}


def _chat(values: list[dict[str, Any]], stream: bool) -> ServedAnswer:
    choices = [choice for value in values for choice in value["choices"] if choice["index"] == 0]
    key = "delta" if stream else "message"
    message = _folded_message(choice[key] for choice in choices if choice.get(key))
    reason = next(
        (choice["finish_reason"] for choice in reversed(choices) if choice.get("finish_reason")), ""
    )
    calls = [
        ServedCall(call["id"], call["function"]["name"], _object(call["function"]["arguments"]))
        for call in message.get("tool_calls", ())
        if "function" in call
    ]
    end = "refused" if message.pop("refusal", "") else _CHAT_ENDS.get(reason, "stop")
    return ServedAnswer(text=message["content"] or "", calls=calls, end=end, items=[message])


def _folded_message(deltas: Iterable[dict[str, Any]]) -> dict[str, Any]:
    texts = {"content": "", "reasoning_content": "", "refusal": ""}
    calls: list[dict[str, Any]] = []
    for delta in deltas:
        for name in texts:
            texts[name] += delta.get(name) or ""
        for entry in delta.get("tool_calls") or ():
            _add_call(calls, entry)
    message: dict[str, Any] = {"role": "assistant", "content": texts["content"] or None}
    message |= {name: texts[name] for name in ("reasoning_content", "refusal") if texts[name]}
    return message | ({"tool_calls": calls} if calls else {})


def _add_call(calls: list[dict[str, Any]], entry: dict[str, Any]) -> None:
    index = entry.get("index", len(calls))
    if index == len(calls):
        calls.append({name: value for name, value in entry.items() if name != "index"})
        return
    for kind, name in (("function", "arguments"), ("custom", "input")):
        more = (entry.get(kind) or {}).get(name)
        if more:
            calls[index][kind] = {**calls[index][kind], name: calls[index][kind][name] + more}


_READERS: dict[ProtocolName, Callable[[list[dict[str, Any]], bool], ServedAnswer]] = {
    "messages": _messages,
    "responses": _responses,
    "gemini": _gemini,
    "chat": _chat,
}


class ServedError(Struct, frozen=True, kw_only=True):
    """An error as the agent receives it."""

    status: int
    code: str
    message: str


def read_error(status: int, body: bytes) -> ServedError:
    """Read an error response of the gateway; the gateway's own code is at the top level."""
    value = _lenient(body)
    error = value.get("error")
    inner = error if isinstance(error, dict) else {}
    message = str(inner.get("message") or error or body[:200].decode(errors="replace"))
    code = value.get("code") or inner.get("code") or ""
    return ServedError(status=status, code=str(code), message=message)


def stream_error(body: bytes) -> str | None:
    """Return the message of the error that ends a stream; None if it does not end with one."""
    last = next(_last_objects(body), {})
    response = last.get("response")
    holder = response if isinstance(response, dict) else last
    error = holder.get("error")
    return str(error["message"]) if isinstance(error, dict) and error.get("message") else None


def _last_objects(body: bytes) -> Iterator[dict[str, Any]]:
    for line in reversed(body.splitlines()):
        if line.startswith(b"data: "):
            yield _lenient(line[6:])


def _lenient(body: bytes) -> dict[str, Any]:
    try:
        value = json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}
