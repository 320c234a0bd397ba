"""A messages request for a messages provider: only what must change is changed.

The model's name is spliced into the bytes. Thoughts made by another provider are taken out, and those without
a signature where the provider refuses them; thoughts sealed for this one are unsealed. Every other block
keeps the bytes it came as.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Raw
from msgspec.json import Decoder

from routecodex.canon.notices import Notices
from routecodex.protocols import sealed_signatures
from routecodex.protocols.codec import EncodedRequest, EncodeOptions, WireRequest
from routecodex.protocols.large_body import replace_model
from routecodex.protocols.messages.schema import RequestBody, WireMessage, WirePart
from routecodex.protocols.messages.thinking import FOREIGN, UNSIGNED, carried_signature
from routecodex.wire import json

_raws: Decoder[list[Raw]] = Decoder(list[Raw])
_THINKING_BLOCKS = ("thinking", "redacted_thinking")
_RESULT_BLOCKS = ("tool_result",)

SignatureChanges = dict[int, dict[int, str | None]]
"""By message and block: the signature a thought shall have instead, or None when it is taken out."""


def rewrite(inbound: WireRequest, aim: EncodeOptions) -> EncodedRequest:
    """The request as it came, for the model and provider aimed at."""
    notices = Notices()
    body = inbound.body
    wire: RequestBody = inbound.wire
    verdicts = _signature_changes(wire, aim)
    unwanted = [name for name in aim.dialect.unsupported if b'"%s"' % name.encode() in body]
    halt = None if wire.thinking is None else _thinking_obstacle(wire, verdicts, aim)
    if not verdicts and not unwanted and halt is None:
        outline = inbound.keys() if inbound.outline else b""
        return EncodedRequest(replace_model(body, aim.model, named=wire.model, outline=outline))
    fields = json.read_fields(body)
    for name in unwanted:
        if fields.pop(name, None) is not None:
            notices.dropped(name, "this provider does not take it")
    if verdicts:
        _apply_changes(fields, verdicts)
        for why in _drop_reasons(wire, verdicts, aim):
            notices.dropped("reasoning", why)
    if halt is not None and fields.pop("thinking", None) is not None:
        notices.dropped("thinking", halt)
        if b"clear_thinking" in bytes(fields.get("context_management", json.ABSENT)):
            fields.pop("context_management")
    if wire.model != aim.model:
        fields["model"] = Raw(json.encode(aim.model))
    return EncodedRequest(json.encode(fields), notices.lines())


def _signature_changes(wire: RequestBody, aim: EncodeOptions) -> SignatureChanges:
    verdicts: SignatureChanges = {}
    for number, turn in enumerate(wire.messages):
        if turn.role != "assistant" or isinstance(turn.content, str):
            continue
        changed = {}
        for place, block in enumerate(turn.content):
            sealed = _signature_of(block)
            if sealed is None:
                continue
            verdict = _changed_signature(sealed, aim)
            if verdict != sealed:
                changed[place] = verdict
        if changed:
            verdicts[number] = changed
    return verdicts


def _signature_of(block: WirePart) -> str | None:
    if block.type == "thinking":
        return block.signature or ""
    return block.data if block.type == "redacted_thinking" else None


def _changed_signature(signature: str, aim: EncodeOptions) -> str | None:
    maker, inner = sealed_signatures.unseal(signature)
    if maker is not None and aim.made_here(signature):
        return signature
    if not inner and not aim.dialect.unsigned_thoughts:
        return None
    if maker is None:
        return signature if not signature or aim.is_ours(signature) else None
    return inner if maker == aim.provider and carried_signature(signature) is None else None


def _apply_changes(fields: dict[str, Raw], verdicts: SignatureChanges) -> None:
    messages = _raws.decode(fields["messages"])
    kept: list[Raw] = []
    for number, message in enumerate(messages):
        changed = _edited_message(message, verdicts[number]) if number in verdicts else message
        if changed is not None:
            kept.append(changed)
    fields["messages"] = Raw(json.encode(kept))


def _drop_reasons(wire: RequestBody, verdicts: SignatureChanges, aim: EncodeOptions) -> Iterator[str]:
    """Why thoughts were taken out, each in turn."""
    for number, changes in verdicts.items():
        for place, verdict in changes.items():
            block = wire.messages[number].content[place]
            if verdict is None and isinstance(block, WirePart):
                maker, inner = sealed_signatures.unseal(_signature_of(block) or "")
                yield UNSIGNED if not inner and maker in (None, aim.provider) else FOREIGN


def _edited_message(message: Raw, changes: dict[int, str | None]) -> Raw | None:
    """The message with its thoughts as the verdicts say; None when nothing is left of it."""
    parts = json.read_fields(bytes(message))
    blocks: list[Raw] = []
    for place, block in enumerate(_raws.decode(parts["content"])):
        if place not in changes:
            blocks.append(block)
            continue
        signature = changes[place]
        if signature is not None:
            blocks.append(_with_signature(block, signature))
    if not blocks:
        return None
    parts["content"] = Raw(json.encode(blocks))
    return Raw(json.encode(parts))


def _with_signature(block: Raw, signature: str) -> Raw:
    fields = json.read_fields(bytes(block))
    fields["signature" if "signature" in fields else "data"] = Raw(json.encode(signature))
    return Raw(json.encode(fields))


def _thinking_obstacle(wire: RequestBody, verdicts: SignatureChanges, aim: EncodeOptions) -> str | None:
    """Why a tool turn under way can only go on without thinking; None when it can go on with it."""
    asked = wire.thinking
    if asked is None or asked.type != "enabled" or not _holds(wire.messages[-1], _RESULT_BLOCKS):
        return None
    if None in verdicts.get(len(wire.messages) - 2, {}).values():
        return "the tool turn under way began at another provider"
    if aim.dialect.unthought_turns or _turn_has_thinking(wire.messages, verdicts):
        return None
    return "the tool turn under way began without it"


def _turn_has_thinking(messages: list[WireMessage], verdicts: SignatureChanges) -> bool:
    """Whether any message of the tool turn under way keeps a thought: a model may think once for it all."""
    for number in range(len(messages) - 1, -1, -1):
        turn = messages[number]
        if turn.role == "assistant":
            gone = [place for place, verdict in verdicts.get(number, {}).items() if verdict is None]
            if _holds(turn, _THINKING_BLOCKS, but=gone):
                return True
        elif turn.role == "user" and not _holds(turn, _RESULT_BLOCKS):
            return False
    return False


def _holds(turn: WireMessage, kinds: tuple[str, ...], but: Sequence[int] = ()) -> bool:
    if isinstance(turn.content, str):
        return False
    return any(block.type in kinds and place not in but for place, block in enumerate(turn.content))
