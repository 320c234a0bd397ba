"""The strict reader that all grammars use: SSE frames, and fields of a required type."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, overload

import msgspec

T = TypeVar("T")
U = TypeVar("U")


@dataclass(frozen=True, slots=True)
class Frame:
    """One event as it was sent; `number` counts from 0."""

    number: int
    event: str
    data: str

    def __str__(self) -> str:
        return f"frame {self.number} ({self.event or 'unnamed'}: {self.data[:160]})"

    @property
    def json(self) -> dict[str, Any]:
        """Return the data, which must be one JSON object."""
        try:
            value = msgspec.json.decode(self.data)
        except msgspec.DecodeError as exc:
            raise AssertionError(f"{self}: data is not JSON: {exc}") from exc
        assert isinstance(value, dict), f"{self}: data is not a JSON object"
        return value


def read(body: bytes, *, comments: bool = True) -> list[Frame]:
    """Return all frames of a complete body; reject half frames, unknown fields and a trailing comment."""
    text = body.decode("utf-8").replace("\r\n", "\n")
    assert "\r" not in text, "a bare CR in the stream"
    if not text:
        return []
    assert text.endswith("\n\n"), f"the stream does not end with a blank line: {text[-80:]!r}"
    blocks = text[:-2].split("\n\n")
    frames: list[Frame] = []
    for block in blocks:
        frame = _frame(len(frames), block, comments=comments)
        if frame is not None:
            frames.append(frame)
    assert _has_data(blocks[-1]) or not frames, f"a comment after the last frame: {blocks[-1]!r}"
    return frames


def _has_data(block: str) -> bool:
    return any(line.startswith("data:") for line in block.split("\n"))


def _frame(number: int, block: str, *, comments: bool) -> Frame | None:
    assert block.strip("\n"), f"an empty frame at number {number}"
    event, data = "", None
    for line in block.split("\n"):
        if line.startswith(":"):
            assert comments, f"a comment is not allowed here: {line!r}"
        elif line.startswith("event: "):
            assert not event, f"two event lines in frame {number}"
            event = line[7:]
        else:
            assert line.startswith("data: "), f"neither data, event nor comment in frame {number}: {line!r}"
            assert data is None, f"two data lines in frame {number}"
            data = line[6:]
    if data is None:
        assert not event, f"an event line without data in frame {number}: {event!r}"
        return None
    return Frame(number, event, data)


@overload
def need(obj: Mapping[str, Any], key: str, kind: type[T], *, at: object) -> T: ...
@overload
def need(obj: Mapping[str, Any], key: str, kind: tuple[type[T], type[U]], *, at: object) -> T | U: ...
def need(obj: Mapping[str, Any], key: str, kind: Any, *, at: object) -> Any:
    """Return the field, which must be there and of that type (a bool is not an int)."""
    assert key in obj, f"{at}: field {key!r} is missing"
    value = obj[key]
    kinds = kind if isinstance(kind, tuple) else (kind,)
    fits = isinstance(value, kinds) and (not isinstance(value, bool) or bool in kinds)
    names = " or ".join(k.__name__ for k in kinds)
    assert fits, f"{at}: field {key!r} is {value!r}, not {names}"
    return value


def need_text(obj: Mapping[str, Any], key: str, *, at: object) -> str:
    """Return the field, which must be a string that is not empty."""
    value = need(obj, key, str, at=at)
    assert value, f"{at}: field {key!r} is empty"
    return value


def need_count(obj: Mapping[str, Any], key: str, *, at: object) -> int:
    """Return the field, which must be a number of tokens."""
    value = need(obj, key, int, at=at)
    assert value >= 0, f"{at}: field {key!r} is negative: {value}"
    return value


def need_one_of(obj: Mapping[str, Any], key: str, allowed: frozenset[str], *, at: object) -> str:
    """Return the field, which must be one of these values."""
    value = need(obj, key, str, at=at)
    assert value in allowed, f"{at}: field {key!r} is {value!r}, not one of {sorted(allowed)}"
    return value


def need_json_object(text: str, *, at: object) -> None:
    """Check that the text is empty or a JSON object."""
    if not text:
        return
    try:
        value = msgspec.json.decode(text)
    except msgspec.DecodeError as exc:
        raise AssertionError(f"{at}: arguments are not JSON: {text[:160]!r}") from exc
    assert isinstance(value, dict), f"{at}: arguments are not a JSON object: {text[:160]!r}"


def need_error(error: Mapping[str, Any], *, at: object) -> None:
    """Check the message of an error object: not empty, without a traceback or HTML."""
    message = need_text(error, "message", at=at)
    for leak in ("Traceback (most recent", "<html", "<!DOCTYPE"):
        assert leak not in message, f"{at}: the message shows {leak!r}"
