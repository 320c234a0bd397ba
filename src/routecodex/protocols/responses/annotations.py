"""Citations and log probabilities in the shapes Responses has for them."""

from __future__ import annotations

from collections.abc import Iterable

from routecodex.canon.parts import Json

_OWN = frozenset({"file_citation", "url_citation", "container_file_citation", "file_path"})


def annotation_of(value: Json, at: int) -> Json | None:
    """An annotation as Responses says it, or None; one that names no place stands `at` that character."""
    if not isinstance(value, dict):
        return None
    nested = value.get("url_citation")
    if isinstance(nested, dict):
        value = {"type": "url_citation", **nested}
    kind = str(value.get("type"))
    if kind == "url_citation" or (kind not in _OWN and "url" in value):
        return {
            "type": "url_citation",
            "url": value.get("url") or "",
            "title": value.get("title") or "",
            "start_index": value.get("start_index", at),
            "end_index": value.get("end_index", at),
        }
    return value if kind in _OWN else None


def logprobs_of(entries: Iterable[Json]) -> list[Json]:
    """Chat's entries with every field that Responses demands."""
    return [
        _entry(entry) | {"top_logprobs": [_entry(top) for top in _dicts(entry.get("top_logprobs"))]}
        for entry in entries
        if isinstance(entry, dict)
    ]


def _dicts(values: Json) -> list[dict[str, Json]]:
    return [value for value in values if isinstance(value, dict)] if isinstance(values, list) else []


def _entry(entry: dict[str, Json]) -> dict[str, Json]:
    token, spelled = entry.get("token"), entry.get("bytes")
    token = token if isinstance(token, str) else ""
    return {
        "token": token,
        "logprob": entry.get("logprob", 0.0),
        "bytes": spelled if isinstance(spelled, list) else list(token.encode("utf-8", "replace")),
    }
