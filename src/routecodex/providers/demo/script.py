"""What the demo model says: a request in, the parts of an answer out."""

from __future__ import annotations

import base64
from collections.abc import Callable
from itertools import cycle, islice

import msgspec
from msgspec import Struct

from routecodex.canon.errors import UpstreamError
from routecodex.canon.events import AnswerPart
from routecodex.canon.finish import Finish
from routecodex.canon.parts import Reasoning, Refusal, Text
from routecodex.canon.request import Request
from routecodex.protocols.failures import stream_truncated, upstream_error
from routecodex.providers.demo.commands import DemoCommand, parse
from routecodex.providers.demo.fill import Clues, fill_schema
from routecodex.providers.demo.seen import Prompt
from routecodex.providers.demo.tools import asked_calls, commanded_calls, digest

_STORY = (
    "the gateway takes a request from any client and brings it to any provider, "
    "then carries the answer back word by word, and nobody has to know how far it went."
)

_QUOTED = 4000
"""Characters of a tool result that are repeated."""

_ECHOED = 500
"""Characters at each end of a long text that are echoed: all of it would take minutes at that pace."""
_LONGEST = 20_000


class Script(Struct, frozen=True):
    """An answer before it is cut into events; an `error` comes after its parts, instead of the finish."""

    parts: tuple[AnswerPart, ...] = ()
    finish: Finish = Finish("stop")
    error: UpstreamError | None = None


def write(request: Request, seen: Prompt) -> Script:
    """The answer to the request."""
    given = [] if seen.results else parse(seen.text)
    script = _script(request, seen, given)
    thinks = any(command.name == "think" for command in given) or _wants_thought(request)
    if not thinks or script.error is not None or not script.parts:
        return script
    return msgspec.structs.replace(script, parts=(_thought(request, seen), *script.parts))


def silence(seen: Prompt) -> float:
    """Seconds of silence that `demo:slow` asks for."""
    given = [] if seen.results else parse(seen.text)
    return sum(command.number(5) for command in given if command.name == "slow")


def _script(request: Request, seen: Prompt, given: list[DemoCommand]) -> Script:
    if seen.results:
        return _say(_quote(seen) if request.output is None else _structured(request, seen))
    for command in given:
        if command.name == "tool":
            calls = commanded_calls(request, seen, [c for c in given if c.name == "tool"])
            return Script(tuple(calls), Finish("tool_calls"))
        act = _ACTS.get(command.name)
        if act is not None:
            return act(command)
    calls = asked_calls(request, seen)
    if calls:
        return Script((Text("I will use a tool for that."), *calls), Finish("tool_calls"))
    return _say(_structured(request, seen) if request.output is not None else _echo(request, seen))


def _say(words: str) -> Script:
    return Script((Text(words),))


def _fail(command: DemoCommand) -> Script:
    status = int(command.number(500))
    headers = {"retry-after": "1"} if status in (429, 503, 529) else {}
    message = f"the demo model was told to fail with {status}"
    return Script(error=upstream_error(status, message, provider="demo", headers=headers))


_ACTS: dict[str, Callable[[DemoCommand], Script]] = {
    "stop": lambda _: _say("Stopped, as you asked."),
    "length": lambda _: Script(
        (Text("This answer is cut off by the token limit before it"),), Finish("length")
    ),
    "empty": lambda _: Script(),
    "refuse": lambda _: Script((Refusal("I will not help with that."),), Finish("refusal")),
    "filter": lambda _: Script((Text("This answer was"),), Finish("content_filter")),
    "long": lambda command: _say(
        " ".join(islice(cycle(_STORY.split()), int(min(command.number(500), _LONGEST))))
    ),
    "say": lambda command: _say(command.rest),
    "error": _fail,
    "cutoff": lambda _: Script(
        (Text("This answer breaks off in the mid"),), error=stream_truncated("the demo model")
    ),
}


COMMANDS = frozenset({*_ACTS, "tool", "think", "slow"})
"""All that `demo:` can be followed by."""


def _wants_thought(request: Request) -> bool:
    thinking = request.thinking
    return thinking is not None and thinking.enabled and thinking.effort != "none"


def _thought(request: Request, seen: Prompt) -> Reasoning:
    visible = request.thinking is None or request.thinking.visible
    what = (
        "I have the results of the tools" if seen.results else f"The user wrote {len(seen.text)} characters"
    )
    text = f"{what}. I look at what I was given and decide how to answer." if visible else ""
    mark = base64.b64encode(f"demo:{digest(request, seen)}".encode()).decode()
    return Reasoning(text, signature=mark)


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _echo(request: Request, seen: Prompt) -> str:
    counts = [_many(seen.messages, "message"), _many(seen.tools, "tool"), _many(seen.images, "image")]
    system = " and a system prompt" if request.system else ""
    text = seen.text
    if len(text) > 2 * _ECHOED:
        text = f"{text[:_ECHOED]} … {text[-_ECHOED:]}"
    said = f'You said: "{text}".' if text else "You said nothing in words."
    return f"{said} I am the demo model {request.model}, and I saw {', '.join(counts)}{system}."


def _quote(seen: Prompt) -> str:
    lines = [
        f"{name} {'failed with' if failed else 'answered'}: {text[:_QUOTED]}"
        for name, text, failed in seen.results
    ]
    return "\n".join([*lines, "That is all I needed."])


def _structured(request: Request, seen: Prompt) -> str:
    output = request.output
    assert output is not None
    if output.kind == "json_object" or not isinstance(output.schema, dict):
        value = {"text": seen.text, "messages": seen.messages, "tools": seen.tools, "images": seen.images}
        value |= {"results": [text for _, text, _ in seen.results]} if seen.results else {}
    else:
        value = fill_schema(output.schema, Clues(_quote(seen) if seen.results else seen.text))
    return msgspec.json.encode(value).decode()
