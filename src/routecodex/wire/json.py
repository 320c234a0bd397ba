"""Typed JSON readers: the one place where untyped bytes become values.

A reader is a msgspec decoder for a Struct; whatever is wrong with the bytes comes out as BadRequest naming
the field (client side, `read`) or as None (provider side, `try_read`: providers are read tolerantly).
"""

from __future__ import annotations

import re
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Raw
from msgspec.json import Decoder, Encoder

from routecodex.canon.errors import BadRequest
from routecodex.wire import scan

T = TypeVar("T")

ABSENT: Final = Raw(b"")
"""The value of a Raw field that the JSON did not have."""

_encoder: Final = Encoder()
_any: Final = Decoder()
_fields: Final = Decoder(dict[str, Raw])
_values: Final = Decoder(dict[str, Any])
_ERROR = re.compile(r"^(?P<what>.*?)(?: - at `(?P<key>key in )?\$(?P<path>[^`]*)`)?$", re.DOTALL)

_UNKNOWN_KEY = "[...]"
"""How msgspec tells of a key that no Struct has: such a place cannot be named."""
_BODY = "the request body"
_EMPTY_VALUES: Final = frozenset({b"null", b"[]", b"{}", b'""'})


def encode(value: Any) -> bytes:
    """A value as compact JSON."""
    return _encoder.encode(value)


def decode(data: bytes | str) -> Any:
    """Any JSON value; raises ValueError when it is none."""
    try:
        return _any.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as exc:
        raise ValueError(str(exc)) from exc


def is_whole(text: str | bytes) -> bool:
    """Whether the text is one complete JSON value."""
    try:
        _any.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return False
    return True


def check_utf8(body: bytes) -> None:
    """Refuses a body that is not UTF-8; needed where strings are left as the bytes they came as."""
    at = scan.find_invalid_utf8(body)
    if at < 0:
        return
    try:
        body[at:].decode()
    except UnicodeDecodeError as exc:
        raise BadRequest(
            f"{_BODY} is not valid UTF-8 ({exc.reason} at byte {at + exc.start})", code="invalid_json"
        ) from exc


def read(body: bytes | Raw, decoder: Decoder[T], *, at: str = "") -> T:
    """A client's JSON as a typed value; BadRequest names the field (below `at`) and what is wrong with it."""
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as exc:
        raise _bad_field(str(exc), at) from exc
    except msgspec.DecodeError as exc:
        raise BadRequest(f"{_BODY} is not valid JSON: {exc}", code="invalid_json") from exc
    except UnicodeDecodeError as exc:
        raise BadRequest(
            f"{_BODY} is not valid UTF-8 ({exc.reason} near byte {exc.start} of a string)",
            code="invalid_json",
        ) from exc
    except RecursionError as exc:
        raise BadRequest(f"{_BODY} is nested too deeply", code="nested_too_deeply") from exc


def read_fields(body: bytes) -> dict[str, Raw]:
    """The top-level fields of a JSON object, each value as the bytes it came as."""
    return read(body, _fields)


def read_values(body: bytes) -> dict[str, Any]:
    """A client's JSON object as plain values; BadRequest where one of them is more than can be said here."""
    return read(body, _values)


def try_read(data: bytes | str | Raw, decoder: Decoder[T]) -> T | None:
    """A provider's JSON as a typed value, or None when it does not fit."""
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return None


def is_present(raw: Raw) -> bool:
    """Whether a Raw field was there and not null."""
    size = len(memoryview(raw))
    return size > 0 and (size != 4 or bytes(raw) != b"null")


def has_content(raw: Raw) -> bool:
    """Whether a Raw field was there and neither null nor empty."""
    size = len(memoryview(raw))
    return size > 4 or (size > 0 and bytes(raw) not in _EMPTY_VALUES)


def starts_with(raw: Raw, sign: bytes) -> bool:
    """Whether the value of a Raw field begins with this sign: a string with `"`, an object with `{`."""
    return bytes(memoryview(raw)[:1]) == sign


def decode_raw(raw: Raw) -> Any:
    """The value of a Raw field (None when absent); what is not UTF-8 in it is replaced."""
    if not len(memoryview(raw)):
        return None
    try:
        return _any.decode(raw)
    except UnicodeDecodeError:
        return _any.decode(bytes(raw).decode("utf-8", "replace"))


def _bad_field(text: str, at: str) -> BadRequest:
    match = _ERROR.match(text)
    what = match["what"] if match else text
    path = (at + (match["path"] or "") if match else at).lstrip(".")
    if path.startswith(_UNKNOWN_KEY):
        path = ""
    missing = re.match(r"Object missing required field `(.+)`", what)
    if missing:
        path = f"{path}.{missing[1]}".lstrip(".")
        return BadRequest(f"{path}: this field is required", param=path, code="missing_field")
    readable = what.replace("`", "'")
    where = path or _BODY
    return BadRequest(
        f"{where}: {readable[:1].lower()}{readable[1:]}", param=path or None, code="invalid_type"
    )
