"""Requests beyond the limit wait, and every client gets its turn."""

from __future__ import annotations

import asyncio
import re
import string
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from routecodex.canon.errors import Overloaded
from routecodex.config.model import ServerConfig
from routecodex.protocols import grammar
from routecodex.server.admission import Admission, turn_of
from routecodex.server.http import HttpRequest
from tests.kit import answers, asking
from tests.kit.gateway import one_target, serving
from tests.kit.raw_client import Answer, Call, begin, call
from tests.kit.steps import Hang, Sse, Steps
from tests.kit.upstream import Upstream
from tests.server.test_reload import reload, serving_file, text

PROTOCOLS = ("chat", "responses", "messages", "gemini")
CONFIG = ServerConfig(max_concurrent=1, max_queued=4, queue_wait_ms=60_000)


class Queue:
    """An admission, the requests that wait for it, and the order in which they got a place."""

    def __init__(self, **settings: int) -> None:
        self.left = 0
        self.admitted: list[str] = []
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self.admission = Admission(leave=self._leave)
        self.admission.configure(replace(CONFIG, **settings))

    def _leave(self) -> None:
        self.left += 1

    async def add(self, *names: str) -> None:
        """Let requests wait; the first letter of a name is its client, further ones are its session."""
        for name in names:
            self.tasks[name] = asyncio.ensure_future(self._wait(name))
            await asyncio.sleep(0)

    async def _wait(self, name: str) -> None:
        await self.admission.wait(name[0], name[1:].rstrip("0123456789"))
        self.admitted.append(name)

    async def pass_on(self) -> bool:
        passed = self.admission.pass_on()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return passed

    def refusal(self, name: str) -> str:
        error = self.tasks[name].exception()
        assert isinstance(error, Overloaded)
        return error.message

    def metrics(self) -> dict[str, float]:
        return dict(self._samples())

    def _samples(self) -> Iterator[tuple[str, float]]:
        for family in self.admission.collect():
            for sample in family.samples:
                if not sample.name.endswith("_bucket"):
                    yield sample.name + sample.labels.get("reason", ""), sample.value


async def test_clients_take_turns_and_each_keeps_its_order() -> None:
    queue = Queue(max_queued=10)
    await queue.add("a1", "a2", "a3", "b1", "c1", "b2")
    while await queue.pass_on():
        pass
    assert queue.admitted == ["a1", "b1", "c1", "a2", "b2", "a3"]
    assert queue.admission.waiting == 0


async def test_a_client_that_comes_late_waits_one_turn() -> None:
    queue = Queue(max_queued=100)
    await queue.add(*(f"a{number}" for number in range(60)))
    await queue.pass_on()
    await queue.add("b1")
    await queue.pass_on()
    await queue.pass_on()
    assert queue.admitted == ["a0", "a1", "b1"]
    for task in queue.tasks.values():
        task.cancel()


async def test_a_full_queue_refuses_the_client_that_has_the_most() -> None:
    queue = Queue()
    await queue.add("a1", "a2", "a3", "a4", "a5", "b1", "b2", "b3", "c1")
    assert queue.admission.waiting == 4
    while await queue.pass_on():
        pass
    assert queue.admitted == ["a1", "b1", "c1", "b2"]
    message = "1 requests are in flight already, and 4 more wait; retry shortly"
    refused = {name: queue.refusal(name) for name in queue.tasks if name not in queue.admitted}
    assert refused == dict.fromkeys(("a2", "a3", "a4", "a5", "b3"), message)
    assert queue.metrics()["routecodex_queue_refused_totalfull"] == 5


async def test_turns_go_round_the_clients_first_and_then_round_the_sessions_of_each() -> None:
    queue = Queue(max_queued=10)
    await queue.add("ax1", "ax2", "ay1", "az1", "b1", "b2", "ay2")
    while await queue.pass_on():
        pass
    assert queue.admitted == ["ax1", "b1", "ay1", "b2", "az1", "ax2", "ay2"]
    assert queue.admission.waiting == 0


async def test_a_client_with_many_sessions_has_one_turn_like_any_other() -> None:
    queue = Queue(max_queued=100)
    sessions = [f"a{letter}{letter}1" for letter in string.ascii_lowercase]
    await queue.add(*sessions, "b1", "b2")
    for _ in range(4):
        await queue.pass_on()
    assert queue.admitted == ["aaa1", "b1", "abb1", "b2"]
    for task in queue.tasks.values():
        task.cancel()


