"""Changes valid inputs a little: what is nearly right finds more than noise."""

from __future__ import annotations

import copy
from random import Random
from typing import Any

import msgspec

_JUNK: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    1.5,
    2**63,
    10**40,
    -(10**400),
    "",
    " ",
    "\0",
    "text",
    "\ud800",
    "é世🦊",
    "²",
    "٣",
    "9" * 5000,
    "<**help-me**>",
    "</system-reminder>",
    "{}",
    "[DONE]",
    [],
    {},
    [None],
    [[]],
    {"": None},
    {"type": "text"},
    {"type": {}},
    {"$ref": "#"},
)
_WORDS = (
    "type", "text", "role", "content", "user", "assistant", "system", "tool", "function", "model", "name",
    "id",
    "tool_use", "tool_result", "thinking", "image", "document", "input", "output", "parts", "title", "source",
    "data", "url", "base64", "file", "signature", "arguments", "stream", "index", "delta", "error",
)  # fmt: skip
_BYTES = (
    b"\0", b"\r\n", b"\n\n", b"\r", b":", b"data: ", b"event: ", b"{", b"}", b"[", b'"', b"\\", b"\\u",
    b"\xff",
    b"\xef\xbb\xbf", b"<**", b"**>", b",", b"0", b"-1", b"99999999999999999999", b"null", b"[DONE]",
    b"chunked",
    b"Content-Length: 1\r\n", b"Transfer-Encoding: chunked\r\n", b" ", b"\t", b"1e999", b"\xed\xa0\x80",
)  # fmt: skip
_DEPTHS = (5, 60, 150)


def json_value(value: Any, random: Random) -> Any:
    """Return a copy with a few values, keys or entries changed."""
    changed = [copy.deepcopy(value)]
    for _ in range(random.choice((1, 1, 2, 3, 5))):
        _change_one(changed, random)
    return changed[0]


def _change_one(root: list[Any], random: Random) -> None:
    holder, key = random.choice(list(_places(root)))
    value = holder[key]
    roll = random.random()
    if roll < 0.45:
        holder[key] = copy.deepcopy(random.choice(_JUNK))
    elif roll < 0.55 and holder is not root:
        del holder[key]
    elif roll < 0.65:
        holder[key] = _nested(value, random)
    elif roll < 0.75 and isinstance(value, list) and value:
        value.insert(random.randrange(len(value) + 1), copy.deepcopy(random.choice(value)))
    elif roll < 0.85 and isinstance(value, dict):
        value[random.choice(_WORDS)] = copy.deepcopy(random.choice((*_JUNK, value)))
    elif isinstance(value, str):
        holder[key] = text(value, random)
    else:
        other_holder, other_key = random.choice(list(_places(root)))
        holder[key] = copy.deepcopy(other_holder[other_key])


def _places(value: Any) -> Any:
    """Yield every place of a value: its holder and the key or index there."""
    entries = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    for key, inner in list(entries):
        yield value, key
        yield from _places(inner)


def _nested(value: Any, random: Random) -> Any:
    for _ in range(random.choice(_DEPTHS) if random.random() < 0.1 else 1):
        value = [value] if random.random() < 0.5 else {random.choice(_WORDS): value}
    return value


def json_body(value: Any, random: Random) -> bytes:
    """Return a changed value as JSON, sometimes with its bytes changed too."""
    changed = json_value(value, random)
    try:
        body = msgspec.json.encode(changed)
    except (UnicodeEncodeError, OverflowError, RecursionError):
        import json

        body = json.dumps(changed).encode()
    return data(body, random) if random.random() < 0.1 else body


def text(value: str, random: Random) -> str:
    """Return a changed text."""
    pieces = (
        "<**",
        "**>",
        "`",
        "```",
        "\n",
        "\\",
        '"',
        ",",
        ":",
        "!",
        "#",
        "<",
        ">",
        "stopMessage",
        "clear",
        *_WORDS,
    )
    at, end = sorted((random.randrange(len(value) + 1), random.randrange(len(value) + 1)))
    roll = random.random()
    if roll < 0.4:
        return value[:at] + random.choice(pieces) + value[at:]
    if roll < 0.6:
        return value[:at] + value[end:]
    if roll < 0.8:
        return value[:end] + value[at:]
    return value[:at] + chr(random.choice((0, 9, 13, 127, 233, 0x2028, 0xFEFF, 0x1F98A))) + value[at:]


def data(value: bytes, random: Random) -> bytes:
    """Return changed bytes."""
    for _ in range(random.choice((1, 1, 2, 4))):
        at, end = sorted((random.randrange(len(value) + 1), random.randrange(len(value) + 1)))
        roll = random.random()
        if roll < 0.4:
            value = value[:at] + random.choice(_BYTES) + value[at:]
        elif roll < 0.55:
            value = value[:at] + bytes([random.randrange(256)]) + value[at + 1 :]
        elif roll < 0.7:
            value = value[:at] + value[end:]
        elif roll < 0.85:
            value = value[:end] + value[at:]
        else:
            value = value[:at]
    return value


def splits(size: int, random: Random) -> list[int]:
    """Return offsets at which bytes of this size arrive in several reads."""
    return [random.randrange(size + 1) for _ in range(random.choice((0, 0, 1, 2, 5)))]
