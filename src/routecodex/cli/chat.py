"""`routecodex chat`: a conversation in the terminal, or one question from a pipe."""

from __future__ import annotations

import asyncio
import socket
import sys
import uuid
from collections.abc import Callable
from functools import partial

import click

from routecodex.cli import chat_session
from routecodex.cli.admin_client import AdminClient, announcements
from routecodex.cli.chat_commands import parse_command, run_command
from routecodex.cli.chat_models import AUTO, client_key
from routecodex.cli.chat_output import PipeOutput, TerminalOutput
from routecodex.cli.chat_session import (
    ChatOptions,
    ChatSession,
    InputHistory,
    SavedChat,
    TerminalPrompt,
    is_session,
)
from routecodex.cli.chat_usage import ChatUsage
from routecodex.cli.servers import FAILED, exit_without_server
from routecodex.turns import Message
from routecodex.turns.http_sender import PROTOCOLS, SESSION_HEADER, HttpSender, open_sender

_PORT = 5520


@click.command(
    epilog="""\b
Exit codes:
  0  done
  1  the message was not answered
  2  wrong arguments
  3  no server is running
"""
)
@click.option("--url", help="Base URL of the endpoint; default: the server on this machine.")
@click.option("--model", "-m", help="Model; default: auto, chosen by the gateway's routing.")
@click.option("--protocol", type=click.Choice(PROTOCOLS), help="Protocol of the endpoint; default: chat.")
@click.option("--session", metavar="ID", help="Session id; default: a new one.")
@click.option("--system", metavar="TEXT", help="System text.")
@click.option(
    "--tools/--no-tools",
    default=False,
    show_default=True,
    help="Let the model list and read files below this directory, and run commands that you confirm.",
)
@click.option("--resume", is_flag=True, help="Continue the last conversation, or that of --session.")
def chat(
    *,
    url: str | None,
    model: str | None,
    protocol: str | None,
    session: str | None,
    system: str | None,
    tools: bool,
    resume: bool,
) -> None:
    """Chat with a model in the terminal, or send one message from a pipe.

    Answers are streamed, with the model's reasoning dimmed and Markdown rendered; a pipe, and a terminal
    with NO_COLOR set, get the text as it comes. Conversations are saved and can be resumed. If the gateway
    requires a client key, set $ROUTECODEX_KEY.

    \b
    Examples:
      routecodex chat --model glm.glm-4.7
      routecodex chat --resume --tools
      git diff | routecodex chat --system "Review this change."
    """
    if session is not None and not is_session(session):
        raise click.BadParameter(
            "use letters, digits, dot, - and _, at most 100 of them", param_hint="--session"
        )
    saved = _resumed(session) if resume else None
    options = ChatOptions(
        url=url or server_url(),
        model=model or (saved.model if saved else AUTO),
        protocol=protocol or (saved.protocol if saved else "chat"),
        session=session or (saved.session if saved else uuid.uuid4().hex[:12]),
        tools=tools,
    )
    sender = _sender(options)
    if saved is None:
        chat_session.back_up(options.session)
    open_session = partial(
        ChatSession,
        options,
        sender,
        messages=_initial_messages(saved, system),
        usage=saved.usage if saved else ChatUsage(),
    )
    if sys.stdin.isatty():
        _in_terminal(open_session)
    else:
        raise SystemExit(_from_pipe(open_session))


def _sender(options: ChatOptions) -> HttpSender:
    headers = {SESSION_HEADER: options.session}
    try:
        return open_sender(options.url, options.protocol, client_key(), headers=headers)
    except ValueError as exc:
        raise click.BadParameter(str(exc), param_hint="--url") from exc


def server_url(port: int = _PORT) -> str:
    """Return the URL of the server on this machine: the announced one, else any that listens on the port."""
    ready = [server.url for server in announcements() if AdminClient(server).is_ready()]
    if len(ready) > 1:
        raise click.UsageError(f"several servers are running; choose one with --url: {', '.join(ready)}")
    if ready:
        return ready[0]
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1):
            return f"http://127.0.0.1:{port}"
    except OSError:
        exit_without_server()


def _resumed(session: str | None) -> SavedChat:
    saved = chat_session.load(session)
    if saved is None:
        missing = (
            "there is no saved conversation" if session is None else f"no conversation is called {session!r}"
        )
        raise click.UsageError(f"{missing}; leave out --resume to start one")
    return saved


def _initial_messages(saved: SavedChat | None, system: str | None) -> list[Message]:
    """Return the saved messages; a new system text replaces the old one."""
    messages = [Message.of(fields) for fields in saved.messages] if saved else []
    if system is None:
        return messages
    rest = messages[1:] if messages and messages[0].role == "system" else messages
    return [Message("system", system), *rest]


def _from_pipe(open_session: Callable[..., ChatSession]) -> int:
    text = sys.stdin.buffer.read().decode("utf-8", "replace").strip()
    if not text:
        raise click.UsageError("stdin is empty; pipe a message into the command")

    async def once() -> bool:
        session = open_session(output=PipeOutput(), prompt=None)
        try:
            return await session.ask(text)
        finally:
            await session.close()

    return 0 if asyncio.run(once()) else FAILED


def _in_terminal(open_session: Callable[..., ChatSession]) -> None:
    screen = TerminalOutput()
    session = open_session(output=screen, prompt=TerminalPrompt(screen))
    options, messages = session.options, session.messages
    screen.line(f"{options.model} at {options.url}, session {options.session}")
    screen.line("/help lists the commands, Ctrl-D quits")
    if any(message.role == "user" for message in messages):
        screen.line(f"({len(messages)} messages so far)")
    with InputHistory(), asyncio.Runner() as runner:
        while (text := _read_input(screen)) is not None:
            command = parse_command(text)
            if command is not None:
                if not run_command(command, session, screen):
                    break
            elif text:
                try:
                    runner.run(session.ask(text))
                except KeyboardInterrupt:
                    screen.line("(interrupted)")
        runner.run(session.close())
    screen.line(f"continue with `routecodex chat --resume --session {options.session}`")


def _read_input(screen: TerminalOutput) -> str | None:
    """Read the next input; None when the user quits."""
    lines: list[str] = []
    while True:
        try:
            line = input("...> " if lines else "you> ")
        except EOFError:
            screen.line("")
            return None
        except KeyboardInterrupt:
            screen.line("\n(Ctrl-D quits)")
            return ""
        lines.append(line.removesuffix("\\"))
        if not line.endswith("\\"):
            # Bytes that are not UTF-8 arrive as surrogates, which JSON cannot carry.
            return "\n".join(lines).strip().encode("utf-8", "replace").decode()
