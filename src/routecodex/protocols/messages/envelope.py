"""What a streamed and a whole answer have in common: head, blocks and end of a message for a client."""

from __future__ import annotations

from typing import Any

from routecodex.canon import finish
from routecodex.canon.finish import Finish
from routecodex.canon.parts import Json, Reasoning, ToolCall
from routecodex.canon.usage import Usage
from routecodex.protocols.codec import ReplyContext
from routecodex.protocols.messages import signatures
from routecodex.protocols.messages.names import NAME, CallIds
from routecodex.protocols.messages.usage import usage_object
from routecodex.protocols.tools import ToolNames, flat_call

Fields = dict[str, Any]

_CITATIONS = frozenset(
    {
        "char_location",
        "page_location",
        "content_block_location",
        "web_search_result_location",
        "search_result_location",
    }
)


def head(reply: ReplyContext, *, model: str, usage: Usage) -> Fields:
    """A message with nothing in it yet."""
    return {
        "id": f"msg_{reply.id}",
        "type": "message",
        "role": "assistant",
        "model": model or reply.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": usage_object(usage),
    }


def end(reply: ReplyContext, ending: Finish, *, extras: dict[str, Json] | None = None) -> Fields:
    """How a message says why it ended."""
    word = finish.express(NAME, ending, knows_refusal=reply.knows_refusal)
    out: Fields = {"stop_reason": word, "stop_sequence": ending.sequence if word == "stop_sequence" else None}
    details = (extras or {}).get("stop_details")
    if isinstance(details, dict) and word == "refusal":
        out["stop_details"] = details
    return out


def corrected(reply: ReplyContext, ending: Finish) -> str:
    """The word for an answer that passes: the provider's own, unless it is wrong or the client lacks it."""
    said = ending.said
    if said is None or said == "tool_use" or ending.reason == "tool_calls":
        return finish.express(NAME, ending)
    if ending.reason in ("refusal", "content_filter"):
        return finish.express(NAME, ending, knows_refusal=reply.knows_refusal)
    return said


def ends_with_stop(reply: ReplyContext, ending: Finish) -> bool:
    """Whether a stream with this end is closed by `message_stop`."""
    return reply.end_tool_turn or ending.reason != "tool_calls"


def is_citation(annotation: Json) -> bool:
    """Whether an annotation is one that messages clients can read."""
    kind = annotation.get("type") if isinstance(annotation, dict) else None
    return isinstance(kind, str) and kind in _CITATIONS


class BlockEncoder:
    """Ids, names and signatures of one answer, as its client shall see them."""

    def __init__(self, reply: ReplyContext) -> None:
        self._reply = reply
        self._ids = CallIds()
        self._made = 0
        self._names = ToolNames(reply.request.tools if reply.request is not None else ())

    def call(self, call: ToolCall) -> Fields:
        """A `tool_use` block without its input."""
        said = call.id
        if not said:
            self._made += 1
            said = f"toolu_{self._reply.id}_{self._made}"
        name, _, _ = self._names.resolve(flat_call(call) if call.namespace else call.name)
        return {"type": "tool_use", "id": self._ids.fresh(said), "name": name, "input": {}}

    def carrier(self, call_id: str, signature: str | None) -> Fields | None:
        """The block that keeps a call's signature for its maker; None when there is nothing to keep."""
        provider = self._reply.provider
        if not signature or not provider:
            return None
        data = signatures.carry(provider, call_id, signature=signature)
        return {"type": "redacted_thinking", "data": data}

    def signature(self, signature: str | None) -> str:
        """A thought's signature, sealed with the name of its maker."""
        return signatures.sealed(self._reply.provider, signature)

    def thought(self, part: Reasoning) -> Fields | None:
        """The block for a whole thought; None when there is nothing in it."""
        if not part.text and not part.signature:
            return None
        signature = self.signature(part.signature)
        if part.redacted:
            return {"type": "redacted_thinking", "data": signature}
        return {"type": "thinking", "thinking": part.text, "signature": signature}
