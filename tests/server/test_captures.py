"""Captured requests over real sockets: what is kept, of which requests, and for how long."""

from __future__ import annotations

import asyncio
import errno
import os
import stat
import time
from pathlib import Path

import msgspec
import pytest

from routecodex.config import CaptureConfig
from routecodex.gateway.capture import RequestCapture
from routecodex.server.captures import Captures, delete_old, is_sampled
from tests.kit import answers, asking
from tests.kit.gateway import NO_HEALTH, provider
from tests.kit.raw_client import begin, call
from tests.kit.steps import CutOff, Json, Send, Sse, Steps
from tests.kit.upstream import Request, Upstream
from tests.server.captured import admin, ask, capture_of, capturing, config, files, is_captured, one

PROTOCOLS = ("chat", "messages", "responses", "gemini")


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("upstream", PROTOCOLS)
@pytest.mark.parametrize("client", PROTOCOLS)
async def test_both_sides_of_a_request_are_captured_as_they_were_on_the_wire(
    tmp_path: Path, client: str, upstream: str, stream: bool
) -> None:
    reply = answers.text(upstream, "Bonjour", stream)
    async with Upstream(lambda _: reply) as up, capturing(tmp_path, one(upstream, up)) as running:
        answer = await ask(running, client, "Salut", stream=stream)
        found = await capture_of(running, answer)
    sent = found["client"]
    assert (sent["method"], sent["path"], sent["status"]) == (
        "POST",
        asking.path(client, stream=stream),
        200,
    )
    assert sent["headers"]["content-type"] == "application/json"
    assert "Salut" in sent["body"]
    assert sent["response"].encode() == answer.body
    assert sent["response_headers"]["x-request-id"] == answer.headers["x-request-id"] == found["request"]
    (attempt,) = found["upstream"]
    received = up.requests[0]
    assert (attempt["target"], attempt["status"]) == ("up.primary.m", 200)
    assert (attempt["path"], attempt["body"].encode()) == (received.path, received.body)
    assert attempt["headers"]["content-type"] == received.headers["content-type"]
    frames = "\n\n".join(frame["data"] for frame in attempt["frames"])
    assert isinstance(reply, Sse | Json)
    assert frames == reply.data.decode().replace("\r\n", "\n").strip()


async def test_every_frame_has_the_time_at_which_it_came(tmp_path: Path) -> None:
    sse = answers.text("chat", "Hello", True)
    assert isinstance(sse, Sse)
    hold = asyncio.Event()
    last = len(sse.frames) - 1
    async with (
        Upstream(lambda _: Sse(sse.frames, pace={last: hold})) as up,
        capturing(tmp_path, one("chat", up)) as running,
    ):
        asked = await begin(
            running.port, "/v1/chat/completions", asking.body("chat", stream=True, model="up.m")
        )
        await asked.head()
        start = time.monotonic()
        await asyncio.sleep(0.2)
        hold.set()
        waited = (time.monotonic() - start) * 1000
        answer = await asked.rest()
        await asked.close()
        (attempt,) = (await capture_of(running, answer))["upstream"]
    times = [frame["ms"] for frame in attempt["frames"]]
    assert times == sorted(times)
    assert times[-1] - times[0] >= waited * 0.9


async def test_every_attempt_of_a_failover_is_captured(tmp_path: Path) -> None:
    async with (
        Upstream(lambda _: answers.error("messages", 529, "Overloaded")) as busy,
        Upstream(lambda _: answers.text("chat", "hi", False)) as up,
    ):
        text = config(provider("busy", "messages", busy), provider("up", "chat", up))
        async with capturing(tmp_path, text) as running:
            found = await capture_of(running, await ask(running, "chat", model="auto"))
    assert [(row["target"], row["status"]) for row in found["upstream"]] == [
        ("busy.primary.m", 529),
        ("up.primary.m", 200),
    ]
    assert "Overloaded" in found["upstream"][0]["frames"][0]["data"]


async def test_a_provider_that_cannot_be_reached_has_no_status(tmp_path: Path) -> None:
    async with Upstream() as up:
        text = one("chat", up)
    async with capturing(tmp_path, text) as running:
        answer = await ask(running, "chat")
        found = await capture_of(running, answer)
    assert answer.status == 502
    assert [(row["target"], row["status"], row["frames"]) for row in found["upstream"]] == [
        ("up.primary.m", None, [])
    ]
    assert found["client"]["response"].encode() == answer.body


