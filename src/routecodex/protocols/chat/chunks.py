"""What chat upstreams send, read tolerantly: typed where they behave, mended where they do not.

Which call a piece of a stream belongs to, however the upstream numbers its calls, and what it lacks.

How an answer that passes from chat to chat ended, and the word its client is told.
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
    ReasoningDetails,
    StreamChunk,
    UsageField,
    WireAudioDelta,
    WireChoice,
    WireDelta,
    WireToolCallDelta,
    WireUsage,
)
from routecodex.wire import json
from routecodex.wire.json import ABSENT, decode_raw, has_content


class CallPosition:
    """Where a piece belongs: the number of its call, whether it begins it, and whether it tells its name."""

    __slots__ = ("begins", "names", "number")

    def __init__(self, number: int, *, begins: bool, names: bool) -> None:
        self.number: Final = number
        self.begins: Final = begins
        self.names: Final = names


class _KnownCall:
    """How a call is known."""

    __slots__ = ("id", "index", "named")

    def __init__(self, index: int | None, id: str | None) -> None:
        self.index = index
        self.id = id
        self.named = False


class ToolCallIndex:
    """The calls of one choice in the order they began; a call's number is its place here."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: list[_KnownCall] = []

    def __len__(self) -> int:
        return len(self._known)

    def place(self, delta: WireToolCallDelta) -> CallPosition:
        """The place of this piece; a name is told once, by the first piece that has one."""
        number = self._find(delta)
        begins = number is None
        if number is None:
            number = len(self._known)
            self._known.append(_KnownCall(delta.index, delta.id))
        call = self._known[number]
        names = bool(delta.name) and not call.named
        call.named = call.named or names
        return CallPosition(number, begins=begins, names=names)

    def _find(self, delta: WireToolCallDelta) -> int | None:
        """By index and id, else by index alone, else the last one when the piece names neither."""
        known = self._known
        near = [
            number for number, call in enumerate(known) if delta.index is None or call.index == delta.index
        ]
        if delta.id:
            # Some upstreams number every call 0 and tell them apart by id alone.
            for number in near:
                if known[number].id == delta.id:
                    return number
        is_awaited = bool(known) and not known[-1].named
        if delta.name and (delta.id or (delta.index is None and not is_awaited)):
            return None
        if near:
            return near[-1]
        # A piece that names nothing begins no call, whatever its number.
        return None if delta.name or delta.id or not known else len(known) - 1


def is_valid_call(call: WireToolCallDelta, place: CallPosition) -> bool:
    """Whether a piece has what its place demands: its number, an id with the first piece, a name but once."""
    if call.index != place.number:
        return False
    if place.begins:
        return bool(call.id and call.type) and call.text is not None
    return not call.id and (place.names or not call.name)


def repair_call(call: dict[str, Any], place: CallPosition, *, made_id: str) -> None:
    """Gives a piece what its place demands, and takes what was told before."""
    kind, field = ("custom", "input") if call.get("custom") else ("function", "arguments")
    body = call.get(kind) or {}
    text = body.get(field)
    call["index"] = place.number
    if place.begins:
        call["id"] = call.get("id") or made_id
        call["type"] = kind
        text = "" if text is None else text
    else:
        call.pop("id", None)
        if not place.names:
            body.pop("name", None)
    if text is not None:
        body[field] = text if isinstance(text, str) else json.encode(text).decode()
    call[kind] = body


CONTENT_KEY: Final = (b'"content":"', b'"content": "')
"""What stands before the text of a chunk, as upstreams write it."""

_decoder: Final = Decoder(StreamChunk)
_audio: Final = Decoder(WireAudioDelta)
_usage_field: Final = Decoder(UsageField)
_usage_counts: Final = Decoder(WireUsage)


def read_chunk(data: bytes) -> StreamChunk | None:
    """A chunk or a whole completion; None when it is no JSON object at all."""
    return json.try_read(data, _decoder) or read_loosely(data)


def read_typed(data: bytes) -> StreamChunk | None:
    """A chunk whose fields all have the types they should have, else None."""
    return json.try_read(data, _decoder)


def read_loosely(data: bytes) -> StreamChunk | None:
    """A chunk as far as it can be understood; None when it is no JSON object at all."""
    try:
        value = json.decode(data)
    except ValueError:
        return None
    return _loose_chunk(value) if isinstance(value, dict) else None


def is_empty(delta: WireDelta) -> bool:
    """Whether nothing is said here that a client would show or do."""
    if delta.content or delta.reasoning_content or delta.reasoning or delta.annotations:
        return False
    return lacks_answer(delta) and not _has_value(delta.reasoning_details)


def lacks_answer(delta: WireDelta) -> bool:
    """Whether a whole answer says and does nothing; thoughts alone are no answer."""
    if delta.content or delta.refusal or delta.tool_calls or delta.function_call:
        return False
    return not (_has_value(delta.audio) or _has_value(delta.images))


def is_plain_text(chunk: StreamChunk) -> bool:
    """Whether the chunk adds to the text of the one choice, and says nothing else."""
    choices = chunk.choices
    if choices is None or len(choices) != 1 or chunk.usage is not None:
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


