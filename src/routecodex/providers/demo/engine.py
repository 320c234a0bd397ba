"""Turns a script into events: cut at stop sequences and the token limit, in pieces, counted and paced."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator

from msgspec.structs import replace

from routecodex.canon.events import (
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
from routecodex.canon.parts import Opaque, Reasoning, Refusal, Text, ToolCall
from routecodex.canon.request import Request
from routecodex.providers.demo.prompt import count_tokens, read_prompt
from routecodex.providers.demo.script import Script, digest, initial_delay, write_script

MODELS = ("demo-1", "demo-vision", "demo-thinking")
"""Names of the models; all run the same script."""
PACE = 0.025
"""Seconds between two pieces, about 40 words a second."""

_WORDS = re.compile(r"\s*\S+\s?|\s+")
_ARGUMENTS_PIECE = 16
_DELTAS = (TextDelta, ReasoningDelta, ArgumentsDelta)


def respond(request: Request) -> list[Event]:
    """Return the whole answer; the same request always gives the same events."""
    prompt = read_prompt(request)
    script = _limited(_stopped(write_script(request, prompt), request.stop), request.max_tokens)
    events: list[Event] = [
        Started(f"demo-{digest(request, prompt)}", request.model),
        UsageReported(Usage(input=prompt.tokens)),
    ]
    for index, part in enumerate(script.parts):
        events.extend(_part_events(index, part, whole=script.error is None or index < len(script.parts) - 1))
    if script.error is not None:
        return [*events, Failed(script.error)]
    output = sum(_cost(part) for part in script.parts)
    reasoning = sum(_cost(part) for part in script.parts if isinstance(part, Reasoning))
    usage = Usage(input=prompt.tokens, output=output, reasoning=reasoning)
    return [*events, UsageReported(usage), Finished(script.finish)]


async def answer(
    request: Request, *, pace: float = PACE, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
) -> AsyncGenerator[Event, None]:
    """Yield the events of `respond`, `pace` seconds before each piece; at pace 0 other tasks still run."""
    delay = initial_delay(read_prompt(request))
    for event in respond(request):
        if isinstance(event, _DELTAS):
            await sleep(pace)
        yield event
        if isinstance(event, Started) and delay:
            await sleep(delay)


def _part_events(index: int, part: AnswerPart, *, whole: bool) -> Iterator[Event]:
    """Yield the events of one part; one that is not whole is not finished."""
    match part:
        case Text() | Refusal():
            yield PartStarted(index, replace(part, text=""))
            yield from (TextDelta(index, piece) for piece in _pieces(part))
        case Reasoning():
            yield PartStarted(index, replace(part, text="", signature=None))
            yield from (ReasoningDelta(index, piece) for piece in _pieces(part))
            if part.signature is not None:
                yield SignatureDelta(index, part.signature)
        case ToolCall():
            yield PartStarted(index, replace(part, arguments=""))
            yield from (ArgumentsDelta(index, piece) for piece in _pieces(part))
        case Opaque():
            yield PartStarted(index, part)
    if whole:
        yield PartFinished(index)


def _pieces(part: AnswerPart) -> list[str]:
    match part:
        case Text() | Refusal() | Reasoning():
            return _WORDS.findall(part.text)
        case ToolCall():
            text = part.arguments
            return [text[at : at + _ARGUMENTS_PIECE] for at in range(0, len(text), _ARGUMENTS_PIECE)]
        case Opaque():
            return []


def _cost(part: AnswerPart) -> int:
    name = count_tokens(part.name) if isinstance(part, ToolCall) else 0
    return name + sum(map(count_tokens, _pieces(part)))


def _stopped(script: Script, stop: tuple[str, ...]) -> Script:
    """Cut the script at the first stop sequence in its text."""
    for number, part in enumerate(script.parts):
        if not isinstance(part, Text):
            continue
        found = [
            (place, sequence) for sequence in stop if sequence and (place := part.text.find(sequence)) >= 0
        ]
        if found:
            place, sequence = min(found)
            parts = (*script.parts[:number], replace(part, text=part.text[:place]))
            return Script(parts, Finish("stop", sequence=sequence))
    return script


def _limited(script: Script, limit: int | None) -> Script:
    """Cut the script at the token limit; a call that does not fit is left out."""
    left = float("inf") if limit is None else limit
    parts: list[AnswerPart] = []
    for part in script.parts:
        cost = _cost(part)
        if cost > left:
            if not isinstance(part, ToolCall | Opaque):
                parts.append(_cut(part, int(left)))
            return Script(tuple(parts), Finish("length"))
        left -= cost
        parts.append(part)
    return script


def _cut(part: Text | Refusal | Reasoning, left: int) -> Text | Refusal | Reasoning:
    text = ""
    for piece in _pieces(part):
        left -= count_tokens(piece)
        if left < 0:
            break
        text += piece
    return replace(part, text=text)
