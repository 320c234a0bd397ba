"""A model server of few words: one scripted answer for every request, a list of models."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec


class ModelServer:
    """The script: pieces of the answer, its usage and headers, the models; and the models that were asked."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.pieces: Sequence[str] = ("hello",)
        self.reasoning: Sequence[str] = ()
        self.usage: Mapping[str, Any] = {"prompt_tokens": 10, "completion_tokens": 5}
        self.headers: Mapping[str, str] = {}
        self.models: tuple[int, Any] = (200, {"data": [{"id": "one"}, {"id": "two"}]})
        self.asked: list[str] = []
        self.seen: list[tuple[str, dict[str, str]]] = []

    def stream(self) -> bytes:
        """Return the body of an answer."""
        deltas = [{"reasoning_content": text} for text in self.reasoning]
        deltas += [{"content": text} for text in self.pieces]
        chunks: list[dict[str, Any]] = [_chunk(delta, None) for delta in deltas]
        chunks += [_chunk({}, "stop"), {**_chunk({}, None), "choices": [], "usage": self.usage}]
        frames = (b"data: " + msgspec.json.encode(chunk) + b"\n\n" for chunk in chunks)
        return b"".join(frames) + b"data: [DONE]\n\n"


def _chunk(delta: dict[str, str], finish: str | None) -> dict[str, Any]:
    choice = {"index": 0, "delta": {"role": "assistant", **delta}, "finish_reason": finish}
    return {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}


@contextlib.contextmanager
def model_server() -> Iterator[ModelServer]:
    """Run the server on a free port."""
    script: ModelServer

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            script.seen.append((self.path, dict(self.headers)))
            status, value = script.models
            body = value if isinstance(value, bytes) else msgspec.json.encode(value)
            self._send(status, body, {"content-type": "application/json"})

        def do_POST(self) -> None:
            body = msgspec.json.decode(self.rfile.read(int(self.headers["content-length"])))
            script.asked.append(body["model"])
            self._send(200, script.stream(), {"content-type": "text/event-stream", **script.headers})

        def _send(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
            self.send_response(status)
            for name, value in {**headers, "content-length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Write no log."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        script = ModelServer(f"http://127.0.0.1:{http.server_port}")
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield script
        finally:
            http.shutdown()
            thread.join()
