"""Typed JSON readers: the only place where untyped bytes become values.

A reader is a msgspec decoder for a Struct. For invalid JSON of a client `read` raises BadRequest, which names
the field; for invalid JSON of a provider `try_read` returns None, because providers are read tolerantly.
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
"""The value of a missing Raw field."""

_encoder: Final = Encoder()
_any: Final = Decoder()
_fields: Final = Decoder(dict[str, Raw])
_values: Final = Decoder(dict[str, Any])
_ERROR = re.compile(r"^(?P<what>.*?)(?: - at `(?P<key>key in )?\$(?P<path>[^`]*)`)?$", re.DOTALL)

_UNKNOWN_KEY = "[...]"
"""Path that msgspec reports for a key of a dict: such a field cannot be named."""
_BODY = "the request body"
_EMPTY_VALUES: Final = frozenset({b"null", b"[]", b"{}", b'""'})


def encode(value: Any) -> bytes:
    """Encode a value as compact JSON."""
    return _encoder.encode(value)


def decode(data: bytes | str) -> Any:
    """Decode any JSON value; raise ValueError if it is not valid."""
    try:
        return _any.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as exc:
        raise ValueError(str(exc)) from exc


def decode_lossy(data: bytes) -> Any:
    """Decode JSON of a provider; invalid UTF-8, which typed readers skip in unknown fields, is replaced."""
    return decode(data.decode("utf-8", "replace"))


def is_whole(text: str | bytes) -> bool:
    """Return whether the text is one complete JSON value."""
    try:
        _any.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return False
    return True


def check_utf8(body: bytes) -> None:
    """Reject a body that is not UTF-8; msgspec does not check strings that stay Raw."""
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
    """Decode a client's JSON; BadRequest names the field (below `at`) and the problem."""
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
    """Return the top-level fields of a JSON object, with their values as bytes."""
    return read(body, _fields)


def answer_fields(body: bytes) -> dict[str, Raw]:
    """Return the top-level fields of a provider's JSON object; invalid UTF-8 in a name is replaced."""
    try:
        return _fields.decode(body)
    except UnicodeDecodeError:
        return _fields.decode(body.decode("utf-8", "replace"))


def read_values(body: bytes) -> dict[str, Any]:
    """Decode a client's JSON object to plain values; BadRequest names the problem."""
    return read(body, _values)


def try_read(data: bytes | str | Raw, decoder: Decoder[T]) -> T | None:
    """Decode a provider's JSON; return None if it does not match the type."""
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return None


def is_present(raw: Raw) -> bool:
    """Return whether a Raw field is present and not null."""
    size = len(memoryview(raw))
    return size > 0 and (size != 4 or bytes(raw) != b"null")


def has_content(raw: Raw) -> bool:
    """Return whether a Raw field is present and neither null nor empty."""
    size = len(memoryview(raw))
    return size > 4 or (size > 0 and bytes(raw) not in _EMPTY_VALUES)


def starts_with(raw: Raw, first: bytes) -> bool:
    """Return whether a Raw field starts with this byte: `"` for a string, `{` for an object."""
    return bytes(memoryview(raw)[:1]) == first


def decode_raw(raw: Raw) -> Any:
    """Decode a Raw field, None if absent; invalid UTF-8 is replaced."""
    if not len(memoryview(raw)):
        return None
    try:
        return _any.decode(raw)
    except UnicodeDecodeError:
        return _any.decode(bytes(raw).decode("utf-8", "replace"))


def decode_answer(raw: Raw) -> Any:
    """Decode a field of a provider like `decode_raw`; None if a value cannot be held, such as 1e999."""
    try:
        return decode_raw(raw)
    except msgspec.DecodeError:
        return None


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
