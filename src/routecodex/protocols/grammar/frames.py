"""The strict reader that all grammars use: SSE frames, and fields of a required type."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, overload

import msgspec

T = TypeVar("T")
U = TypeVar("U")


class GrammarViolation(Exception):
    """An answer that breaks a rule of its protocol; the message names the frame and the rule."""


@dataclass(frozen=True, slots=True)
class ServedFrame:
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
            raise GrammarViolation(f"{self}: data is not JSON: {exc}") from exc
        if not isinstance(value, dict):
            raise GrammarViolation(f"{self}: data is not a JSON object")
        return value


def read(body: bytes, *, comments: bool = True) -> list[ServedFrame]:
    """Return all frames of a complete body; reject half frames, unknown fields and a trailing comment."""
    try:
        text = body.decode("utf-8").replace("\r\n", "\n")
    except UnicodeDecodeError as exc:
        raise GrammarViolation(f"the stream is not UTF-8 at byte {exc.start}") from exc
    if "\r" in text:
        raise GrammarViolation("a bare CR in the stream")
    if not text:
        return []
    if not text.endswith("\n\n"):
        raise GrammarViolation(f"the stream does not end with a blank line: {text[-80:]!r}")
    blocks = text[:-2].split("\n\n")
    frames: list[ServedFrame] = []
    for block in blocks:
        frame = _frame(len(frames), block, comments=comments)
        if frame is not None:
            frames.append(frame)
    if not _has_data(blocks[-1]) and frames:
        raise GrammarViolation(f"a comment after the last frame: {blocks[-1]!r}")
    return frames


def _has_data(block: str) -> bool:
    return any(line.startswith("data:") for line in block.split("\n"))


def _frame(number: int, block: str, *, comments: bool) -> ServedFrame | None:
    if not block.strip("\n"):
        raise GrammarViolation(f"an empty frame at number {number}")
    event, data = "", None
    for line in block.split("\n"):
        if line.startswith(":"):
            if not comments:
                raise GrammarViolation(f"a comment is not allowed here: {line!r}")
        elif line.startswith("event: "):
            if event:
                raise GrammarViolation(f"two event lines in frame {number}")
            event = line[7:]
        else:
            if not line.startswith("data: "):
                raise GrammarViolation(f"neither data, event nor comment in frame {number}: {line!r}")
            if data is not None:
                raise GrammarViolation(f"two data lines in frame {number}")
            data = line[6:]
    if data is None:
        if event:
            raise GrammarViolation(f"an event line without data in frame {number}: {event!r}")
        return None
    return ServedFrame(number, event, data)


@overload
def need(obj: Mapping[str, Any], key: str, kind: type[T], *, at: object) -> T: ...
@overload
def need(obj: Mapping[str, Any], key: str, kind: tuple[type[T], type[U]], *, at: object) -> T | U: ...
def need(obj: Mapping[str, Any], key: str, kind: Any, *, at: object) -> Any:
    """Return the field, which must be there and of that type (a bool is not an int)."""
    if not isinstance(obj, Mapping):
        raise GrammarViolation(f"{at}: not an object where field {key!r} is expected: {obj!r}")
    if key not in obj:
        raise GrammarViolation(f"{at}: field {key!r} is missing")
    value = obj[key]
    kinds = kind if isinstance(kind, tuple) else (kind,)
    fits = isinstance(value, kinds) and (not isinstance(value, bool) or bool in kinds)
    names = " or ".join(k.__name__ for k in kinds)
    if not fits:
        raise GrammarViolation(f"{at}: field {key!r} is {value!r}, not {names}")
    return value


def need_objects(obj: Mapping[str, Any], key: str, *, at: object) -> list[dict[str, Any]]:
    """Return the field, which must be a list of objects."""
    values = need(obj, key, list, at=at)
    if not all(isinstance(value, dict) for value in values):
        raise GrammarViolation(f"{at}: field {key!r} has an entry that is not an object")
    return values


def need_text(obj: Mapping[str, Any], key: str, *, at: object) -> str:
    """Return the field, which must be a string that is not empty."""
    value = need(obj, key, str, at=at)
    if not value:
        raise GrammarViolation(f"{at}: field {key!r} is empty")
    return value


def need_count(obj: Mapping[str, Any], key: str, *, at: object) -> int:
    """Return the field, which must be a number of tokens."""
    value = need(obj, key, int, at=at)
    if value < 0:
        raise GrammarViolation(f"{at}: field {key!r} is negative: {value}")
    return value


def need_one_of(obj: Mapping[str, Any], key: str, allowed: frozenset[str], *, at: object) -> str:
    """Return the field, which must be one of these values."""
    value = need(obj, key, str, at=at)
    if value not in allowed:
        raise GrammarViolation(f"{at}: field {key!r} is {value!r}, not one of {sorted(allowed)}")
    return value


def need_json_object(text: str, *, at: object) -> None:
    """Check that the text is empty or a JSON object."""
    if not text:
        return
    try:
        value = msgspec.json.decode(text)
    except msgspec.DecodeError as exc:
        raise GrammarViolation(f"{at}: arguments are not JSON: {text[:160]!r}") from exc
    if not isinstance(value, dict):
        raise GrammarViolation(f"{at}: arguments are not a JSON object: {text[:160]!r}")


def need_error(error: Mapping[str, Any], *, at: object) -> None:
    """Check the message of an error object: not empty, without a traceback or HTML."""
    message = need_text(error, "message", at=at)
    for leak in ("Traceback (most recent", "<html", "<!DOCTYPE"):
        if leak in message:
            raise GrammarViolation(f"{at}: the message shows {leak!r}")
