"""Thought signatures on this wire: base64, always.

Google's SDKs decode `thoughtSignature` as base64 and write it back in either alphabet (Python: the URL-safe
one). So a seal of ours (seals.py) is itself base64 here, and signatures are compared in one alphabet.
"""

from __future__ import annotations

import base64
import binascii

from routecodex.protocols.codec import EncodeOptions
from routecodex.protocols.seals import SEAL, returns_to, seal, unseal

_WRAPPED = "cmN4MS"
"""How base64 of anything sealed begins."""
_STANDARD = str.maketrans("-_", "+/")

SKIP = "skip_thought_signature_validator"
"""Google's own word for calls of a history that never had a signature."""


def outgoing(provider: str, signature: str) -> str:
    """The signature as a client gets it: sealed when a provider's name is given."""
    return base64.b64encode(seal(provider, signature).encode()).decode() if provider else signature


def incoming(value: str) -> tuple[str | None, str]:
    """(maker, signature) of what a client sent back; the maker is None when it carries no seal."""
    if value.startswith(SEAL):
        return unseal(value)
    if not value.startswith(_WRAPPED):
        return None, value
    padded = value.translate(_STANDARD) + "=" * (-len(value) % 4)
    try:
        origin, signature = unseal(base64.b64decode(padded).decode())
    except (binascii.Error, UnicodeDecodeError):
        return None, value
    return (origin, signature) if origin is not None else (None, value)


def standard(signature: str) -> str:
    """The signature in the standard alphabet, for comparing."""
    return signature.translate(_STANDARD)


def returnable(aim: EncodeOptions, signature: str, *, origin: str | None, same_protocol: bool) -> bool:
    """Whether the signature may go to the upstream that is aimed at."""
    if not returns_to(aim.provider, origin=origin, same_protocol=same_protocol):
        return False
    return origin is not None or aim.is_ours(standard(signature))
