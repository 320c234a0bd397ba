"""Reads chunks and completions of chat upstreams: typed if they follow OpenAI's schema, else field by field.

Also finds the call that a delta belongs to, and the finish reason that a relayed answer must have.
"""

from __future__ import annotations

from typing import Any, Final

from msgspec import Raw
from msgspec.json import Decoder

from routecodex.canon import finish
from routecodex.canon.events import Usage
from routecodex.canon.finish import Finish
from routecodex.canon.parts import Json
from routecodex.protocols.chat.schema import (
    CachedDetails,
    CustomDelta,
    FunctionDelta,
    GroqField,
    ReasoningDetails,
    StreamChunk,
    UsageField,
    WireAudioDelta,
    WireChoice,
    WireDelta,
    WireToolCallDelta,
    WireUsage,
)
from routecodex.protocols.usage import billed_cost, counted, loose_tokens, mode_of
from routecodex.wire import json
from routecodex.wire.json import ABSENT, decode_raw, has_content, is_present

CONTENT_KEY: Final = (b'"content":"', b'"content": "')
"""Bytes before the text of a chunk: compact JSON (OpenAI), and with spaces (Python's json.dumps)."""

_decoder: Final = Decoder(StreamChunk)
_audio: Final = Decoder(WireAudioDelta)
_usage_field: Final = Decoder(UsageField)
_usage_counts: Final = Decoder(WireUsage)


_MOST_DIGITS: Final = 19
"""Digits of a number that a provider writes as a text; int() fails at thousands of them."""
_REASONING_PARTS: Final = {"thinking": "thinking", "reasoning": "summary"}
"""Types of content parts that hold reasoning, and the field of its text."""


def read_chunk(data: bytes) -> StreamChunk | None:
    """Read a chunk or a whole completion; None if it is not a JSON object."""
    return json.try_read(data, _decoder) or read_loosely(data)


def read_typed(data: bytes) -> StreamChunk | None:
    """Read a chunk whose fields all have their documented types, else return None."""
    return json.try_read(data, _decoder)


def read_loosely(data: bytes) -> StreamChunk | None:
    """Read the valid fields of a chunk; None if it is not a JSON object."""
    try:
        value = json.decode(data)
    except ValueError:
        return None
    return _loose_chunk(value) if isinstance(value, dict) else None


def _loose_chunk(value: dict[str, Any]) -> StreamChunk:
    """Return a chunk of the fields that have a usable type."""
    choices, usage, groq = value.get("choices"), value.get("usage"), value.get("x_groq")
    groq_usage = groq.get("usage") if isinstance(groq, dict) else None
    return StreamChunk(
        id=_text(value.get("id")),
        object=_text(value.get("object")),
        created=_count(value.get("created")),
        model=_text(value.get("model")),
        choices=[_loose_choice(item) for item in choices if isinstance(item, dict)]
        if isinstance(choices, list)
        else None,
        usage=_loose_usage(usage) if isinstance(usage, dict) else None,
        error=_raw(value.get("error")),
        citations=_raw(value.get("citations")),
        search_results=_raw(value.get("search_results")),
        service_tier=_text(value.get("service_tier")),
        system_fingerprint=_text(value.get("system_fingerprint")),
        x_groq=GroqField(_loose_usage(groq_usage)) if isinstance(groq_usage, dict) else None,
    )


def _loose_choice(item: dict[str, Any]) -> WireChoice:
    delta, message = item.get("delta"), item.get("message")
    return WireChoice(
        index=_count(item.get("index")) or 0,
        delta=_loose_delta(delta) if isinstance(delta, dict) else None,
        message=_loose_delta(message) if isinstance(message, dict) else None,
        finish_reason=_text(item.get("finish_reason")),
    )


def _loose_delta(item: dict[str, Any]) -> WireDelta:
    calls, annotations = item.get("tool_calls"), item.get("annotations")
    text, reasoning = _loose_content(item.get("content"))
    return WireDelta(
        content=text,
        reasoning_content=_text(item.get("reasoning_content")) or reasoning,
        reasoning=_text(item.get("reasoning")),
        refusal=_text(item.get("refusal")),
        tool_calls=[_loose_call(call) for call in calls if isinstance(call, dict)]
        if isinstance(calls, list)
        else None,
        function_call=_loose_function(item.get("function_call")),
        annotations=annotations if isinstance(annotations, list) else None,
        audio=_raw(item.get("audio")),
        images=_raw(item.get("images")),
        reasoning_details=_raw(item.get("reasoning_details")),
    )


