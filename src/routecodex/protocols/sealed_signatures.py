"""Seals a signature with its provider's name, so that it returns only there.

Within one protocol a signature passes unchanged. In an answer converted to another protocol it is
`rcx1.<provider>.<signature>`; the client echoes it, and `unseal` returns the provider.
"""

from __future__ import annotations

SEAL = "rcx1."


def seal(provider: str, signature: str) -> str:
    """Return the signature with its provider's name."""
    return f"{SEAL}{provider}.{signature}"


def unseal(value: str) -> tuple[str | None, str]:
    """Return (provider, signature); the provider is None if the value is not sealed."""
    if not value.startswith(SEAL):
        return None, value
    provider, dot, signature = value[len(SEAL) :].partition(".")
    return (provider, signature) if dot else (None, value)


def returns_to(provider: str, *, origin: str | None, same_protocol: bool) -> bool:
    """Whether a signature made by `origin` (None: unknown) may be sent to `provider`."""
    return origin == provider or (origin is None and same_protocol)
