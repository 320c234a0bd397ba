"""The conversation of `routecodex chat`: its turns, its tools with confirmation, its files in the user dir.

`chats/<session>.json` is a conversation after its last turn; `chat_history` holds typed lines for the arrow
keys.
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
from msgspec import Struct, field

from routecodex.cli.admin_client import user_dir
from routecodex.cli.chat_output import TerminalOutput, call_text
from routecodex.cli.chat_tools import Workspace
from routecodex.cli.chat_usage import ChatUsage
from routecodex.turns import (
    Allow,
    ChatTurn,
    Conversation,
    Decision,
    Deny,
    Message,
    MessageAppended,
    RequestFailed,
    ToolCall,
    ToolPlugin,
    TurnError,
    TurnEvent,
)
from routecodex.turns.http_sender import HttpSender

_SESSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_HISTORY_LINES = 1000
_UNAUTHORIZED = 401


_YES = frozenset({b"y", b"yes"})


class ChatOptions(Struct, kw_only=True):
    """Options of a conversation; the model may change between turns."""

    url: str
    model: str
    protocol: str
    session: str
    tools: bool


class ChatOutput(Protocol):
    """Shows the events of a turn."""

    def show(self, event: TurnEvent) -> None: ...
    def line(self, text: str) -> None: ...
    def error(self, text: str) -> None: ...


class ApprovalPrompt(Protocol):
    """Asks for confirmation of a tool call."""

    async def confirm(self, text: str) -> bool: ...


class ModelChoice:
    """A plugin that sets the selected model."""

    def __init__(self, options: ChatOptions) -> None:
        self._options = options

    def on_before_request(self, turn: ChatTurn) -> None:
        turn.request_body["model"] = self._options.model


class ChatSession:
    """One conversation, saved after every turn."""

    def __init__(
        self,
        options: ChatOptions,
        sender: HttpSender,
        *,
        messages: Sequence[Message],
        output: ChatOutput,
        prompt: ApprovalPrompt | None,
        usage: ChatUsage,
    ) -> None:
        self.options = options
        self.usage = usage
        self._output = output
        self._prompt = prompt
        self._workspace = Workspace(Path.cwd())
        self._sender = sender
        self._conversation = Conversation(
            model=options.model, sender=sender, plugins=self._plugins(), initial_messages=messages
        )

    @property
    def messages(self) -> list[Message]:
        return self._conversation.messages

    async def ask(self, text: str) -> bool:
        """Run a turn; return whether it completed. Ctrl-C ends it early and keeps the answer so far."""
        before = len(self.messages)
        answers: list[Message] = []
        try:
            with _on_interrupt(self._conversation):
                async with self._conversation.stream(text) as events:
                    async for event in events:
                        if isinstance(event, MessageAppended) and event.message.role == "assistant":
                            answers.append(event.message)
                        self._output.show(event)
            return self._conversation.request_state == "completed"
        except (TurnError, ExceptionGroup) as exc:
            self._output.error(_error_text(exc))
            if len(self.messages) == before + 1:
                # Without an answer the message is removed, so that it can be sent again.
                del self.messages[before:]
            return False
        finally:
            for answer in answers:
                self.usage.add(answer)
            self._save()

    def clear(self) -> None:
        """Remove all messages but the system text."""
        self.messages[:] = [message for message in self.messages[:1] if message.role == "system"]
        self._save()

    async def close(self) -> None:
        await self._conversation.close()
        await self._sender.aclose()

    def _save(self) -> None:
        options = self.options
        try:
            save(
                SavedChat(
                    session=options.session,
                    model=options.model,
                    protocol=options.protocol,
                    updated_at=time.time(),
                    messages=[message.as_dict() for message in self.messages],
                    usage=self.usage,
                )
            )
        except OSError as exc:
            self._output.error(f"the conversation cannot be saved: {exc}")

    def _plugins(self) -> list[object]:
        plugins: list[object] = [ModelChoice(self.options)]
        if self.options.tools:
            plugins.append(
                ToolPlugin(
                    tools=self._workspace.tools,
                    before_call_tools=self._decide,
                    cancel_tools_on_abort=True,
                )
            )
        return plugins

    async def _decide(self, calls: list[ToolCall], _turn: ChatTurn) -> list[Decision]:
        """Decide on each call, one after the other."""
        return [await self._decision(call) for call in calls]

    async def _decision(self, call: ToolCall) -> Decision:
        shown = call_text(call.name, call.arguments)
        if self._workspace.is_harmless(call.name, call.arguments):
            self._output.line(f"→ {shown}")
            return Allow()
        if self._prompt is None:
            self._output.line(f"→ {shown}: denied, because there is no terminal to confirm it")
            return Deny("there is no terminal at which the user could confirm the call")
        return Allow() if await self._prompt.confirm(f"→ {shown}") else Deny("the user said no")


def _error_text(error: BaseException) -> str:
    if isinstance(error, RequestFailed):
        text = f"{error.message} ({error.code or 'HTTP'} {error.status})"
        refused = error.status == _UNAUTHORIZED
        return f"{text}; set $ROUTECODEX_KEY to a client key of the gateway" if refused else text
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(map(_error_text, error.exceptions))
    return str(error)


@contextlib.contextmanager
def _on_interrupt(conversation: Conversation) -> Iterator[None]:
    """Let Ctrl-C abort the turn only."""
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, conversation.abort)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)


class TerminalPrompt:
    """Asks at the terminal; only input typed after the question counts as its answer."""

    def __init__(self, screen: TerminalOutput) -> None:
        self._screen = screen

    async def confirm(self, text: str) -> bool:
        import termios

        termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)
        self._screen.question(text)
        answer = await _read_line(sys.stdin.fileno())
        return answer.strip().lower() in _YES


async def _read_line(file: int) -> bytes:
    """Read a typed line without blocking the loop, so that Ctrl-C is handled."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(file, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(file)
    return os.read(file, 1024)