FULL = [
    # A client with many sessions makes room for one that has fewer requests.
    (("ap1", "aq1", "ar1", "as1", "b1"), ["as1"], ["ap1", "b1", "aq1", "ar1"]),
    # Its longest session does, by its newest request.
    (("ap1", "aq1", "aq2", "ar1", "b1"), ["aq2"], ["ap1", "b1", "aq1", "ar1"]),
    # Within a client, the session with the most makes room for one that has fewer.
    (("ap1", "ap2", "ap3", "b1", "aq1"), ["ap3"], ["ap1", "b1", "aq1", "ap2"]),
    # A further session gives a client no more room than others have.
    (("ap1", "aq1", "b1", "b2", "ar1"), ["ar1"], ["ap1", "b1", "aq1", "b2"]),
    (("ap1", "aq1", "ar1", "as1", "at1"), ["at1"], ["ap1", "aq1", "ar1", "as1"]),
]


@pytest.mark.parametrize(("names", "refused", "admitted"), FULL)
async def test_a_full_queue_refuses_by_client_first_and_then_by_session(
    names: tuple[str, ...], refused: list[str], admitted: list[str]
) -> None:
    queue = Queue()
    await queue.add(*names)
    while await queue.pass_on():
        pass
    assert [name for name in names if name not in queue.admitted] == refused
    assert queue.admitted == admitted
    assert all("4 more wait" in queue.refusal(name) for name in refused)


async def test_time_over_is_a_refusal_that_says_so() -> None:
    queue = Queue(queue_wait_ms=1)
    await queue.add("a1")
    with pytest.raises(Overloaded, match=r"and none ended within 0\.001 s; retry shortly"):
        await queue.tasks["a1"]
    assert not await queue.pass_on()
    shown = queue.metrics()
    assert shown.pop("routecodex_queue_wait_seconds_sum") > 0
    assert shown == {
        "routecodex_queue_waiting": 0,
        "routecodex_queue_refused_totalfull": 0,
        "routecodex_queue_refused_totaltimeout": 1,
        "routecodex_queue_wait_seconds_count": 1,
    }


async def test_a_client_that_leaves_gives_its_place_in_the_queue_back() -> None:
    queue = Queue()
    await queue.add("a1", "b1")
    queue.tasks["a1"].cancel()
    await asyncio.sleep(0)
    assert queue.admission.waiting == 1
    await queue.pass_on()
    assert (queue.admitted, queue.left) == (["b1"], 0)


async def test_a_client_that_leaves_as_its_turn_comes_gives_the_place_back() -> None:
    queue = Queue()
    await queue.add("a1")
    assert queue.admission.pass_on()
    queue.tasks["a1"].cancel()
    await asyncio.sleep(0)
    assert (queue.admitted, queue.left) == ([], 1)


@pytest.mark.parametrize(
    ("name", "headers", "expected"),
    [
        ("laptop", {"x-session-id": "s"}, ("laptop", "")),
        ("", {"x-session-id": "s"}, ("10.0.0.1", "s")),
        ("", {}, ("10.0.0.1", "")),
        ("", {"x-session-id": "s" * 999}, ("10.0.0.1", "s" * 200)),
    ],
)
def test_a_turn_belongs_to_a_key_or_to_an_address_and_session(
    name: str, headers: dict[str, str], expected: tuple[str, str]
) -> None:
    request = HttpRequest("POST", b"/v1/messages", headers=headers, client=("10.0.0.1", 5))
    assert turn_of(request, name) == expected


KEYS = 'client_keys = [{ name = "greedy", key = "g" }, { name = "light", key = "l" }]'


async def ask(
    port: int, key: str, text: str, *, protocol: str = "chat", session: str = "", address: str | None = None
) -> Call:
    headers = {"authorization": f"Bearer {key}"}
    if session:
        headers["x-session-id"] = session
    path, body = asking.path(protocol, stream=True), asking.body(protocol, text, stream=True)
    return await begin(port, path, body, headers=headers, address=address)


async def waiting(port: int) -> int:
    shown = await call(port, "/metrics", method="GET", headers={"authorization": "Bearer l"})
    found = re.search(r"^routecodex_queue_waiting\S* (\d+)", shown.body.decode(), re.MULTILINE)
    assert found is not None
    return int(found[1])