async def test_every_round_of_a_turn_is_captured(tmp_path: Path) -> None:
    async with (
        Upstream(lambda _: answers.text("chat", "done", False)) as up,
        capturing(tmp_path, one("chat", up)) as running,
    ):
        answer = await ask(
            running, "chat", '<**stopMessage:"go on",1**> begin', x_session_id="session-of-rounds"
        )
        found = await capture_of(running, answer)
    assert answer.headers["x-routecodex-rounds"] == "2"
    assert [row["target"] for row in found["upstream"]] == ["up.primary.m"] * 2
    assert "go on" in found["upstream"][1]["body"]


async def test_embeddings_and_token_counts_are_captured(tmp_path: Path) -> None:
    def reply(request: Request) -> Json:
        return Json(200, {"input_tokens": 7}) if "count" in request.path else Json(200, {"data": []})

    async with Upstream(reply) as up:
        text = config(provider("up", "messages", up), provider("e", "chat", up))
        async with capturing(tmp_path, text) as running:
            body = asking.body("messages", stream=False)
            del body["stream"]
            counted = await call(running.port, "/v1/messages/count_tokens", body)
            embedded = await call(running.port, "/v1/embeddings", {"model": "e.m", "input": "x"})
            count, embedding = await capture_of(running, counted), await capture_of(running, embedded)
    assert (counted.json, count["client"]["response"]) == ({"input_tokens": 7}, counted.body.decode())
    assert [row["target"] for row in count["upstream"]] == ["up.primary.m"]
    assert [row["target"] for row in embedding["upstream"]] == ["e.primary.m"]
    assert embedding["client"]["response"] == '{"data":[]}'


async def test_the_events_of_the_built_in_provider_are_its_frames(tmp_path: Path) -> None:
    demo = '[providers.demo]\nprotocol = "demo"\npace = 0\n[providers.demo.models.m]\n'
    async with capturing(tmp_path, config(demo)) as running:
        answer = await ask(running, "messages", stream=True, model="demo.m")
        found = await capture_of(running, answer)
    (attempt,) = found["upstream"]
    assert attempt["target"].startswith("demo.")
    assert '"Started"' in attempt["frames"][0]["data"]
    assert '"Finished"' in attempt["frames"][-1]["data"]
    assert msgspec.json.decode(attempt["body"]) == {
        "model": "m",
        "max_tokens": 1000,
        "messages": [{"role": "user", "content": [{"type": "text", "text": "Hello"}]}],
        "stream": True,
    }


@pytest.mark.parametrize(("mode", "kept"), [("off", []), ("errors", [400, 502]), ("all", [200, 400, 502])])
async def test_the_mode_decides_which_requests_are_kept(tmp_path: Path, mode: str, kept: list[int]) -> None:
    async with Upstream() as up:
        up.queue(answers.text("chat", "hi", False), answers.error("chat", 500))
        text = one("chat", up, capture=f'mode = "{mode}"', more=NO_HEALTH + "max_attempts = 1\n")
        async with capturing(tmp_path, text) as running:
            replies = [await ask(running, "chat"), await ask(running, "chat")]
            replies.append(await call(running.port, "/v1/chat/completions", {"model": 5}))
            found = [reply.status for reply in replies if await is_captured(running, reply)]
    assert sorted(found) == kept
    assert len(files(tmp_path)) == len(kept)


async def test_a_stream_that_breaks_is_a_failed_request(tmp_path: Path) -> None:
    async with (
        Upstream(lambda _: answers.cut_off("chat", "half of it")) as up,
        capturing(tmp_path, one("chat", up, capture='mode = "errors"')) as running,
    ):
        answer = await ask(running, "chat", stream=True)
        assert answer.status == 200
        found = await capture_of(running, answer)
    assert found["client"]["response"].encode() == answer.body
    assert "closed the connection" in found["client"]["response"]


async def test_a_client_that_disconnects_leaves_a_capture(tmp_path: Path) -> None:
    async with Upstream() as up, capturing(tmp_path, one("chat", up, capture='mode = "errors"')) as running:
        sse = answers.text("chat", "Hello", True)
        assert isinstance(sse, Sse)
        up.queue(Sse(sse.frames, pace={len(sse.frames) - 1: asyncio.Event()}))
        asked = await begin(
            running.port, "/v1/chat/completions", asking.body("chat", stream=True, model="up.m")
        )
        head = await asked.head()
        await asked.piece()
        await asked.leave()
        await asyncio.wait_for(up.requests[0].gone.wait(), 5)
        found = await capture_of(running, head)
    assert [row["status"] for row in found["upstream"]] == [200]


