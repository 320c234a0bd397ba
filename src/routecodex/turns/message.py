"""`Message`: what one side of a conversation said, as Python people know it from the chat protocol."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from routecodex.turns.merge import copied


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
