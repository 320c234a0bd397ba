"""`routecodex chat`: a conversation in the terminal, or one question from a pipe."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import sys
import uuid
from collections.abc import Callable
from pathlib import Path

import click

from routecodex.cli import chat_session
from routecodex.cli.admin_client import AdminClient, announcements
from routecodex.cli.chat_output import PipeOutput, TerminalOutput
from routecodex.cli.chat_session import (
    ChatOptions,
    ChatSession,
    InputHistory,
    SavedChat,
    TerminalPrompt,
    is_session,
)
from routecodex.cli.servers import FAILED, nobody
from routecodex.turns import Message
from routecodex.turns.http_sender import PROTOCOLS, SESSION_HEADER, HttpSender, open_sender

_PORT = 5520
_ROUTED = "auto"
_COMMAND = re.compile(r"/([a-z]+)(?:\s+(.*))?", re.DOTALL)
_HELP = """\
/model [NAME]   show the model, or speak with another one from now on
/clear          forget the conversation
/save FILE      write the conversation down as Markdown
/quit           leave, as Ctrl-D does
A line that ends in \\ goes on in the next. Ctrl-C stops an answer. Instructions to the gateway are written
in the text: <**help**> tells which there are."""


@click.command(
    epilog="""\b
Exit codes:
  0  done
  1  the question was not answered
  2  wrong arguments
  3  no server is running
