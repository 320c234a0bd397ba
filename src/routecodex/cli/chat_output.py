"""Output of `routecodex chat` during a turn: streamed answer, dimmed reasoning, tool calls."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import click
import msgspec

from routecodex.cli.tables import is_coloured, shorten
from routecodex.turns import (
    Message,
    ReasoningAdded,
    RefusalAdded,
    StateChanged,
    TextAdded,
    ToolEnded,
    TurnEnded,
    TurnEvent,
)

_RESULT_WIDTH = 100
# Model output must not control the terminal: of control characters only line ends and tabs are printed.
_CONTROL_CHARACTERS = {*range(0x20), *range(0x7F, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)} - {
    0x09,
    0x0A,
}
_REMOVED = dict.fromkeys(_CONTROL_CHARACTERS)
_REPLACED = dict.fromkeys((*_CONTROL_CHARACTERS, 0x0A), "�")


def strip_control_characters(text: str) -> str:
    """Remove characters that control a terminal."""
    return text.translate(_REMOVED)


def call_text(name: str, arguments: Mapping[str, Any]) -> str:
    """Format a call on one line, with control characters made visible."""
    command = arguments.get("command") if name == "run_command" and len(arguments) == 1 else None
    text = (
        command
        if isinstance(command, str) and "\n" not in command
        else msgspec.json.encode(arguments).decode()
    )
    return f"{name} {text}".translate(_REPLACED)


class TerminalOutput:
    """Output to a terminal."""

    def __init__(self) -> None:
        self._colour = is_coloured(sys.stdout)
        self._writing = ""
        self._at_start = True

    def show(self, event: TurnEvent) -> None:
        """Show an event."""
        match event:
            case TextAdded() | RefusalAdded():
                self._write(event.text, "text")
            case ReasoningAdded():
                self._write(event.text, "thought")
            case ToolEnded():
                self._show_result(event.message)
            case TurnEnded():
                self._show_end(event)
            case _:
                pass

    def line(self, text: str, *, dim: bool = True, colour: str = "") -> None:
        """Print a line of the program itself."""
        self._end_line()
        self._writing = ""
        if self._colour:
            text = click.style(text, fg=colour or None, dim=dim)
        click.echo(text)

    def question(self, text: str) -> None:
        """Print a question; the answer is typed on the same line."""
        self._end_line()
        click.echo(f"{text} [y/N] ", nl=False)

    def error(self, text: str) -> None:
        """Print an error."""
        self.line(f"error: {strip_control_characters(text)}", dim=False, colour="red")

    def _write(self, text: str, kind: str) -> None:
        if self._writing not in ("", kind):
            self._end_line()
        self._writing = kind
        shown = strip_control_characters(text)
        if not shown:
            return
        self._at_start = shown.endswith("\n")
        click.echo(click.style(shown, dim=True) if kind == "thought" and self._colour else shown, nl=False)

    def _end_line(self) -> None:
        if not self._at_start:
            click.echo()
        self._at_start = True

    def _show_result(self, message: Message) -> None:
        text = message.content if isinstance(message.content, str) else ""
        first, _, rest = text.strip().partition("\n")
        more = f" (+{len(rest.splitlines())} lines)" if rest else ""
        self.line(f"  ↳ {shorten(strip_control_characters(first), _RESULT_WIDTH)}{more}")

    def _show_end(self, event: TurnEnded) -> None:
        if event.state == "aborted":
            self.line("(interrupted; the answer so far is saved)")
            return
        metadata = event.message.metadata if event.message is not None else {}
        facts = [
            metadata.get("headers", {}).get("x-routecodex-target"),
            _route(metadata),
            _tokens(event.usage),
        ]
        self.line(" · ".join(strip_control_characters(fact) for fact in facts if fact) or "(no answer)")


def _route(metadata: Mapping[str, Any]) -> str | None:
    route = metadata.get("headers", {}).get("x-routecodex-route")
    return f"route {route}" if route and route != "direct" else None


def _tokens(usage: Mapping[str, Any]) -> str | None:
    if not usage:
        return None
    return f"{usage.get('prompt_tokens', 0)} + {usage.get('completion_tokens', 0)} tokens"


class PipeOutput:
    """Output to a program: the answer on stdout, errors on stderr."""

    def __init__(self) -> None:
        self._ended = True

    def show(self, event: TurnEvent) -> None:
        if isinstance(event, TextAdded | RefusalAdded):
            self._ended = event.text.endswith("\n")
            click.echo(event.text, nl=False)
        elif isinstance(event, StateChanged | TurnEnded):
            self._end_line()

    def line(self, text: str) -> None:
        """Print a line of the program itself."""
        click.echo(text, err=True)

    def error(self, text: str) -> None:
        self._end_line()
        click.echo(f"error: {text}", err=True)

    def _end_line(self) -> None:
        if not self._ended:
            click.echo()
        self._ended = True
