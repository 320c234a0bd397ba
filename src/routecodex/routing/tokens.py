"""Estimates the tokens of a request from its bytes; only large requests are examined closely."""

from __future__ import annotations

UPPER = 3
"""Fewest bytes per token in nearly all texts: a request that is small by this bound is small."""
_LETTERS = 4.8
"""Letters, digits and spaces per token; an indent counts as one."""
_PUNCTUATION = 0.6
"""Tokens per punctuation mark: some share a token. Backslashes of escapes do not count."""
_FOREIGN = 3
"""Non-ASCII bytes per token: one Chinese character, one and a half Cyrillic ones."""
MEDIA = 1600
"""Tokens of an image or another attachment of any size."""

_MARKS = (b";base64,", b'"data":')
_QUOTES = (b'"', b' "')
"""Bytes before the data of an attachment: a mark, and after a key the opening quote."""
_SMALL = 512
_PIECES = 128
_PIECE = 128
_BASE64 = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=-_"
_NOT_ASCII = bytes(range(128, 256))
_WORD_BYTES = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789 "
_INDENT = b"    "
_UNICODE_ESCAPE = len("u0000")


def estimate(body: bytes, *, threshold: int) -> int:
    """Estimate the tokens of a request; if an upper bound is below `threshold`, return that bound."""
    high = len(body) // UPPER + 1
    if high < threshold:
        return high
    text, attachments = (body, 0) if _is_all_text(body) else _without_attachments(body)
    high = len(text) // UPPER + 1 + attachments * MEDIA
    return high if high < threshold else min(high, _text_tokens(text) + attachments * MEDIA)


def _is_all_text(body: bytes) -> bool:
    """Return whether no sampled piece of a long body lies in an attachment."""
    return len(body) > _PIECES * _PIECE and all(piece.strip(_BASE64) for piece in _pieces(body))


def _without_attachments(body: bytes) -> tuple[bytes, int]:
    """Return the body without the data of images and files, and their number."""
    spans = sorted(span for mark in _MARKS for span in _spans(body, mark))
    if not spans:
        return body, 0
    pieces: list[bytes] = []
    at = 0
    for start, end in spans:
        pieces.append(body[at:start])
        at = max(at, end)
    pieces.append(body[at:])
    return b"".join(pieces), len(spans)


def _spans(body: bytes, mark: bytes) -> list[tuple[int, int]]:
    """Return the offsets of attachments after such a mark."""
    spans: list[tuple[int, int]] = []
    at = body.find(mark)
    while at >= 0:
        start = at + len(mark)
        start += next((len(quote) for quote in _QUOTES if body.startswith(quote, start)), 0)
        end = body.find(b'"', start)
        end = len(body) if end < 0 else end
        if end - start > _SMALL and not body[start : start + _SMALL].strip(_BASE64):
            spans.append((start, end))
        at = body.find(mark, end if spans and spans[-1][1] == end else start)
    return spans


def _text_tokens(text: bytes) -> int:
    """Estimate the tokens of a text; a long one is sampled."""
    if len(text) <= _PIECES * _PIECE:
        return int(_count(text)) + 1
    sample = b"".join(_pieces(text))
    return int(_count(sample) * len(text) / len(sample)) + 1


def _pieces(text: bytes) -> list[bytes]:
    """Return evenly spread pieces of a long text."""
    return [text[at : at + _PIECE] for at in range(0, len(text), len(text) // _PIECES)]


def _count(text: bytes) -> float:
    others = text.translate(None, _WORD_BYTES)
    foreign = 0 if others.isascii() else len(others) - len(others.translate(None, _NOT_ASCII))
    escaped = text.count(b"\\u")
    letters = len(text) - len(others) - escaped * _UNICODE_ESCAPE - text.count(_INDENT) * (len(_INDENT) - 1)
    punctuation = len(others) - foreign - others.count(b"\\")
    return max(letters, 0) / _LETTERS + max(punctuation, 0) * _PUNCTUATION + foreign / _FOREIGN + escaped


def estimate_by_size(body: bytes) -> int:
    """Estimate tokens from the size of a body alone; errs high."""
    return len(body) // 3 + 1
