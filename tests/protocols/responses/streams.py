"""Upstream streams as test data, built from events."""

from __future__ import annotations

import json
from typing import Any

CALL = {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "f", "status": "completed"}
MESSAGE = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed"}
REASONING = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "hm\n\nso"}]}
USAGE = {
    "input_tokens": 10,
    "input_tokens_details": {"cached_tokens": 4},
    "output_tokens": 5,
    "output_tokens_details": {"reasoning_tokens": 2},
    "total_tokens": 15,
}

REQUEST_FIELDS: dict[str, Any] = {
    "background": False,
    "frequency_penalty": 0.0,
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "presence_penalty": 0.0,
    "previous_response_id": None,
    "prompt_cache_key": None,
    "reasoning": {"effort": None, "summary": None},
    "safety_identifier": None,
    "service_tier": "default",
    "store": True,
    "temperature": 1.0,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_logprobs": 0,
    "top_p": 1.0,
    "truncation": "disabled",
}
"""Fields of the response object that repeat the request."""


def frame(kind: str, **fields: Any) -> bytes:
    data = json.dumps({"type": kind, **fields}, ensure_ascii=False)
    return f"event: {kind}\ndata: {data}\n\n".encode()


def numbered(first: int, *frames: bytes) -> list[bytes]:
    """Return the frames with consecutive sequence numbers."""
    # Not `frame`: Python 3.12.0 and 3.12.1 take the function of that name for the loop's variable.
    found = [json.loads(each.partition(b"data: ")[2]) for each in frames]
    return [
        frame(**{"kind": one.pop("type"), "sequence_number": at, **one})
        for at, one in enumerate(found, first)
    ]


def response(status: str = "completed", **fields: Any) -> dict[str, Any]:
    """Return the response object with every field of the Open Responses specification, as OpenAI sends it."""
    fixed = {"id": "resp_1", "object": "response", "created_at": 7, "model": "gpt", "status": status}
    done = {"completed_at": 9 if status == "completed" else None, "usage": None}
    state: dict[str, Any] = {"error": None, "incomplete_details": None, "output": [], **done}
    return {**fixed, **state, **REQUEST_FIELDS, **fields}


def text_item(text: str) -> dict[str, Any]:
    return {**MESSAGE, "content": [{"type": "output_text", "text": text, "annotations": []}]}


def call_item(arguments: str) -> dict[str, Any]:
    return {**CALL, "arguments": arguments}


REASONING_DONE = {**REASONING, "encrypted_content": "gAAA"}
OUTPUT = [REASONING_DONE, text_item("héllo"), call_item('{"a":1}')]

CREATED = [
    frame("response.created", sequence_number=0, response=response("in_progress")),
    frame("response.in_progress", sequence_number=1, response=response("in_progress")),
]
REASONING_FRAMES = numbered(
    2,
    frame(
        "response.output_item.added", output_index=0, item={"type": "reasoning", "id": "rs_1", "summary": []}
    ),
    frame("response.reasoning_summary_part.added", item_id="rs_1", output_index=0, summary_index=0),
    frame(
        "response.reasoning_summary_text.delta", item_id="rs_1", output_index=0, summary_index=0, delta="hm"
    ),
    frame("response.reasoning_summary_text.done", item_id="rs_1", output_index=0, summary_index=0, text="hm"),
    frame(
        "response.reasoning_summary_text.delta", item_id="rs_1", output_index=0, summary_index=1, delta="so"
    ),
    frame("response.output_item.done", output_index=0, item=REASONING_DONE),
)
TEXT_FRAMES = numbered(
    8,
    frame("response.output_item.added", output_index=1, item={**MESSAGE, "content": []}),
    frame("response.content_part.added", item_id="msg_1", output_index=1, content_index=0, part={}),
    frame("response.output_text.delta", item_id="msg_1", output_index=1, content_index=0, delta="hé"),
    frame("response.output_text.delta", item_id="msg_1", output_index=1, content_index=0, delta="llo"),
    frame("response.output_text.done", item_id="msg_1", output_index=1, content_index=0, text="héllo"),
    frame("response.content_part.done", item_id="msg_1", output_index=1, content_index=0, part={}),
    frame("response.output_item.done", output_index=1, item=text_item("héllo")),
)
CALL_FRAMES = numbered(
    15,
    frame("response.output_item.added", output_index=2, item=call_item("")),
    frame("response.function_call_arguments.delta", item_id="fc_1", output_index=2, delta='{"a"'),
    frame("response.function_call_arguments.delta", item_id="fc_1", output_index=2, delta=":1}"),
    frame("response.function_call_arguments.done", item_id="fc_1", output_index=2, arguments='{"a":1}'),
    frame("response.output_item.done", output_index=2, item=call_item('{"a":1}')),
)
COMPLETED = [
    frame("response.completed", sequence_number=20, response=response(output=OUTPUT, usage=USAGE)),
]
FULL = [*CREATED, *REASONING_FRAMES, *TEXT_FRAMES, *CALL_FRAMES, *COMPLETED]
