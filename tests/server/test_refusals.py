"""Refusals before routing: each has a row in the request log and counts in the metrics."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from routecodex.config import loads
from routecodex.protocols import grammar
from routecodex.server.serve import Service
from tests.kit import answers, asking
from tests.kit.gateway import one_target
from tests.kit.raw_client import Answer, Call, begin, call
from tests.kit.steps import Hang, Json, Sse, Steps
from tests.kit.upstream import Upstream

FORM = {"content-type": "text/plain", "user-agent": "Mozilla/5.0"}
KEY = {"x-api-key": "k-1"}
ADMIN = {"authorization": "Bearer operator"}
SERVER = (
    'id = "main"\nadmin_token = "operator"\nclient_keys = [{ name = "laptop", key = "k-1" }]\n'
    "max_messages = 2\nmax_body_mb = 1\nmax_concurrent = 1\n"
)
HEAD = '[store]\nurl = "memory:"\n[logging]\nlevel = "error"\n'
LABELS = {
    "routecodex_requests_total": ("protocol", "provider", "model", "status"),
    "routecodex_refusals_total": ("endpoint", "code"),
    "routecodex_service_responses_total": ("endpoint", "status"),
}
PROTOCOLS = ("chat", "responses", "messages", "gemini")


class Logged:
    """A running gateway with a request log."""

    def __init__(self, port: int) -> None:
        self.port = port

    async def rows(self) -> list[dict[str, Any]]:
        """Return the rows of requests that have ended."""
        answer = await call(self.port, "/admin/requests", method="GET", headers=ADMIN)
        return [row for row in answer.json["requests"] if row["status"] is not None]

    async def counted(self, name: str) -> dict[tuple[str, ...], float]:
        """Return the values of a metric by its labels, without that of the worker."""
        answer = await call(self.port, "/metrics", method="GET", headers=KEY)
        assert answer.status == 200
        return {
            tuple(sample.labels[label] for label in LABELS[name]): sample.value
            for family in text_string_to_metric_families(answer.body.decode())
            for sample in family.samples
            if sample.name == name
        }

    async def raw(self, data: bytes) -> Answer:
        """Send bytes and read the response, before anything else is sent."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(data)
        under_way = Call(reader, writer)
        async with asyncio.timeout(20):
            answer = await under_way.rest()
        await under_way.close()
        return answer


@contextlib.asynccontextmanager
async def logging(up: Upstream, home: Path, server: str = SERVER) -> AsyncIterator[Logged]:
    config = loads(HEAD + one_target("chat", up, server=server), environ={})
    service = Service(config, home=home)
    _, port = await service.start()
    try:
        yield Logged(port)
    finally:
        await service.stop()


def many(protocol: str) -> dict[str, Any]:
    body = asking.body(protocol, stream=False)
    field = {"responses": "input", "gemini": "contents"}.get(protocol, "messages")
    body[field] = [{"role": "user", "content": "x"}] * 3 if protocol != "gemini" else body[field] * 3
    return body


def sent(path: str, body: Any = None, method: str = "POST", **headers: str) -> dict[str, Any]:
    return {"path": path, "body": body, "method": method, "headers": headers}


