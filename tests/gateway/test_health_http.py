"""Key health over real sockets: the effect of provider failures on later requests, row by row."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from routecodex.canon.errors import UpstreamError, UpstreamFailed, UpstreamRefusedKey, UpstreamRejected
from routecodex.gateway.state.key_health import KeyHealth
from routecodex.protocols import grammar
from routecodex.routing.registry import Target
from routecodex.stores.file import FileStore
from routecodex.stores.memory import MemoryStore
from tests.kit import answers, asking
from tests.kit.gateway import Running, provider, serving
from tests.kit.raw_client import Answer, begin, call
from tests.kit.steps import CutOff, Hang, Json, Raw, Send, Sse, Steps
from tests.kit.upstream import Request, Upstream

PROTOCOLS = ("chat", "responses", "messages", "gemini")
PROVIDER_MESSAGE = "the message of the provider"
TOKEN = "operator"
SERVER = f'[server]\nport = 0\ndrain_seconds = 1\nadmin_token = "{TOKEN}"\n'
NO_WAIT = "[routing_options]\nmax_wait_ms = 0\n"
TEXT_ANSWER = partial(answers.text, "chat", "hi")


def keys(up: Upstream, *, wait: str = NO_WAIT, timeout: str = "") -> str:
    """Return a configuration with one model under two keys, `a` and `b`, in round robin."""
    return (
        f'{SERVER}[providers.up]\nprotocol = "chat"\nbase_url = "{up.url}/v1"\n{timeout}\n'
        'auth = [{ alias = "a", value = "key-a" }, { alias = "b", value = "key-b" }]\n'
        f'[providers.up.models.m]\n[routing]\ndefault = ["up.m"]\n{wait}'
    )


def pair(first: Upstream, second: Upstream, *, more: str = NO_WAIT) -> str:
    """Return a configuration that falls back from `first` to `second`."""
    return (
        SERVER
        + provider("first", "chat", first, more="timeout = { first_byte_ms = 5000 }")
        + provider("second", "chat", second)
        + '[routing]\ndefault = [{ mode = "priority", targets = ["first.m", "second.m"] }]\n'
        + more
    )


async def test_a_later_round_goes_by_what_another_process_learned_meanwhile(tmp_path: Path) -> None:
    async def first_answer(request: Request) -> Any:
        """Answer, while another process opens the breaker of this target."""
        store = FileStore(tmp_path)
        other = KeyHealth(store)
        for _ in range(3):
            other.failed(Target("first", "primary", "m"), UpstreamFailed("it broke", upstream_status=500))
        await other.flush()
        await store.close()
        return TEXT_ANSWER(answers.wants_stream(request))

    async with (
        Upstream(first_answer) as first,
        Upstream(lambda request: TEXT_ANSWER(answers.wants_stream(request))) as second,
        serving(f'[store]\nurl = "file:{tmp_path}"\n' + pair(first, second)) as gateway,
    ):
        answer = await send(gateway, '<**stopMessage:"go on",1**>hi', x_session_id="s")
    assert (answer.status, len(first.requests), len(second.requests)) == (200, 1, 1)


def key(request: Request) -> str:
    return request.headers["authorization"].removeprefix("Bearer key-")


def key_a(answer: Any) -> Callable[[Request], Any]:
    """Return a script that answers with this under key `a`, and with text under `b`."""
    return lambda request: answer if key(request) == "a" else TEXT_ANSWER(answers.wants_stream(request))


def keys_used(up: Upstream) -> list[str]:
    return [key(request) for request in up.requests]


async def send(
    gateway: Running, text: str = "hi", *, model: str = "auto", stream: bool = False, **headers: str
) -> Answer:
    body = asking.body("chat", text, stream=stream, model=model)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return await call(gateway.port, "/v1/chat/completions", body, headers=named)


async def admin(gateway: Running, path: str, body: object = None) -> Any:
    method = "GET" if body is None else "POST"
    bearer = {"authorization": f"Bearer {TOKEN}"}
    answer = await call(gateway.port, f"/admin/{path}", body, method=method, headers=bearer)
    assert answer.status == 200, answer.body
    return answer.json


async def cooldown_rows(gateway: Running) -> list[tuple[str, str, str, int]]:
    rows = (await admin(gateway, "health"))["health"]
    return [(row["name"], row["state"], row["reason"], row["strikes"]) for row in rows]


def limited(**headers: str) -> Json:
    return answers.error("chat", 429, PROVIDER_MESSAGE, **headers)


QUOTA = Json(429, {"error": {"message": PROVIDER_MESSAGE, "code": "insufficient_quota"}})
OUT_AT_ONCE: dict[str, tuple[Json, str, str, float, float]] = {
    "429 with Retry-After": (limited(retry_after="40"), "cooling", "limited", 20, 40),
    "429 with a day of it": (limited(retry_after="86400"), "cooling", "limited", 880, 900),
    "429 with milliseconds": (limited(retry_after_ms="30500"), "cooling", "limited", 20, 30.5),
    "429 without": (limited(), "cooling", "limited", 0, 3),
    "429 of a quota": (QUOTA, "cooling", "quota", 580, 600),
    "402": (answers.error("chat", 402, PROVIDER_MESSAGE), "cooling", "quota", 580, 600),
    "401": (answers.error("chat", 401, PROVIDER_MESSAGE), "refused", "key refused", 580, 600),
    "403": (answers.error("chat", 403, PROVIDER_MESSAGE), "refused", "key refused", 580, 600),
}


@pytest.mark.parametrize(
    ("answer", "state", "reason", "least", "most"), OUT_AT_ONCE.values(), ids=list(OUT_AT_ONCE)
)
async def test_a_failing_key_gets_one_request_and_the_other_key_takes_over(
    answer: Json, state: str, reason: str, least: float, most: float
) -> None:
    async with Upstream(key_a(answer)) as up, serving(keys(up)) as gateway:
        responses = [await send(gateway) for _ in range(4)]
        (row,) = (await admin(gateway, "health"))["health"]
    assert [one.status for one in responses] == [200] * 4
    assert {one.headers["x-routecodex-target"] for one in responses} == {"up.b.m"}
    assert keys_used(up) == ["a", "b", "b", "b", "b"]
    assert (row["name"], row["state"], row["reason"], row["strikes"]) == ("up.a", state, reason, 1)
    assert least <= row["seconds"] <= most


COUNTED: dict[str, tuple[Any, str]] = {
    "500": (answers.error("chat", 500, PROVIDER_MESSAGE), "up.a.m"),
    "502": (answers.error("chat", 502, PROVIDER_MESSAGE), "up.a.m"),
    "503": (answers.error("chat", 503, PROVIDER_MESSAGE), "up.a.m"),
    "529": (answers.error("chat", 529, PROVIDER_MESSAGE), "up.a.m"),
    "a page in place of JSON": (Json(200, b"<html>", {"content-type": "text/html"}), "up.a.m"),
    "silence": (Raw((Hang(),)), "up.a.m"),
    "silence after its head": (Steps((Hang(),)), "up.a.m"),
    "a connection that breaks": (Raw((Send(b"HTTP/1.1 200 OK\r\n"), CutOff())), "up.a"),
    "a body that breaks": (Raw((Send(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{"), CutOff())), "up.a"),
}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(("answer", "place"), COUNTED.values(), ids=list(COUNTED))
async def test_three_failures_in_a_row_open_the_breaker(answer: Any, place: str, stream: bool) -> None:
    hangs = isinstance(answer, Raw | Steps) and Hang() in answer.steps
    patience = "timeout = { first_byte_ms = 250, idle_ms = 250 }" if hangs else ""
    async with Upstream(key_a(answer)) as up, serving(keys(up, timeout=patience)) as gateway:
        responses = [await send(gateway, stream=stream) for _ in range(9)]
        rows = await cooldown_rows(gateway)
    assert [one.status for one in responses] == [200] * 9
    assert Counter(keys_used(up)) == {"a": 3, "b": 9}
    assert rows == [(place, "open", "failing", 3)]


async def test_an_unreachable_provider_opens_the_breaker_of_its_key() -> None:
    async with Upstream(lambda _: TEXT_ANSWER(False)) as up:
        async with Upstream() as dead:
            text = pair(dead, up)
        async with serving(text) as gateway:
            responses = [await send(gateway) for _ in range(4)]
            assert await cooldown_rows(gateway) == [("first.primary", "open", "failing", 3)]
    assert [one.status for one in responses] == [200] * 4
    assert len(up.requests) == 4


async def test_failures_that_are_not_in_a_row_open_nothing() -> None:
    turns = itertools.cycle([500, 500, 200])

    def answer(_: Request) -> Any:
        status = next(turns)
        return TEXT_ANSWER(False) if status == 200 else answers.error("chat", status, PROVIDER_MESSAGE)

    async with Upstream(answer) as first, Upstream(lambda _: TEXT_ANSWER(False)) as second:
        async with serving(pair(first, second)) as gateway:
            assert [(await send(gateway)).status for _ in range(9)] == [200] * 9
            assert await cooldown_rows(gateway) == []
        assert (len(first.requests), len(second.requests)) == (9, 6)


@pytest.mark.parametrize("status", [400, 404, 409, 413, 422])
async def test_an_invalid_request_is_not_retried_and_affects_no_key(status: int) -> None:
    async with (
        Upstream(lambda _: answers.error("chat", status, PROVIDER_MESSAGE)) as up,
        serving(keys(up)) as gateway,
    ):
        responses = [await send(gateway) for _ in range(4)]
        assert await cooldown_rows(gateway) == []
    assert {(one.status, one.json["error"]["message"]) for one in responses} == {(status, PROVIDER_MESSAGE)}
    assert len(up.requests) == 4


async def test_a_rejected_key_is_used_again_after_an_operator_reset() -> None:
    async with Upstream(key_a(answers.error("chat", 401))) as up, serving(keys(up)) as gateway:
        for _ in range(4):
            await send(gateway)
        up.answer_with(lambda _: TEXT_ANSWER(False))
        assert await admin(gateway, "health/reset", {"target": "up.a"}) == {"reset": 1}
        for _ in range(4):
            await send(gateway)
        assert await cooldown_rows(gateway) == []
    assert Counter(keys_used(up)[5:]) == {"a": 2, "b": 2}


def store_failures(place: Path, target: Target, *errors: UpstreamError, ago: float) -> None:
    """Store the health of a gateway that met these errors this many seconds ago."""

    async def leave() -> None:
        store = FileStore(place)
        health = KeyHealth(store, clock=lambda: time.time() - ago)
        for error in errors:
            health.failed(target, error)
        await health.flush()
        await store.close()

    asyncio.run(leave())


@pytest.fixture
def half_open(tmp_path: Path) -> str:
    """Return a store in which the breaker of `first.m` was open until a moment ago."""
    failed = UpstreamFailed(PROVIDER_MESSAGE, upstream_status=500)
    store_failures(tmp_path, Target("first", "primary", "m"), failed, failed, failed, ago=6.0)
    return f'[store]\nurl = "file:{tmp_path}"\n'


async def test_a_half_open_breaker_lets_one_probe_through_and_its_success_closes_it(half_open: str) -> None:
    event = asyncio.Event()
    well = TEXT_ANSWER(True)
    assert isinstance(well, Sse)
    slow = Sse(well.frames, pace={0: event})
    async with (
        Upstream(lambda _: slow) as first,
        Upstream(lambda _: TEXT_ANSWER(True)) as second,
        serving(pair(first, second) + half_open) as gateway,
    ):
        assert await cooldown_rows(gateway) == [("first.primary.m", "half-open", "failing", 3)]
        probe = asyncio.ensure_future(send(gateway, stream=True))
        await first.received()
        others = await asyncio.gather(*(send(gateway, stream=True) for _ in range(6)))
        assert {one.headers["x-routecodex-target"] for one in others} == {"second.primary.m"}
        assert (len(first.requests), len(second.requests)) == (1, 6)
        event.set()
        assert (await probe).headers["x-routecodex-target"] == "first.primary.m"
        assert await cooldown_rows(gateway) == []
        await asyncio.gather(*(send(gateway, stream=True) for _ in range(6)))
    assert (len(first.requests), len(second.requests)) == (7, 6)


async def test_a_probe_that_fails_opens_the_breaker_for_longer(half_open: str) -> None:
    async with (
        Upstream(lambda _: answers.error("chat", 500)) as first,
        Upstream(lambda _: TEXT_ANSWER(False)) as second,
        serving(pair(first, second) + half_open) as gateway,
    ):
        assert [(await send(gateway)).status for _ in range(3)] == [200] * 3
        (row,) = (await admin(gateway, "health"))["health"]
    assert (row["state"], row["strikes"], 5 < row["seconds"] <= 10) == ("open", 4, True)
    assert (len(first.requests), len(second.requests)) == (1, 3)


async def test_the_next_request_probes_when_the_client_of_a_probe_disconnects(half_open: str) -> None:
    async with (
        Upstream() as first,
        Upstream(lambda _: TEXT_ANSWER(False)) as second,
        serving(pair(first, second) + half_open) as gateway,
    ):
        first.queue(Steps((Hang(),)), TEXT_ANSWER(False))
        path, body = "/v1/chat/completions", asking.body("chat", stream=False, model="auto")
        probe = await begin(gateway.port, path, body)
        left = await first.received()
        await probe.leave()
        await left.gone.wait()
        while (await send(gateway)).headers["x-routecodex-target"] != "first.primary.m":
            await asyncio.sleep(0)
        assert await cooldown_rows(gateway) == []
    assert len(first.requests) == 2


async def test_a_refused_key_is_probed_by_one_request_when_its_time_has_come(tmp_path: Path) -> None:
    refused = UpstreamRefusedKey("no", upstream_status=401)
    await asyncio.to_thread(store_failures, tmp_path, Target("up", "a", "m"), refused, ago=601.0)
    async with (
        Upstream(key_a(answers.error("chat", 401))) as up,
        serving(keys(up) + f'[store]\nurl = "file:{tmp_path}"\n') as gateway,
    ):
        assert [(await send(gateway)).status for _ in range(6)] == [200] * 6
        assert await cooldown_rows(gateway) == [("up.a", "refused", "key refused", 2)]
    assert Counter(keys_used(up)) == {"a": 1, "b": 6}


async def test_only_the_request_that_took_a_probe_can_release_it() -> None:
    target = Target("up", "a", "m")
    health = KeyHealth(MemoryStore(), clock=lambda: 1000.0)
    for _ in range(3):
        health.failed(target, UpstreamFailed(PROVIDER_MESSAGE, upstream_status=500))
    one, other = object(), object()
    assert await health.probe(target, 1006.0, by=one)
    health.release(target, by=other)
    assert not await health.probe(target, 1006.0, by=other)
    health.failed(target, UpstreamRejected("no", upstream_status=400), by=other)
    health.succeeded(target, began=999.0, by=other)
    assert not await health.probe(target, 1006.0, by=other)
    health.release(target, by=one)
    assert await health.probe(target, 1006.0, by=other)
    health.succeeded(target, by=other)
    assert health.is_usable(target, 1006.0)
    await health.flush()


OVERFLOW = Json(400, {"error": {"message": "too long", "code": "context_length_exceeded"}})


def with_long(small: Upstream, big: Upstream) -> str:
    return (
        SERVER
        + provider("small", "chat", small)
        + provider("big", "messages", big)
        + '[routing]\ndefault = ["small.m"]\nlongcontext = ["big.m"]\n'
        + NO_WAIT
    )


LONG: dict[str, tuple[Any, int, str | None]] = {
    "answers": (answers.text("messages", "hi", False), 200, None),
    "is too small as well": (Json(400, {"error": {"message": "prompt is too long"}}), 400, None),
    "fails": (answers.error("messages", 500, PROVIDER_MESSAGE), 502, None),
    "is limited": (answers.error("messages", 429, PROVIDER_MESSAGE, retry_after="9"), 429, "9"),
    "refuses the key": (answers.error("messages", 401, PROVIDER_MESSAGE), 424, None),
}


@pytest.mark.parametrize(("answer", "status", "wait"), LONG.values(), ids=list(LONG))
async def test_a_request_that_is_too_long_for_a_model_tries_longcontext_once(
    answer: Json, status: int, wait: str | None
) -> None:
    async with Upstream(lambda _: OVERFLOW) as small, Upstream(lambda _: answer) as big:
        async with serving(with_long(small, big)) as gateway:
            responses = await send(gateway)
            assert ("small.primary.m" in str(await cooldown_rows(gateway))) is False
        assert (len(small.requests), len(big.requests)) == (1, 1)
    assert (responses.status, responses.headers.get("retry-after")) == (status, wait)
    if status == 200:
        assert (responses.headers["x-routecodex-route"], responses.headers["x-routecodex-target"]) == (
            "longcontext",
            "big.primary.m",
        )


async def test_a_named_model_is_not_replaced_by_one_with_a_longer_context() -> None:
    async with Upstream(lambda _: OVERFLOW) as small, Upstream() as big:
        async with serving(with_long(small, big)) as gateway:
            assert (await send(gateway, model="small.m")).status == 400
            assert (await send(gateway, "hi <**small.m**>", x_session_id="s")).status == 400
        assert (len(small.requests), len(big.requests)) == (2, 0)


async def test_a_request_waits_for_the_key_that_is_back_soonest() -> None:
    async with Upstream() as up, serving(keys(up, wait="")) as gateway:
        up.queue(limited(retry_after_ms="2000"), limited(retry_after_ms="200"), TEXT_ANSWER(False))
        responses = await send(gateway)
    assert (responses.status, keys_used(up)) == (200, ["a", "b", "b"])


async def test_a_wait_ends_when_the_client_disconnects() -> None:
    async with Upstream(lambda _: limited(retry_after="8")) as up, serving(keys(up, wait="")) as gateway:
        path, body = "/v1/chat/completions", asking.body("chat", stream=False, model="auto")
        request = await begin(gateway.port, path, body)
        await (await up.received(2)).answered.wait()
        assert (await admin(gateway, "status"))["active"] == 1
        await request.leave()
        began = asyncio.get_running_loop().time()
        while (await admin(gateway, "status"))["active"]:
            assert asyncio.get_running_loop().time() < began + 7.0
    assert len(up.requests) == 2


async def test_a_request_does_not_wait_longer_than_max_wait_ms() -> None:
    patience = "[routing_options]\nmax_wait_ms = 500\n"
    async with Upstream(lambda _: limited(retry_after_ms="400")) as up:
        text = SERVER + provider("up", "chat", up) + '[routing]\ndefault = ["up.m"]\n' + patience
        async with serving(text) as gateway:
            responses = await send(gateway)
    assert (responses.status, responses.headers["retry-after"], len(up.requests)) == (429, "1", 2)


REFUSED = "provider 'up' rejected key 'b' (HTTP 401: no); check providers.up.auth"
MIXED: dict[str, tuple[Json, Json, str, str]] = {
    "all limited": (limited(retry_after="50"), limited(retry_after="20"), "20", PROVIDER_MESSAGE),
    "limited for long": (limited(retry_after="700"), limited(retry_after="800"), "60", PROVIDER_MESSAGE),
    "one limited, one refused": (
        limited(retry_after="30"),
        answers.error("chat", 401, "no"),
        "30",
        f"{PROVIDER_MESSAGE}; {REFUSED}",
    ),
}


@pytest.mark.parametrize(("a", "b", "wait", "message"), MIXED.values(), ids=list(MIXED))
async def test_when_all_keys_cool_down_the_error_has_the_reason_and_retry_after(
    a: Json, b: Json, wait: str, message: str
) -> None:
    async with Upstream(lambda request: a if key(request) == "a" else b) as up, serving(keys(up)) as gateway:
        first, later = await send(gateway), await send(gateway)
        assert len(up.requests) == 2, "a key in cooldown gets no request"
    assert (first.status, later.status) == (429, 429)
    assert first.json["error"]["message"] == message
    assert first.headers.get("retry-after") == wait
    assert int(wait) - 3 <= int(later.headers["retry-after"]) <= int(wait)
    assert later.json["error"]["message"].startswith("every target is cooling down: up.")
    assert all(cause in later.json["error"]["message"] for cause in message.split("; ", 1))


UNUSABLE: dict[str, tuple[Json, Json, str]] = {
    "one refused, one without quota": (answers.error("chat", 401, "no"), QUOTA, "has no credit for key 'b'"),
    "all refused": (answers.error("chat", 401, "no"), answers.error("chat", 401, "no"), REFUSED),
}


@pytest.mark.parametrize(("a", "b", "cause"), UNUSABLE.values(), ids=list(UNUSABLE))
async def test_when_no_key_can_serve_the_error_names_all_causes_and_no_time(
    a: Json, b: Json, cause: str
) -> None:
    async with Upstream(lambda request: a if key(request) == "a" else b) as up, serving(keys(up)) as gateway:
        received = [await send(gateway), await send(gateway)]
        assert len(up.requests) == 2, "a key in cooldown gets no request"
    for answer in received:
        assert (answer.status, answer.json["code"]) == (424, "upstream_auth")
        assert "rejected key 'a'" in answer.json["error"]["message"]
        assert cause in answer.json["error"]["message"]
        assert "retry-after" not in answer.headers


OPENED: dict[str, tuple[Json, list[int], list[int]]] = {
    "500": (answers.error("chat", 500, PROVIDER_MESSAGE), [502, 502, 503, 503], [502, 502, 503, 503]),
    "504": (answers.error("chat", 504, PROVIDER_MESSAGE), [504, 504, 503, 503], [504, 504, 503, 503]),
    "529": (answers.error("chat", 529, PROVIDER_MESSAGE), [503, 503, 503, 503], [529, 529, 529, 503]),
}


@pytest.mark.parametrize(("answer", "chat", "messages"), OPENED.values(), ids=list(OPENED))
async def test_the_request_that_opens_the_last_breaker_gets_retry_after(
    answer: Json, chat: list[int], messages: list[int]
) -> None:
    async with Upstream(lambda _: answer) as up:
        text = SERVER + provider("up", "chat", up) + '[routing]\ndefault = ["up.m"]\n' + NO_WAIT
        for client, expected in (("chat", chat), ("messages", messages)):
            path, body = asking.path(client, stream=False), asking.body(client, stream=False)
            async with serving(text) as gateway:
                responses = [await call(gateway.port, path, body) for _ in range(4)]
            assert [one.status for one in responses] == expected
            assert all(PROVIDER_MESSAGE in one.json["error"]["message"] for one in responses)
            assert [one.headers.get("retry-after") for one in responses[2:]] == ["5", "5"]
    assert len(up.requests) == 6


async def test_a_failure_keeps_its_status_while_one_target_is_healthy() -> None:
    async with (
        Upstream(lambda _: limited(retry_after="30")) as first,
        Upstream(lambda _: answers.error("chat", 500, PROVIDER_MESSAGE)) as second,
        serving(pair(first, second)) as gateway,
    ):
        responses = [await send(gateway) for _ in range(3)]
    assert [one.status for one in responses] == [502, 502, 503]
    assert [one.headers.get("retry-after") for one in responses] == [None, None, "5"]


@pytest.mark.parametrize(("broken", "status"), [(False, 429), (True, 502)])
async def test_exhausted_attempts_keep_their_status_unless_all_targets_cool_down(
    broken: bool, status: int
) -> None:
    # A rate limit cools down the key and so the second model; a failure counts only for the first model.
    async with Upstream(lambda _: limited(retry_after="30")) as up:
        text = SERVER + provider("up", "chat", up) + "[providers.up.models.n]\n"
        if broken:
            up.answer_with(lambda _: answers.error("chat", 500, PROVIDER_MESSAGE))
        text += '[routing]\ndefault = [{ mode = "priority", targets = ["up.m", "up.n"] }]\n'
        async with serving(text + NO_WAIT + "max_attempts = 1\n") as gateway:
            responses = await send(gateway)
    assert (responses.status, len(up.requests)) == (status, 1)
    assert responses.headers.get("retry-after") == (None if broken else "30")


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("client", PROTOCOLS)
async def test_a_forced_unhealthy_target_gets_the_documented_error(client: str, stream: bool) -> None:
    async with Upstream(key_a(limited(retry_after="300"))) as up, serving(keys(up)) as gateway:
        await send(gateway)
        path = asking.path(client, stream=stream, model="auto")
        body = asking.body(client, "hi <**up.a.m**>", stream=stream, model="auto")
        responses = await call(gateway.port, path, body, headers={"x-session-id": "s"})
    assert keys_used(up) == ["a", "b"]
    grammar.check_error(client, responses.status, responses.body)
    expected = "Requested provider up is not available (health check failed)"
    assert (responses.status, responses.headers["retry-after"]) == (503, "60")
    assert (responses.json["code"], responses.json["details"], responses.json["error"]["message"]) == (
        "PROVIDER_NOT_AVAILABLE",
        {"provider": "up", "reason": "unhealthy"},
        expected,
    )
    assert PROVIDER_MESSAGE in responses.headers["x-routecodex-notice"]
    assert responses.headers["x-routecodex-notice"].startswith("up.a is cooling for ")


async def test_an_error_keeps_the_notices_about_ignored_instructions() -> None:
    async with Upstream() as up, serving(keys(up)) as gateway:
        responses = await send(gateway, "hi <**stopMessage**> <**nobody.m**>", x_session_id="s")
    assert responses.status == 404
    assert responses.headers["x-routecodex-notice"].startswith("instruction ignored: <**stopMessage**>: ")
    assert up.requests == []


@pytest.mark.parametrize(
    "answer", [answers.cut_off("chat", PROVIDER_MESSAGE), answers.stream_error("chat", PROVIDER_MESSAGE)]
)
async def test_after_the_first_byte_nothing_is_tried_elsewhere(answer: Sse) -> None:
    async with Upstream(lambda _: answer) as first, Upstream() as second:
        async with serving(pair(first, second)) as gateway:
            responses = await send(gateway, stream=True)
        assert (len(first.requests), second.requests) == (1, [])
    assert (responses.status, responses.headers["x-routecodex-target"]) == (200, "first.primary.m")
    assert b'"error"' in responses.body


@pytest.mark.parametrize("answer", [Sse([]), Sse([b": hello\n\n"], end=CutOff()), Sse([b"data: {\n\n"])])
async def test_before_the_first_byte_a_stream_that_breaks_is_tried_elsewhere(answer: Sse) -> None:
    async with Upstream(lambda _: answer) as first, Upstream(lambda _: TEXT_ANSWER(True)) as second:
        async with serving(pair(first, second)) as gateway:
            responses = await send(gateway, stream=True)
        assert (len(first.requests), len(second.requests)) == (1, 1)
    asking.check("chat", responses, stream=True)
    assert responses.headers["x-routecodex-target"] == "second.primary.m"


async def test_no_more_targets_are_tried_than_the_configuration_allows() -> None:
    async with Upstream(lambda _: answers.error("chat", 500, PROVIDER_MESSAGE)) as up:
        names = [f"p{number}" for number in range(8)]
        text = SERVER + "".join(provider(name, "chat", up) for name in names)
        text += f"[routing]\ndefault = {[f'{name}.m' for name in names]}\n"
        async with serving(text) as gateway:
            assert (await send(gateway)).status == 502
        assert len(up.requests) == 6
        async with serving(text + "[routing_options]\nmax_attempts = 2\n") as gateway:
            assert (await send(gateway)).status == 502
        assert len(up.requests) == 8


async def test_cooldowns_survive_a_restart(tmp_path: Path) -> None:
    async with Upstream(key_a(limited(retry_after="300"))) as up:
        text = keys(up) + f'[store]\nurl = "file:{tmp_path}"\n'
        for _ in range(2):
            async with serving(text) as gateway:
                assert [(await send(gateway)).status for _ in range(3)] == [200] * 3
                assert await cooldown_rows(gateway) == [("up.a", "cooling", "limited", 1)]
    assert Counter(keys_used(up)) == {"a": 1, "b": 6}


async def test_the_demo_provider_answers_again_after_a_scripted_key_rejection() -> None:
    text = SERVER + (
        '[providers.demo]\nprotocol = "demo"\npace = 0\nmodels = { m = {} }\n'
        '[routing]\ndefault = ["demo.m"]\n'
    )
    async with serving(text) as gateway:
        path = asking.path("chat", stream=False)
        refused = await call(
            gateway.port, path, asking.body("chat", "demo:error 401", stream=False, model="demo.m")
        )
        after = await call(gateway.port, path, asking.body("chat", "hello", stream=False, model="demo.m"))
    assert (refused.status, after.status) == (424, 200)