def transcript_of(delta: WireDelta) -> str:
    """What is said in the sound of an answer, as far as this piece tells it."""
    audio = json.try_read(delta.audio, _audio) if delta.audio is not ABSENT else None
    return (audio.transcript or "") if audio is not None else ""


def images_of(delta: WireDelta) -> list[Json]:
    """The images of an answer, as the upstream wrote them."""
    found = decode_raw(delta.images) if delta.images is not ABSENT else None
    return found if isinstance(found, list) else []


def _has_value(raw: Raw) -> bool:
    return raw is not ABSENT and has_content(raw)


def usage_of(wire: WireUsage) -> Usage:
    """The counts in canon."""
    prompt, completion = wire.prompt_tokens_details, wire.completion_tokens_details
    cached = prompt.cached_tokens if prompt is not None else None
    stored = prompt.cache_write_tokens if prompt is not None else None
    thought = completion.reasoning_tokens if completion is not None else None
    return Usage(
        input=wire.prompt_tokens or 0,
        output=wire.completion_tokens or 0,
        cache_read=cached or wire.prompt_cache_hit_tokens or 0,
        cache_write=stored or 0,
        reasoning=thought or 0,
    )


def complete_usage(data: bytes) -> Raw:
    """The counts of a chunk as they came, whatever else they hold; absent if one that chat has is missing."""
    found = json.try_read(data, _usage_field)
    wire = json.try_read(found.usage, _usage_counts) if found is not None else None
    if found is None or wire is None or wire.prompt_tokens is None:
        return ABSENT
    return ABSENT if wire.completion_tokens is None or wire.total_tokens is None else found.usage


def _loose_chunk(value: dict[str, Any]) -> StreamChunk:
    """A chunk whose fields have odd types: what can be understood is kept, the rest is left out."""
    choices = value.get("choices")
    usage = value.get("usage")
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
        service_tier=_text(value.get("service_tier")),
        system_fingerprint=_text(value.get("system_fingerprint")),
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
    text, thought = _loose_content(item.get("content"))
    return WireDelta(
        content=text,
        reasoning_content=_text(item.get("reasoning_content")) or thought,
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


def _raw(value: Json) -> Raw:
    return ABSENT if value is None else Raw(json.encode(value))


def _loose_content(value: Json) -> tuple[str | None, str | None]:
    """Text and thought of a content that may be a list of typed pieces."""
    if not isinstance(value, list):
        return _text(value), None
    texts, thoughts = [], []
    for piece in value:
        if not isinstance(piece, dict):
            continue
        if piece.get("type") == "thinking":
            inner = piece.get("thinking")
            thoughts.append(_loose_content(inner)[0] if isinstance(inner, list) else inner)
        else:
            texts.append(piece.get("text"))
    return _joined(texts), _joined(thoughts)


def _joined(pieces: list[Json]) -> str | None:
    return "".join(piece for piece in pieces if isinstance(piece, str)) or None


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
    details, thoughts = item.get("prompt_tokens_details"), item.get("completion_tokens_details")
    return WireUsage(
        prompt_tokens=_count(item.get("prompt_tokens")),
        completion_tokens=_count(item.get("completion_tokens")),
        total_tokens=_count(item.get("total_tokens")),
        prompt_tokens_details=CachedDetails(
            _count(details.get("cached_tokens")), _count(details.get("cache_write_tokens"))
        )
        if isinstance(details, dict)
        else None,
        completion_tokens_details=ReasoningDetails(_count(thoughts.get("reasoning_tokens")))
        if isinstance(thoughts, dict)
        else None,
        prompt_cache_hit_tokens=_count(item.get("prompt_cache_hit_tokens")),
    )


def _text(value: Json) -> str | None:
    return value if isinstance(value, str) else None


def _count(value: Json) -> int | None:
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int | float):
        return int(value)
    return int(value) if isinstance(value, str) and value.isdecimal() else None


def settle_finish(said: str | None, *, calls: bool, legacy: bool = False) -> tuple[Finish, str]:
    """The finish and its word; `legacy` answers made their call the old way, as `function_call`."""
    if said is not None and not legacy:
        usual = _WITH_CALLS.get(said) if calls else _WITHOUT_CALLS.get(said)
        if usual is not None:
            return usual
    return _infer_finish(said, calls=calls, legacy=legacy)


def _infer_finish(said: str | None, *, calls: bool, legacy: bool) -> tuple[Finish, str]:
    # Arguments that pass are not read, so a call that may have been cut off is not called whole.
    end = finish.infer("chat", said, has_calls=calls or legacy, calls_whole=False)
    if end.reason == "tool_calls" and not calls:
        return end, "function_call"
    return end, finish.encode("chat", end)


_COMMON_REASONS: Final = ("stop", "length", "tool_calls", "content_filter")
_WITHOUT_CALLS: Final = {said: _infer_finish(said, calls=False, legacy=False) for said in _COMMON_REASONS}

_WITH_CALLS: Final = {said: _infer_finish(said, calls=True, legacy=False) for said in _COMMON_REASONS}
"""What the words of nearly every upstream come to."""
