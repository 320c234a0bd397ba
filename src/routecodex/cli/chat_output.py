"""Output of `routecodex chat` during a turn: streamed answer, dimmed reasoning, tool calls.

StreamedText     text of a model on stdout: rendered on a coloured terminal, else as it came
TerminalOutput   a conversation at the terminal
PipeOutput       one answer for a program
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import click
import msgspec

from routecodex.cli.markdown import MarkdownRenderer
from routecodex.cli.tables import available_width, is_coloured, shorten
from routecodex.cli.word_wrap import StyledText, TextRenderer
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
_DEFAULT_WIDTH = 80
_MIN_WIDTH = 20
# Model output must not control the terminal: of control characters only line ends and tabs are printed.
_CONTROL_CHARACTERS = {
    *range(0x20),
    *range(0x7F, 0xA0),
    0x2028,
    0x2029,
    *range(0x202A, 0x202F),
    *range(0x2066, 0x206A),
} - {0x09, 0x0A}
_REMOVED = dict.fromkeys(_CONTROL_CHARACTERS)
_REPLACED = dict.fromkeys((*_CONTROL_CHARACTERS, 0x0A), "�")

TextKind = Literal["answer", "reasoning"]

_STYLES: dict[str, dict[str, Any]] = {
    "bold": {"bold": True},
    "italic": {"italic": True},
    "underline": {"underline": True},
    "strike": {"strikethrough": True},
    "dim": {"dim": True},
    "code": {"fg": "cyan"},
}


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


class StreamedText:
    """Writes text of a model to stdout as it comes.

    On a terminal it cannot contain control characters, and with colours it is rendered: words wrapped,
    Markdown in the answer, reasoning dimmed. A pipe gets it unchanged.
    """

    def __init__(self) -> None:
        self._is_terminal = sys.stdout.isatty()
        self._colour = is_coloured(sys.stdout)
        self._is_rendered = self._colour and os.environ.get("TERM", "") not in ("", "dumb")
        self._renderers: dict[TextKind, MarkdownRenderer | TextRenderer] = {
            "answer": MarkdownRenderer(_DEFAULT_WIDTH),
            "reasoning": TextRenderer(_DEFAULT_WIDTH, frozenset({"dim"})),
        }
        self._kind: TextKind | None = None
        self._at_start = True

    def write(self, text: str, kind: TextKind = "answer") -> None:
        """Write a piece of a text; a text of another kind begins on a line of its own."""
        if self._kind not in (None, kind):
            self.end_line()
        self._kind = kind
        shown = strip_control_characters(text) if self._is_terminal else text
        if self._is_rendered:
            renderer = self._renderers[kind]
            renderer.resize(max(available_width(sys.stdout) or _DEFAULT_WIDTH, _MIN_WIDTH))
            self._print(_styled(renderer.feed(shown)))
        elif kind == "reasoning" and self._colour:
            self._print(_styled([StyledText(shown, frozenset({"dim"}))]), shown)
        else:
            self._print(shown)

    def end_line(self) -> None:
        """End the text, and the line if it has begun."""
        if self._is_rendered and self._kind is not None:
            self._print(_styled(self._renderers[self._kind].close()))
        self._kind = None
        if not self._at_start:
            click.echo()
        self._at_start = True

    def _print(self, text: str, shown: str | None = None) -> None:
        """Print a text; `shown` is the part of it that is visible."""
        last = (text if shown is None else shown)[-1:]
        if last:
            # Without a colour the text is that of the model, and a pipe gets even its escape sequences.
            click.echo(text, nl=False, color=True)
            self._at_start = last == "\n"


def _styled(pieces: Iterable[StyledText]) -> str:
    """Return the text with the escape sequences of its styles."""
    return "".join(
        click.style(
            piece.text, **{key: value for name in piece.styles for key, value in _STYLES[name].items()}
        )
        if piece.styles
        else piece.text
        for piece in pieces
    )


class TerminalOutput:
    """Output to a terminal."""

    def __init__(self) -> None:
        self._colour = is_coloured(sys.stdout)
        self._text = StreamedText()

    def show(self, event: TurnEvent) -> None:
        """Show an event."""
        match event:
            case TextAdded() | RefusalAdded():
                self._text.write(event.text)
            case ReasoningAdded():
                self._text.write(event.text, "reasoning")
            case ToolEnded():
                self._show_result(event.message)
            case TurnEnded():
                self._show_end(event)
            case _:
                pass

    def line(self, text: str, *, dim: bool = True, colour: str = "") -> None:
        """Print a line of the program itself."""
        self._text.end_line()
        if self._colour and (dim or colour):
            text = click.style(text, fg=colour or None, dim=dim or None)
        click.echo(text)

    def question(self, text: str) -> None:
        """Print a question; the answer is typed on the same line."""
        self._text.end_line()
        click.echo(f"{text} [y/N] ", nl=False)

    def error(self, text: str) -> None:
        """Print an error."""
        self.line(f"error: {strip_control_characters(text)}", dim=False, colour="red")

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
    """Output without a conversation: the answer on stdout, errors on stderr."""

    def __init__(self) -> None:
        self._text = StreamedText()

    def show(self, event: TurnEvent) -> None:
        if isinstance(event, TextAdded | RefusalAdded):
            self._text.write(event.text)
        elif isinstance(event, StateChanged | TurnEnded):
            self._text.end_line()

    def line(self, text: str) -> None:
        """Print a line of the program itself."""
        click.echo(text, err=True)

    def error(self, text: str) -> None:
        self._text.end_line()
        click.echo(f"error: {strip_control_characters(text)}", err=True)
