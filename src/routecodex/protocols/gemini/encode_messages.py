"""Encodes canonical messages as Gemini contents.

Google's API requires contents that start with the user and alternate, and one functionResponse for each call,
first in the content right after the calls. The encoder builds this from any history.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable

from msgspec import Raw, Struct

from routecodex.canon.notices import Notices
from routecodex.canon.parts import Json, Media, Opaque, Part, Reasoning, Refusal, Text, ToolCall, ToolResult
from routecodex.canon.request import Message, Request
from routecodex.protocols.codec import EncodeOptions
from routecodex.protocols.gemini.content import encode_media
from routecodex.protocols.gemini.thinking import (
    SKIP_SIGNATURE,
    ModelTraits,
    may_return,
    model_traits,
    unseal_signature,
)
from routecodex.protocols.tool_mapping import flat
from routecodex.wire import json

_LEGAL_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.:-]{0,63}")
_FIRST_PART: dict[str, Json] = {"text": "Continue."}
_NO_RESULT = {"error": "there is no result for this call"}
PartFields = dict[str, Json]


class _PairedCall(Struct):
    """A call of the history with its result; `id` is unique in the conversation, unlike that of the call."""

    id: str
    name: str
    result: ToolResult | None = None


def _pair_calls(messages: Iterable[Message]) -> list[_PairedCall]:
    """Return the calls in order, each with the result that belongs to it.

    Ids are unique in one turn only: Kimi, vLLM and others number the calls of every turn from 0. A result
    belongs to the newest turn with a call of its id, and there to the first such call without a result.
    """
    paired: list[_PairedCall] = []
    used: dict[str, int] = {}
    open_calls: dict[str, tuple[int, deque[_PairedCall]]] = {}
    turn = 0
    for message in messages:
        turn += message.role != "assistant"
        for part in message.parts:
            if isinstance(part, ToolCall):
                id = _unused_id(part.id, used) if part.id in used else part.id
                used.setdefault(id, 1)
                call = _PairedCall(id, legal_name(part.name, part.namespace))
                paired.append(call)
                known = open_calls.get(part.id)
                if known is None or known[0] != turn:
                    known = open_calls[part.id] = turn, deque()
                known[1].append(call)
            elif isinstance(part, ToolResult) and part.call_id in open_calls:
                calls = open_calls[part.call_id][1]
                if calls:
                    calls.popleft().result = part
    return paired


def _unused_id(id: str, used: dict[str, int]) -> str:
    """Return an id for a call whose own is in use; `used` has the number that was tried last, by id."""
    unique, number = id, used[id]
    while unique in used:
        number += 1
        unique = f"{id}_{number}"
    used[id] = number
    return unique


class Contents:
    """Builds `contents` from messages."""

    def __init__(self, request: Request, options: EncodeOptions, *, notices: Notices) -> None:
        self._options = options
        self._notices = notices
        self._same = request.source == "gemini"
        self._traits: ModelTraits = model_traits(options.model)
        self._fetches_urls = options.dialect.image_urls and (self._same or self._traits.fetches_urls)
        self._out: list[dict[str, Json]] = []
        self._calls = iter(_pair_calls(request.messages))
        self._call_ids: set[str] = set()
        self._open_calls: list[_PairedCall] = []
        self._has_call = False
        """Whether the last content, if it is one of the model, has a call."""

    def build(self, messages: Iterable[Message], *, system: str = "") -> list[dict[str, Json]]:
        """Return the contents; `system` is the system text for a model without system instructions."""
        if system:
            self._add("user", [{"text": system}])
        for message in messages:
            if message.name is not None and message.role != "tool":
                self._notices.dropped("name", "Gemini messages have no name")
            if message.role == "assistant":
                self._assistant(message)
            else:
                self._user(message)
        if not self._out or self._out[0]["role"] != "user":
            self._out.insert(0, {"role": "user", "parts": [_FIRST_PART]})
        return self._out

    def _add(self, role: str, parts: list[PartFields]) -> None:
        if not parts:
            return
        if self._out and self._out[-1]["role"] == role:
            self._out[-1]["parts"].extend(parts)
        else:
            self._out.append({"role": role, "parts": parts})

    def _assistant(self, message: Message) -> None:
        parts = [wire for part in message.parts if (wire := self._part(part)) is not None]
        if not self._out or self._out[-1]["role"] != "model":
            self._has_call = False
        self._add("model", parts)
        self._sign_first_call(parts)

    def _sign_first_call(self, parts: list[PartFields]) -> None:
        """Sign the first call of a content with Google's placeholder if it has no signature.

        Gemini 3 rejects a turn whose first call is unsigned, as calls of other models are (Google's docs,
        thought signatures).
        """
        if not self._traits.signs_calls or self._has_call:
            return
        first = next((part for part in parts if "functionCall" in part), None)
        if first is not None:
            self._has_call = True
            first.setdefault("thoughtSignature", SKIP_SIGNATURE)

    def _part(self, part: Part) -> PartFields | None:
        match part:
            case Text():
                return self._text(part)
            case ToolCall():
                return self._call(part)
            case Reasoning():
                return self._reasoning(part)
            case Refusal():
                return {"text": part.text} if part.text else None
            case Media():
                return self._media(part)
            case Opaque():
                return self._opaque(part)
            case ToolResult():
                return None

    def _text(self, part: Text) -> PartFields | None:
        if part.cache is not None:
            self._notices.dropped("cache_control", "Gemini caches prefixes by itself")
        signature = None
        if part.signature is not None:
            origin, own = unseal_signature(part.signature)
            if may_return(self._options, own, origin=origin, same_protocol=self._same):
                signature = own
        if not part.text and signature is None:
            return None
        return self._with_extras({"text": part.text}, part.extras, signature=signature)

    def _call(self, call: ToolCall) -> PartFields:
        if call.cache is not None:
            self._notices.dropped("cache_control", "Gemini caches prefixes by itself")
        signature = call.signature
        if signature is not None and not may_return(
            self._options, signature, origin=call.origin, same_protocol=self._same
        ):
            signature = None
        paired = next(self._calls)
        self._call_ids.add(call.id)
        self._open_calls.append(paired)
        body = {"id": paired.id, "name": paired.name, "args": arguments_of(call)}
        return self._with_extras({"functionCall": body}, call.extras, signature=signature)

    def _reasoning(self, part: Reasoning) -> PartFields | None:
        signature = part.signature
        returnable = signature is not None and may_return(
            self._options, signature, origin=part.origin, same_protocol=self._same
        )
        if not returnable and (not self._same or signature is not None or not part.text):
            # Gemini does not need unsigned thoughts back: no notice for those of this provider.
            if signature is not None or part.origin != self._options.provider:
                self._notices.dropped("reasoning", "made by another provider")
            return None
        return self._with_extras({"text": part.text, "thought": True}, part.extras, signature=signature)

    def _with_extras(
        self, part: PartFields, extras: dict[str, Json] | None, *, signature: str | None
    ) -> PartFields:
        if self._same and extras:
            part.update(extras)
        if signature is not None:
            part["thoughtSignature"] = signature
        return part

    def _media(self, media: Media) -> PartFields:
        if media.cache is not None:
            self._notices.dropped("cache_control", "Gemini caches prefixes by itself")
        part = encode_media(media, same_protocol=self._same)
        if part is None:
            reason = "only its own provider can read it"
        elif media.kind == "image" and not self._options.vision:
            reason = "this model takes no images"
        elif "fileData" in part and media.file_id is None and not self._fetches_urls:
            reason = "this provider fetches no URLs"
        else:
            return part
        self._notices.dropped(media.kind, reason)
        return {"text": f"[{media.kind} omitted: {reason}]"}

    def _opaque(self, part: Opaque) -> PartFields | None:
        if part.protocol == "gemini":
            return dict(part.value)
        kind = part.value.get("type") if isinstance(part.value, dict) else None
        self._notices.dropped(str(kind or "part"), f"only {part.protocol} has it")
        return None

    def _user(self, message: Message) -> None:
        self._answer_calls()
        parts: list[PartFields] = []
        for part in message.parts:
            if isinstance(part, ToolResult):
                parts += self._orphan_result(part)
            elif message.role == "system" and isinstance(part, Opaque):
                # Codex's `additional_tools`: its tools are declared.
                continue
            elif message.role == "system" and isinstance(part, Text):
                parts += [{"text": f"<system>{part.text}</system>"}] if part.text else []
            elif (wire := self._part(part)) is not None:
                parts.append(wire)
        self._add("user", parts)

    def _answer_calls(self) -> None:
        """Add the results of the open calls, in the order of the calls, with their media after them."""
        calls, self._open_calls = self._open_calls, []
        responses: list[PartFields] = []
        media: list[PartFields] = []
        for call in calls:
            if call.result is None:
                responses.append(_response(call, _NO_RESULT))
                continue
            response, result_media = self._result(call, call.result)
            responses.append(response)
            media += result_media
        self._add("user", responses + media)

    def _orphan_result(self, result: ToolResult) -> list[PartFields]:
        if result.call_id in self._call_ids:
            return []
        # Google rejects a functionResponse without its functionCall.
        text = "\n".join(part.text for part in result.parts if isinstance(part, Text))
        return [{"text": f"[result of {result.name or result.call_id}] {text}"}]

    def _result(self, call: _PairedCall, result: ToolResult) -> tuple[PartFields, list[PartFields]]:
        text = "\n".join(part.text for part in result.parts if isinstance(part, Text))
        media = [self._media(part) for part in result.parts if isinstance(part, Media)]
        opaque = [self._opaque(part) for part in result.parts if isinstance(part, Opaque)]
        media += [part for part in opaque if part is not None]
        if result.cache is not None:
            self._notices.dropped("cache_control", "Gemini caches prefixes by itself")
        extras = dict(result.extras or {}) if self._same else {}
        wrapper = extras.pop("wrapper", "result")
        value = response_of(text, is_error=result.is_error, wrapper=wrapper)
        response = _response(call, value)
        response["functionResponse"].update(extras)
        if not self._traits.media_results:
            return response, media
        inline = [part for part in media if "inlineData" in part]
        if inline:
            response["functionResponse"]["parts"] = inline
        return response, [part for part in media if "inlineData" not in part]


def _response(call: _PairedCall, response: Json) -> PartFields:
    return {"functionResponse": {"id": call.id, "name": call.name, "response": response}}


def arguments_of(call: ToolCall) -> Json:
    """Return the arguments of a call as an object; complete JSON objects keep their bytes."""
    if call.custom:
        return {"input": call.arguments}
    text = call.arguments.strip()
    if not text:
        return {}
    if text[0] == "{" and json.is_whole(text):
        return Raw(text.encode())
    return {"input": call.arguments}


def response_of(text: str, *, is_error: bool, wrapper: str = "result") -> Json:
    """Return the result of a tool as an object, which `response` must be."""
    if is_error:
        return {"error": text}
    if text.lstrip()[:1] == "{" and json.is_whole(text):
        return Raw(text.strip().encode())
    return {wrapper: text}


def legal_name(name: str, namespace: str | None) -> str:
    """Return the name of a tool as Gemini accepts it."""
    return name if not namespace and _LEGAL_NAME.fullmatch(name) else flat(name, namespace)
