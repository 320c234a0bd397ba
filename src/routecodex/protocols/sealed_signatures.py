"""Seals a signature with its provider's name, so that it returns only there.

Signatures that cross protocols: sealed with their maker's name, so that they go back only to it.

Within one protocol a signature passes byte for byte. When an answer is re-encoded for another protocol its
signature leaves as `rcx1.<provider>.<signature>`; the client echoes it, and `unseal` tells who made it.
"""

from __future__ import annotations

SEAL = "rcx1."


def seal(provider: str, signature: str) -> str:
    """The signature with its maker's name on it."""
    return f"{SEAL}{provider}.{signature}"


def unseal(value: str) -> tuple[str | None, str]:
    """(maker, signature); the maker is None when the value carries no seal of ours."""
    if not value.startswith(SEAL):
        return None, value
    provider, dot, signature = value[len(SEAL) :].partition(".")
    return (provider, signature) if dot else (None, value)


def returns_to(provider: str, *, origin: str | None, same_protocol: bool) -> bool:
    """Whether a signature made by `origin` (None: unknown) may be sent to `provider`."""
    return origin == provider or (origin is None and same_protocol)
