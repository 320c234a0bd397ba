"""What failures of providers do to the requests after them, over real sockets: health, row by row."""

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
from routecodex.routing.registry import Target
from routecodex.stores.file import FileStore
from routecodex.stores.memory import MemoryStore
from tests.kit import answers, asking, grammar
from tests.kit.gateway import Running, provider, serving
from tests.kit.raw_client import Answer, begin, call
from tests.kit.steps import CutOff, Hang, Json, Raw, Send, Sse, Steps
from tests.kit.upstream import Request, Upstream

PROTOCOLS = ("chat", "responses", "messages", "gemini")
WORDS = "the words of the provider"
TOKEN = "operator"
SERVER = f'[server]\nport = 0\ndrain_seconds = 1\nadmin_token = "{TOKEN}"\n'
NO_WAIT = "[routing_options]\nmax_wait_ms = 0\n"
SPEAKING = partial(answers.text, "chat", "hi")


def keys(up: Upstream, *, wait: str = NO_WAIT, timeout: str = "") -> str:
    """A gateway for one model under two keys, `a` and `b`, which take turns."""
    return (
        f'{SERVER}[providers.up]\nprotocol = "chat"\nbase_url = "{up.url}/v1"\n{timeout}\n'
        'auth = [{ alias = "a", value = "key-a" }, { alias = "b", value = "key-b" }]\n'
        f'[providers.up.models.m]\n[routing]\ndefault = ["up.m"]\n{wait}'
    )


def pair(first: Upstream, second: Upstream, *, more: str = NO_WAIT) -> str:
    """A gateway that asks `second` when `first` fails."""
    return (
        SERVER
        + provider("first", "chat", first, more="timeout = { first_byte_ms = 5000 }")
        + provider("second", "chat", second)
        + '[routing]\ndefault = [{ mode = "priority", targets = ["first.m", "second.m"] }]\n'
        + more
    )


def key(request: Request) -> str:
    return request.headers["authorization"].removeprefix("Bearer key-")


def key_a(answer: Any) -> Callable[[Request], Any]:
    """The provider answers so under key `a`, and well under `b`."""
    return lambda request: answer if key(request) == "a" else SPEAKING(answers.wants_stream(request))


def asked(up: Upstream) -> list[str]:
    return [key(request) for request in up.requests]


