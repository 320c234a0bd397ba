"""Rewrites a messages request for a messages provider; bytes that need not change stay.

The model name is replaced in the bytes. Thinking blocks of another provider are removed, and unsigned ones if
the provider rejects them; those sealed for this provider are unsealed. Citations that the gateway made of
those of another protocol are removed, and for every provider but Anthropic Claude Code's billing header.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import Raw
from msgspec.json import Decoder

from routecodex.canon.notices import Notices
from routecodex.canon.parts import Json
from routecodex.protocols import large_body, sealed_signatures
from routecodex.protocols.billing_header import HEADER_REACH, begins_with_header, without_header
from routecodex.protocols.codec import EncodedRequest, EncodeOptions, WireRequest
from routecodex.protocols.message_features import TextValue, beginning
from routecodex.protocols.messages.content import MADE_CITATION, returnable_citations
from routecodex.protocols.messages.schema import RequestBody, WireMessage, WirePart
from routecodex.protocols.messages.thinking import FOREIGN, UNSIGNED, carried_signature
from routecodex.protocols.tool_schemas import plain_parameters
from routecodex.wire import json
from routecodex.wire.json import ABSENT

_raws: Decoder[list[Raw]] = Decoder(list[Raw])
_THINKING_BLOCKS = ("thinking", "redacted_thinking")
_RESULT_BLOCKS = ("tool_result",)
_MADE = MADE_CITATION.encode()

SignatureChanges = dict[int, dict[int, str | None]]
"""New signatures of thinking blocks by message and block; None removes the block.