def refused(protocol: str) -> dict[str, tuple[dict[str, Any], int, str]]:
    """Return requests of a protocol that are refused, with status and code."""
    path, body = asking.path(protocol, stream=False), asking.body(protocol, stream=False)
    return {
        "no key": (sent(path, body), 401, "invalid_api_key"),
        "wrong key": (sent(path, body, **{"x-api-key": "other"}), 401, "invalid_api_key"),
        "invalid JSON": (sent(path, b"{", **KEY), 400, "invalid_json"),
        "too many messages": (sent(path, many(protocol), **KEY), 413, "request_too_large"),
        "body too large": (sent(path, b"x" * 1_100_000, **KEY), 413, "http_413"),
        "wrong method": (sent(path, method="PUT", **KEY), 405, "method_not_allowed"),
        "foreign host": (sent(path, body, host="evil.example", **KEY), 403, "host_not_allowed"),
        "foreign page": (sent(path, body, origin="https://evil.example"), 403, "origin_not_allowed"),
        "form": (sent(path, body, **FORM), 415, "unsupported_content_type"),
    }


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_every_refusal_has_a_row_and_counts(tmp_path: Path, protocol: str) -> None:
    cases = refused(protocol)
    async with Upstream() as up, logging(up, tmp_path) as gateway:
        for what, (request, status, _) in cases.items():
            answer = await call(gateway.port, **request)
            assert answer.status == status, what
            grammar.check_error(protocol, status, answer.body)
        rows = await gateway.rows()
        requests = await gateway.counted("routecodex_requests_total")
        refusals = await gateway.counted("routecodex_refusals_total")
    assert up.requests == []
    assert [(row["status"], row.get("code", "")) for row in rows] == [
        (status, code) for _, status, code in cases.values()
    ]
    assert {row["protocol"] for row in rows} == {protocol}
    assert {(row["route"], row["address"]) for row in rows} == {("gateway", "127.0.0.1")}
    path = asking.path(protocol, stream=False)
    assert [row["call"] for row in rows] == [f"{case[0]['method']} {path}" for case in cases.values()]
    assert all(row["error"] for row in rows)
    assert [row.get("client", "") for row in rows] == ["", "", "laptop", "laptop", "", "", "", "", ""]
    assert requests == {
        (protocol, "", "", "400"): 1,
        (protocol, "", "", "401"): 2,
        (protocol, "", "", "403"): 2,
        (protocol, "", "", "405"): 1,
        (protocol, "", "", "413"): 2,
        (protocol, "", "", "415"): 1,
    }
    assert refusals == {
        ("generate", "invalid_json"): 1,
        ("generate", "invalid_api_key"): 2,
        ("generate", "request_too_large"): 1,
        ("generate", "http_413"): 1,
        ("generate", "method_not_allowed"): 1,
        ("generate", "host_not_allowed"): 1,
        ("generate", "origin_not_allowed"): 1,
        ("generate", "unsupported_content_type"): 1,
    }