async def say(
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


async def ailments(gateway: Running) -> list[tuple[str, str, str, int]]:
    rows = (await admin(gateway, "health"))["health"]
    return [(row["name"], row["state"], row["reason"], row["strikes"]) for row in rows]


def limited(**headers: str) -> Json:
    return answers.error("chat", 429, WORDS, **headers)


QUOTA = Json(429, {"error": {"message": WORDS, "code": "insufficient_quota"}})
OUT_AT_ONCE: dict[str, tuple[Json, str, str, float, float]] = {
    "429 with Retry-After": (limited(retry_after="40"), "cooling", "limited", 20, 40),
    "429 with a day of it": (limited(retry_after="86400"), "cooling", "limited", 880, 900),
    "429 with milliseconds": (limited(retry_after_ms="30500"), "cooling", "limited", 20, 30.5),
    "429 without": (limited(), "cooling", "limited", 0, 3),
    "429 of a quota": (QUOTA, "cooling", "quota", 580, 600),
    "402": (answers.error("chat", 402, WORDS), "cooling", "quota", 580, 600),
    "401": (answers.error("chat", 401, WORDS), "refused", "key refused", 580, 600),
    "403": (answers.error("chat", 403, WORDS), "refused", "key refused", 580, 600),
}


@pytest.mark.parametrize(
    ("answer", "state", "reason", "least", "most"), OUT_AT_ONCE.values(), ids=list(OUT_AT_ONCE)
)
async def test_a_key_that_is_out_is_asked_once_and_the_other_one_goes_on(
    answer: Json, state: str, reason: str, least: float, most: float
) -> None:
    async with Upstream(key_a(answer)) as up, serving(keys(up)) as gateway:
        seen = [await say(gateway) for _ in range(4)]
        (row,) = (await admin(gateway, "health"))["health"]
    assert [one.status for one in seen] == [200] * 4
    assert {one.headers["x-routecodex-target"] for one in seen} == {"up.b.m"}
    assert asked(up) == ["a", "b", "b", "b", "b"]
    assert (row["name"], row["state"], row["reason"], row["strikes"]) == ("up.a", state, reason, 1)
    assert least <= row["seconds"] <= most


COUNTED: dict[str, tuple[Any, str]] = {
    "500": (answers.error("chat", 500, WORDS), "up.a.m"),
    "502": (answers.error("chat", 502, WORDS), "up.a.m"),
    "503": (answers.error("chat", 503, WORDS), "up.a.m"),
    "529": (answers.error("chat", 529, WORDS), "up.a.m"),
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
        seen = [await say(gateway, stream=stream) for _ in range(9)]
        rows = await ailments(gateway)
    assert [one.status for one in seen] == [200] * 9
    assert Counter(asked(up)) == {"a": 3, "b": 9}
    assert rows == [(place, "open", "failing", 3)]


async def test_a_provider_that_is_not_there_opens_the_breaker_of_its_key_too() -> None:
    async with Upstream(lambda _: SPEAKING(False)) as up:
        async with Upstream() as dead:
            text = pair(dead, up)
        async with serving(text) as gateway:
            seen = [await say(gateway) for _ in range(4)]
            assert await ailments(gateway) == [("first.primary", "open", "failing", 3)]
    assert [one.status for one in seen] == [200] * 4
    assert len(up.requests) == 4


async def test_failures_that_are_not_in_a_row_open_nothing() -> None:
    turns = itertools.cycle([500, 500, 200])

    def answer(_: Request) -> Any:
        status = next(turns)
        return SPEAKING(False) if status == 200 else answers.error("chat", status, WORDS)

    async with Upstream(answer) as first, Upstream(lambda _: SPEAKING(False)) as second:
        async with serving(pair(first, second)) as gateway:
            assert [(await say(gateway)).status for _ in range(9)] == [200] * 9
            assert await ailments(gateway) == []
        assert (len(first.requests), len(second.requests)) == (9, 6)


@pytest.mark.parametrize("status", [400, 404, 409, 413, 422])
async def test_a_request_that_is_at_fault_goes_nowhere_else_and_harms_nobody(status: int) -> None:
    async with Upstream(lambda _: answers.error("chat", status, WORDS)) as up, serving(keys(up)) as gateway:
        seen = [await say(gateway) for _ in range(4)]
        assert await ailments(gateway) == []
    assert {(one.status, one.json["error"]["message"]) for one in seen} == {(status, WORDS)}
    assert len(up.requests) == 4


async def test_a_refused_key_comes_back_when_an_operator_says_so() -> None:
    async with Upstream(key_a(answers.error("chat", 401))) as up, serving(keys(up)) as gateway:
        for _ in range(4):
            await say(gateway)
        up.answer_with(lambda _: SPEAKING(False))
        assert await admin(gateway, "health/reset", {"target": "up.a"}) == {"reset": 1}
        for _ in range(4):
            await say(gateway)
        assert await ailments(gateway) == []
    assert Counter(asked(up)[5:]) == {"a": 2, "b": 2}


def struck(place: Path, target: Target, *errors: UpstreamError, ago: float) -> None:
    """Leaves the health behind that a gateway had after these errors, so many seconds ago."""

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
    """A store in which the breaker of `first.m` was open until a moment ago."""
    failed = UpstreamFailed(WORDS, upstream_status=500)
    struck(tmp_path, Target("first", "primary", "m"), failed, failed, failed, ago=6.0)
    return f'[store]\nurl = "file:{tmp_path}"\n'


async def test_a_half_open_breaker_lets_one_probe_through_and_its_success_closes_it(half_open: str) -> None:
    gate = asyncio.Event()
    well = SPEAKING(True)
    assert isinstance(well, Sse)
    slow = Sse(well.frames, pace={0: gate})
    async with (
        Upstream(lambda _: slow) as first,
        Upstream(lambda _: SPEAKING(True)) as second,
        serving(pair(first, second) + half_open) as gateway,
    ):
        assert await ailments(gateway) == [("first.primary.m", "half-open", "failing", 3)]
        probe = asyncio.ensure_future(say(gateway, stream=True))
        await first.received()
        others = await asyncio.gather(*(say(gateway, stream=True) for _ in range(6)))
        assert {one.headers["x-routecodex-target"] for one in others} == {"second.primary.m"}
        assert (len(first.requests), len(second.requests)) == (1, 6)
        gate.set()
        assert (await probe).headers["x-routecodex-target"] == "first.primary.m"
        assert await ailments(gateway) == []
        await asyncio.gather(*(say(gateway, stream=True) for _ in range(6)))
    assert (len(first.requests), len(second.requests)) == (7, 6)


async def test_a_probe_that_fails_opens_the_breaker_for_longer(half_open: str) -> None:
    async with (
        Upstream(lambda _: answers.error("chat", 500)) as first,
        Upstream(lambda _: SPEAKING(False)) as second,
        serving(pair(first, second) + half_open) as gateway,
    ):
        assert [(await say(gateway)).status for _ in range(3)] == [200] * 3
        (row,) = (await admin(gateway, "health"))["health"]
    assert (row["state"], row["strikes"], 5 < row["seconds"] <= 10) == ("open", 4, True)
    assert (len(first.requests), len(second.requests)) == (1, 3)


async def test_a_probe_whose_client_leaves_lets_the_next_one_be_it(half_open: str) -> None:
    async with (
        Upstream() as first,
        Upstream(lambda _: SPEAKING(False)) as second,
        serving(pair(first, second) + half_open) as gateway,
    ):
        first.queue(Steps((Hang(),)), SPEAKING(False))
        path, body = "/v1/chat/completions", asking.body("chat", stream=False, model="auto")
        probe = await begin(gateway.port, path, body)
        left = await first.received()
        await probe.leave()
        await left.gone.wait()
        while (await say(gateway)).headers["x-routecodex-target"] != "first.primary.m":
            await asyncio.sleep(0)
        assert await ailments(gateway) == []
    assert len(first.requests) == 2


async def test_a_refused_key_is_probed_by_one_request_when_its_time_has_come(tmp_path: Path) -> None:
    refused = UpstreamRefusedKey("no", upstream_status=401)
    await asyncio.to_thread(struck, tmp_path, Target("up", "a", "m"), refused, ago=601.0)
    async with (
        Upstream(key_a(answers.error("chat", 401))) as up,
        serving(keys(up) + f'[store]\nurl = "file:{tmp_path}"\n') as gateway,
    ):
        assert [(await say(gateway)).status for _ in range(6)] == [200] * 6
        assert await ailments(gateway) == [("up.a", "refused", "key refused", 2)]
    assert Counter(asked(up)) == {"a": 1, "b": 6}


async def test_only_the_request_that_took_a_probe_can_give_it_up() -> None:
    target = Target("up", "a", "m")
    health = KeyHealth(MemoryStore(), clock=lambda: 1000.0)
    for _ in range(3):
        health.failed(target, UpstreamFailed(WORDS, upstream_status=500))
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
    "fails": (answers.error("messages", 500, WORDS), 502, None),
    "is limited": (answers.error("messages", 429, WORDS, retry_after="9"), 429, "9"),
    "refuses the key": (answers.error("messages", 401, WORDS), 502, None),
}


@pytest.mark.parametrize(("answer", "status", "wait"), LONG.values(), ids=list(LONG))
async def test_a_request_that_is_too_long_for_a_model_tries_longcontext_once(
    answer: Json, status: int, wait: str | None
) -> None:
    async with Upstream(lambda _: OVERFLOW) as small, Upstream(lambda _: answer) as big:
        async with serving(with_long(small, big)) as gateway:
            seen = await say(gateway)
            assert ("small.primary.m" in str(await ailments(gateway))) is False
        assert (len(small.requests), len(big.requests)) == (1, 1)
    assert (seen.status, seen.headers.get("retry-after")) == (status, wait)
    if status == 200:
        assert (seen.headers["x-routecodex-route"], seen.headers["x-routecodex-target"]) == (
            "longcontext",
            "big.primary.m",
        )


async def test_a_model_that_was_named_is_not_left_for_a_longer_one() -> None:
    async with Upstream(lambda _: OVERFLOW) as small, Upstream() as big:
        async with serving(with_long(small, big)) as gateway:
            assert (await say(gateway, model="small.m")).status == 400
            assert (await say(gateway, "hi <**small.m**>", x_session_id="s")).status == 400
        assert (len(small.requests), len(big.requests)) == (2, 0)


async def test_a_request_waits_for_the_key_that_is_back_soonest() -> None:
    async with Upstream() as up, serving(keys(up, wait="")) as gateway:
        up.queue(limited(retry_after_ms="2000"), limited(retry_after_ms="200"), SPEAKING(False))
        seen = await say(gateway)
    assert (seen.status, asked(up)) == (200, ["a", "b", "b"])


async def test_a_wait_ends_when_the_client_leaves() -> None:
    async with Upstream(lambda _: limited(retry_after="8")) as up, serving(keys(up, wait="")) as gateway:
        path, body = "/v1/chat/completions", asking.body("chat", stream=False, model="auto")
        waiting = await begin(gateway.port, path, body)
        await (await up.received(2)).answered.wait()
        assert (await admin(gateway, "status"))["active"] == 1
        await waiting.leave()
        began = asyncio.get_running_loop().time()
        while (await admin(gateway, "status"))["active"]:
            assert asyncio.get_running_loop().time() < began + 7.0
    assert len(up.requests) == 2


async def test_a_request_does_not_wait_past_its_patience() -> None:
    patience = "[routing_options]\nmax_wait_ms = 500\n"
    async with Upstream(lambda _: limited(retry_after_ms="400")) as up:
        text = SERVER + provider("up", "chat", up) + '[routing]\ndefault = ["up.m"]\n' + patience
        async with serving(text) as gateway:
            seen = await say(gateway)
    assert (seen.status, seen.headers["retry-after"], len(up.requests)) == (429, "1", 2)


REFUSED = "provider 'up' rejected the gateway's key (HTTP 401); check its configured keys"
MIXED: dict[str, tuple[Json, Json, tuple[int, int], str, str]] = {
    "all limited": (limited(retry_after="50"), limited(retry_after="20"), (429, 429), "20", WORDS),
    "limited for long": (limited(retry_after="700"), limited(retry_after="800"), (429, 429), "60", WORDS),
    "one limited, one refused": (
        limited(retry_after="30"),
        answers.error("chat", 401),
        (503, 503),
        "30",
        REFUSED,
    ),
    "one refused, one without quota": (answers.error("chat", 401), QUOTA, (503, 503), "60", REFUSED),
    "all refused": (answers.error("chat", 401), answers.error("chat", 401), (502, 503), "60", REFUSED),
}


@pytest.mark.parametrize(("a", "b", "statuses", "wait", "words"), MIXED.values(), ids=list(MIXED))
async def test_when_all_keys_cool_the_client_learns_why_and_when_to_come_back(
    a: Json, b: Json, statuses: tuple[int, int], wait: str, words: str
) -> None:
    async with Upstream(lambda request: a if key(request) == "a" else b) as up, serving(keys(up)) as gateway:
        met, later = await say(gateway), await say(gateway)
        assert len(up.requests) == 2, "what cools down is not asked"
    assert (met.status, later.status) == statuses
    told = f"every target is cooling down: {words}" if met.status == 503 else words
    assert met.json["error"]["message"] == told
    assert met.headers.get("retry-after") == (None if met.status == 502 else wait)
    assert int(wait) - 3 <= int(later.headers["retry-after"]) <= int(wait)
    assert later.json["error"]["message"].startswith("every target is cooling down: up.")
    assert words in later.json["error"]["message"]


OPENED: dict[str, tuple[Json, list[int], list[int]]] = {
    "500": (answers.error("chat", 500, WORDS), [502, 502, 503, 503], [502, 502, 503, 503]),
    "504": (answers.error("chat", 504, WORDS), [504, 504, 503, 503], [504, 504, 503, 503]),
    "529": (answers.error("chat", 529, WORDS), [503, 503, 503, 503], [529, 529, 529, 503]),
}


@pytest.mark.parametrize(("answer", "chat", "messages"), OPENED.values(), ids=list(OPENED))
async def test_the_request_that_opens_the_last_breaker_is_told_to_come_back(
    answer: Json, chat: list[int], messages: list[int]
) -> None:
    async with Upstream(lambda _: answer) as up:
        text = SERVER + provider("up", "chat", up) + '[routing]\ndefault = ["up.m"]\n' + NO_WAIT
        for client, expected in (("chat", chat), ("messages", messages)):
            path, body = asking.path(client, stream=False), asking.body(client, stream=False)
            async with serving(text) as gateway:
                seen = [await call(gateway.port, path, body) for _ in range(4)]
            assert [one.status for one in seen] == expected
            assert all(WORDS in one.json["error"]["message"] for one in seen)
            assert [one.headers.get("retry-after") for one in seen[2:]] == ["5", "5"]
    assert len(up.requests) == 6


async def test_while_one_target_does_not_rest_a_failure_keeps_its_own_status() -> None:
    async with (
        Upstream(lambda _: limited(retry_after="30")) as first,
        Upstream(lambda _: answers.error("chat", 500, WORDS)) as second,
        serving(pair(first, second)) as gateway,
    ):
        seen = [await say(gateway) for _ in range(3)]
    assert [one.status for one in seen] == [502, 502, 503]
    assert [one.headers.get("retry-after") for one in seen] == [None, None, "5"]


@pytest.mark.parametrize(("broken", "status"), [(False, 429), (True, 502)])
async def test_attempts_that_are_used_up_leave_their_status_unless_all_targets_rest(
    broken: bool, status: int
) -> None:
    # A limit puts the key to rest, and so the second model too; a failure is the first model's alone.
    async with Upstream(lambda _: limited(retry_after="30")) as up:
        text = SERVER + provider("up", "chat", up) + "[providers.up.models.n]\n"
        if broken:
            up.answer_with(lambda _: answers.error("chat", 500, WORDS))
        text += '[routing]\ndefault = [{ mode = "priority", targets = ["up.m", "up.n"] }]\n'
        async with serving(text + NO_WAIT + "max_attempts = 1\n") as gateway:
            seen = await say(gateway)
    assert (seen.status, len(up.requests)) == (status, 1)
    assert seen.headers.get("retry-after") == (None if broken else "30")


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("client", PROTOCOLS)
async def test_a_forced_target_that_is_unhealthy_is_told_in_the_words_of_the_contract(
    client: str, stream: bool
) -> None:
    async with Upstream(key_a(limited(retry_after="300"))) as up, serving(keys(up)) as gateway:
        await say(gateway)
        path = asking.path(client, stream=stream, model="auto")
        body = asking.body(client, "hi <**up.a.m**>", stream=stream, model="auto")
        seen = await call(gateway.port, path, body, headers={"x-session-id": "s"})
    assert asked(up) == ["a", "b"]
    grammar.check_error(client, seen.status, seen.body)
    told = "Requested provider up is not available (health check failed)"
    assert (seen.status, seen.headers["retry-after"]) == (503, "60")
    assert (seen.json["code"], seen.json["details"], seen.json["error"]["message"]) == (
        "PROVIDER_NOT_AVAILABLE",
        {"provider": "up", "reason": "unhealthy"},
        told,
    )
    assert WORDS in seen.headers["x-routecodex-notice"]
    assert seen.headers["x-routecodex-notice"].startswith("up.a is cooling for ")


async def test_an_error_still_tells_what_was_passed_over_in_the_message() -> None:
    async with Upstream() as up, serving(keys(up)) as gateway:
        seen = await say(gateway, "hi <**stopMessage**> <**nobody.m**>", x_session_id="s")
    assert seen.status == 404
    assert seen.headers["x-routecodex-notice"].startswith("ignored <**stopMessage**>: ")
    assert up.requests == []


@pytest.mark.parametrize("answer", [answers.cut_off("chat", WORDS), answers.stream_error("chat", WORDS)])
async def test_after_the_first_byte_nothing_is_tried_elsewhere(answer: Sse) -> None:
    async with Upstream(lambda _: answer) as first, Upstream() as second:
        async with serving(pair(first, second)) as gateway:
            seen = await say(gateway, stream=True)
        assert (len(first.requests), second.requests) == (1, [])
    assert (seen.status, seen.headers["x-routecodex-target"]) == (200, "first.primary.m")
    assert b'"error"' in seen.body


@pytest.mark.parametrize("answer", [Sse([]), Sse([b": hello\n\n"], end=CutOff()), Sse([b"data: {\n\n"])])
async def test_before_the_first_byte_a_stream_that_breaks_is_tried_elsewhere(answer: Sse) -> None:
    async with Upstream(lambda _: answer) as first, Upstream(lambda _: SPEAKING(True)) as second:
        async with serving(pair(first, second)) as gateway:
            seen = await say(gateway, stream=True)
        assert (len(first.requests), len(second.requests)) == (1, 1)
    asking.check("chat", seen, stream=True)
    assert seen.headers["x-routecodex-target"] == "second.primary.m"


async def test_no_more_targets_are_tried_than_the_configuration_allows() -> None:
    async with Upstream(lambda _: answers.error("chat", 500, WORDS)) as up:
        names = [f"p{number}" for number in range(8)]
        text = SERVER + "".join(provider(name, "chat", up) for name in names)
        text += f"[routing]\ndefault = {[f'{name}.m' for name in names]}\n"
        async with serving(text) as gateway:
            assert (await say(gateway)).status == 502
        assert len(up.requests) == 6
        async with serving(text + "[routing_options]\nmax_attempts = 2\n") as gateway:
            assert (await say(gateway)).status == 502
        assert len(up.requests) == 8


async def test_cooldowns_are_found_again_after_a_restart(tmp_path: Path) -> None:
    async with Upstream(key_a(limited(retry_after="300"))) as up:
        text = keys(up) + f'[store]\nurl = "file:{tmp_path}"\n'
        for _ in range(2):
            async with serving(text) as gateway:
                assert [(await say(gateway)).status for _ in range(3)] == [200] * 3
                assert await ailments(gateway) == [("up.a", "cooling", "limited", 1)]
    assert Counter(asked(up)) == {"a": 1, "b": 6}


async def test_a_demo_that_was_told_to_refuse_its_key_answers_the_next_question() -> None:
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
    assert (refused.status, after.status) == (502, 200)
