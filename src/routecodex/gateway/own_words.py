"""What the gateway says by itself in a conversation: confirmations, the state of things, the help."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Sequence

from routecodex.canon.events import (
    Event,
    Finished,
    PartFinished,
    PartStarted,
    Started,
    TextAdded,
    UsageReported,
)
from routecodex.canon.finish import Finish
from routecodex.canon.parts import Text
from routecodex.canon.usage import Usage
from routecodex.gateway.health import Row
from routecodex.routing.instructions import Malformed, help_text
from routecodex.routing.state import ServerState, SessionState, StopMessage

MARK = "[RouteCodex] "
"""How everything begins that the gateway says by itself: so it is known again in the history."""
_SHOWN = 60


def confirmation(state: SessionState, malformed: Sequence[Malformed], notices: Iterable[str]) -> str:
    """What is set now, in a few lines."""
    lines = [f"- {name}: {value}" for name, value in _session_rows(state)]
    lines += [f"- not understood: `{said.raw}` ({said.reason})" for said in malformed]
    lines += [f"- {notice}" for notice in notices]
    return MARK + "\n".join(["set for this conversation:" if lines else "nothing is set.", *lines])


def status(
    state: SessionState, server: ServerState, health: Iterable[Row], *, session: str, more: Iterable[str] = ()
) -> str:
    """The state of this conversation and of the keys, as markdown."""
    lines = [f"{MARK}status of {session}", ""]
    lines += _table(("setting", "this conversation"), _session_rows(state) or [("routing", "nothing is set")])
    orders = _routing_rows(server)
    if orders:
        lines += ["", *_table(("setting", "whole server"), orders)]
    ill = [(row.name, row.state, f"{row.seconds:.0f} s", row.error) for row in health]
    if ill:
        lines += ["", *_table(("key", "health", "for", "last error"), ill)]
    else:
        lines += ["", "All keys are healthy."]
    return "\n".join([*lines, *more])


def help_answer() -> str:
    """The table of instructions."""
    return f"{MARK}instructions\n\n{help_text()}"


def _session_rows(state: SessionState) -> list[tuple[str, str]]:
    rows = [("force", state.force.target)] if state.force is not None else []
    rows += _routing_rows(state)
    if state.stop_message is not None:
        rows.append(("stopMessage", _stop_row(state.stop_message)))
    return rows


def _routing_rows(state: SessionState | ServerState) -> list[tuple[str, str]]:
    named = (("sticky", state.sticky or ""), ("allow", ", ".join(state.allow)))
    rows = (*named, ("disabled", ", ".join(state.disable)))
    return [(name, value) for name, value in rows if value]


def _stop_row(stop: StopMessage) -> str:
    text = " ".join(stop.text.split())
    shown = text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"
    return f'"{shown}", {stop.used} of {stop.max_repeats} used'


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    lines = [head, tuple("---" for _ in head), *rows]
    return ["| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines]


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


async def spoken(text: str) -> AsyncGenerator[Event, None]:
    """The text as an answer."""
    yield Started()
    yield PartStarted(0, Text(""))
    yield TextAdded(0, text)
    yield PartFinished(0)
    yield UsageReported(Usage(input=0, output=0))
    yield Finished(Finish("stop"))
