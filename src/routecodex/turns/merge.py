"""How pieces of an answer become one: deltas into a message, usage into sums.

Strings grow, except those that identify something; lists of indexed things merge by index, in the order of
the index and with gaps; objects merge field by field; anything else is replaced. What is merged is copied.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Any

IDENTITY = frozenset({"role", "id", "type", "name"})
"""Fields that say what a thing is: the first value stays."""


def merge_delta(into: MutableMapping[str, Any], delta: Mapping[str, Any]) -> None:
    """Merges a delta into what has been received so far; the delta itself is left alone."""
    for name, value in delta.items():
        if value is None:
            continue
        known = into.get(name)
        if known is None:
            into[name] = _fresh(value)
        elif isinstance(known, str) and isinstance(value, str):
            into[name] = (known or value) if name in IDENTITY else known + value
        elif isinstance(known, MutableMapping) and isinstance(value, Mapping):
            merge_delta(known, value)
        elif isinstance(known, list) and isinstance(value, list):
            _merge_list(known, value)
        else:
            into[name] = copied(value)


def copied(value: Any) -> Any:
    """A copy that shares no list and no object with the original."""
    if isinstance(value, Mapping):
        return {name: copied(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [copied(inner) for inner in value]
    return value


def add_usage(total: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """The sum of two usage reports, field by field; details are summed too."""
    result = copied(total)
    for name, value in more.items():
        known = result.get(name)
        if isinstance(value, Mapping):
            result[name] = add_usage(known if isinstance(known, Mapping) else {}, value)
        elif _is_number(value) and _is_number(known):
            result[name] = known + value
        elif value is not None:
            result[name] = copied(value)
    return result  # type: ignore[no-any-return]  # a copy of a mapping is a dict


def _fresh(value: Any) -> Any:
    """A copy of a first value, as if it had been merged into nothing: its indexed lists are in order."""
    if isinstance(value, Mapping):
        result: dict[str, Any] = {}
        merge_delta(result, value)
        return result
    if isinstance(value, list):
        items: list[Any] = []
        _merge_list(items, value)
        return items
    return copied(value)


def _merge_list(known: list[Any], more: list[Any]) -> None:
    for item in more:
        index = _index(item)
        same = None if index is None else next((one for one in known if _index(one) == index), None)
        if same is not None:
            merge_delta(same, item)
        else:
            known.insert(_place(known, index), _fresh(item))


def _index(item: Any) -> int | None:
    index = item.get("index") if isinstance(item, Mapping) else None
    return index if type(index) is int else None


def _place(known: list[Any], index: int | None) -> int:
    """Before the first item of a higher index; at the end for an item that has none."""
    if index is None:
        return len(known)
    later = (place for place, item in enumerate(known) if (_index(item) or 0) > index)
    return next(later, len(known))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
