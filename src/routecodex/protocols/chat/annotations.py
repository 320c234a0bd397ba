"""Citations in the one shape chat has for them."""

from __future__ import annotations

from collections.abc import Iterable

from routecodex.canon.parts import Json, Text
from routecodex.protocols.chat.content import BETWEEN


def annotation_of(value: Json, *, start: int, end: int) -> Json | None:
    """An annotation as chat says it, or None; its text stands from `start` to `end` in the whole answer."""
    if not isinstance(value, dict):
        return None
    kind, url = value.get("type"), value.get("url")
    # Chat puts the details of each type under its name: whoever does so speaks chat.
    if isinstance(kind, str) and isinstance(value.get(kind), dict):
        return value
    if not isinstance(url, str) or not url:
        return None
    first, last, title = value.get("start_index"), value.get("end_index"), value.get("title")
    if not isinstance(first, int) or not isinstance(last, int):
        first, last = 0, end - start
    cited = {
        "url": url,
        "title": title if isinstance(title, str) else "",
        "start_index": start + first,
        "end_index": start + last,
    }
    return {"type": "url_citation", "url_citation": cited}


def annotations_of(texts: Iterable[Text]) -> list[Json]:
    """All annotations of texts that a client gets as one."""
    told = []
    start = 0
    for text in texts:
        start += len(BETWEEN) if text.apart else 0
        end = start + len(text.text)
        told += [annotation_of(value, start=start, end=end) for value in text.annotations]
        start = end
    return [annotation for annotation in told if annotation is not None]
