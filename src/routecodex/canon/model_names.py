"""Names of models that nobody configured: those that providers list, and those that clients send."""

from __future__ import annotations

import re
from typing import Final

LONGEST_MODEL_NAME: Final = 200
_FORBIDDEN = re.compile(r'[\s*?#<>"\\]')


def is_model_name(text: str) -> bool:
    """Return whether a text can be the name of a model.

    Digits alone are the number of a key. Gemini puts the name into the path of a request, so that a segment
    such as `..` could name another endpoint of the provider; the other signs would break out of a target, a
    glob or an instruction.
    """
    if not 0 < len(text) <= LONGEST_MODEL_NAME or not text.isprintable() or _FORBIDDEN.search(text):
        return False
    if text.isdigit():
        return False
    return not any(segment in ("", ".", "..") for segment in text.split("/"))
