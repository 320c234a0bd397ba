"""What `routecodex chat` keeps in the user dir: conversations to go on with, and the lines that were typed.

`chats/<session>.json` is a conversation as it stood after its last turn; `chat_history` feeds the arrow keys.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from routecodex.cli.admin_client import user_dir
from routecodex.turns import Message

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
