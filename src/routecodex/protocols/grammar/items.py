"""The grammar of the output items of a Responses stream: added, then its parts and deltas, then done."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from routecodex.protocols.grammar.frames import (
    GrammarViolation,
    ServedFrame,
    need,
    need_json_object,
    need_objects,
    need_one_of,
    need_text,
)

TEXTS = {
    "response.output_text": ("content_index", "output_text", "text"),
    "response.refusal": ("content_index", "refusal", "refusal"),
    "response.reasoning_text": ("content_index", "reasoning_text", "text"),
    "response.reasoning_summary_text": ("summary_index", "summary_text", "text"),
}
PARTS = {"response.content_part": "content_index", "response.reasoning_summary_part": "summary_index"}
CALLS = {
    "response.function_call_arguments": ("function_call", "arguments"),
    "response.custom_tool_call_input": ("custom_tool_call", "input"),
}
_FIELD_OF = {kind: name for _, kind, name in TEXTS.values()}
_LIST_OF = {"content_index": "content", "summary_index": "summary"}
_STATUS = frozenset({"in_progress", "completed", "incomplete"})


@dataclass(slots=True)
class _Part:
    """One content or summary part while it grows."""

    type: str
    text: str = ""
    text_done: bool = False
    annotations: list[Any] = field(default_factory=list)
    done: dict[str, Any] | None = None


class ServedItem:
    """One output item while its events arrive."""

    def __init__(self, item: dict[str, Any], index: int, *, at: ServedFrame) -> None:
        self.id = need_text(item, "id", at=at)
        self.type = need_text(item, "type", at=at)
        self.index = index
        self.parts: dict[str, list[_Part]] = {"content_index": [], "summary_index": []}
        self.arguments = ""
        self.arguments_done = False
        self.done: dict[str, Any] | None = None
        self._check_empty(item, at)

    def _check_empty(self, item: dict[str, Any], at: ServedFrame) -> None:
        for key in ("content", "summary", "arguments", "input"):
            if item.get(key):
                raise GrammarViolation(f"{at}: {key!r} of an added item is not empty")
        if self.type in ("function_call", "custom_tool_call"):
            need_text(item, "call_id", at=at)
            need_text(item, "name", at=at)

    def take(self, event: dict[str, Any], at: ServedFrame) -> None:
        if self.done is not None:
            raise GrammarViolation(f"{at}: item {self.id} is already done")
        stem, _, tail = str(event["type"]).rpartition(".")
        if stem in PARTS:
            self._part(event, PARTS[stem], tail=tail, at=at)
        elif stem in TEXTS:
            self._text(event, stem, tail=tail, at=at)
        elif stem in CALLS:
            self._call(event, stem, tail=tail, at=at)
        elif stem == "response.output_text.annotation":
            self._annotation(event, at)
        else:
            if stem != f"response.{self.type}":
                raise GrammarViolation(f"{at}: not an event of an item of type {self.type!r}")

    def _part(self, event: dict[str, Any], index_name: str, *, tail: str, at: ServedFrame) -> None:
        index = need(event, index_name, int, at=at)
        part = need(event, "part", dict, at=at)
        kind = need_text(part, "type", at=at)
        parts = self.parts[index_name]
        if tail == "added":
            if index != len(parts):
                raise GrammarViolation(f"{at}: {index_name} {index} after {len(parts)} parts")
            if part.get(_FIELD_OF.get(kind, "")):
                raise GrammarViolation(f"{at}: an added part is not empty")
            check_part(part, at=at)
            parts.append(_Part(kind))
            return
        known = self._open(index_name, index, kind=kind, at=at)
        name = _FIELD_OF.get(kind)
        if name is not None:
            if not known.text_done:
                raise GrammarViolation(f"{at}: the part is done before its text is")
            if need(part, name, str, at=at) != known.text:
                raise GrammarViolation(f"{at}: the part's text is not its deltas'")
            listed = part.get("annotations") or []
            if listed != known.annotations:
                raise GrammarViolation(f"{at}: annotations differ from those added")
        check_part(part, at=at)
        known.done = part

    def _text(self, event: dict[str, Any], stem: str, *, tail: str, at: ServedFrame) -> None:
        index_name, kind, name = TEXTS[stem]
        part = self._open(index_name, need(event, index_name, int, at=at), kind=kind, at=at)
        if part.text_done:
            raise GrammarViolation(f"{at}: the text is already done")
        if kind == "output_text":
            need(event, "logprobs", list, at=at)
        if tail == "delta":
            part.text += need(event, "delta", str, at=at)
            return
        text = need(event, name, str, at=at)
        if text != part.text:
            raise GrammarViolation(f"{at}: {text!r} is not the text of the deltas, {part.text!r}")
        part.text_done = True

    def _annotation(self, event: dict[str, Any], at: ServedFrame) -> None:
        index = need(event, "content_index", int, at=at)
        part = self._open("content_index", index, kind="output_text", at=at)
        number = need(event, "annotation_index", int, at=at)
        if number != len(part.annotations):
            raise GrammarViolation(f"{at}: annotation_index {number} is out of order")
        part.annotations.append(need(event, "annotation", dict, at=at))

    def _open(self, index_name: str, index: int, *, kind: str, at: ServedFrame) -> _Part:
        parts = self.parts[index_name]
        if not 0 <= index < len(parts):
            raise GrammarViolation(f"{at}: part {index} was not added")
        part = parts[index]
        if part.done is not None:
            raise GrammarViolation(f"{at}: part {index} is already done")
        if part.type != kind:
            raise GrammarViolation(f"{at}: part {index} is of type {part.type!r}, not {kind!r}")
        return part

    def _call(self, event: dict[str, Any], stem: str, *, tail: str, at: ServedFrame) -> None:
        kind, name = CALLS[stem]
        if self.type != kind:
            raise GrammarViolation(f"{at}: not for an item of type {self.type!r}")
        if self.arguments_done:
            raise GrammarViolation(f"{at}: the {name} are already done")
        if tail == "delta":
            self.arguments += need(event, "delta", str, at=at)
            return
        text = need(event, name, str, at=at)
        if text != self.arguments:
            raise GrammarViolation(f"{at}: {text!r} is not the text of the deltas, {self.arguments!r}")
        self.arguments_done = True

    def finish(self, item: dict[str, Any], at: ServedFrame) -> None:
        if self.done is not None:
            raise GrammarViolation(f"{at}: item {self.id} is done a second time")
        if item.get("id") != self.id:
            raise GrammarViolation(f"{at}: the item's id changed from {self.id!r}")
        if item.get("type") != self.type:
            raise GrammarViolation(f"{at}: the item's type changed from {self.type!r}")
        for index_name, parts in self.parts.items():
            dones = [part.done for part in parts]
            if None in dones:
                raise GrammarViolation(f"{at}: a part of the item is not done")
            if parts:
                listed = need(item, _LIST_OF[index_name], list, at=at)
                if listed != dones:
                    raise GrammarViolation(f"{at}: {listed} are not the parts that were done, {dones}")
        for kind, name in CALLS.values():
            if self.type == kind:
                if not self.arguments_done:
                    raise GrammarViolation(f"{at}: the {name} were never done")
                if item.get(name) != self.arguments:
                    raise GrammarViolation(f"{at}: {name} differ from the deltas")
        check_item(item, at=at)
        self.done = item


def check_part(part: dict[str, Any], *, at: object) -> None:
    """Check that a part has the fields of its type."""
    kind = need_text(part, "type", at=at)
    if kind in _FIELD_OF:
        need(part, _FIELD_OF[kind], str, at=at)
    if kind == "output_text":
        need(part, "annotations", list, at=at)


def _check_message(item: dict[str, Any], *, at: object) -> None:
    need_one_of(item, "role", frozenset({"assistant"}), at=at)
    need_one_of(item, "status", _STATUS, at=at)
    for part in need_objects(item, "content", at=at):
        check_part(part, at=at)


def _check_reasoning(item: dict[str, Any], *, at: object) -> None:
    for part in need_objects(item, "summary", at=at):
        check_part(part, at=at)


def _check_function(item: dict[str, Any], *, at: object) -> None:
    need_text(item, "call_id", at=at)
    need_text(item, "name", at=at)
    arguments = need(item, "arguments", str, at=at)
    if item.get("status", "completed") == "completed":
        need_json_object(arguments, at=at)


def _check_custom(item: dict[str, Any], *, at: object) -> None:
    need_text(item, "call_id", at=at)
    need_text(item, "name", at=at)
    need(item, "input", str, at=at)


_CHECKS = {
    "message": _check_message,
    "reasoning": _check_reasoning,
    "function_call": _check_function,
    "custom_tool_call": _check_custom,
}


def check_item(item: dict[str, Any], *, at: object) -> None:
    """Check that a whole output item has the fields of its type."""
    need_text(item, "id", at=at)
    check = _CHECKS.get(need_text(item, "type", at=at))
    if check is not None:
        check(item, at=at)


def check_unique(items: list[dict[str, Any]], *, at: object) -> None:
    """Check that ids and call ids are unique."""
    for key in ("id", "call_id"):
        values = [need(item, key, str, at=at) for item in items if key in item]
        if len(values) != len(set(values)):
            raise GrammarViolation(f"{at}: {key} used twice: {values}")