def _loose_content(value: Json) -> tuple[str | None, str | None]:
    """Return text and reasoning of a content that is a list of typed parts.

    Reasoning is in `thinking` of a part (Mistral) or in its `summary` (Databricks, part type `reasoning`).
    """
    if not isinstance(value, list):
        return _text(value), None
    texts, reasoning = [], []
    for part in value:
        if not isinstance(part, dict):
            continue
        field = _REASONING_PARTS.get(_text(part.get("type")) or "")
        if field is None:
            texts.append(part.get("text"))
        else:
            inner = part.get(field)
            reasoning.append(_loose_content(inner)[0] if isinstance(inner, list) else inner)
    return _joined(texts), _joined(reasoning)


def _joined(texts: list[Json]) -> str | None:
    return "".join(text for text in texts if isinstance(text, str)) or None


def _loose_call(item: dict[str, Any]) -> WireToolCallDelta:
    custom = item.get("custom")
    return WireToolCallDelta(
        index=_count(item.get("index")),
        id=_text(item.get("id")),
        type=_text(item.get("type")),
        function=_loose_function(item.get("function")),
        custom=CustomDelta(_text(custom.get("name")), _text(custom.get("input")))
        if isinstance(custom, dict)
        else None,
    )


def _loose_function(item: Json) -> FunctionDelta | None:
    if not isinstance(item, dict):
        return None
    arguments = item.get("arguments")
    if arguments is not None and not isinstance(arguments, str):
        arguments = json.encode(arguments).decode()
    return FunctionDelta(name=_text(item.get("name")), arguments=arguments)


def _loose_usage(item: dict[str, Any]) -> WireUsage:
    completion = item.get("completion_tokens_details")
    return WireUsage(
        cost=item.get("cost"),
        cost_details=item.get("cost_details"),
        is_byok=item.get("is_byok"),
        cost_in_usd_ticks=item.get("cost_in_usd_ticks"),
        prompt_tokens=loose_tokens(item.get("prompt_tokens")),
        completion_tokens=loose_tokens(item.get("completion_tokens")),
        total_tokens=loose_tokens(item.get("total_tokens")),
        prompt_tokens_details=_loose_details(item.get("prompt_tokens_details")),
        completion_tokens_details=ReasoningDetails(loose_tokens(completion.get("reasoning_tokens")))
        if isinstance(completion, dict)
        else None,
        prompt_cache_hit_tokens=loose_tokens(item.get("prompt_cache_hit_tokens")),
        cached_tokens=loose_tokens(item.get("cached_tokens")),
        num_cached_tokens=loose_tokens(item.get("num_cached_tokens")),
        prompt_token_details=_loose_details(item.get("prompt_token_details")),
    )


def _loose_details(item: Json) -> CachedDetails | None:
    if not isinstance(item, dict):
        return None
    names = ("cached_tokens", "cache_write_tokens", "cache_creation_input_tokens")
    return CachedDetails(*(loose_tokens(item.get(name)) for name in names))


def _raw(value: Json) -> Raw:
    return ABSENT if value is None else Raw(json.encode(value))


def _text(value: Json) -> str | None:
    return value if isinstance(value, str) else None


def index_of(choice: dict[str, Json]) -> int:
    """Return the index of a choice as plain JSON, read as loosely as that of a typed one."""
    return _count(choice.get("index")) or 0


def _count(value: Json) -> int | None:
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int | float):
        return int(value)
    is_number = isinstance(value, str) and len(value) < _MOST_DIGITS and value.isdecimal()
    return int(value) if is_number else None


def is_empty(delta: WireDelta) -> bool:
    """Whether a delta is without any content, call or reasoning."""
    if delta.content or delta.reasoning_content or delta.reasoning or delta.annotations:
        return False
    return lacks_answer(delta) and not _has_value(delta.reasoning_details)


def lacks_answer(delta: WireDelta) -> bool:
    """Whether a delta or message has neither content nor a call; reasoning alone is not an answer."""
    if delta.content or delta.refusal or delta.tool_calls or delta.legacy_call is not None:
        return False
    return not (_has_value(delta.audio) or _has_value(delta.images))


def adds_text(delta: WireDelta) -> bool:
    """Whether a delta adds text, reasoning or a call; annotations and images may follow these."""
    if delta.content or delta.refusal or delta.reasoning_content or delta.reasoning:
        return True
    return bool(delta.tool_calls) or delta.legacy_call is not None


