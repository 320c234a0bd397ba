"""Signatures that a messages client holds for us.

A thought's signature has its own field. The signature of a call has none in this protocol: it travels in a
`redacted_thinking` block beside the call, which clients give back untouched, as `call.<call id>.<signature>`
under the seal of its maker.
"""

from __future__ import annotations

from routecodex.canon.parts import Reasoning
from routecodex.protocols import seals
from routecodex.protocols.codec import Aim
from routecodex.protocols.messages.names import NAME

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


def may_return(part: Reasoning, aim: Aim, *, source: str) -> bool:
    """Whether a thought may be sent to the provider aimed at."""
    if not seals.returns_to(aim.provider, origin=part.origin, same_protocol=source == NAME):
        return False
    return part.origin is not None or not part.signature or aim.is_ours(part.signature)
