"""Citations of Perplexity: a list of pages beside the answer, which refers to them by number (`[2]`)."""

from __future__ import annotations

import re

from routecodex.canon.parts import Json

_REFERENCE = re.compile(r"\[(\d{1,3})\]")


def cited_sources(citations: Json, search_results: Json, text: str) -> list[Json]:
    """Return the pages as `url_citation`s, each where the text refers to it, else without a position."""
    pages = citations if isinstance(citations, list) else []
    titles = _titles(search_results)
    places: dict[int, list[tuple[int, int]]] = {}
    for reference in _REFERENCE.finditer(text):
        places.setdefault(int(reference[1]) - 1, []).append(reference.span())
    found: list[Json] = []
    for at, url in enumerate(pages):
        if isinstance(url, str) and url:
            page = {"type": "url_citation", "url": url, "title": titles.get(url, "")}
            spans = ({"start_index": first, "end_index": last} for first, last in places.get(at, ()))
            found += [{**page, **span} for span in spans] or [page]
    return found


def _titles(search_results: Json) -> dict[str, str]:
    results = search_results if isinstance(search_results, list) else []
    return {
        result["url"]: result["title"]
        for result in results
        if isinstance(result, dict)
        and isinstance(result.get("url"), str)
        and isinstance(result.get("title"), str)
    }