async def test_what_is_not_a_request_of_any_endpoint_has_a_row_too(tmp_path: Path) -> None:
    async with Upstream() as up, logging(up, tmp_path) as gateway:
        unknown = await call(gateway.port, "/v2/chat", {}, headers=KEY)
        garbage = await gateway.raw(b"garbage\r\n\r\n")
        long = await gateway.raw(b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\nx: " + b"x" * 70_000)
        rows = await gateway.rows()
        refusals = await gateway.counted("routecodex_refusals_total")
    assert (unknown.status, garbage.status, long.status) == (404, 400, 431)
    shown = [(row["status"], row["protocol"], row["code"], row.get("call", "")) for row in rows]
    assert shown == [
        (404, "chat", "not_found", "POST /v2/chat"),
        (400, "", "http_400", ""),
        (431, "chat", "http_431", "GET /v1/models"),
    ]
    assert refusals == {
        ("unknown", "not_found"): 1,
        ("unknown", "http_400"): 1,
        ("models", "http_431"): 1,
    }


async def test_at_the_limit_requests_are_refused_with_a_row_and_operators_are_answered(
    tmp_path: Path,
) -> None:
    async with (
        Upstream(lambda _: Steps([Hang()])) as up,
        logging(up, tmp_path, f"{SERVER}queue_wait_ms = 50\n") as gateway,
    ):
        path, body = "/v1/chat/completions", asking.body("chat", stream=False)
        under_way = await begin(gateway.port, path, body, headers=KEY)
        await up.received()
        answer = await call(gateway.port, path, body, headers=KEY)
        statuses = [
            (await call(gateway.port, path, method="GET", headers=headers)).status
            for path, headers in (("/health", {}), ("/metrics", KEY), ("/admin/status", ADMIN), ("/", {}))
        ]
        rows = await gateway.rows()
        requests = await gateway.counted("routecodex_requests_total")
        await under_way.leave()
    assert (answer.status, answer.headers["retry-after"]) == (503, "5")
    assert statuses == [200, 200, 200, 200]
    assert [(row["status"], row["code"], row["client"]) for row in rows] == [(503, "overloaded", "laptop")]
    assert requests == {("chat", "", "", "503"): 1}


async def value_of(gateway: Logged, name: str) -> float:
    """Return the value of a metric that has no labels but the worker."""
    answer = await call(gateway.port, "/metrics", method="GET", headers=KEY)
    families = text_string_to_metric_families(answer.body.decode())
    return next(each.value for family in families for each in family.samples if each.name == name)


async def until_waiting(gateway: Logged, count: int) -> None:
    async with asyncio.timeout(20):
        while await value_of(gateway, "routecodex_queue_waiting") != count:
            await asyncio.sleep(0.01)


async def test_the_time_in_the_queue_is_part_of_the_row_of_a_refusal(tmp_path: Path) -> None:
    async with (
        Upstream(lambda _: Steps([Hang()])) as up,
        logging(up, tmp_path, f"{SERVER}queue_wait_ms = 50\n") as gateway,
    ):
        path, body = "/v1/chat/completions", asking.body("chat", stream=False)
        under_way = await begin(gateway.port, path, body, headers=KEY)
        await up.received()
        assert (await call(gateway.port, path, body, headers=KEY)).status == 503
        (row,) = await gateway.rows()
        await under_way.leave()
    assert row["status"] == 503
    assert row["seconds"] >= 0.045


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages/count_tokens", "/v1/models"])
async def test_the_time_in_the_queue_is_part_of_the_row_of_an_answer(tmp_path: Path, path: str) -> None:
    method = "GET" if path == "/v1/models" else "POST"
    async with Upstream() as up, logging(up, tmp_path, f"{SERVER}queue_wait_ms = 60000\n") as gateway:
        up.queue(Steps([Hang()]), answers.text("chat", "hi", False))
        body = asking.body("messages" if "messages" in path else "chat", stream=False)
        first = await begin(gateway.port, "/v1/chat/completions", body, headers=KEY)
        await up.received()
        second = await begin(gateway.port, path, body, method=method, headers=KEY)
        await until_waiting(gateway, 1)
        await first.leave()
        assert (await second.rest()).status == 200
        await second.close()
        row = (await gateway.rows())[-1]
        waited = await value_of(gateway, "routecodex_queue_wait_seconds_sum")
    assert row["status"] == 200
    assert row["seconds"] >= round(waited, 3) - 0.001 > 0


async def test_a_client_that_leaves_the_queue_has_a_row_like_one_in_flight(tmp_path: Path) -> None:
    async with (
        Upstream(lambda _: Steps([Hang()])) as up,
        logging(up, tmp_path, f"{SERVER}queue_wait_ms = 60000\n") as gateway,
    ):
        path, body = "/v1/chat/completions", asking.body("chat", stream=False)
        first = await begin(gateway.port, path, body, headers=KEY)
        await up.received()
        second = await begin(gateway.port, path, body, headers=KEY)
        await until_waiting(gateway, 1)
        await second.leave()
        await until_waiting(gateway, 0)
        rows = await gateway.rows()
        requests = await gateway.counted("routecodex_requests_total")
        refusals = await gateway.counted("routecodex_refusals_total")
        responses = await gateway.counted("routecodex_service_responses_total")
        await first.leave()
    assert [(row["status"], row["client"], row["call"]) for row in rows] == [(499, "laptop", f"POST {path}")]
    assert rows[0]["seconds"] > 0
    assert requests == {("chat", "", "", "gone"): 1}
    assert refusals == {}
    assert {endpoint for endpoint, _ in responses} == {"metrics", "admin"}


async def test_a_request_that_waits_when_the_server_stops_is_told_so(tmp_path: Path) -> None:
    async with Upstream(lambda _: Steps([Hang()])) as up:
        text = one_target("chat", up, server='id = "main"\nmax_concurrent = 1\n')
        text = text.replace("drain_seconds = 1", "drain_seconds = 0")
        service = Service(loads(HEAD + text, environ={}), home=tmp_path)
        _, port = await service.start()
        path, body = "/v1/messages", asking.body("messages", stream=False)
        first = await begin(port, path, body)
        await up.received()
        second = await begin(port, path, body)
        await until_waiting(Logged(port), 1)
        assert await service.stop() is False
        answer = await second.rest()
        await first.close()
        await second.close()
    lines = (tmp_path / "sessions" / "main" / "requests.jsonl").read_bytes().splitlines()
    rows = [msgspec.json.decode(line) for line in lines]
    assert answer.status == 503
    assert [(row["status"], row["code"]) for row in rows] == [(503, "shutting_down")] * 2
    assert all(row["seconds"] > 0 for row in rows)


async def test_lists_have_a_row_and_probes_only_count(tmp_path: Path) -> None:
    async with Upstream() as up, logging(up, tmp_path) as gateway:
        for path, headers in (("/v1/models", KEY), ("/v1/models/up.m", KEY), ("/health", {}), ("/", {})):
            assert (await call(gateway.port, path, method="GET", headers=headers)).status == 200
        assert (await call(gateway.port, "/admin/status", method="GET")).status == 401
        rows = await gateway.rows()
        requests = await gateway.counted("routecodex_requests_total")
        responses = await gateway.counted("routecodex_service_responses_total")
    assert [(row["status"], row["call"]) for row in rows] == [
        (200, "GET /v1/models"),
        (200, "GET /v1/models/up.m"),
    ]
    assert requests == {}
    assert responses == {
        ("models", "200"): 1,
        ("model", "200"): 1,
        ("health", "200"): 1,
        ("root", "200"): 1,
        ("admin", "200"): 1,
        ("metrics", "200"): 1,
    }


async def test_the_status_that_the_client_got_is_recorded(tmp_path: Path) -> None:
    """A messages client gets 529 where others get 503; a Responses client 400 for a refused provider key."""
    overloaded = Json(529, {"error": {"message": "busy", "type": "overloaded_error"}})
    refused_key = Json(401, {"error": {"message": "no"}})
    found: list[int] = []
    async with (
        Upstream(lambda _: served[0]) as up,
        logging(up, tmp_path, 'admin_token = "operator"') as gateway,
    ):
        for answer, protocol in ((overloaded, "messages"), (overloaded, "chat"), (refused_key, "responses")):
            served = [answer]
            path, body = asking.path(protocol, stream=False), asking.body(protocol, stream=False)
            found.append((await call(gateway.port, path, body)).status)
            await call(gateway.port, "/admin/health/reset", {}, headers=ADMIN)
        counting = await call(
            gateway.port, "/v1/messages/count_tokens", asking.body("messages", stream=False)
        )
        rows = await gateway.rows()
        requests = await gateway.counted("routecodex_requests_total")
    assert counting.status == 200
    assert found == [529, 503, 400]
    assert [row["status"] for row in rows] == [*found, 200]
    assert {labels[3] for labels in requests} == {"529", "503", "400", "200"}


IDS = [
    ("turn-7/a", "turn-7/a"),
    ('with "quotes" and \\ too', 'with "quotes" and \\ too'),
    ("x" * 200, "x" * 128),
    ("schl\xfcssel\tx", "schl?ssel?x"),
]


@pytest.mark.parametrize(("own", "kept"), IDS)
async def test_a_clients_own_request_id_is_kept_beside_ours(tmp_path: Path, own: str, kept: str) -> None:
    async with (
        Upstream(lambda _: answers.text("chat", "hi", False)) as up,
        logging(up, tmp_path, 'admin_token = "operator"') as gateway,
    ):
        headers = {"x-request-id": own}
        answered = await call(
            gateway.port, "/v1/chat/completions", asking.body("chat", stream=False), headers=headers
        )
        refusal = await call(gateway.port, "/v1/chat/completions", b"{", headers=headers)
        await call(gateway.port, "/v1/models", method="GET")
        rows = await gateway.rows()
    assert [row.get("client_request_id") for row in rows] == [kept, kept, None]
    ours = [answer.headers["x-request-id"] for answer in (answered, refusal)]
    assert [row["request"] for row in rows[:2]] == ours
    assert all(id.startswith("req_") for id in ours)


async def test_answers_that_the_drain_limit_cuts_off_are_recorded_as_they_were_sent(tmp_path: Path) -> None:
    begun = answers.text("chat", "one two three", True)
    assert isinstance(begun, Sse)
    server = 'id = "main"\n'
    async with Upstream() as up:
        up.queue(Sse(list(begun.frames)[:3], end=Hang()), Steps([Hang()]))
        text = one_target("chat", up, server=server).replace("drain_seconds = 1", "drain_seconds = 0")
        service = Service(loads(HEAD + text, environ={}), home=tmp_path)
        _, port = await service.start()
        path = "/v1/messages"
        stream = await begin(port, path, asking.body("messages", stream=True))
        await stream.head()
        whole = await begin(port, path, asking.body("messages", stream=False))
        await up.received(2)
        assert await service.stop() is False
        await stream.close()
        await whole.close()
    lines = (tmp_path / "sessions" / "main" / "requests.jsonl").read_bytes().splitlines()
    rows = sorted((row["status"], row["code"]) for row in map(msgspec.json.decode, lines))
    assert rows == [(200, "shutting_down"), (503, "shutting_down")]
