"""Which call a result belongs to: by id, else by name in order with the calls just before.

A client's bytes, checked: what passes here is safe to walk and safe to send.
"""

from __future__ import annotations

from routecodex.canon.errors import BadRequest
from routecodex.protocols.codec import WireRequest
from routecodex.protocols.gemini.field_names import camel_keys, has_snake_case
from routecodex.protocols.gemini.schema import (
    RequestBody,
    RequestView,
    WireFunctionCall,
    WireMessage,
    WirePart,
    body_decoder,
    contents_of,
    count_decoder,
    parts_of,
)
from routecodex.wire import json


class CallMatcher:
    """Walks a history; `call` and `result` give the ids that calls and results go by in canon."""

    __slots__ = ("_earlier", "_known", "_open")

    def __init__(self) -> None:
        self._known: dict[str, str] = {}
        self._open: list[tuple[str, str]] = []
        self._earlier: list[tuple[str, str]] = []

    def turn(self) -> None:
        """A new content of the model begins: its calls come before older ones that nobody answered."""
        self._earlier = self._open + self._earlier
        self._open = []

    def call(self, name: str, *, id: str | None, at: tuple[int, int]) -> str:
        """The id of a call at (content, part): its own, or one made from its position."""
        known = id or f"call_{at[0]}_{at[1]}"
        self._known[known] = name
        self._open.append((known, name))
        return known

    def result(self, name: str | None, *, id: str | None) -> str | None:
        """The id of the call that a result answers, or None when there is none."""
        if id is not None and id in self._known:
            self._close(id)
            return id
        for calls in (self._open, self._earlier):
            for index, (known, called) in enumerate(calls):
                if called == name:
                    del calls[index]
                    return known
        return None

    def name(self, id: str) -> str | None:
        """The name of the tool that the call `id` called."""
        return self._known.get(id)

    def _close(self, id: str) -> None:
        self._open = [call for call in self._open if call[0] != id]
        self._earlier = [call for call in self._earlier if call[0] != id]


ROLES = ("user", "model", "function")
MODES = frozenset({"AUTO", "NONE", "ANY", "VALIDATED", "MODE_UNSPECIFIED"})


def validate(body: bytes, *, model: str | None = None, stream: bool | None = None) -> WireRequest:
    """The request, its types and pairing checked; model and stream come from the path."""
    view = _view(body)
    json.check_utf8(body)
    return WireRequest("gemini", body, wire=view, model=_model(model or view.body.model), stream=bool(stream))


def validate_count(body: bytes, *, model: str) -> WireRequest:
    """A countTokens request; the Inbound holds the request that is to be counted."""
    outer = json.read(_camel_bytes(body), count_decoder)
    inner = outer.generate_content_request
    counted = bytes(inner) if json.is_present(inner) else body
    inbound = validate(counted, model=model, stream=False)
    inbound.wire.counted = counted is not body
    return inbound


def _camel_bytes(body: bytes) -> bytes:
    if not has_snake_case(body):
        return body
    try:
        return json.encode(camel_keys(json.decode(body)))
    except ValueError:
        return body


def _view(body: bytes) -> RequestView:
    snake = has_snake_case(body)
    typed = json.read(_camel_bytes(body) if snake else body, body_decoder)
    _check(typed)
    return RequestView(typed, snake)


def _model(model: str | None) -> str:
    name = (model or "").removeprefix("models/")
    _check_name(name, "model")
    return name


def _check_name(name: str | None, where: str) -> None:
    if not name:
        raise BadRequest(f"{where}: this field is required", param=where, code="missing_field")
    if "\0" in name:
        raise BadRequest(f"{where}: a name may not contain NUL", param=where, code="invalid_value")


def _check(body: RequestBody) -> None:
    contents = contents_of(body)
    if not contents:
        raise BadRequest("contents: at least one content is needed", param="contents", code="missing_field")
    _check_contents(contents, lenient=body.cached_content is not None)
    _check_tools(body)


def _check_contents(contents: list[WireMessage], *, lenient: bool) -> None:
    pairing = CallMatcher()
    for at, content in enumerate(contents):
        role = content.role or "user"
        if role not in ROLES:
            where = f"contents[{at}].role"
            allowed = ", ".join(ROLES)
            raise BadRequest(f"{where}: {role!r} is none of {allowed}", param=where, code="invalid_role")
        parts = parts_of(content)
        if not parts:
            where = f"contents[{at}].parts"
            raise BadRequest(f"{where}: at least one part is needed", param=where, code="missing_field")
        if role == "model":
            pairing.turn()
        _check_parts(parts, at, pairing=pairing, lenient=lenient)


def _check_parts(parts: list[WirePart], at: int, *, pairing: CallMatcher, lenient: bool) -> None:
    seen: set[str] = set()
    for position, part in enumerate(parts):
        if part.function_call is not None:
            where = f"contents[{at}].parts[{position}].functionCall"
            _check_call(part.function_call, where, seen=seen)
            call = part.function_call
            pairing.call(call.name or "", id=call.id, at=(at, position))
        elif part.function_response is not None:
            result = part.function_response
            where = f"contents[{at}].parts[{position}].functionResponse"
            if not result.id:
                _check_name(result.name, f"{where}.name")
            if pairing.result(result.name, id=result.id) is None and not lenient:
                which = result.id or result.name
                raise BadRequest(
                    f"{where}: no earlier functionCall fits {which!r}", param=where, code="orphan_tool_result"
                )


def _check_call(call: WireFunctionCall, where: str, *, seen: set[str]) -> None:
    _check_name(call.name, f"{where}.name")
    if not call.id:
        return
    if call.id in seen:
        where = f"{where}.id"
        raise BadRequest(f"{where}: {call.id!r} occurs twice", param=where, code="duplicate_tool_call")
    seen.add(call.id)


def _check_tools(body: RequestBody) -> None:
    tools = body.tools if isinstance(body.tools, list) else [body.tools] if body.tools else []
    for at, tool in enumerate(tools):
        declared = tool.function_declarations or []
        for position, function in enumerate(declared if isinstance(declared, list) else [declared]):
            _check_name(function.name, f"tools[{at}].functionDeclarations[{position}].name")
    calling = body.tool_config.function_calling_config if body.tool_config else None
    if calling is not None and calling.mode and calling.mode.upper() not in MODES:
        where = "toolConfig.functionCallingConfig.mode"
        allowed = "AUTO, NONE, ANY, VALIDATED"
        raise BadRequest(f"{where}: {calling.mode!r} is none of {allowed}", param=where, code="invalid_value")
