"""Signatures that a messages client holds for us.

A thought's signature has its own field. The signature of a call has none in this protocol: it travels in a
`redacted_thinking` block beside the call, which clients give back untouched, as `call.<call id>.<signature>`
under the seal of its maker.
"""

from __future__ import annotations

from routecodex.canon.parts import Reasoning
from routecodex.protocols import seals
from routecodex.protocols.codec import EncodeOptions
from routecodex.protocols.messages.names import NAME

FOREIGN = "made by another provider"
UNSIGNED = "this provider takes none without a signature"

_CALL = "call."


def sealed(provider: str, signature: str | None) -> str:
    """The signature for a client; an unsigned thought is sealed too, so that its maker stays known."""
    return seals.seal(provider, signature or "") if provider else signature or ""


def carry(provider: str, call_id: str, *, signature: str) -> str:
    """A call's signature as the data of a `redacted_thinking` block."""
    return seals.seal(provider, f"{_CALL}{call_id}.{signature}")


def carried(data: str) -> tuple[str, str, str] | None:
    """(maker, call id, signature) from such data; None when it is an ordinary redacted thought."""
    maker, inner = seals.unseal(data)
    if maker is None or not inner.startswith(_CALL):
        return None
    call_id, _, signature = inner[len(_CALL) :].partition(".")
    return maker, call_id, signature


def obstacle(part: Reasoning, aim: EncodeOptions, *, source: str) -> str | None:
    """Why a thought may not be sent to the provider aimed at; None when it may."""
    if not seals.returns_to(aim.provider, origin=part.origin, same_protocol=source == NAME):
        return FOREIGN
    if not part.signature:
        return None if aim.dialect.unsigned_thoughts else UNSIGNED
    return None if part.origin is not None or aim.is_ours(part.signature) else FOREIGN
