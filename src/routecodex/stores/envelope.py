"""What a file of the store holds: a value with its version, expiry and key; pure functions, no IO."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import msgspec
from msgspec import Meta, Raw, Struct

from routecodex.stores import names
from routecodex.stores.store import Stored, StoreError, check_value

KeyOf = Callable[[bytes], str]
"""Gives the key of a bare value; ValueError when the value is not what the space is for."""


class Envelope(Struct, frozen=True):
    """A file as it is on disk."""

    version: Annotated[int, Meta(ge=1)]
    expires: float | None
    key: str
    value: Raw


class Damaged(Exception):
    """A file does not hold what its name promises."""


_ENVELOPES = msgspec.json.Decoder(Envelope)


def decode_value(name: str, content: bytes) -> Envelope:
    """The envelope in a file of this name."""
    try:
        content.decode()
        envelope = _ENVELOPES.decode(content)
    except (UnicodeDecodeError, msgspec.DecodeError, RecursionError) as exc:
        raise Damaged(str(exc)) from exc
    if names.encode_name(envelope.key) != name:
        raise Damaged("it holds the value of another key")
    return envelope


def decode_bare(name: str, content: bytes, *, key_of: KeyOf, mtime_ns: int) -> Envelope:
    """The envelope that a file without one would have."""
    try:
        check_value(content)
        key = key_of(content)
        whose = names.encode_name(key)
    except (ValueError, StoreError, RecursionError) as exc:
        raise Damaged(str(exc)) from exc
    if whose != name:
        raise Damaged("it holds the value of another key")
    return Envelope(version=max(1, mtime_ns // 1000), expires=None, key=key, value=Raw(content))


def encode_value(key: str, stored: Stored) -> bytes:
    """The bytes of a file, a line for each field."""
    return b'{\n  "version": %d,\n  "expires": %s,\n  "key": %s,\n  "value": %s\n}\n' % (
        stored.version,
        msgspec.json.encode(stored.expires),
        msgspec.json.encode(key),
        stored.value,
    )
