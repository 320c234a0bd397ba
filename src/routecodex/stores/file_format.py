"""Names and contents of stored files; pure functions.

What a file of the store is called and stamped with: pure functions, no IO.

A key becomes a file name that says nothing to a file system: a-z, 0-9, `_` and `-` stay, every other byte of
its UTF-8 becomes `%` and two lower-case hex digits, capitals too, so that names differing only in case stay
apart on every file system. The empty key is a lone `%`. A key whose name would be long is `~` and its
SHA-256.

A file's modification time is when it was written, to the microsecond and strictly increasing within a space,
so that sorting by it gives the order of writing. The three digits below the microsecond carry the grade of
the time to live: 0 for none, else the n of the first step (1.02 ** (n - 1) seconds) that is not shorter. They
let trim pass over files that cannot have expired without opening them. They are a hint and no more: the exact
expiry stands in the file and is read before anything is deleted for it, so a file edited by hand, or a file
system with coarser times, costs a late deletion and never a value.

What a file of the store holds: a value with its version, expiry and key; pure functions, no IO.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from hashlib import sha256
from typing import Annotated

import msgspec
from msgspec import Meta, Raw, Struct

from routecodex.stores.store import Stored, StoreError, check_value

SUFFIX = ".json"
LONGEST = 120

_OTHERS = re.compile(rb"[^a-z0-9_-]")
_HASHED = re.compile(r"~[0-9a-f]{64}")
_ENCODED = re.compile(r"%|(?:[a-z0-9_-]|%[0-9a-f]{2})+")
_ESCAPE = re.compile(rb"%([0-9a-f]{2})")
# The clock keeps this file beside its task files; no session id may lay claim to its name.
_TAKEN = frozenset({"ntp-state"})

_STEP = 1.02
_GRADES = 999


def encode_name(key: str) -> str:
    """The file name of a key: another key never has it, and it is never a path."""
    if not key:
        return "%" + SUFFIX
    raw = key.encode()
    stem = _OTHERS.sub(_escaped, raw[: LONGEST + 1]).decode("ascii")
    if raw.startswith(b"-") or key in _TAKEN:
        stem = f"%{raw[0]:02x}{stem[1:]}"
    if len(stem) > LONGEST:
        stem = "~" + sha256(raw).hexdigest()
    return stem + SUFFIX


def _escaped(found: re.Match[bytes]) -> bytes:
    return b"%%%02x" % found[0][0]


def decode_name(name: str) -> str | None:
    """The key a file name stands for; None for a hashed name and for one that is not of our making."""
    stem = name.removesuffix(SUFFIX)
    if _ENCODED.fullmatch(stem) is None:
        return None
    if stem == "%":
        return ""
    try:
        key = _ESCAPE.sub(lambda match: bytes.fromhex(match[1].decode()), stem.encode()).decode()
    except UnicodeDecodeError:
        return None
    return key if encode_name(key) == name else None


def is_ours(name: str) -> bool:
    """Whether a file of this name holds a value of the store."""
    if not name.endswith(SUFFIX):
        return False
    return _HASHED.fullmatch(name.removesuffix(SUFFIX)) is not None or decode_name(name) is not None


def stamp(moment: int, ttl: float | None) -> int:
    """The modification time, in nanoseconds, of a file written at a moment in microseconds."""
    return moment * 1000 + _grade(ttl)


def may_have_expired(mtime_ns: int, now: float) -> bool:
    """Whether a file stamped so is worth opening to see if it has expired."""
    moment, grade = divmod(mtime_ns, 1000)
    if grade == 0:
        return False
    written = moment / 1e6
    # A stamp from the future tells of a clock that was wrong: it proves nothing about the age of the file.
    return written > now or written + _STEP ** (grade - 1) <= now


def _grade(ttl: float | None) -> int:
    if ttl is None:
        return 0
    if ttl <= 1:
        return 1
    return min(_GRADES, math.ceil(math.log(ttl, _STEP)) + 1)


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
    if encode_name(envelope.key) != name:
        raise Damaged("it holds the value of another key")
    return envelope


def decode_bare(name: str, content: bytes, *, key_of: KeyOf, mtime_ns: int) -> Envelope:
    """The envelope that a file without one would have."""
    try:
        check_value(content)
        key = key_of(content)
        whose = encode_name(key)
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