async def test_a_sample_is_the_same_in_every_worker(tmp_path: Path) -> None:
    ids = [f"req_{number:024x}" for number in range(4000)]
    assert 0.2 < sum(is_sampled(id, 0.25) for id in ids) / len(ids) < 0.3
    assert not any(is_sampled(id, 0) for id in ids)
    assert all(is_sampled(id, 1) for id in ids)
    async with (
        Upstream(lambda _: answers.text("chat", "hi", False)) as up,
        capturing(tmp_path, one("chat", up, capture='mode = "sample"\nsample = 0.5')) as running,
    ):
        replies = [await ask(running, "chat") for _ in range(40)]
        kept = [await is_captured(running, reply) for reply in replies]
    assert kept == [is_sampled(reply.headers["x-request-id"], 0.5) for reply in replies]
    assert {True, False} == set(kept)


async def test_files_are_readable_by_their_owner_only(tmp_path: Path) -> None:
    async with (
        Upstream(lambda _: answers.text("chat", "hi", False)) as up,
        capturing(tmp_path, one("chat", up)) as running,
    ):
        assert await is_captured(running, await ask(running, "chat"))
        (file,) = files(tmp_path)
        modes = [stat.S_IMODE(path.stat().st_mode) for path in (file, file.parent, file.parent.parent)]
    assert modes == [0o600, 0o700, 0o700]


async def test_of_a_long_body_and_stream_start_and_end_are_kept_and_the_rest_is_counted(
    tmp_path: Path,
) -> None:
    events = [b'data: {"choices":[{"index":0,"delta":{"content":"%d "}}]}\n\n' % n for n in range(400)]
    end = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
    sse = Sse([*events, end, b"data: [DONE]\n\n"])
    prompt = "".join(f"word{n} " for n in range(2000))
    async with (
        Upstream(lambda _: sse) as up,
        capturing(tmp_path, one("chat", up, capture='mode = "all"\nmax_body_kb = 4')) as running,
    ):
        answer = await ask(running, "chat", prompt, stream=True)
        found = await capture_of(running, answer)
    client, (attempt,) = found["client"], found["upstream"]
    sent = asking.body("chat", prompt, stream=True, model="up.m")
    assert client["body_missing"] == len(msgspec.json.encode(sent)) - 4096
    assert client["body"].startswith('{"model":"up.m"')
    assert f"[{client['body_missing']} bytes were not captured]" in client["body"]
    assert client["body"].endswith("}")
    assert client["response_missing"] == len(answer.body) - 4096
    assert client["response"].endswith("data: [DONE]\n\n")
    received = len(sse.data)
    assert attempt["frames_missing"] == received - 4096
    datas = [frame["data"] for frame in attempt["frames"]]
    assert f"[{received - 4096} bytes were not captured]" in datas
    assert (datas[0], datas[-1]) == (events[0].decode().strip(), "data: [DONE]")


@pytest.mark.parametrize("body", [b"\xff\xfe{", b"[" * 100_000, b"", b"\x00" * 3000, b'{"model": "\\ud800"}'])
async def test_a_body_that_is_not_json_is_captured_as_it_came(tmp_path: Path, body: bytes) -> None:
    async with Upstream() as up, capturing(tmp_path, one("chat", up)) as running:
        answer = await call(running.port, "/v1/chat/completions", body)
        found = await capture_of(running, answer)
    assert answer.status == 400
    assert found["client"]["body"] == body.decode("utf-8", "replace")
    assert (found["client"]["response"].encode(), found["upstream"]) == (answer.body, [])


async def test_a_full_disk_costs_captures_and_no_request(tmp_path: Path) -> None:
    folder = tmp_path / "sessions" / "main"
    folder.mkdir(parents=True)
    # A file in the place of the folder: every write fails, as on a full disk.
    (folder / "captures").write_text("")
    async with (
        Upstream(lambda _: answers.text("chat", "hi", False)) as up,
        capturing(tmp_path, one("chat", up)) as running,
    ):
        replies = [await ask(running, "chat") for _ in range(3)]
        assert not await is_captured(running, replies[0])
        found = await admin(running, f"requests/{replies[0].headers['x-request-id']}/capture")
    assert [reply.status for reply in replies] == [200] * 3
    assert (found.status, found.json["error"]["code"]) == (404, "not_captured")