async def until_waiting(port: int, count: int) -> None:
    async with asyncio.timeout(20):
        while await waiting(port) != count:
            await asyncio.sleep(0.01)


async def finish(under_way: Call) -> Answer:
    try:
        return await under_way.rest()
    finally:
        await under_way.close()


async def test_a_light_client_is_answered_beside_a_greedy_one() -> None:
    release = asyncio.Event()
    answer = answers.text("chat", "hello", True)
    assert isinstance(answer, Sse)
    async with Upstream(lambda _: Sse(answer.frames, pace={1: release})) as up:
        limits = f"max_concurrent = 2\nmax_queued = 40\nqueue_wait_ms = 60000\n{KEYS}"
        async with serving(one_target("chat", up, server=limits)) as gateway:
            port = gateway.port
            greedy = [await ask(port, "g", "greedy") for _ in range(60)]
            await until_waiting(port, 40)
            light = await ask(port, "l", "light")
            await up.received(2)
            release.set()
            found = await asyncio.gather(*map(finish, [light, *greedy]))
    statuses = [one.status for one in found]
    assert statuses[0] == 200
    assert sorted(statuses[1:]) == [200] * 41 + [503] * 19
    texts = ["light" if b'"light"' in request.body else "greedy" for request in up.requests]
    assert texts.index("light") < 5


async def test_new_session_ids_win_no_turns_over_another_address() -> None:
    release = asyncio.Event()
    answer = answers.text("chat", "hello", True)
    assert isinstance(answer, Sse)
    async with Upstream(lambda _: Sse(answer.frames, pace={1: release})) as up:
        limits = "max_concurrent = 1\nmax_queued = 20\nqueue_wait_ms = 60000"
        async with serving(one_target("chat", up, server=limits)) as gateway:
            port = gateway.port
            greedy = [await ask(port, "", "greedy", session=f"s{number}") for number in range(41)]
            await until_waiting(port, 20)
            light = await ask(port, "", "light", address="127.0.0.2")
            await up.received(1)
            release.set()
            found = await asyncio.gather(*map(finish, [light, *greedy]))
    statuses = [one.status for one in found]
    assert statuses[0] == 200
    assert sorted(statuses[1:]) == [200] * 20 + [503] * 21
    texts = ["light" if b'"light"' in request.body else "greedy" for request in up.requests]
    assert texts.index("light") < 4


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_refusal_after_the_wait_has_the_shape_of_the_protocol(protocol: str) -> None:
    limits = "max_concurrent = 1\nqueue_wait_ms = 5"
    async with (
        Upstream(lambda _: Steps((Hang(),))) as up,
        serving(one_target("chat", up, server=limits)) as gateway,
    ):
        first = await ask(gateway.port, "", "first")
        await up.received()
        refused = await finish(await ask(gateway.port, "", "second", protocol=protocol))
        await first.leave()
    assert (refused.status, refused.headers["retry-after"]) == (503, "5")
    grammar.check_error(protocol, 503, refused.body)
    assert "none ended within 0.005 s" in refused.body.decode()


async def test_a_client_that_disconnects_leaves_the_queue() -> None:
    async with (
        Upstream(lambda _: Steps((Hang(),))) as up,
        serving(one_target("chat", up, server=f"max_concurrent = 1\n{KEYS}")) as gateway,
    ):
        first = await ask(gateway.port, "g", "first")
        await up.received()
        second = await ask(gateway.port, "g", "second")
        await until_waiting(gateway.port, 1)
        await second.leave()
        await until_waiting(gateway.port, 0)
        assert len(up.requests) == 1
        await first.leave()


async def test_a_reload_that_raises_the_limit_admits_those_that_wait(tmp_path: Path) -> None:
    file = tmp_path / "gateway.toml"
    async with Upstream() as up:
        up.queue(Steps((Hang(),)))
        up.answer_with(lambda _: answers.text("chat", "hi", True))
        file.write_text(text(up, server=f"max_concurrent = 1\n{KEYS}"))
        async with serving_file(file) as gateway:
            first = await ask(gateway.port, "g", "first")
            await up.received()
            second = await ask(gateway.port, "g", "second")
            await until_waiting(gateway.port, 1)
            file.write_text(text(up, server=f"max_concurrent = 2\n{KEYS}"))
            await reload(gateway.port)
            assert (await finish(second)).status == 200
            await first.leave()
