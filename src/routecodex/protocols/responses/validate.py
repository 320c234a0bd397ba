"""Validates a client's Responses request; an error names the first wrong field."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import ValidationError, convert
from msgspec.json import Decoder

from routecodex.canon.errors import BadRequest
from routecodex.protocols.codec import WireRequest
from routecodex.protocols.responses.schema import (
    CALLS,
    DECLARATIONS,
    NAME,
    OUTPUTS,
    REFERENCE,
    ROLES,
    RequestBody,
    RequestView,
    WireItem,
    WirePart,
    WireTool,
)
from routecodex.wire import json

_body = Decoder(RequestBody)


def validate(body: bytes, *, model: str | None = None, stream: bool | None = None) -> WireRequest:
    """Return the validated request; BadRequest names the first wrong field."""
    typed = json.read(body, _body)
    json.check_utf8(body)
    _check_name(typed.model, "model")
    if typed.background:
        raise BadRequest("background: background responses are not supported", param="background")
    references = _check_input(typed)
    _check_tools(typed.tools or (), "tools")
    if isinstance(typed.tool_choice, str) and typed.tool_choice not in ("auto", "none", "required"):
        raise BadRequest(
            f"tool_choice: {typed.tool_choice!r} is not one of 'auto', 'none', 'required'",
            param="tool_choice",
        )
    view = RequestView(body, typed, typed.previous_response_id, typed.store is not False, references)
    streams = bool(typed.stream) if stream is None else stream
    return WireRequest(NAME, body, view=view, model=model or typed.model, stream=streams)


def _check_tools(tools: Sequence[WireTool], path: str) -> None:
    for index, tool in enumerate(tools):
        if tool.type in ("function", "custom", "namespace"):
            _check_name(tool.name, f"{path}[{index}].name")
        if tool.type == "namespace":
            _check_tools(tool.tools or (), f"{path}[{index}].tools")


def _check_input(body: RequestBody) -> tuple[tuple[int, str], ...]:
    """Check the input and return the item references in it."""
    continues = bool(body.previous_response_id or body.conversation or body.prompt)
    if body.input:
        if not isinstance(body.input, list):
            return ()
        checker = _ItemChecker(may_refer=continues)
        checker.check(body.input)
        return tuple(checker.references)
    # OpenAI accepts an empty text, and no input at all where the request continues a stored conversation.
    if body.input != "" and not continues:
        raise BadRequest(
            "input: a text or at least one item is required", param="input", code="missing_field"
        )
    return ()


class _ItemChecker:
    """Checks the input items in one pass: roles, calls, and results with their calls.

    `may_refer` is True if a result may belong to a call that the gateway cannot see: the request continues
    an earlier answer, or refers to a stored item.
    """

    def __init__(self, *, may_refer: bool) -> None:
        self._may_refer = may_refer
        self._call_ids: set[str] = set()
        self._turn_call_ids: set[str] = set()
        self.references: list[tuple[int, str]] = []

    def check(self, items: Sequence[WireItem]) -> None:
        for index, item in enumerate(items):
            kind = item.type or ("message" if item.role is not None else None)
            if kind is None:
                raise _missing(index, "type")
            if kind == "message":
                self._message(index, item)
            elif kind in OUTPUTS:
                self._output(index, item)
            elif kind in CALLS:
                self._call(index, item, CALLS[kind])
            elif kind == "reasoning":
                self._reasoning(index, item)
            elif kind == REFERENCE:
                self._reference(index, item)
            else:
                if kind in DECLARATIONS:
                    _check_declaration(index, item)
                if item.call_id is not None:
                    self._call_ids.add(item.call_id)

    def _message(self, index: int, item: WireItem) -> None:
        if item.role not in ROLES:
            if item.role is None:
                raise _missing(index, "role")
            allowed = ", ".join(map(repr, ROLES))
            raise _wrong(index, "role", f"{item.role!r} is not one of {allowed}")
        if item.content is None or isinstance(item.content, dict):
            raise _wrong(index, "content", "expected a text or a list of parts")
        if item.role != "assistant":
            self._turn_call_ids.clear()

    def _call(self, index: int, item: WireItem, field: str) -> None:
        _check_name(item.name, f"input[{index}].name")
        if not item.call_id:
            raise _missing(index, "call_id")
        if not isinstance(getattr(item, field), str):
            raise _wrong(index, field, "expected a text")
        if item.call_id in self._turn_call_ids:
            raise _wrong(index, "call_id", f"{item.call_id!r} is the id of two calls of one turn")
        self._turn_call_ids.add(item.call_id)
        self._call_ids.add(item.call_id)

    def _reference(self, index: int, item: WireItem) -> None:
        if not item.id:
            raise _missing(index, "id")
        self._may_refer = True
        self.references.append((index, item.id))

    def _reasoning(self, index: int, item: WireItem) -> None:
        for field in ("summary", "content"):
            value = getattr(item, field)
            if value is not None and not isinstance(value, list):
                raise _wrong(index, field, "expected a list of parts")
        _check_parts(item.summary or [], f"input[{index}].summary")

    def _output(self, index: int, item: WireItem) -> None:
        self._turn_call_ids.clear()
        if not item.call_id:
            raise _missing(index, "call_id")
        if item.output is None:
            raise _missing(index, "output")
        if not isinstance(item.output, str | list):
            raise _wrong(index, "output", "expected a text or a list of parts")
        if isinstance(item.output, list):
            _check_parts(item.output, f"input[{index}].output")
        if item.call_id not in self._call_ids and not self._may_refer:
            raise _wrong(index, "call_id", f"no earlier call has the id {item.call_id!r}")


def _check_declaration(index: int, item: WireItem) -> None:
    path = f"input[{index}].tools"
    try:
        _check_tools(convert(item.tools or [], list[WireTool]), path)
    except ValidationError as exc:
        raise BadRequest(f"{path}: expected a list of tools", param=path, code="invalid_type") from exc


def _check_parts(values: list[Any], path: str) -> None:
    try:
        convert(values, list[WirePart])
    except ValidationError as exc:
        problem, _, where = str(exc).partition(" - at `$")
        path += where.rstrip("`")
        raise BadRequest(f"{path}: {problem.replace('`', chr(39))}", param=path, code="invalid_type") from exc


def _check_name(name: str | None, path: str) -> None:
    if name is None:
        raise BadRequest(f"{path}: this field is required", param=path, code="missing_field")
    if not name.strip() or "\0" in name:
        raise BadRequest(f"{path}: {name!r} is not a usable name", param=path, code="invalid_name")


def _missing(index: int, field: str) -> BadRequest:
    path = f"input[{index}].{field}"
    return BadRequest(f"{path}: this field is required", param=path, code="missing_field")


def _wrong(index: int, field: str, problem: str) -> BadRequest:
    path = f"input[{index}].{field}"
    return BadRequest(f"{path}: {problem}", param=path, code="invalid_value")