async def test_a_capture_that_was_half_written_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Path, _target: Path) -> Path:
        raise OSError(errno.ENOSPC, "No space left on device", str(self))

    async with (
        Upstream(lambda _: answers.text("chat", "hi", False)) as up,
        capturing(tmp_path, one("chat", up)) as running,
    ):
        monkeypatch.setattr(Path, "rename", full)
        assert not await is_captured(running, await ask(running, "chat"))
        monkeypatch.undo()
        assert files(tmp_path) == []
        assert await is_captured(running, await ask(running, "chat"))


async def test_all_captures_together_stay_within_their_space(tmp_path: Path) -> None:
    async with (
        Upstream(lambda _: answers.text("chat", "hi", False)) as up,
        capturing(tmp_path, one("chat", up, capture='mode = "all"\nmax_mb = 1')) as running,
    ):
        replies = [await ask(running, "chat", "x" * 100_000) for _ in range(12)]
        kept = [await is_captured(running, reply) for reply in replies]
    assert sum(file.stat().st_size for file in files(tmp_path)) <= 1024 * 1024
    assert kept == sorted(kept)
    assert (kept[0], kept[-1]) == (False, True)


async def test_captures_past_their_age_are_not_shown_and_deleted(tmp_path: Path) -> None:
    async with Upstream(lambda _: answers.text("chat", "hi", False)) as up:
        text = one("chat", up, capture='mode = "all"\nkeep_hours = 2')
        async with capturing(tmp_path, text) as running:
            old, new = await ask(running, "chat"), await ask(running, "chat")
            assert await is_captured(running, new)
            id = old.headers["x-request-id"]
            (path,) = [file for file in files(tmp_path) if file.stem == id]
            os.utime(path, (time.time() - 7300, time.time() - 7300))
            assert not await is_captured(running, old)
            found = await admin(running, f"requests/{id}/capture")
            assert (found.status, found.json["error"]["code"]) == (404, "not_captured")
        async with capturing(tmp_path, text.replace('"all"', '"off"')) as running:
            # Deleted even by a server that captures nothing any more.
            assert not await is_captured(running, old)
            assert await is_captured(running, new)
    assert [file.stem for file in files(tmp_path)] == [new.headers["x-request-id"]]


def test_the_oldest_are_deleted_first_and_empty_folders_with_them(tmp_path: Path) -> None:
    now = time.time()
    for number in range(8):
        file = tmp_path / f"0000{number}" / f"req_{number:024x}.json"
        file.parent.mkdir()
        file.write_bytes(b"x" * 4096)
        os.utime(file, (now - 100 + number, now - 100 + number))
    delete_old(tmp_path, before=now - 98.5, limit=4 * 4096)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["00005", "00006", "00007"]
    delete_old(tmp_path, before=now, limit=4 * 4096)
    assert list(tmp_path.iterdir()) == []


async def test_memory_is_bounded_however_many_requests_are_under_way(tmp_path: Path) -> None:
    options = CaptureConfig(mode="all", max_body_kb=16 * 1024)
    captures = Captures(tmp_path, options)
    body = b"x" * (12 * 1024 * 1024)
    begun = [
        captures.begin(
            f"req_{number:024x}", method="POST", path=b"/", headers={}, body=body, client="", owner=""
        )
        for number in range(10)
    ]
    held = [capture for capture in begun if capture is not None]
    assert sum(capture.taken for capture in held) <= 64 * 1024 * 1024
    assert held[-1].body.missing == len(body)
    for capture in held:
        captures.finish(capture)
    await captures.settle()
    again = captures.begin(
        "req_" + "a" * 24, method="POST", path=b"/", headers={}, body=body, client="", owner=""
    )
    assert again is not None
    assert again.body.missing == 0
    await captures.close()