def is_plain_text(chunk: StreamChunk) -> bool:
    """Whether the chunk only adds to the text of its one choice."""
    choices = chunk.choices
    if choices is None or len(choices) != 1 or chunk.usage is not None or chunk.citations is not ABSENT:
        return False
    choice = choices[0]
    delta = choice.delta
    if delta is None or not delta.content or choice.index or choice.finish_reason or choice.logprobs:
        return False
    if delta.reasoning_content or delta.reasoning or delta.refusal or delta.tool_calls:
        return False
    if delta.function_call or delta.annotations or delta.audio is not ABSENT:
        return False
    return not (_has_value(delta.images) or _has_value(delta.reasoning_details))


def has_error(chunk: StreamChunk) -> bool:
    """Whether a chunk reports an error; some servers write an empty `error` beside every answer."""
    if chunk.error is ABSENT or not is_present(chunk.error):
        return False
    return not chunk.choices or not _is_zero(decode_raw(chunk.error))


def _has_value(raw: Raw) -> bool:
    return raw is not ABSENT and has_content(raw) and not _is_zero(decode_raw(raw))


def _is_zero(value: Json) -> bool:
    """Whether a value is null, zero or empty, at every depth: Snowflake writes unused fields like this."""
    if isinstance(value, dict):
        return all(map(_is_zero, value.values()))
    return all(map(_is_zero, value)) if isinstance(value, list) else not value


def transcript_of(delta: WireDelta) -> str:
    """Return the transcript of the audio in this delta (OpenAI, audio output)."""
    audio = json.try_read(delta.audio, _audio) if delta.audio is not ABSENT else None
    return (audio.transcript or "") if audio is not None else ""


def images_of(delta: WireDelta) -> list[Json]:
    """Return the images of an answer as the upstream wrote them (OpenRouter, image generation)."""
    found = decode_raw(delta.images) if delta.images is not ABSENT else None
    return found if isinstance(found, list) else []


def reasoning_details_of(delta: WireDelta) -> list[tuple[int, str]]:
    """Return the texts in `reasoning_details`, each with the index of its entry (OpenRouter docs, reasoning).

    A `reasoning.encrypted` entry has no text.
    """
    found = decode_raw(delta.reasoning_details)
    texts: list[tuple[int, str]] = []
    for at, entry in enumerate(found if isinstance(found, list) else ()):
        if isinstance(entry, dict):
            text = _text(entry.get("text")) or _text(entry.get("summary"))
            index = _count(entry.get("index"))
            if text:
                texts.append((at if index is None else index, text))
    return texts


def usage_of(wire: WireUsage, tier: str | None) -> Usage | None:
    """Return the canonical usage of an answer with this `service_tier`; None if nothing was counted."""
    input, output = wire.prompt_tokens or 0, wire.completion_tokens or 0
    cached = written = reasoning = 0
    details = wire.prompt_tokens_details or wire.prompt_token_details
    if details is not None:
        cached = details.cached_tokens or 0
        written = details.cache_write_tokens or details.cache_creation_input_tokens or 0
    if not cached:
        cached = wire.prompt_cache_hit_tokens or wire.cached_tokens or wire.num_cached_tokens or 0
    if cached + written > input:
        # xAI: cached tokens were seen beside the prompt tokens instead of among them.
        input += cached + written
    completion = wire.completion_tokens_details
    if completion is not None and completion.reasoning_tokens:
        reasoning = completion.reasoning_tokens
        # xAI does not count reasoning among the completion tokens, only in the total.
        total = wire.total_tokens
        if reasoning > output if total is None else total - input - output >= reasoning:
            output += reasoning
    billed = wire.cost is not None or wire.cost_in_usd_ticks is not None
    return counted(
        Usage(
            input=input,
            output=output,
            cache_read=cached,
            cache_write=written,
            reasoning=reasoning,
            cost=billed_cost(wire) if billed else None,
            mode=mode_of(tier) if tier else "",
        )
    )


def complete_usage(data: bytes) -> Raw:
    """Return the raw usage of a chunk; absent if one of OpenAI's three counts is missing."""
    found = json.try_read(data, _usage_field)
    wire = json.try_read(found.usage, _usage_counts) if found is not None else None
    if found is None or wire is None or wire.prompt_tokens is None:
        return ABSENT
    return ABSENT if wire.completion_tokens is None or wire.total_tokens is None else found.usage


class CallPosition:
    """Place of a delta: the number of its call, whether it begins the call, and whether it has its name."""

    __slots__ = ("begins", "names", "number")

    def __init__(self, number: int, *, begins: bool, names: bool) -> None:
        self.number: Final = number
        self.begins: Final = begins
        self.names: Final = names


