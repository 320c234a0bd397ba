"""`Message`: one chat-shaped message; `merge_delta` and `add_usage` build answers and usage from chunks.

Merging concatenates strings, except identity fields, which keep their first value. Lists of indexed items
merge by index, in the order of the index, with gaps allowed. Objects merge field by field; other values are
replaced. Merged values are copied, so that chunks never change.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, MutableMapping
from typing import Any


class Message:
    """A mutable chat message: the known fields, and any other received fields as attributes.

    `metadata` is local: it is never sent and is ignored when messages are compared.
    """

    role: str
    content: Any
    tool_calls: list[dict[str, Any]] | None
    tool_call_id: str | None
    metadata: dict[str, Any]

    def __init__(
        self,
        role: str,
        content: Any = None,
        *,
        tool_calls: list[dict[str, Any]] | None = None,
        tool_call_id: str | None = None,
        metadata: dict[str, Any] | None = None,
        **fields: Any,
    ) -> None:
        self.role = role
        self.content = content
        self.tool_calls = tool_calls
        self.tool_call_id = tool_call_id
        self.metadata = {} if metadata is None else metadata
        self.__dict__.update(fields)

    @classmethod
    def of(cls, value: object) -> Message:
        """Return a Message unchanged, or build one from a copy of a chat-shaped mapping."""
        if isinstance(value, Message):
            return value
        if not isinstance(value, Mapping) or not isinstance(value.get("role"), str):
            raise TypeError(f"a message must be a Message or a mapping with a role, not {value!r}")
        message = cls(value["role"])
        message.__dict__.update(copied(value))
        message.metadata = message.metadata or {}
        return message

    def as_dict(self, fields: Collection[str] | None = None) -> dict[str, Any]:
        """Return a chat-shaped copy without metadata: the fields that are set, or those among `fields`."""
        body = {
            name: copied(value)
            for name, value in self.__dict__.items()
            if value is not None and name != "metadata" and (fields is None or name in fields)
        }
        for call in body.get("tool_calls") or ():
            # `index` belongs to stream chunks; providers with strict schemas reject it in requests.
            if isinstance(call, dict):
                call.pop("index", None)
        return body

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"this {self.__dict__.get('role', 'empty')} message has no field {name!r}")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Message):
            return NotImplemented
        return self.as_dict() == other.as_dict()

    __hash__ = None  # type: ignore[assignment]  # mutable, compared by value

    def __repr__(self) -> str:
        fields = ", ".join(
            f"{name}={value!r}" for name, value in self.__dict__.items() if value not in (None, {})
        )
        return f"Message({fields})"


IDENTITY = frozenset({"role", "id", "type", "name"})
"""Identity fields: the first value stays. Some providers repeat them in every chunk."""


def merge_delta(into: MutableMapping[str, Any], delta: Mapping[str, Any]) -> None:
    """Merge a delta into a message or a part of one; the delta itself is not changed."""
    for name, value in delta.items():
        if value is None:
            continue
        known = into.get(name)
        if known is None:
            into[name] = _first_value(value)
        elif isinstance(known, str) and isinstance(value, str):
            into[name] = (known or value) if name in IDENTITY else known + value
        elif isinstance(known, MutableMapping) and isinstance(value, Mapping):
            merge_delta(known, value)
        elif isinstance(known, list) and isinstance(value, list):
            _merge_list(known, value)
        else:
            into[name] = copied(value)


def copied(value: Any) -> Any:
    """Return a copy that shares no list or mapping with the original."""
    if isinstance(value, Mapping):
        return {name: copied(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [copied(inner) for inner in value]
    return value


def add_usage(total: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sum of two usage reports, field by field, nested details included."""
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


def _first_value(value: Any) -> Any:
    """Return a copy of a first value with its indexed lists in order, as merging would leave them."""
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
            known.insert(_insert_position(known, index), _first_value(item))


def _index(item: Any) -> int | None:
    index = item.get("index") if isinstance(item, Mapping) else None
    return index if type(index) is int else None


def _insert_position(known: list[Any], index: int | None) -> int:
    """Return the position before the first item of a higher index; the end for an item without one."""
    if index is None:
        return len(known)
    later = (place for place, item in enumerate(known) if (_index(item) or 0) > index)
    return next(later, len(known))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
