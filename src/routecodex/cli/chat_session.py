"""What `routecodex chat` keeps in the user dir: conversations to go on with, and the lines that were typed.

`chats/<session>.json` is a conversation as it stood after its last turn; `chat_history` feeds the arrow keys.

The conversation behind `routecodex chat`: its turns, its tools, and who is asked before one is used.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from routecodex.cli.admin_client import user_dir
from routecodex.cli.chat_output import TerminalOutput, call_text
from routecodex.cli.chat_tools import Workspace
from routecodex.turns import (
    Allow,
    ChatTurn,
    Conversation,
    Decision,
    Deny,
    Message,
    RequestFailed,
    ToolCall,
    ToolPlugin,
    TurnError,
    TurnEvent,
)
from routecodex.turns.http_sender import HttpSender

_SESSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_LINES = 1000


class SavedChat(Struct, kw_only=True):
    """A conversation and how it was led."""

    session: str
    model: str
    protocol: str
    updated_at: float
    messages: list[dict[str, Any]]


def is_session(text: str) -> bool:
    """Whether it can name a session, a file and a header."""
    return _SESSION.fullmatch(text) is not None


def load(session: str | None) -> SavedChat | None:
    """The conversation of that session, without a name the one that was led last; None when there is none."""
    if session is not None:
        return _read(_file(session))
    found = map(_read, (user_dir() / "chats").glob("*.json"))
    return max((saved for saved in found if saved is not None), key=lambda it: it.updated_at, default=None)


def save(session: str, messages: Sequence[Message], *, model: str, protocol: str) -> None:
    """Writes the conversation down, for its owner alone, in place of what was there."""
    saved = SavedChat(
        session=session,
        model=model,
        protocol=protocol,
        updated_at=time.time(),
        messages=[message.as_dict() for message in messages],
    )
    _write(_file(session), msgspec.json.encode(saved))


def put_aside(session: str) -> None:
    """Keeps an earlier conversation of that name as `<session>.json.1` before another takes its place."""
    with contextlib.suppress(FileNotFoundError):
        os.replace(_file(session), _file(session).with_suffix(".json.1"))


def transcript(messages: Sequence[Message]) -> str:
    """The conversation as a page of Markdown."""
    return "".join(f"## {message.role}\n\n{_said(message)}\n\n" for message in messages)


def _said(message: Message) -> str:
    content = message.content
    text = content if isinstance(content, str) else "" if content is None else _json(content)
    calls = [f"- {call['function']['name']} `{call['function']['arguments']}`" for call in _calls(message)]
    return "\n".join([text, *calls] if text else calls)


def _calls(message: Message) -> list[dict[str, Any]]:
    return [call for call in message.tool_calls or () if "function" in call]


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _file(session: str) -> Path:
    return user_dir() / "chats" / f"{session}.json"


def _read(file: Path) -> SavedChat | None:
    try:
        return msgspec.json.decode(file.read_bytes(), type=SavedChat)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None


def _write(file: Path, content: bytes) -> None:
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=f".{file.name}.", dir=file.parent)
    try:
        with os.fdopen(handle, "wb") as opened:
            opened.write(content)
        os.replace(temporary, file)
    except BaseException:
        os.unlink(temporary)
        raise


class InputHistory:
    """The lines that were typed, for the arrow keys; where there is no readline, nothing is kept."""

    def __init__(self) -> None:
        self._file = user_dir() / "chat_history"

    def __enter__(self) -> None:
        with contextlib.suppress(ImportError, OSError):
            import readline

            readline.set_history_length(_LINES)
            readline.read_history_file(self._file)

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(ImportError, OSError):
            import readline

            self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.close(os.open(self._file, os.O_CREAT | os.O_WRONLY, 0o600))
            readline.write_history_file(self._file)


_YES = frozenset({b"y", b"yes"})


class ChatOptions(Struct, kw_only=True):
    """How a conversation is led; the model may change between turns."""

    url: str
    model: str
    protocol: str
    session: str
    tools: bool


class ChatOutput(Protocol):
    """Who follows a turn."""

    def show(self, event: TurnEvent) -> None: ...
    def line(self, text: str) -> None: ...
    def error(self, text: str) -> None: ...


class ApprovalPrompt(Protocol):
    """Whoever decides whether a tool may be used."""

    async def agrees(self, text: str) -> bool: ...


class Chosen:
    """A plugin that asks the model chosen last."""

    def __init__(self, options: ChatOptions) -> None:
        self._options = options

    def on_before_request(self, turn: ChatTurn) -> None:
        turn.request_body["model"] = self._options.model


class ChatSession:
    """One conversation, kept after every turn."""

    def __init__(
        self,
        options: ChatOptions,
        sender: HttpSender,
        *,
        messages: Sequence[Message],
        audience: ChatOutput,
        asker: ApprovalPrompt | None,
    ) -> None:
        self.options = options
        self._audience = audience
        self._asker = asker
        self._workplace = Workspace(Path.cwd())
        self._sender = sender
        self._conversation = Conversation(
            model=options.model, sender=sender, plugins=self._plugins(), initial_messages=messages
        )

    @property
    def messages(self) -> list[Message]:
        return self._conversation.messages

    async def ask(self, text: str) -> bool:
        """Runs a turn; whether it came to its end. Ctrl-C ends it earlier and keeps what was said."""
        before = len(self.messages)
        try:
            with _on_interrupt(self._conversation):
                async with self._conversation.stream(text) as events:
                    async for event in events:
                        self._audience.show(event)
            return self._conversation.request_state == "completed"
        except (TurnError, ExceptionGroup) as exc:
            self._audience.error(_told(exc))
            if len(self.messages) == before + 1:
                # Nothing came back: the question is as good as not asked.
                del self.messages[before:]
            return False
        finally:
            self._keep()

    def clear(self) -> None:
        """Forgets everything but what the system says."""
        self.messages[:] = [message for message in self.messages[:1] if message.role == "system"]
        self._keep()

    async def close(self) -> None:
        await self._conversation.close()
        await self._sender.aclose()

    def _keep(self) -> None:
        options = self.options
        try:
            save(options.session, self.messages, model=options.model, protocol=options.protocol)
        except OSError as exc:
            self._audience.error(f"the conversation cannot be kept: {exc}")

    def _plugins(self) -> list[object]:
        plugins: list[object] = [Chosen(self.options)]
        if self.options.tools:
            plugins.append(
                ToolPlugin(
                    tools=self._workplace.tools,
                    before_call_tools=self._decide,
                    cancel_tools_on_abort=True,
                )
            )
        return plugins

    async def _decide(self, calls: list[ToolCall], _turn: ChatTurn) -> list[Decision]:
        """One decision for each call; they are asked about one after the other."""
        return [await self._decision(call) for call in calls]

    async def _decision(self, call: ToolCall) -> Decision:
        shown = call_text(call.name, call.arguments)
        if self._workplace.is_harmless(call.name, call.arguments):
            self._audience.line(f"→ {shown}")
            return Allow()
        if self._asker is None:
            self._audience.line(f"→ {shown}: denied, nobody can be asked")
            return Deny("there is nobody at the terminal who could agree")
        return Allow() if await self._asker.agrees(f"→ {shown}") else Deny("the user said no")


def _told(error: BaseException) -> str:
    if isinstance(error, RequestFailed):
        return f"{error.message} ({error.code or 'HTTP'} {error.status})"
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(map(_told, error.exceptions))
    return str(error)


@contextlib.contextmanager
def _on_interrupt(conversation: Conversation) -> Iterator[None]:
    """Ctrl-C aborts the turn and nothing else."""
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, conversation.abort)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)


class TerminalPrompt:
    """Asks the person at the terminal; only what is typed after the question counts as its answer."""

    def __init__(self, screen: TerminalOutput) -> None:
        self._screen = screen

    async def agrees(self, text: str) -> bool:
        import termios

        termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)
        self._screen.question(text)
        answer = await _typed_line(sys.stdin.fileno())
        return answer.strip().lower() in _YES


async def _typed_line(file: int) -> bytes:
    """The next line that is typed; the loop goes on meanwhile, so that Ctrl-C is heard."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(file, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(file)
    return os.read(file, 1024)
