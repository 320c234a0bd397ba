"""How many tokens a request has, about: guessed from its bytes, and looked at closely only when large."""

from __future__ import annotations

UPPER = 3
"""Bytes a token has at least, in nearly all texts: what is small by this is small."""
_LETTERS = 4.8
"""Letters, digits and spaces a token has, of which an indent is one."""
_SIGNS = 0.6
"""Tokens of a sign: some are part of a longer one. A backslash that only escapes counts nothing."""
_FOREIGN = 3
"""Bytes beyond ASCII a token has: one Chinese character, one and a half Cyrillic ones."""
MEDIA = 1600
"""Tokens of an image or another attachment, whatever its bytes."""

_MARKS = (b";base64,", b'"data":')
_QUOTES = (b'"', b' "')
"""What stands before the bytes of an attachment: a mark, and where it is a key the beginning of a string."""
_SMALL = 512
_PIECES = 128
_PIECE = 128
_BASE64 = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=-_"
_NOT_ASCII = bytes(range(128, 256))
_WORDS = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789 "
_INDENT = b"    "
_UNICODE_ESCAPE = len("u0000")


def estimate(body: bytes, *, threshold: int) -> int:
    """Tokens of a request; where even a high guess is below `threshold` that guess, else a closer one."""
    high = len(body) // UPPER + 1
    if high < threshold:
        return high
    text, attachments = (body, 0) if _is_all_text(body) else _without_attachments(body)
    high = len(text) // UPPER + 1 + attachments * MEDIA
    return high if high < threshold else min(high, _text_tokens(text) + attachments * MEDIA)


def _is_all_text(body: bytes) -> bool:
    """Whether attachments are no more than a small part of a long body: no piece lies in one."""
    return len(body) > _PIECES * _PIECE and all(piece.strip(_BASE64) for piece in _pieces(body))


def _without_attachments(body: bytes) -> tuple[bytes, int]:
    """The body without the bytes of images and files, and how many of those there were."""
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
    """Where attachments stand that come after such a mark."""
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
    """Tokens of a text; of a long one pieces from everywhere are counted."""
    if len(text) <= _PIECES * _PIECE:
        return int(_count(text)) + 1
    sample = b"".join(_pieces(text))
    return int(_count(sample) * len(text) / len(sample)) + 1


def _pieces(text: bytes) -> list[bytes]:
    """Pieces of a long text, from everywhere."""
    return [text[at : at + _PIECE] for at in range(0, len(text), len(text) // _PIECES)]


def _count(text: bytes) -> float:
    others = text.translate(None, _WORDS)
    foreign = 0 if others.isascii() else len(others) - len(others.translate(None, _NOT_ASCII))
    escaped = text.count(b"\\u")
    letters = len(text) - len(others) - escaped * _UNICODE_ESCAPE - text.count(_INDENT) * (len(_INDENT) - 1)
    signs = len(others) - foreign - others.count(b"\\")
    return max(letters, 0) / _LETTERS + max(signs, 0) * _SIGNS + foreign / _FOREIGN + escaped
