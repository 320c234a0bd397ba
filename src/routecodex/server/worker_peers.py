"""Questions between the workers of a server, over Unix sockets that only they can open.

Every worker listens at `ask-<worker>.sock` in their common directory. A connection has one question, a line
of JSON, and its answer, up to the end. Nothing is sent while nobody calls the admin API.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

from routecodex.wire import json

log = logging.getLogger("routecodex.server")

Question = dict[str, Any]
AnswerPeer = Callable[[Question], Awaitable[Any]]

_SOCKETS: Final = "ask-*.sock"
_PATIENCE: Final = 2.0
_LONGEST_WORK: Final = 30.0
"""Seconds that an answer may take to make; the worker that asks has its own limit."""
_LONGEST: Final = 64 * 1024
_LARGEST: Final = 32 * 1024 * 1024


class WorkerPeers:
    """One worker's connection to the others; `answer` answers their questions."""

    def __init__(self, folder: Path, worker: str, answer: AnswerPeer) -> None:
        self._folder = folder
        self._path = folder / f"ask-{worker}.sock"
        self._answer = answer
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Listen, in place of a worker of this number that was killed."""
        self._path.unlink(missing_ok=True)
        self._server = await asyncio.start_unix_server(self._attend, self._path, limit=_LONGEST)

    async def close(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.close()
            self._path.unlink(missing_ok=True)

    async def ask(self, question: Question, *, seconds: float = _PATIENCE) -> list[Any]:
        """Return the answers of the other workers; one that does not answer in time is left out."""
        others = [path for path in sorted(self._folder.glob(_SOCKETS)) if path != self._path]
        answers = await asyncio.gather(*(self._ask(path, question, seconds) for path in others))
        return [answer for answer in answers if answer is not None]

    async def _ask(self, path: Path, question: Question, seconds: float) -> Any:
        try:
            async with asyncio.timeout(seconds):
                reader, writer = await asyncio.open_unix_connection(path)
                try:
                    writer.write(json.encode(question) + b"\n")
                    return json.decode(await reader.read(-1))
                finally:
                    writer.close()
        except (OSError, ValueError, TimeoutError) as exc:
            log.debug("worker at %s did not answer: %s", path.name, exc)
            return None

    async def _attend(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_PATIENCE):
                question = json.decode(await reader.readline())
            async with asyncio.timeout(_LONGEST_WORK):
                data = json.encode(await self._answer(question))
                writer.write(data if len(data) <= _LARGEST else b"null")
                await writer.drain()
        except (OSError, ValueError, TimeoutError) as exc:
            log.debug("a question of another worker was not answered: %s", exc)
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
