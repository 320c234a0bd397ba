"""A messages request for a messages provider: only what must change is changed.

The model's name is spliced into the bytes. Thoughts made by another provider are taken out, thoughts sealed
for this one are unsealed; every other block keeps the bytes it came as.
"""

from __future__ import annotations

from msgspec import Raw
from msgspec.json import Decoder

from routecodex.protocols import seals
from routecodex.protocols.codec import Aim, Encoded, Inbound
from routecodex.protocols.messages.schema import Block, Body
from routecodex.protocols.messages.signatures import carried
from routecodex.protocols.notices import Notices
from routecodex.protocols.splice import with_model
from routecodex.wire import json

_raws: Decoder[list[Raw]] = Decoder(list[Raw])

Verdicts = dict[int, dict[int, str | None]]
"""By message and block: the signature a thought shall have instead, or None when it is taken out."""


def rewrite(inbound: Inbound, aim: Aim) -> Encoded:
    """The request as it came, for the model and provider aimed at."""
    notices = Notices()
    body = inbound.body
    verdicts = _judge(inbound.wire, aim)
    unwanted = [name for name in aim.dialect.unsupported if b'"%s"' % name.encode() in body]
    if not verdicts and not unwanted:
        outline = inbound.keys() if inbound.outline else b""
        return Encoded(with_model(body, aim.model, named=inbound.wire.model, outline=outline))
    fields = json.read_fields(body)
    for name in unwanted:
        if fields.pop(name, None) is not None:
            notices.dropped(name, "this provider does not take it")
    if verdicts:
        _apply(fields, verdicts, inbound.wire, notices)
    if inbound.wire.model != aim.model:
        fields["model"] = Raw(json.encode(aim.model))
    return Encoded(json.encode(fields), notices.lines())


def _judge(wire: Body, aim: Aim) -> Verdicts:
    verdicts: Verdicts = {}
    for number, turn in enumerate(wire.messages):
        if turn.role != "assistant" or isinstance(turn.content, str):
            continue
        changed = {}
        for place, block in enumerate(turn.content):
            sealed = _sealed(block)
            if sealed is None:
                continue
            verdict = _verdict(sealed, aim)
            if verdict != sealed:
                changed[place] = verdict
        if changed:
            verdicts[number] = changed
    return verdicts


def _sealed(block: Block) -> str | None:
    if block.type == "thinking":
        return block.signature
    return block.data if block.type == "redacted_thinking" else None


def _verdict(signature: str, aim: Aim) -> str | None:
    maker, inner = seals.unseal(signature)
    if maker is not None and aim.made_here(signature):
        return signature
    if maker is None:
        return signature if not signature or aim.is_ours(signature) else None
    return inner if maker == aim.provider and carried(signature) is None else None


def _apply(fields: dict[str, Raw], verdicts: Verdicts, wire: Body, notices: Notices) -> None:
    messages = _raws.decode(fields["messages"])
    kept: list[Raw] = []
    for number, message in enumerate(messages):
        changed = _mended(message, verdicts[number]) if number in verdicts else message
        if changed is not None:
            kept.append(changed)
    fields["messages"] = Raw(json.encode(kept))
    if any(verdict is None for changes in verdicts.values() for verdict in changes.values()):
        notices.dropped("reasoning", "made by another provider")
        _stop_thinking(fields, verdicts, wire, notices)


def _mended(message: Raw, changes: dict[int, str | None]) -> Raw | None:
    """The message with its thoughts as the verdicts say; None when nothing is left of it."""
    parts = json.read_fields(bytes(message))
    blocks: list[Raw] = []
    for place, block in enumerate(_raws.decode(parts["content"])):
        if place not in changes:
            blocks.append(block)
            continue
        signature = changes[place]
        if signature is not None:
            blocks.append(_resigned(block, signature))
    if not blocks:
        return None
    parts["content"] = Raw(json.encode(blocks))
    return Raw(json.encode(parts))


def _resigned(block: Raw, signature: str) -> Raw:
    fields = json.read_fields(bytes(block))
    fields["signature" if "signature" in fields else "data"] = Raw(json.encode(signature))
    return Raw(json.encode(fields))


def _stop_thinking(fields: dict[str, Raw], verdicts: Verdicts, wire: Body, notices: Notices) -> None:
    """A tool turn under way that lost its thoughts can only go on without thinking."""
    last = len(wire.messages) - 2
    under_way = wire.messages[-1].role == "user" and not isinstance(wire.messages[-1].content, str)
    if wire.thinking is None or wire.thinking.type != "enabled" or last not in verdicts or not under_way:
        return
    if not any(
        block.type == "tool_result" for block in wire.messages[-1].content if isinstance(block, Block)
    ):
        return
    if all(verdict is not None for verdict in verdicts[last].values()):
        return
    notices.dropped("thinking", "the tool turn under way began at another provider")
    fields.pop("thinking", None)
    if b"clear_thinking" in bytes(fields.get("context_management", json.ABSENT)):
        fields.pop("context_management")
