"""`Message`: what one side of a conversation said, as Python people know it from the chat protocol.

How pieces of an answer become one: deltas into a message, usage into sums.

Strings grow, except those that identify something; lists of indexed things merge by index, in the order of
the index and with gaps; objects merge field by field; anything else is replaced. What is merged is copied.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, MutableMapping
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


class Message:
    """A small mutable object: the known fields, and whatever other fields arrived as attributes.

    `metadata` is for the program alone: it is never sent and does not count when messages are compared.
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
    def of(cls, given: object) -> Message:
        """A message as it is, or from a chat-shaped mapping, which is copied."""
        if isinstance(given, Message):
            return given
        if not isinstance(given, Mapping) or not isinstance(given.get("role"), str):
            raise TypeError(f"a message is a Message or a mapping with a role, not {given!r}")
        message = cls(given["role"])
        message.__dict__.update(copied(given))
        message.metadata = message.metadata or {}
        return message

    def as_dict(self, fields: Collection[str] | None = None) -> dict[str, Any]:
        """A chat-shaped copy of what may be sent: the fields that are set, or those among `fields`."""
        sent = {
            name: copied(value)
            for name, value in self.__dict__.items()
            if value is not None and name != "metadata" and (fields is None or name in fields)
        }
        for call in sent.get("tool_calls") or ():
            # The index belongs to streams; strict providers refuse it in requests.
            if isinstance(call, dict):
                call.pop("index", None)
        return sent

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"this {self.__dict__.get('role', 'empty')} message has no field {name!r}")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Message):
            return NotImplemented
        return self.as_dict() == other.as_dict()

    __hash__ = None  # type: ignore[assignment]  # mutable, compared by value

    def __repr__(self) -> str:
        shown = ", ".join(
            f"{name}={value!r}" for name, value in self.__dict__.items() if value not in (None, {})
        )
        return f"Message({shown})"
