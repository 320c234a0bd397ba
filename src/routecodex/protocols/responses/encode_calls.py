"""Encodes the items of tool calls; see encode_items for the other items."""

from __future__ import annotations

from routecodex.canon.parts import Json
from routecodex.protocols.responses.encode_items import ItemPosition
from routecodex.protocols.tool_mapping import InputUnwrapper
from routecodex.wire import json


class CallItemEncoder:
    """A call of a function or a custom tool.

    `wrapped`: the arguments are `{"input": …}`, as upstreams without custom tools send them; the item gets
    the free text inside.
    """

    def __init__(self, position: ItemPosition, head: dict[str, Json], *, custom: bool, wrapped: bool) -> None:
        self._position = position
        self._custom = custom
        self._kind = "response.custom_tool_call_input" if custom else "response.function_call_arguments"
        self._field = "input" if custom else "arguments"
        self._head = {
            "id": position.id,
            "type": "custom_tool_call" if custom else "function_call",
            **head,
        }
        self._unwrapper = InputUnwrapper() if wrapped else None
        self._pieces: list[str] = []
        self._where = position.fields()
        self._delta = b'%b,"delta":' % self._where
        position.added({**self._head, "status": "in_progress", self._field: ""})

    def add(self, text: str) -> None:
        if self._unwrapper is not None:
            text = self._unwrapper.feed(text)
        if text:
            self._write(text)

    def _write(self, text: str) -> None:
        self._pieces.append(text)
        self._position.sink.write(f"{self._kind}.delta", self._delta + json.encode(text))

    def close(self) -> bytes:
        if self._unwrapper is not None and (held := self._unwrapper.close()):
            self._write(held)
        if not self._custom and not "".join(self._pieces).strip():
            self._write("{}")
        text = "".join(self._pieces)
        self._position.sink.write_at(self._where, f"{self._kind}.done", **{self._field: text})
        return self._position.done({**self._head, "status": self._status(text), self._field: text})

    def _status(self, text: str) -> str:
        whole = self._unwrapper.whole if self._unwrapper is not None else self._custom or json.is_whole(text)
        return "completed" if whole else "incomplete"


class SearchItemEncoder:
    """A call of Codex's search for tools; Codex takes its arguments as an object in the finished item."""

    def __init__(self, position: ItemPosition, call_id: str) -> None:
        self._position = position
        self._head: dict[str, Json] = {
            "id": position.id,
            "type": "tool_search_call",
            "call_id": call_id,
            "execution": "client",
        }
        self._pieces: list[str] = []
        position.added({**self._head, "status": "in_progress", "arguments": {}})

    def add(self, text: str) -> None:
        self._pieces.append(text)

    def close(self) -> bytes:
        text = "".join(self._pieces)
        try:
            arguments = json.decode(text) if text.strip() else {}
        except ValueError:
            return self._position.done({**self._head, "status": "incomplete", "arguments": {}})
        if not isinstance(arguments, dict):
            arguments = {"query": arguments}
        return self._position.done({**self._head, "status": "completed", "arguments": arguments})
