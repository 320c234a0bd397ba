"""Names, time stamps and contents of stored files; pure functions.

Names: a-z, 0-9, `_` and `-` of a key stay; every other byte of its UTF-8, capitals included, becomes `%` and
two lower-case hex digits, so that keys that differ only in case have different files on every file system.
The empty key is `%`. A key with a long name becomes `~` and its SHA-256.

Time stamps: a file's modification time is the time of writing in microseconds, strictly increasing within a
space, so that sorting by it gives the order of writing. The three digits below the microsecond hold the grade
of the time to live: 0 for none, else the n of the first step (1.02 ** (n - 1) seconds) that is not shorter.
With it `trim` skips files that cannot have expired. It is only a hint: the exact expiry is in the file and is
checked before a deletion. A file edited by hand, or a file system with coarser times, delays a deletion but
never loses a value.

Contents: the value in an envelope with its version, expiry and key; in a bare space the value alone.
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
MAX_STEM = 120

_UNSAFE = re.compile(rb"[^a-z0-9_-]")
_HASHED = re.compile(r"~[0-9a-f]{64}")
_ENCODED = re.compile(r"%|(?:[a-z0-9_-]|%[0-9a-f]{2})+")
_ESCAPE = re.compile(rb"%([0-9a-f]{2})")
# The clock stores ntp-state.json beside its task files; a session with this id gets another name.
_RESERVED = frozenset({"ntp-state"})

_STEP = 1.02
_GRADES = 999


def encode_name(key: str) -> str:
    """Return the unique file name of a key; it is never a path."""
    if not key:
        return "%" + SUFFIX
    raw = key.encode()
    stem = _UNSAFE.sub(_escaped, raw[: MAX_STEM + 1]).decode("ascii")
    if raw.startswith(b"-") or key in _RESERVED:
        stem = f"%{raw[0]:02x}{stem[1:]}"
    if len(stem) > MAX_STEM:
        stem = "~" + sha256(raw).hexdigest()
    return stem + SUFFIX


def _escaped(found: re.Match[bytes]) -> bytes:
    return b"%%%02x" % found[0][0]


def decode_name(name: str) -> str | None:
    """Return the key of a file name; None for a hashed name or one that the store did not create."""
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


def is_store_file(name: str) -> bool:
    """Return whether a file of this name holds a value of the store."""
    if not name.endswith(SUFFIX):
        return False
    return _HASHED.fullmatch(name.removesuffix(SUFFIX)) is not None or decode_name(name) is not None


def stamp(moment: int, ttl: float | None) -> int:
    """Return the modification time in nanoseconds of a file written at a moment in microseconds."""
    return moment * 1000 + _grade(ttl)


def may_have_expired(mtime_ns: int, now: float) -> bool:
    """Return whether the value may have expired, so that the file must be opened."""
    moment, grade = divmod(mtime_ns, 1000)
    if grade == 0:
        return False
    written = moment / 1e6
    # A stamp in the future means that the clock was wrong, so the age of the file is unknown.
    return written > now or written + _STEP ** (grade - 1) <= now


def _grade(ttl: float | None) -> int:
    if ttl is None:
        return 0
    if ttl <= 1:
        return 1
    return min(_GRADES, math.ceil(math.log(ttl, _STEP)) + 1)


KeyOf = Callable[[bytes], str]
"""Returns the key of a bare value; ValueError if the value does not belong in the space."""


class Envelope(Struct, frozen=True):
    """The contents of a file."""

    version: Annotated[int, Meta(ge=1)]
    expires: float | None
    key: str
    value: Raw


class Damaged(Exception):
    """A file does not contain the value that its name stands for."""


_ENVELOPES = msgspec.json.Decoder(Envelope)


def decode_value(name: str, content: bytes) -> Envelope:
    """Decode the contents of the file with this name."""
    try:
        content.decode()
        envelope = _ENVELOPES.decode(content)
    except (UnicodeDecodeError, msgspec.DecodeError, RecursionError) as exc:
        raise Damaged(str(exc)) from exc
    if encode_name(envelope.key) != name:
        raise Damaged("it contains the value of another key")
    return envelope


def decode_bare(name: str, content: bytes, *, key_of: KeyOf, mtime_ns: int) -> Envelope:
    """Decode a file without an envelope; the time of writing is its version."""
    try:
        check_value(content)
        key = key_of(content)
        expected = encode_name(key)
    except (ValueError, StoreError, RecursionError) as exc:
        raise Damaged(str(exc)) from exc
    if expected != name:
        raise Damaged("it contains the value of another key")
    return Envelope(version=max(1, mtime_ns // 1000), expires=None, key=key, value=Raw(content))


def encode_value(key: str, stored: Stored) -> bytes:
    """Encode the contents of a file, one line per field."""
    return b'{\n  "version": %d,\n  "expires": %s,\n  "key": %s,\n  "value": %s\n}\n' % (
        stored.version,
        msgspec.json.encode(stored.expires),
        msgspec.json.encode(key),
        stored.value,
    )
