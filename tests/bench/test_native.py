"""The mock provider and the load generator agree with each other."""

from __future__ import annotations

import http.client
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from bench import requests
from bench.cells import CELLS, Cell
from bench.native import EVENTS, LoadRun, Mock, mock

PATHS = {
    "chat": "/v1/chat/completions",
    "messages": "/v1/messages",
    "responses": "/v1/responses",
    "gemini": "/v1beta/models/gemini-mock:streamGenerateContent?alt=sse",
}


@pytest.fixture(scope="module")
def provider() -> Iterator[Mock]:
    with mock() as running:
        yield running


def ask(port: int, path: str, body: bytes, *, chunked: bool = False) -> tuple[int, str | None, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        content = iter([body[:7], body[7:]]) if chunked else body
        connection.request("POST", path, content, encode_chunked=chunked)
        answer = connection.getresponse()
        return answer.status, answer.getheader("Content-Length"), answer.read()
    finally:
        connection.close()


@pytest.mark.parametrize("name", ["n1", "n16", "s16", "m16", "p64", "B4", "a16", "A16", "r16"])
def test_every_answer_is_complete_and_right(provider: Mock, tmp_path: Path, name: str) -> None:
    cell = CELLS[name]
    content = requests.body(cell.client, cell.size, stream=cell.stream)
    file = requests.write(tmp_path / "request.http", requests.raw(PATHS[cell.client], content, {}))
    # A paced stream lasts half a second: the run must be long enough for one to end.
    seconds = 1.0 if cell.port == "paced" else 0.3
    port = getattr(provider.ports, cell.port)
    run = LoadRun(port, file, connections=cell.connections, seconds=seconds, warmup=0.1, needle=cell.needle)
    run.measuring()
    seen = run.result()
    assert (seen.errors, seen.first_error) == (0, "")
    assert seen.requests > 0
    assert 0 < seen.ttfb_us.p50 <= seen.latency_us.p50 <= seen.latency_us.p99


def test_a_missing_end_marker_is_an_error(provider: Mock, tmp_path: Path) -> None:
    content = requests.body("chat", "1k", stream=True)
    file = requests.write(tmp_path / "request.http", requests.raw(PATHS["chat"], content, {}))
    run = LoadRun(provider.ports.whole, file, connections=2, seconds=1, warmup=0.05, needle="never sent")
    run.measuring()
    seen = run.result()
    assert seen.requests == 0
    assert seen.errors > 0
    assert seen.first_error.startswith("status 200")


def test_a_status_other_than_200_is_an_error(provider: Mock, tmp_path: Path) -> None:
    file = requests.write(tmp_path / "request.http", requests.raw("/nowhere", b"{}", {}))
    run = LoadRun(provider.ports.whole, file, connections=2, seconds=1, warmup=0.05, needle="")
    run.measuring()
    seen = run.result()
    assert seen.requests == 0
    assert seen.first_error.startswith("status 404")


def test_a_run_ends_after_the_requests_asked_for(provider: Mock, tmp_path: Path) -> None:
    cell: Cell = CELLS["n16"]
    content = requests.body("chat", "1k", stream=False)
    file = requests.write(tmp_path / "request.http", requests.raw(PATHS["chat"], content, {}))
    run = LoadRun(
        provider.ports.whole, file, connections=4, seconds=20, warmup=0.05, needle=cell.needle, most=500
    )
    run.measuring()
    assert 500 <= run.result().requests < 600


@pytest.mark.parametrize("protocol", ["chat", "messages", "responses", "gemini"])
@pytest.mark.parametrize("port", ["whole", "each"])
def test_a_stream_is_chunked_and_has_its_events(provider: Mock, protocol: str, port: str) -> None:
    status, length, body = ask(getattr(provider.ports, port), PATHS[protocol], b'{"stream":true}')
    frames = [frame for frame in body.replace(b"\r\n", b"\n").split(b"\n\n") if frame]
    done = 1 if protocol == "chat" else 0
    assert (status, length, len(frames)) == (200, None, EVENTS + done)
    for frame in frames[: EVENTS - done]:
        assert isinstance(msgspec.json.decode(frame.split(b"data: ", 1)[1]), dict)


@pytest.mark.parametrize("protocol", ["chat", "messages", "responses"])
@pytest.mark.parametrize("chunked", [False, True])
def test_a_document_has_a_length_and_is_json(provider: Mock, protocol: str, chunked: bool) -> None:
    status, length, body = ask(provider.ports.whole, PATHS[protocol], b'{"stream": false}', chunked=chunked)
    assert (status, length) == (200, str(len(body)))
    assert isinstance(msgspec.json.decode(body), dict)


def test_chat_usage_is_streamed_only_when_asked_for(provider: Mock) -> None:
    asked = b'{"stream":true,"stream_options":{"include_usage":true}}'
    _, _, with_usage = ask(provider.ports.whole, PATHS["chat"], asked)
    _, _, without = ask(provider.ports.whole, PATHS["chat"], b'{"stream":true}')
    assert (b'"usage"' in with_usage, b'"usage"' in without) == (True, False)


@pytest.mark.parametrize("protocol", list(requests.BODIES))
@pytest.mark.parametrize("size", list(requests.SIZES))
def test_bodies_have_about_the_size_they_are_named_for(protocol: str, size: str) -> None:
    length = len(requests.body(protocol, size, stream=True))
    assert 0.9 * requests.SIZES[size] <= length <= 1.1 * requests.SIZES[size]


def test_every_run_takes_other_sessions(tmp_path: Path) -> None:
    seen: list[str] = []

    class Recorder(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            seen.append(self.headers["x-session-id"])
            self.send_response(200)
            self.send_header("content-length", "4")
            self.end_headers()
            self.wfile.write(b"done")

        def log_message(self, *_: object) -> None: ...

    headers = {"x-session-id": "s-########"}
    content = requests.body("chat", "1k", stream=False)
    file = requests.write(tmp_path / "request.http", requests.raw("/", content, headers))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Recorder) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        runs: list[set[str]] = []
        for _ in range(2):
            seen.clear()
            run = LoadRun(
                server.server_port,
                file,
                connections=1,
                seconds=0.2,
                warmup=0,
                needle="done",
                sessions=10_000_000,
            )
            run.measuring()
            assert run.result().errors == 0
            runs.append(set(seen))
        server.shutdown()
        serving.join()
    assert runs[0]
    assert runs[1]
    assert len(runs[0] & runs[1]) < len(runs[0]) / 10