MADE_CITATION stands for a text block whose citations the gateway made.
"""


def rewrite(request: WireRequest, options: EncodeOptions) -> EncodedRequest:
    """Rewrite the request for this upstream; unchanged fields stay byte for byte."""
    notices = Notices()
    body = request.body
    wire: RequestBody = request.view
    changes = _signature_changes(wire, options)
    unsupported = [name for name in options.dialect.unsupported if b'"%s"' % name.encode() in body]
    obstacle = None if wire.thinking is None else _thinking_obstacle(wire, changes, options)
    composed = [] if options.dialect.composed_schemas else _composed_tools(wire)
    header = not options.billing_header and any(_has_header(text) for text in _system_texts(request))
    if not changes and not unsupported and obstacle is None and not composed and not header:
        outline = request.current_outline() if request.outline else b""
        return EncodedRequest(
            large_body.replace_model(body, options.model, named=wire.model, outline=outline)
        )
    fields = json.read_fields(body)
    for name in unsupported:
        if fields.pop(name, None) is not None:
            notices.dropped(name, "this provider rejects it")
    if header:
        _strip_header(fields)
    if changes:
        _apply_changes(fields, changes)
        for reason in _drop_reasons(wire, changes, options):
            notices.dropped("reasoning", reason)
    if obstacle is not None and fields.pop("thinking", None) is not None:
        notices.dropped("thinking", obstacle)
        # Anthropic rejects clear_thinking (context editing) without thinking.
        if b"clear_thinking" in bytes(fields.get("context_management", json.ABSENT)):
            fields.pop("context_management")
    if composed and "tools" in fields:
        fields["tools"] = _plain_tools(fields["tools"], composed, notices)
    if wire.model != options.model:
        fields["model"] = Raw(json.encode(options.model))
    return EncodedRequest(json.encode(fields), notices.lines())


def _composed_tools(wire: RequestBody) -> list[int]:
    """Return the positions of tools with a schema that Anthropic rejects (tool_schemas.py)."""
    tools = wire.tools or ()
    schemas = ((number, tool.input_schema) for number, tool in enumerate(tools))
    return [number for number, schema in schemas if schema is not None and schema.composed]


def _plain_tools(tools: Raw, composed: list[int], notices: Notices) -> Raw:
    """Return the tools, with plain schemas at these positions."""
    edited = _raws.decode(tools)
    for number in composed:
        fields = json.read_fields(bytes(edited[number]))
        name = json.decode(bytes(fields["name"]))
        schema = json.decode(bytes(fields["input_schema"]))
        plain = plain_parameters(schema, tool=name, protocol="messages", notices=notices)
        edited[number] = Raw(json.encode({**fields, "input_schema": plain}))
    return Raw(json.encode(edited))


def _system_texts(request: WireRequest) -> Iterator[TextValue]:
    system = request.view.system
    if isinstance(system, str):
        yield large_body.restore_text(system, request.original)
        return
    for block in system or ():
        if block.type == "text":
            yield large_body.restore_text(block.text, request.original)


def _has_header(text: TextValue) -> bool:
    return begins_with_header(beginning(text, HEADER_REACH))


def _strip_header(fields: dict[str, Raw]) -> None:
    """Remove the billing header, and the blocks that hold nothing else."""
    system = json.decode_raw(fields["system"])
    if isinstance(system, str):
        left: Any = without_header(system)
    else:
        blocks = (_without_header(block) for block in system)
        left = [block for block in blocks if block is not None]
    if left:
        fields["system"] = Raw(json.encode(left))
    else:
        del fields["system"]


def _without_header(block: dict[str, Any]) -> dict[str, Any] | None:
    text = block.get("text")
    if not isinstance(text, str) or not begins_with_header(text):
        return block
    left = without_header(text)
    return {**block, "text": left} if left else None


def _signature_changes(wire: RequestBody, options: EncodeOptions) -> SignatureChanges:
    changes: SignatureChanges = {}
    for number, message in enumerate(wire.messages):
        if message.role != "assistant" or isinstance(message.content, str):
            continue
        changed: dict[int, str | None] = {}
        for at, block in enumerate(message.content):
            sealed = _signature_of(block)
            if sealed is None:
                if block.citations is not ABSENT and _MADE in bytes(block.citations):
                    changed[at] = MADE_CITATION
                continue
            signature = _changed_signature(sealed, options)
            if signature != sealed:
                changed[at] = signature
        if changed:
            changes[number] = changed
    return changes


def _signature_of(block: WirePart) -> str | None:
    if block.type == "thinking":
        return block.signature or ""
    return block.data if block.type == "redacted_thinking" else None


def _changed_signature(signature: str, options: EncodeOptions) -> str | None:
    owner, inner = sealed_signatures.unseal(signature)
    if owner is not None and options.issued_signature(signature):
        return signature
    if not inner and not options.dialect.unsigned_thoughts:
        return None
    if owner is None:
        return signature if not signature or options.accepts_signature(signature) else None
    return inner if owner == options.provider and carried_signature(signature) is None else None


def _apply_changes(fields: dict[str, Raw], changes: SignatureChanges) -> None:
    messages = _raws.decode(fields["messages"])
    edited: list[Raw] = []
    for number, message in enumerate(messages):
        changed = _edited_message(message, changes[number]) if number in changes else message
        if changed is not None:
            edited.append(changed)
    fields["messages"] = Raw(json.encode(edited))


def _drop_reasons(wire: RequestBody, changes: SignatureChanges, options: EncodeOptions) -> Iterator[str]:
    """Yield the reason for each removed thinking block."""
    for number, signatures in changes.items():
        for at, signature in signatures.items():
            block = wire.messages[number].content[at]
            if signature is None and isinstance(block, WirePart):
                owner, inner = sealed_signatures.unseal(_signature_of(block) or "")
                yield UNSIGNED if not inner and owner in (None, options.provider) else FOREIGN


def _edited_message(message: Raw, signatures: dict[int, str | None]) -> Raw | None:
    """Return the message with its changed thinking blocks; None if no block is left."""
    parts = json.read_fields(bytes(message))
    blocks: list[Raw] = []
    for at, block in enumerate(_raws.decode(parts["content"])):
        if at not in signatures:
            blocks.append(block)
            continue
        signature = signatures[at]
        if signature == MADE_CITATION:
            blocks.append(_without_made_citations(block))
        elif signature is not None:
            blocks.append(_with_signature(block, signature))
    if not blocks:
        return None
    parts["content"] = Raw(json.encode(blocks))
    return Raw(json.encode(parts))


def _with_signature(block: Raw, signature: str) -> Raw:
    fields = json.read_fields(bytes(block))
    fields["signature" if "signature" in fields else "data"] = Raw(json.encode(signature))
    return Raw(json.encode(fields))


def _without_made_citations(block: Raw) -> Raw:
    fields: dict[str, Json] = {**json.read_fields(bytes(block))}
    own = returnable_citations(json.decode_raw(fields.pop("citations")))
    return Raw(json.encode({**fields, "citations": own} if own else fields))


def _thinking_obstacle(wire: RequestBody, changes: SignatureChanges, options: EncodeOptions) -> str | None:
    """Return the reason why the current tool turn must continue without thinking; None if it need not."""
    thinking = wire.thinking
    if thinking is None or thinking.type != "enabled":
        return None
    # Claude Code puts system messages between and behind the others.
    newest_first = (at for at in reversed(range(len(wire.messages))) if wire.messages[at].role != "system")
    newest, before = next(newest_first, -1), next(newest_first, -1)
    if newest < 0 or not _holds(wire.messages[newest], _RESULT_BLOCKS):
        return None
    if None in changes.get(before, {}).values():
        return "the current tool turn began at another provider"
    if options.dialect.unthought_turns or _turn_has_thinking(wire.messages, changes):
        return None
    return "the current tool turn began without it"


def _turn_has_thinking(messages: list[WireMessage], changes: SignatureChanges) -> bool:
    """Whether a message of the current tool turn keeps a thinking block: one is enough for the whole turn."""
    for number in range(len(messages) - 1, -1, -1):
        message = messages[number]
        if message.role == "assistant":
            removed = [at for at, signature in changes.get(number, {}).items() if signature is None]
            if _holds(message, _THINKING_BLOCKS, without=removed):
                return True
        elif message.role == "user" and not _holds(message, _RESULT_BLOCKS):
            return False
    return False


def _holds(message: WireMessage, kinds: tuple[str, ...], without: Sequence[int] = ()) -> bool:
    if isinstance(message.content, str):
        return False
    return any(block.type in kinds and at not in without for at, block in enumerate(message.content))