"""
)
@click.option("--url", help="The endpoint; default: the server that runs on this machine.")
@click.option("--model", "-m", help="The model; default: auto, which leaves it to the gateway's routing.")
@click.option(
    "--protocol", type=click.Choice(PROTOCOLS), help="What to speak with the endpoint; default: chat."
)
@click.option("--session", metavar="ID", help="The session's name; default: a new one.")
@click.option("--system", metavar="TEXT", help="What the model is told before everything else.")
@click.option(
    "--tools/--no-tools",
    default=False,
    show_default=True,
    help="Let the model list and read files below this directory, and run commands you agree to.",
)
@click.option("--resume", is_flag=True, help="Go on with the last conversation, or that of --session.")
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
    """Talk to a model: in the terminal, or with one question from a pipe.

    Answers come as they are written, thoughts dimmed. Conversations are kept and can be resumed. A gateway
    that asks for a key gets the one in $ROUTECODEX_KEY.

    \b
    Examples:
      routecodex chat --model glm.glm-4.7
      routecodex chat --resume --tools
      git diff | routecodex chat --system "Review this change."
    """
    if session is not None and not is_session(session):
        raise click.BadParameter("letters, digits, dot, - and _ only, 100 at most", param_hint="--session")
    saved = _resumed(session) if resume else None
    options = ChatOptions(
        url=url or server_url(),
        model=model or (saved.model if saved else _ROUTED),
        protocol=protocol or (saved.protocol if saved else "chat"),
        session=session or (saved.session if saved else uuid.uuid4().hex[:12]),
        tools=tools,
    )
    sender = _sender(options)
    if saved is None:
        chat_session.put_aside(options.session)
    messages = _begun(saved, system)
    if sys.stdin.isatty():
        _in_terminal(options, sender, messages)
    else:
        raise SystemExit(_from_pipe(options, sender, messages))


def _sender(options: ChatOptions) -> HttpSender:
    key = os.environ.get("ROUTECODEX_KEY")
    try:
        return open_sender(options.url, options.protocol, key, headers={SESSION_HEADER: options.session})
    except ValueError as exc:
        raise click.BadParameter(str(exc), param_hint="--url") from exc


def server_url(port: int = _PORT) -> str:
    """Where the server of this machine is: as it announced itself, else whoever listens on that port."""
    ready = [server.url for server in announcements() if AdminClient(server).is_ready()]
    if len(ready) > 1:
        raise click.UsageError(f"several servers run; choose one with --url: {', '.join(ready)}")
    if ready:
        return ready[0]
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1):
            return f"http://127.0.0.1:{port}"
    except OSError:
        nobody()


def _resumed(session: str | None) -> SavedChat:
    saved = chat_session.load(session)
    if saved is None:
        what = "no conversation was kept" if session is None else f"no conversation is called {session!r}"
        raise click.UsageError(f"{what}; leave out --resume to begin one")
    return saved


def _begun(saved: SavedChat | None, system: str | None) -> list[Message]:
    """What was said before; a new system text takes the place of the old one."""
    messages = [Message.of(given) for given in saved.messages] if saved else []
    if system is None:
        return messages
    rest = messages[1:] if messages and messages[0].role == "system" else messages
    return [Message("system", system), *rest]


def _from_pipe(options: ChatOptions, sender: HttpSender, messages: list[Message]) -> int:
    text = sys.stdin.buffer.read().decode("utf-8", "replace").strip()
    if not text:
        raise click.UsageError("stdin is empty: there is no question")

    async def once() -> bool:
        talk = ChatSession(options, sender, messages=messages, audience=PipeOutput(), asker=None)
        try:
            return await talk.ask(text)
        finally:
            await talk.close()

    return 0 if asyncio.run(once()) else FAILED


def _in_terminal(options: ChatOptions, sender: HttpSender, messages: list[Message]) -> None:
    screen = TerminalOutput()
    talk = ChatSession(options, sender, messages=messages, audience=screen, asker=TerminalPrompt(screen))
    screen.line(f"{options.model} at {options.url}, session {options.session}; /help helps, Ctrl-D leaves")
    if any(message.role == "user" for message in messages):
        screen.line(f"({len(messages)} messages so far)")
    with InputHistory(), asyncio.Runner() as runner:
        while (text := _next_words(screen)) is not None:
            command = _COMMAND.fullmatch(text)
            if command is not None:
                if not _obey(command[1], (command[2] or "").strip(), talk, screen):
                    break
            elif text:
                try:
                    runner.run(talk.ask(text))
                except KeyboardInterrupt:
                    screen.line("(interrupted)")
        runner.run(talk.close())
    screen.line(f"`routecodex chat --resume --session {options.session}` goes on with it")


def _next_words(screen: TerminalOutput) -> str | None:
    """What the person says next; None when they leave."""
    lines: list[str] = []
    while True:
        try:
            line = input("...> " if lines else "you> ")
        except EOFError:
            screen.line("")
            return None
        except KeyboardInterrupt:
            screen.line("\n(Ctrl-D leaves)")
            return ""
        lines.append(line.removesuffix("\\"))
        if not line.endswith("\\"):
            # Bytes that are no UTF-8 came as signs no request can carry.
            return "\n".join(lines).strip().encode("utf-8", "replace").decode()


def _obey(name: str, rest: str, talk: ChatSession, screen: TerminalOutput) -> bool:
    """Does what a command says; whether the conversation goes on."""
    if name in ("quit", "exit"):
        return False
    act = _ACTS.get(name)
    if act is None:
        screen.error(f"there is no /{name}; /help tells what there is")
    else:
        act(rest, talk, screen)
    return True


def _help(_rest: str, _talk: ChatSession, screen: TerminalOutput) -> None:
    screen.line(_HELP)


def _model(rest: str, talk: ChatSession, screen: TerminalOutput) -> None:
    talk.options.model = rest or talk.options.model
    screen.line(f"model {talk.options.model}")


def _clear(_rest: str, talk: ChatSession, screen: TerminalOutput) -> None:
    talk.clear()
    screen.line("(forgotten)")


def _save(rest: str, talk: ChatSession, screen: TerminalOutput) -> None:
    if not rest:
        screen.error("/save needs the name of a file")
        return
    file = Path(rest).expanduser()
    try:
        # What is there already may be anything: it is not written over.
        with file.open("x", encoding="utf-8") as opened:
            opened.write(chat_session.transcript(talk.messages))
    except OSError as exc:
        screen.error(f"{file}: {exc.strerror}")
    else:
        screen.line(f"({len(talk.messages)} messages in {file})")


_ACTS: dict[str, Callable[[str, ChatSession, TerminalOutput], None]] = {
    "help": _help,
    "model": _model,
    "clear": _clear,
    "save": _save,
}
