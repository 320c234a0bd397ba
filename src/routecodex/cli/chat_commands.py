"""Commands inside `routecodex chat`, such as `/model`."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct

from routecodex.cli import chat_session
from routecodex.cli.chat_models import (
    ModelsUnavailable,
    client_key,
    is_listed,
    is_refused,
    list_models,
    near_names,
)
from routecodex.cli.chat_output import TerminalOutput
from routecodex.cli.chat_session import ChatSession
from routecodex.cli.tables import plain

_LINE = re.compile(r"/([a-z]+)(?:\s+(.*))?", re.DOTALL)
_QUIT = ("quit", "exit")
_HELP_END = """\
A line that ends in \\ continues on the next one. Ctrl-C stops an answer.
Instructions to the gateway are written in the text; <**help**> lists them."""


class ChatCommand(Struct, frozen=True):
    """A command that was typed: its name and the text behind it."""

    name: str
    argument: str


def parse_command(text: str) -> ChatCommand | None:
    """Return the command in a typed line; None if the line is a message."""
    found = _LINE.fullmatch(text)
    return None if found is None else ChatCommand(found[1], (found[2] or "").strip())


def run_command(command: ChatCommand, session: ChatSession, screen: TerminalOutput) -> bool:
    """Run a command; return whether the conversation continues."""
    if command.name in _QUIT:
        return False
    row = _COMMANDS.get(command.name)
    if row is None:
        screen.error(f"/{command.name} is not a command; /help lists them")
        return True
    try:
        row[2](command.argument, session, screen)
    except KeyboardInterrupt:
        screen.line("(interrupted)")
    return True


def _help(_argument: str, _session: ChatSession, screen: TerminalOutput) -> None:
    rows = [(f"/{name} {argument}".rstrip(), text) for name, (argument, text, _) in _COMMANDS.items()]
    rows.append(("/quit", "quit, like Ctrl-D"))
    longest = max(len(command) for command, _ in rows)
    screen.line("\n".join([*(f"{command:<{longest}}   {text}" for command, text in rows), _HELP_END]))


def _models(argument: str, session: ChatSession, screen: TerminalOutput) -> None:
    try:
        models = _listed(session)
    except ModelsUnavailable as exc:
        screen.error(str(exc))
        return
    shown = [name for name in models if argument.lower() in name.lower()]
    for name in shown:
        screen.line(f"{'*' if name == session.options.model else ' '} {plain(name)}", dim=False)
    if not shown:
        screen.line(f"no model contains {argument!r}" if models else "the server lists no models")
    if session.options.model not in models:
        screen.line(f"(the model is {plain(session.options.model)})")


def _listed(session: ChatSession) -> list[str]:
    return list_models(session.options.url, session.options.protocol, client_key())


def _model(argument: str, session: ChatSession, screen: TerminalOutput) -> None:
    if argument:
        _switch(argument, session, screen)
    screen.line(f"model {plain(session.options.model)}")


def _switch(name: str, session: ChatSession, screen: TerminalOutput) -> None:
    """Switch the model; one that the gateway would not answer for is refused here, with names like it."""
    try:
        models = _listed(session)
    except ModelsUnavailable as exc:
        screen.line(f"(not checked: {plain(str(exc))})")
        session.options.model = name
        return
    near = ", ".join(map(plain, near_names(name, models)))
    hint = f"; near: {near}" if near else ""
    if is_refused(name, models):
        screen.error(f"there is no model {name!r}{hint}")
        return
    if not is_listed(name, models):
        screen.line(f"({plain(name)} is not listed; the server may route it to another model{hint})")
    session.options.model = name


def _cost(_argument: str, session: ChatSession, screen: TerminalOutput) -> None:
    screen.line(f"{session.usage.tokens_text()}\n{session.usage.cost_text()}", dim=False)


def _clear(_argument: str, session: ChatSession, screen: TerminalOutput) -> None:
    session.clear()
    screen.line("(cleared)")


def _save(argument: str, session: ChatSession, screen: TerminalOutput) -> None:
    if not argument:
        screen.error("/save needs the name of a file")
        return
    file = Path(argument).expanduser()
    try:
        # An existing file is not overwritten.
        with file.open("x", encoding="utf-8") as opened:
            opened.write(chat_session.transcript(session.messages))
    except OSError as exc:
        screen.error(f"{file}: {exc.strerror}")
    else:
        screen.line(f"({len(session.messages)} messages in {file})")


_COMMANDS: dict[str, tuple[str, str, Callable[[str, ChatSession, TerminalOutput], None]]] = {
    "help": ("", "list the commands", _help),
    "models": ("[TEXT]", "list the models, or those whose names contain the text", _models),
    "model": ("[NAME]", "show the model, or switch to another one", _model),
    "cost": ("", "show the tokens so far, and the cost if the server reports it", _cost),
    "clear": ("", "start over, keeping only the system text", _clear),
    "save": ("FILE", "write the conversation to a new Markdown file", _save),
}