class ToolCallIndex:
    """The calls of one choice in the order in which they began; their numbers count from 0.

    OpenAI's API reference has an `index` in every delta and the id in the first. Upstreams deviate: no index
    at all, index 0 for every call, the id or the name in every delta. Calls are looked up, not searched for:
    a stream may have thousands.
    """

    __slots__ = ("_by_id", "_by_index", "_by_place", "_named")

    def __init__(self) -> None:
        self._named: list[bool] = []
        self._by_index: dict[int, int] = {}
        """The last call with an index."""
        self._by_id: dict[str, int] = {}
        self._by_place: dict[tuple[int, str], int] = {}
        """The first call with an id, and with an index and an id."""

    def __len__(self) -> int:
        return len(self._named)

    def locate(self, delta: WireToolCallDelta) -> CallPosition:
        """Return the position of this delta; only the first delta with a name counts as naming."""
        number = self._find(delta)
        begins = number is None
        if number is None:
            number = self._add(delta.index, delta.id)
        names = bool(delta.name) and not self._named[number]
        if names:
            self._named[number] = True
        return CallPosition(number, begins=begins, names=names)

    def _add(self, index: int | None, id: str | None) -> int:
        number = len(self._named)
        self._named.append(False)
        if index is not None:
            self._by_index[index] = number
        if id:
            self._by_id.setdefault(id, number)
            if index is not None:
                self._by_place.setdefault((index, id), number)
        return number

    def _find(self, delta: WireToolCallDelta) -> int | None:
        """Find the call by index and id, else by index, else take the last if the delta has neither."""
        index, id, count = delta.index, delta.id, len(self._named)
        if id:
            # With index 0 for every call, only the id tells them apart.
            found = self._by_id.get(id) if index is None else self._by_place.get((index, id))
            if found is not None:
                return found
        awaits_name = count > 0 and not self._named[-1]
        if delta.name and (id or (index is None and not awaits_name)):
            return None
        last = count - 1 if count else None
        near = last if index is None else self._by_index.get(index)
        if near is not None:
            return near
        # A delta without id and name does not begin a call, whatever its index.
        return None if delta.name or id else last


def is_valid_call(call: WireToolCallDelta, position: CallPosition) -> bool:
    """Whether a delta has the fields that clients need at its position.

    These are its index, the id and type in the first delta, and the name once: SDKs join repeated names.
    """
    if call.index != position.number:
        return False
    if position.begins:
        return bool(call.id and call.type) and call.text is not None
    return not call.id and (position.names or not call.name)


def repair_call(call: dict[str, Any], position: CallPosition, *, new_id: str) -> None:
    """Add the fields that the position requires, and remove those that were sent before."""
    kind, field = ("custom", "input") if _is_custom(call) else ("function", "arguments")
    call.pop("function" if kind == "custom" else "custom", None)
    found = call.get(kind)
    body = found if isinstance(found, dict) else {}
    text = body.get(field)
    call["index"] = position.number
    if position.begins:
        call["id"] = call.get("id") or new_id
        call["type"] = kind
        text = "" if text is None else text
    else:
        call.pop("id", None)
        if not position.names:
            body.pop("name", None)
    if text is not None:
        body[field] = text if isinstance(text, str) else json.encode(text).decode()
    call[kind] = body


def _is_custom(call: dict[str, Any]) -> bool:
    return not _is_zero(call.get("custom")) or (not call.get("function") and bool(call.get("custom")))


def settle_finish(reason: str | None, *, calls: bool, legacy: bool = False) -> tuple[Finish, str]:
    """Return the finish of a relayed answer, and the `finish_reason` for its client.

    `legacy`: the call came as `function_call`, OpenAI's field before `tool_calls`.
    """
    if reason is not None and not legacy:
        known = _WITH_CALLS.get(reason) if calls else _WITHOUT_CALLS.get(reason)
        if known is not None:
            return known
    return _infer_finish(reason, calls=calls, legacy=legacy)


def _infer_finish(reason: str | None, *, calls: bool, legacy: bool) -> tuple[Finish, str]:
    # The relay does not read arguments, so it cannot know whether the last call is complete.
    end = finish.infer("chat", reason, has_calls=calls or legacy, calls_whole=False)
    if end.reason == "tool_calls" and not calls:
        return end, "function_call"
    return end, finish.encode("chat", end)


_COMMON_REASONS: Final = ("stop", "length", "tool_calls", "content_filter")
_WITHOUT_CALLS: Final = {
    reason: _infer_finish(reason, calls=False, legacy=False) for reason in _COMMON_REASONS
}

_WITH_CALLS: Final = {reason: _infer_finish(reason, calls=True, legacy=False) for reason in _COMMON_REASONS}
"""Finishes of the four documented reasons, without and with calls."""
