from __future__ import annotations

import io
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from routecodex.canon.errors import UpstreamFailed
from routecodex.canon.events import Usage
from routecodex.canon.finish import Finish, trace
from routecodex.gateway.request import RequestRecord
from routecodex.protocols.codecs import CODECS
from routecodex.routing.registry import Target
from routecodex.server.logs import human_line, is_json, json_line, set_up

AT = 1_700_000_000.125


def record(**settings: Any) -> RequestRecord:
    usual = {
        "id": "req_1",
        "protocol": "chat",
        "model": "gpt-4o",
        "stream": True,
        "route": "default",
        "reason": "no rule names another route",
        "target": Target("glm", "primary", "glm-4.7"),
        "attempts": 1,
        "rounds": 1,
        "status": 200,
        "arrived": 10.0,
        "first_byte": 10.25,
        "finished": 11.5,
        "usage": Usage(3, 2, cache_read=1, cache_write=4),
        "finish": "stop",
    }
    entry = RequestRecord(id="", protocol="", model="", stream=False, arrived=0.0)
    for name, value in {**usual, **settings}.items():
        setattr(entry, name, value)
    return entry


def fields(entry: RequestRecord) -> dict[str, Any]:
    """Return the fields of a request's JSON line; empty ones may be absent."""
    found: dict[str, Any] = msgspec.json.decode(json_line(AT, entry))
    return {name: value for name, value in found.items() if value not in (None, "")}


def test_a_request_is_told_to_machines_as_one_json_object() -> None:
    line = json_line(AT, record(client_name="ann", notices=("dropped top_k: x",)))
    assert "\n" not in line
    assert msgspec.json.decode(line) == {
        "time": "2023-11-14T22:13:20.125Z",
        "level": "info",
        "logger": "routecodex.access",
        "request": "req_1",
        "protocol": "chat",
        "model": "gpt-4o",
        "stream": True,
        "status": 200,
        "route": "default",
        "target": "glm.primary.glm-4.7",
        "reason": "no rule names another route",
        "attempts": 1,
        "rounds": 1,
        "seconds": 1.5,
        "first_byte": 0.25,
        "finish": "stop",
        "input_tokens": 3,
        "output_tokens": 2,
        "cache_read_tokens": 1,
        "cache_write_tokens": 4,
        "reasoning_tokens": 0,
        "client": "ann",
        "role": "main",
        "notices": ["dropped top_k: x"],
    }


def test_a_failed_request_tells_its_error() -> None:
    entry = fields(
        record(target=None, usage=None, first_byte=0.0, error=UpstreamFailed("broken"), status=502)
    )
    assert (entry["status"], entry["error"], entry["code"]) == (502, "broken", "upstream_error")
    assert not {"target", "first_byte", "input_tokens"} & entry.keys()


def test_a_client_that_left_is_told_as_gone() -> None:
    assert fields(record(gone=True, status=0))["status"] == 499


def test_long_model_names_are_cut() -> None:
    assert len(fields(record(model="x" * 5000))["model"]) == 200


@pytest.mark.parametrize("text", ['a"b\\c', "line\nbreak\r", "grüße 世界", "\x00\x1b[31m", "{}"])
def test_whatever_a_client_sends_stays_one_json_line(text: str) -> None:
    line = json_line(AT, record(model=text, client_name=text, error=UpstreamFailed(text)))
    assert "\n" not in line
    assert msgspec.json.decode(line)["model"] == text


def test_a_request_is_told_to_people_in_one_line() -> None:
    line = human_line(AT, record())
    assert line.endswith("  200  chat stream  gpt-4o → glm.primary.glm-4.7  1.50s  3+2 tokens  stop")
    failed = human_line(
        AT, record(stream=False, target=None, usage=None, finish="", error=UpstreamFailed("broken"))
    )
    assert failed.endswith("  200  chat  gpt-4o → -  1.50s  broken")


SECRET = "sk-very-secret-123"  # what must not be found


@pytest.mark.parametrize("protocol", CODECS)
def test_no_key_of_ours_reaches_a_line(protocol: str) -> None:
    body = {"error": {"message": f"Incorrect API key provided: {SECRET}", "code": "invalid_api_key"}}
    error = CODECS[protocol].decode_error(401, {}, msgspec.json.encode(body), "glm")
    failed = record(error=error, status=error.status)
    assert SECRET not in json_line(AT, failed)
    assert SECRET not in human_line(AT, failed)


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("choice", "stream", "expected"),
    [
        ("json", Screen(), True),
        ("human", io.StringIO(), False),
        ("auto", Screen(), False),
        ("auto", io.StringIO(), True),
    ],
)
def test_lines_are_json_whenever_nobody_is_watching(choice: str, stream: io.StringIO, expected: bool) -> None:
    assert is_json(choice, stream) is expected


LOGGERS = ("routecodex", "routecodex.finish")


@pytest.fixture
def loggers() -> Iterator[None]:
    """Restore the loggers."""
    found = [logging.getLogger(name) for name in LOGGERS]
    before = [(logger.handlers[:], logger.level, logger.propagate) for logger in found]
    yield
    for logger, (handlers, level, propagate) in zip(found, before, strict=True):
        for handler in set(logger.handlers) - set(handlers):
            handler.close()
        logger.handlers[:], logger.propagate = handlers, propagate
        logger.setLevel(level)


@pytest.mark.usefixtures("loggers")
def test_other_lines_are_json_too(capsys: pytest.CaptureFixture[str]) -> None:
    set_up(level="info", as_json=True)
    log = logging.getLogger("routecodex.test")
    log.debug("unheard")
    log.info("said %s", 'a "word"\nor two')
    try:
        raise ValueError("oops")
    except ValueError:
        log.exception("it broke")
    first, second = (msgspec.json.decode(line) for line in capsys.readouterr().err.splitlines())
    assert (first["level"], first["logger"], first["message"]) == (
        "info",
        "routecodex.test",
        'said a "word"\nor two',
    )
    assert second["level"] == "error"
    assert "ValueError: oops" in second["exception"]


@pytest.mark.usefixtures("loggers")
def test_people_get_plain_lines(capsys: pytest.CaptureFixture[str]) -> None:
    set_up(level="warning", as_json=False)
    logging.getLogger("routecodex.test").info("unheard")
    logging.getLogger("routecodex.test").warning("watch out")
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("WARNING watch out")


@pytest.mark.usefixtures("loggers")
def test_finishes_are_traced_into_their_own_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "debug" / "finish-reason.log"
    set_up(level="info", as_json=True, finish_trace=path)
    trace("req_1", Finish("tool_calls", upstream_reason="stop"), "tool_use")
    (line,) = path.read_text("utf-8").splitlines()
    assert line.endswith(" request=req_1 upstream=stop inferred=tool_calls sent=tool_use")
    assert capsys.readouterr().err == ""
