"""Grounding as citations of URLs, the shape other protocols have for it."""

from __future__ import annotations

from collections.abc import Iterator

from routecodex.canon.parts import Json


def citations(grounding: Json, text: str) -> list[Json]:
    """The citations of this text; what cannot be understood is passed over."""
    if not isinstance(grounding, dict):
        return []
    pages = [_object(chunk, "web") for chunk in _listed(grounding, "groundingChunks")]
    spelled = text.encode("utf-8", "replace")
    cited = []
    for support in _listed(grounding, "groundingSupports"):
        segment = _object(support, "segment")
        place = {
            "start_index": _characters(spelled, segment.get("startIndex")),
            "end_index": _characters(spelled, segment.get("endIndex")),
        }
        cited += [{"type": "url_citation", **page, **place} for page in _named(support, pages)]
    return cited


def _named(support: Json, pages: list[dict[str, Json]]) -> Iterator[dict[str, Json]]:
    """The pages that a support names by their numbers."""
    for at in _listed(support, "groundingChunkIndices"):
        page = pages[at] if isinstance(at, int) and 0 <= at < len(pages) else {}
        uri, title = page.get("uri"), page.get("title")
        if isinstance(uri, str) and uri:
            yield {"url": uri, "title": title if isinstance(title, str) else ""}


def _characters(spelled: bytes, count: Json) -> int:
    """Google counts bytes of UTF-8, everybody else characters."""
    return len(spelled[:count].decode("utf-8", "ignore")) if isinstance(count, int) and count > 0 else 0


def _object(value: Json, field: str) -> dict[str, Json]:
    found = value.get(field) if isinstance(value, dict) else None
    return found if isinstance(found, dict) else {}


def _listed(value: Json, field: str) -> list[Json]:
    found = value.get(field) if isinstance(value, dict) else None
    return found if isinstance(found, list) else []
