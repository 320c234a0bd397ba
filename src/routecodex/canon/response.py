"""A complete answer; `fold` builds it from events, `unfold` turns it into events."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec import Struct
from msgspec.structs import replace

from routecodex.canon.events import (
    AnnotationDelta,
    AnswerPart,
    ArgumentsDelta,
    Event,
    Failed,
    Finished,
    PartFinished,
    PartStarted,
    ReasoningDelta,
    SignatureDelta,
    Started,
    TextDelta,
    Usage,
    UsageReported,
)
from routecodex.canon.finish import Finish
from routecodex.canon.parts import Json, Opaque, Reasoning, Refusal, Text, ToolCall


class Response(Struct, frozen=True):
    """One complete answer."""

    id: str = ""
    model: str = ""
    created: int | None = None
    parts: tuple[AnswerPart, ...] = ()
    finish: Finish = Finish("stop")
    usage: Usage | None = None
    logprobs: tuple[Json, ...] = ()
    extras: dict[str, Json] | None = None

    @property
    def written(self) -> int:
        """Characters that the model wrote, for estimates."""
        return sum(map(_written, self.parts))


def _written(part: AnswerPart) -> int:
    if isinstance(part, ToolCall):
        return len(part.arguments)
    return 0 if isinstance(part, Opaque) else len(part.text)


class ResponseBuilder:
    """Builds a Response from events; text deltas are joined once, at the end."""

    def __init__(self) -> None:
        self._started = Started()
        self._parts: dict[int, AnswerPart] = {}
        self._pieces: dict[int, list[str]] = {}
        self._signatures: dict[int, list[str]] = {}
        self._annotations: dict[int, list[Json]] = {}
        self._logprobs: list[Json] = []
        self._usage: Usage | None = None
        self._finished: Finished | None = None

    def add(self, event: Event) -> None:
        """Add one event; raise the error of a Failed one."""
        match event:
            case TextDelta():
                self._pieces[event.index].append(event.text)
                self._logprobs.extend(event.logprobs)
            case ArgumentsDelta() | ReasoningDelta():
                self._pieces[event.index].append(event.text)
            case PartStarted():
                self._parts[event.index] = event.part
                self._pieces[event.index] = []
            case PartFinished():
                pass
            case SignatureDelta():
                self._signatures.setdefault(event.index, []).append(event.signature)
            case AnnotationDelta():
                self._annotations.setdefault(event.index, []).append(event.annotation)
            case UsageReported():
                self._usage = event.usage
            case Started():
                self._started = event
            case Finished():
                self._finished = event
            case Failed():
                raise event.error

    def _part(self, index: int) -> AnswerPart:
        part = self._parts[index]
        added = "".join(self._pieces[index])
        signature = "".join(self._signatures.get(index, ())) or None
        match part:
            case Text():
                annotations = (*part.annotations, *self._annotations.get(index, ()))
                return replace(
                    part,
                    text=part.text + added,
                    annotations=annotations,
                    signature=signature or part.signature,
                )
            case Refusal():
                return Refusal(part.text + added)
            case ToolCall():
                return replace(part, arguments=part.arguments + added, signature=signature or part.signature)
            case Reasoning():
                return replace(part, text=part.text + added, signature=signature or part.signature)
            case Opaque():
                return part

    def response(self) -> Response:
        """Return the answer so far."""
        end = self._finished
        extras = {**(self._started.extras or {}), **((end.extras if end else None) or {})}
        return Response(
            id=self._started.id,
            model=self._started.model,
            created=self._started.created,
            parts=tuple(self._part(index) for index in sorted(self._parts)),
            finish=end.finish if end else Finish("stop"),
            usage=self._usage,
            logprobs=tuple(self._logprobs),
            extras=extras or None,
        )


def fold(events: Iterable[Event]) -> Response:
    """Build the answer from its events; raise the error of a Failed event."""
    builder = ResponseBuilder()
    for event in events:
        builder.add(event)
    return builder.response()


def _unfold_part(index: int, part: AnswerPart, logprobs: tuple[Json, ...]) -> Iterator[Event]:
    match part:
        case Text():
            yield PartStarted(index, replace(part, text="", annotations=(), signature=None))
            if part.text or logprobs:
                yield TextDelta(index, part.text, logprobs)
            for annotation in part.annotations:
                yield AnnotationDelta(index, annotation)
        case Refusal():
            yield PartStarted(index, Refusal(""))
            yield TextDelta(index, part.text)
        case ToolCall():
            yield PartStarted(index, replace(part, arguments="", signature=None))
            if part.arguments:
                yield ArgumentsDelta(index, part.arguments)
        case Reasoning():
            yield PartStarted(index, replace(part, text="", signature=None))
            if part.text:
                yield ReasoningDelta(index, part.text)
        case Opaque():
            yield PartStarted(index, part)
    signature = None if isinstance(part, Refusal | Opaque) else part.signature
    if signature is not None:
        yield SignatureDelta(index, signature)
    yield PartFinished(index)


def unfold(response: Response) -> Iterator[Event]:
    """Yield the events of an answer; `fold(unfold(r)) == r`."""
    yield Started(response.id, response.model, response.created, response.extras)
    logprobs = response.logprobs
    for index, part in enumerate(response.parts):
        yield from _unfold_part(index, part, logprobs if isinstance(part, Text) else ())
        if isinstance(part, Text):
            logprobs = ()
    if response.usage is not None:
        yield UsageReported(response.usage)
    yield Finished(response.finish)