async def test_requests_are_not_captured_while_too_many_wait_for_the_disk(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    captures = Captures(tmp_path, CaptureConfig(mode="all"))

    def begin_one(number: int) -> RequestCapture | None:
        return captures.begin(
            f"req_{number:024x}", method="POST", path=b"/", headers={}, body=b"{}", client="", owner=""
        )

    begun = [begin_one(number) for number in range(10_000)]
    held = [capture for capture in begun if capture is not None]
    assert 5000 < len(held) < 8192
    assert [record.message for record in caplog.records] == [
        "requests are not captured: too many captures wait to be written"
    ]
    captures.finish(held[0])
    await captures.settle()
    assert begin_one(10_001) is not None
    await captures.close()


async def test_a_dribbling_stream_takes_no_more_memory_than_its_pieces_may(tmp_path: Path) -> None:
    captures = Captures(tmp_path, CaptureConfig(mode="all"))
    capture = captures.begin(
        "req_" + "b" * 24, method="POST", path=b"/", headers={}, body=b"{}", client="", owner=""
    )
    assert capture is not None
    for number in range(200_000):
        capture.response.add(float(number), b"x")
    assert capture.taken < 2 * 1024 * 1024
    assert capture.response.missing == 200_000 - len(capture.response.first) - len(capture.response.last)
    assert capture.response.last[-1] == (199_999.0, b"x")
    captures.finish(capture)
    await captures.close()


async def test_requests_without_a_valid_key_are_not_captured(tmp_path: Path) -> None:
    keys = 'client_keys = [{ name = "laptop", key = "key-of-laptop" }]'
    async with Upstream() as up, capturing(tmp_path, one("chat", up, server=keys)) as running:
        answer = await ask(running, "chat", authorization="Bearer guess-of-a-key")
        assert answer.status == 401
        assert not await is_captured(running, answer)
    assert files(tmp_path) == []


async def test_cut_connections_of_an_upstream_are_captured_up_to_the_cut(tmp_path: Path) -> None:
    steps = Steps([Send(b'{"choices": [{"mess'), CutOff()], headers={"content-type": "application/json"})
    async with (
        Upstream(lambda _: steps) as up,
        capturing(tmp_path, one("chat", up, more=NO_HEALTH + "max_attempts = 1\n")) as running,
    ):
        found = await capture_of(running, await ask(running, "chat"))
    assert [frame["data"] for frame in found["upstream"][0]["frames"]] == ['{"choices": [{"mess']


async def test_a_gemini_stream_without_sse_is_captured_as_the_array_that_was_sent(tmp_path: Path) -> None:
    async with (
        Upstream(lambda _: answers.text("chat", "hi", True)) as up,
        capturing(tmp_path, one("chat", up)) as running,
    ):
        path = asking.path("gemini", stream=True).partition("?")[0]
        answer = await call(running.port, path, asking.body("gemini", stream=True))
        found = await capture_of(running, answer)
    assert isinstance(answer.json, list)
    assert found["client"]["response"].encode() == answer.body


async def test_two_workers_share_one_space(tmp_path: Path) -> None:
    options = CaptureConfig(mode="all", max_mb=1)
    workers = [Captures(tmp_path, options), Captures(tmp_path, options)]
    for number in range(24):
        worker = workers[number % 2]
        begun = worker.begin(
            f"req_{number:024x}",
            method="POST",
            path=b"/",
            headers={},
            body=b"x" * 100_000,
            client="",
            owner="",
        )
        assert begun is not None
        worker.finish(begun)
        await worker.settle()
    total = sum(file.stat().st_size for file in tmp_path.glob("*/*"))
    assert 500_000 < total <= 1024 * 1024
    assert all(worker.has(f"req_{23:024x}") for worker in workers)
    assert not any(worker.has(f"req_{0:024x}") for worker in workers)
    for worker in workers:
        await worker.close()


async def test_a_reload_changes_neither_the_mode_nor_the_secrets_of_requests_under_way(
    tmp_path: Path,
) -> None:
    captures = Captures(tmp_path, CaptureConfig(mode="errors"), secrets=("the-old-key",))
    begun = [
        captures.begin(
            f"req_{number:024x}",
            method="POST",
            path=b"/",
            headers={},
            body=b"with the-old-key",
            client="",
            owner="",
        )
        for number in range(2)
    ]
    captures.configure(CaptureConfig(mode="all"), secrets=("the-new-key",))
    for number, capture in enumerate(begun):
        assert capture is not None
        capture.failed = number == 1
        captures.finish(capture)
    await captures.settle()
    assert [captures.has(f"req_{number:024x}") for number in range(2)] == [False, True]
    found = await captures.read(f"req_{1:024x}")
    assert found is not None
    assert found["client"]["body"] == "with ***"
    await captures.close()
