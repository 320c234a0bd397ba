"""Validates a client's generateContent and countTokens requests; an error names the first wrong field.

CallMatcher pairs results with calls: by id, or by name in the order of the calls just before. Ids are
optional in Google's API.
"""

from __future__ import annotations

from collections import deque

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
    functions_of,
    parts_of,
    tools_of,
)
from routecodex.wire import json

ROLES = ("user", "model", "function")
MODES = frozenset({"AUTO", "NONE", "ANY", "VALIDATED", "MODE_UNSPECIFIED"})


def validate(body: bytes, *, model: str | None = None, stream: bool | None = None) -> WireRequest:
    """Return the validated request; model and stream come from the path."""
    view = _view(body)
    json.check_utf8(body)
    return WireRequest("gemini", body, view=view, model=_model(model or view.body.model), stream=bool(stream))


def validate_count(body: bytes, *, model: str) -> WireRequest:
    """Return the request inside a countTokens request, validated."""
    outer = json.read(_camel_bytes(body), count_decoder)
    inner = outer.generate_content_request
    counted = bytes(inner) if json.is_present(inner) else body
    request = validate(counted, model=model, stream=False)
    request.view.counted = counted is not body
    return request


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


def _check(body: RequestBody) -> None:
    contents = contents_of(body)
    if not contents:
        raise BadRequest("contents: at least one content is needed", param="contents", code="missing_field")
    # With cached contents, the call of a result may be in the cache, where the gateway cannot see it.
    _check_contents(contents, lenient=body.cached_content is not None)
    _check_tools(body)


def _check_contents(contents: list[WireMessage], *, lenient: bool) -> None:
    matcher = CallMatcher()
    for at, content in enumerate(contents):
        role = content.role or "user"
        if role not in ROLES:
            where = f"contents[{at}].role"
            allowed = ", ".join(ROLES)
            raise BadRequest(f"{where}: {role!r} is not one of {allowed}", param=where, code="invalid_role")
        parts = parts_of(content)
        if not parts:
            where = f"contents[{at}].parts"
            raise BadRequest(f"{where}: at least one part is needed", param=where, code="missing_field")
        if role == "model":
            matcher.start_turn()
        _check_parts(parts, at, matcher=matcher, lenient=lenient)


def _check_parts(parts: list[WirePart], at: int, *, matcher: CallMatcher, lenient: bool) -> None:
    ids: set[str] = set()
    for position, part in enumerate(parts):
        if part.function_call is not None:
            where = f"contents[{at}].parts[{position}].functionCall"
            _check_call(part.function_call, where, ids=ids)
            call = part.function_call
            matcher.call(call.name or "", id=call.id, at=(at, position))
        elif part.function_response is not None:
            result = part.function_response
            where = f"contents[{at}].parts[{position}].functionResponse"
            if not result.id:
                _check_name(result.name, f"{where}.name")
            if matcher.result(result.name, id=result.id) is None and not lenient:
                call_name = result.id or result.name
                raise BadRequest(
                    f"{where}: no earlier functionCall has the id or name {call_name!r}",
                    param=where,
                    code="orphan_tool_result",
                )


def _check_call(call: WireFunctionCall, where: str, *, ids: set[str]) -> None:
    _check_name(call.name, f"{where}.name")
    if not call.id:
        return
    if call.id in ids:
        where = f"{where}.id"
        raise BadRequest(f"{where}: {call.id!r} occurs twice", param=where, code="duplicate_tool_call")
    ids.add(call.id)


def _check_tools(body: RequestBody) -> None:
    for at, tool in enumerate(tools_of(body)):
        for position, function in enumerate(functions_of(tool)):
            _check_name(function.name, f"tools[{at}].functionDeclarations[{position}].name")
    calling = body.tool_config.function_calling_config if body.tool_config else None
    if calling is not None and calling.mode and calling.mode.upper() not in MODES:
        where = "toolConfig.functionCallingConfig.mode"
        allowed = "AUTO, NONE, ANY, VALIDATED"
        problem = f"{calling.mode!r} is not one of {allowed}"
        raise BadRequest(f"{where}: {problem}", param=where, code="invalid_value")


def _check_name(name: str | None, where: str) -> None:
    if not name:
        raise BadRequest(f"{where}: this field is required", param=where, code="missing_field")
    if "\0" in name:
        raise BadRequest(f"{where}: a name may not contain NUL", param=where, code="invalid_value")


class _OpenCall:
    """A call that may still get a result."""

    __slots__ = ("answered", "id")

    def __init__(self, id: str) -> None:
        self.id = id
        self.answered = False


class CallMatcher:
    """Pairs the calls and results of a history; `call` and `result` return the canonical call ids.

    Calls are looked up by id and by name, not searched for: a history may have thousands.
    """

    __slots__ = ("_by_id", "_by_name", "_names", "_turn")

    def __init__(self) -> None:
        self._turn = 0
        self._names: dict[str, str] = {}
        self._by_id: dict[str, list[_OpenCall]] = {}
        self._by_name: dict[str, list[tuple[int, deque[_OpenCall]]]] = {}
        """The calls of each turn with a name, the newest turn last."""

    def start_turn(self) -> None:
        """Start a new content of the model; its calls match before older open calls."""
        self._turn += 1

    def call(self, name: str, *, id: str | None, at: tuple[int, int]) -> str:
        """Return the id of a call at (content, part): its own, or one made of its position."""
        call_id = id or f"call_{at[0]}_{at[1]}"
        self._names[call_id] = name
        opened = _OpenCall(call_id)
        self._by_id.setdefault(call_id, []).append(opened)
        turns = self._by_name.setdefault(name, [])
        if not turns or turns[-1][0] != self._turn:
            turns.append((self._turn, deque()))
        turns[-1][1].append(opened)
        return call_id

    def result(self, name: str | None, *, id: str | None) -> str | None:
        """Return the id of the call that a result answers, or None if no call matches."""
        if id is not None and id in self._names:
            for call in self._by_id.pop(id, ()):
                call.answered = True
            return id
        return None if name is None else self._take(name)

    def name(self, id: str) -> str | None:
        """Return the name of the tool that the call `id` called."""
        return self._names.get(id)

    def _take(self, name: str) -> str | None:
        """Return the id of the first open call with this name in the newest turn that has one."""
        turns = self._by_name.get(name, [])
        while turns:
            calls = turns[-1][1]
            while calls:
                call = calls.popleft()
                if not call.answered:
                    call.answered = True
                    return call.id
            turns.pop()
        return None