class SavedChat(Struct, kw_only=True):
    """A saved conversation with its model, protocol and usage."""

    session: str
    model: str
    protocol: str
    updated_at: float
    messages: list[dict[str, Any]]
    usage: ChatUsage = field(default_factory=ChatUsage)


def is_session(text: str) -> bool:
    """Whether the text is valid as a session id, a file name and a header value."""
    return _SESSION.fullmatch(text) is not None


def load(session: str | None) -> SavedChat | None:
    """Load the conversation of a session, by default the latest; None if there is none."""
    if session is not None:
        return _read(_file(session))
    found = map(_read, (user_dir() / "chats").glob("*.json"))
    return max((saved for saved in found if saved is not None), key=lambda it: it.updated_at, default=None)


def save(chat: SavedChat) -> None:
    """Save the conversation with mode 0600, replacing the old file."""
    _write(_file(chat.session), msgspec.json.encode(chat))


def back_up(session: str) -> None:
    """Rename an earlier conversation of that session to `<session>.json.1`."""
    with contextlib.suppress(FileNotFoundError):
        os.replace(_file(session), _file(session).with_suffix(".json.1"))


def transcript(messages: Sequence[Message]) -> str:
    """Format the conversation as Markdown."""
    return "".join(f"## {message.role}\n\n{_message_text(message)}\n\n" for message in messages)


def _message_text(message: Message) -> str:
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
    """Typed lines for the arrow keys; without readline there is no history."""

    def __init__(self) -> None:
        self._file = user_dir() / "chat_history"

    def __enter__(self) -> None:
        with contextlib.suppress(ImportError, OSError):
            import readline

            readline.set_history_length(_HISTORY_LINES)
            readline.read_history_file(self._file)

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(ImportError, OSError):
            import readline

            self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.close(os.open(self._file, os.O_CREAT | os.O_WRONLY, 0o600))
            readline.write_history_file(self._file)
