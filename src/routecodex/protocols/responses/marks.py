"""What rides in `encrypted_content` besides a sealed thought.

Clients echo a reasoning item's `encrypted_content` and little else, so what has no field of its own travels
there under the seal: who made a thought without signature, that one was `redacted`, the signature of a call.
"""

from __future__ import annotations

from routecodex.protocols import seals

_REDACTED = "redacted:"
_CALL = "call:"


def sealed_thought(provider: str, signature: str, *, redacted: bool) -> str | None:
    """A thought's signature, or just its maker's name, for the client; unsealed when there is no name."""
    if not provider:
        return signature or None
    return seals.seal(provider, f"{_REDACTED if redacted else ''}{signature}")


def sealed_call(provider: str, call_id: str, signature: str) -> str:
    """The signature of a call, as the content of a reasoning item that goes with it."""
    return seals.seal(provider, f"{_CALL}{len(call_id)}:{call_id}{signature}")


def unmark(value: str | None) -> tuple[str | None, str, str | None]:
    """(maker, mark, signature): the mark is "", "redacted" or "call.<call id>"."""
    if value is None:
        return None, "", None
    origin, signature = seals.unseal(value)
    if origin is None:
        return None, "", value
    if signature.startswith(_REDACTED):
        return origin, "redacted", signature[len(_REDACTED) :]
    size, colon, tail = signature.removeprefix(_CALL).partition(":")
    if signature.startswith(_CALL) and colon and size.isdigit():
        return origin, f"call.{tail[: int(size)]}", tail[int(size) :]
    return origin, "", signature or None
