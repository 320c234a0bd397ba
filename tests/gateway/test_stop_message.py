"""stopMessage over HTTP: several rounds become one well-formed answer and are counted exactly."""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path

import pytest

from tests.gateway.continuation_gateway import (
    PROTOCOLS,
    SESSION_HEADER,
    SET_STOP_MESSAGE,
    file_store_gateway,
    second_gateway,
    stored_stop_message,
    stored_uses,
    token_usage,
)
from tests.kit import answers, asking
from tests.kit.raw_client import call
from tests.kit.steps import Answer as UpstreamAnswer
from tests.kit.steps import Json, Sse
from tests.kit.upstream import Request

pairs = pytest.mark.parametrize(
    ("protocol", "upstream_protocol"),
    [pytest.param(one, other, id=f"{one}-to-{other}") for one in PROTOCOLS for other in PROTOCOLS],
)
protocols = pytest.mark.parametrize("protocol", PROTOCOLS)
streaming = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


@streaming
@pairs
async def test_three_parts_are_one_answer(
    tmp_path: Path, protocol: str, upstream_protocol: str, stream: bool
) -> None:
    async with file_store_gateway(protocol, tmp_path, upstream_protocol=upstream_protocol) as harness:
        harness.script_texts("one", "two\n", "\nthree")
        answer = await harness.send(SET_STOP_MESSAGE.format(2), stream=stream)
        assert harness.answer_text(answer, stream=stream) == "one\n\ntwo\n\nthree"
        assert token_usage(protocol, answer, stream=stream) == (21, 27)
        assert harness.counts == [0, 1, 2]
        first = [("user", "Hello")]
        second = [*first, ("assistant", "one"), ("user", "go on")]
        third = [*second, ("assistant", "two\n"), ("user", "go on")]
        assert harness.upstream_texts == [first, second, third]
    found = stored_stop_message(tmp_path)
    assert found is not None
    assert (found["text"], found["max_repeats"], found["used"]) == ("go on", 2, 2)
    assert found["last_used_at"] >= found["updated_at"] > 0


@protocols
async def test_each_round_is_streamed_as_it_comes(tmp_path: Path, protocol: str) -> None:
    async with file_store_gateway(protocol, tmp_path) as harness:
        goes_on = asyncio.Event()

        def answer(request: Request, number: int) -> UpstreamAnswer:
            whole = answers.text(protocol, f"part {number}", True)
            assert isinstance(whole, Sse)
            return Sse(whole.frames, pace={0: goes_on} if number else {})

        harness.script(answer)
        under_way = await harness.begin(SET_STOP_MESSAGE.format(1))
        await under_way.head()
        while b"part 0" not in under_way.answer.body:
            assert await under_way.piece()
        goes_on.set()
        reply = await under_way.rest()
        await under_way.close()
        assert harness.answer_text(reply, stream=True) == "part 0\n\npart 1"


@streaming
@protocols
async def test_the_count_goes_on_across_requests_and_ten_is_the_default(
    tmp_path: Path, protocol: str, stream: bool
) -> None:
    async with file_store_gateway(protocol, tmp_path) as harness:
        harness.script(
            lambda request, number: (
                answers.length(protocol, "cut", answers.wants_stream(request))
                if number == 4
                else harness.text_answer(f"part {number}", request)
            )
        )
        await harness.send('<**stopMessage:"go on"**>Hello', stream=stream)
        assert stored_uses(tmp_path) == 4
        answer = await harness.send("and now?", stream=stream)
        assert harness.answer_text(answer, stream=stream).split("\n\n") == [
            f"part {number}" for number in range(5, 12)
        ]
        assert (stored_uses(tmp_path), len(harness.upstream_texts)) == (10, 12)
        last = await harness.send("more?", stream=stream)
        assert len(harness.upstream_texts) == 13
        assert last.headers["x-routecodex-notice"] == "stopMessage skipped: all 10 uses are spent"


async def test_another_gateway_on_the_same_state_goes_on_counting(tmp_path: Path) -> None:
    async with file_store_gateway("chat", tmp_path) as harness:
        harness.script(
            lambda request, number: (
                answers.length("chat", "cut", False)
                if number == 1
                else harness.text_answer(f"part {number}", request)
            )
        )
        await harness.send(SET_STOP_MESSAGE.format(3))
        async with second_gateway(harness) as other:
            path = asking.path("chat", stream=False)
            await call(other.port, path, asking.body("chat", "again", stream=False), headers=SESSION_HEADER)
        assert (stored_uses(tmp_path), harness.counts) == (3, [0, 1, 1, 2, 3])


@protocols
async def test_setting_a_stop_message_again_restarts_the_count_and_clear_ends_it(
    tmp_path: Path, protocol: str
) -> None:
    async with file_store_gateway(protocol, tmp_path) as harness:
        harness.script_texts(then="part ")
        await harness.send(SET_STOP_MESSAGE.format(1))
        assert stored_uses(tmp_path) == 1
        await harness.send('<**stopMessage:"do more",2**>Next')
        found = stored_stop_message(tmp_path)
        assert found is not None
        assert (found["text"], found["used"], found["max_repeats"], len(harness.upstream_texts)) == (
            "do more",
            2,
            2,
            5,
        )
        await harness.send('<**stopMessage:"again",5**><**stopMessage:clear**>Stop it')
        assert (stored_stop_message(tmp_path), len(harness.upstream_texts)) == (None, 6)
        assert harness.upstream_texts[5] == [("user", "Stop it")]


async def test_the_same_message_sent_again_sets_nothing_anew(tmp_path: Path) -> None:
    async with file_store_gateway("chat", tmp_path) as harness:
        harness.script_texts(then="part ")
        await harness.send(SET_STOP_MESSAGE.format(2))
        await harness.send(SET_STOP_MESSAGE.format(2))
        assert (stored_uses(tmp_path), len(harness.upstream_texts)) == (2, 4)


FORMS: list[tuple[str, str, int]] = [
    ('<**stopMessage:"go on"**>', "go on", 10),
    ('<**stopMessage:"say \\"yes\\"",1**>', 'say "yes"', 1),
    ('<**stopMessage:"立即执行待处理任务",2**>', "立即执行待处理任务", 2),
    ("<**stopMessage:<file://stopMessage/message1.md>**>", "立即执行\nnow", 10),
    ("<**stopMessage:<file://stopMessage/message1.md>,1**>", "立即执行\nnow", 1),
]


@pytest.mark.parametrize(("tag", "text", "most"), FORMS)
async def test_every_form_sends_its_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tag: str, text: str, most: int
) -> None:
    home = tmp_path / "home"
    (home / "stopMessage").mkdir(parents=True)
    (home / "stopMessage" / "message1.md").write_text("立即执行\nnow\n", "utf-8")
    monkeypatch.setenv("ROUTECODEX_USER_DIR", str(home))
    async with file_store_gateway("chat", tmp_path / "state") as harness:
        harness.script_texts(then="part ")
        await harness.send(f"{tag}Hello")
        assert harness.upstream_texts[1][-1] == ("user", text)
        assert len(harness.upstream_texts) == most + 1


async def test_a_file_is_read_when_set_and_tags_in_it_are_stripped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "home" / "stopMessage" / "m.md"
    file.parent.mkdir(parents=True)
    file.write_text("go on <**!up**>please")
    monkeypatch.setenv("ROUTECODEX_USER_DIR", str(tmp_path / "home"))
    async with file_store_gateway("chat", tmp_path / "state") as harness:
        harness.script(
            lambda request, number: (
                answers.length("chat", "cut", False) if not number else harness.text_answer("ok", request)
            )
        )
        await harness.send("<**stopMessage:<file://stopMessage/m.md>,1**>Hello")
        file.write_text("other words")
        await harness.send("Hello again")
        assert harness.upstream_texts[2][-1] == ("user", "go on please")


async def test_a_file_outside_is_refused_with_a_notice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    (home / "stopMessage").mkdir(parents=True)
    (tmp_path / "outside.md").write_text("secret")
    os.symlink(tmp_path / "outside.md", home / "stopMessage" / "link.md")
    (home / "stopMessage" / "big.md").write_text("x" * (64 * 1024 + 1))
    monkeypatch.setenv("ROUTECODEX_USER_DIR", str(home))
    async with file_store_gateway("chat", tmp_path / "state") as harness:
        harness.script_texts(then="part ")
        for path in ("/etc/passwd", "../outside.md", "stopMessage/link.md", "stopMessage/big.md"):
            answer = await harness.send(f"<**stopMessage:<file://{path}>**>Hello {path}")
            assert answer.headers["x-routecodex-notice"].startswith("stopMessage not set: "), path
        assert (len(harness.upstream_texts), stored_stop_message(tmp_path / "state")) == (4, None)
        assert b"secret" not in b"".join(request.body for request in harness.upstream.requests)


@streaming
@protocols
async def test_calls_of_the_client_are_not_followed_up(tmp_path: Path, protocol: str, stream: bool) -> None:
    async with file_store_gateway(protocol, tmp_path) as harness:
        harness.script(
            lambda request, _: answers.tool_call(
                protocol, "get_weather", {"city": "Oslo"}, stream=answers.wants_stream(request)
            )
        )
        answer = await harness.send(SET_STOP_MESSAGE.format(3), stream=stream, tools=True)
        asking.check(protocol, answer, stream=stream)
        assert b"get_weather" in answer.body
        assert (stored_uses(tmp_path), len(harness.upstream_texts)) == (0, 1)
        if not stream:
            notice = answer.headers["x-routecodex-notice"]
            assert notice == "stopMessage skipped: the answer calls tools of the client"


@streaming
@protocols
async def test_an_answer_that_was_cut_off_is_not_followed_up(
    tmp_path: Path, protocol: str, stream: bool
) -> None:
    async with file_store_gateway(protocol, tmp_path) as harness:
        harness.script(
            lambda request, _: answers.length(protocol, "and so on", answers.wants_stream(request))
        )
        answer = await harness.send(SET_STOP_MESSAGE.format(3), stream=stream)
        assert harness.answer_text(answer, stream=stream) == "and so on"
        assert (stored_uses(tmp_path), len(harness.upstream_texts)) == (0, 1)
        if not stream:
            notice = answer.headers["x-routecodex-notice"]
            assert notice == "stopMessage skipped: the answer ended with length"


@streaming
async def test_a_more_specific_stop_reason_of_a_messages_provider_is_passed_on(
    tmp_path: Path, stream: bool
) -> None:
    stop_reason = "model_context_window_exceeded"

    def answer(request: Request, _: int) -> UpstreamAnswer:
        canned = answers.length("messages", "and so on", answers.wants_stream(request))
        if isinstance(canned, Json):
            return Json(body={**canned.body, "stop_reason": stop_reason})
        return Sse([one.replace(b'"max_tokens"', b'"%s"' % stop_reason.encode()) for one in canned.frames])

    async with file_store_gateway("messages", tmp_path) as harness:
        harness.script(answer)
        reply = await harness.send(SET_STOP_MESSAGE.format(3), stream=stream)
        assert harness.answer_text(reply, stream=stream) == "and so on"
        assert reply.body.count(stop_reason.encode()) == 1


@protocols
async def test_a_compaction_request_is_not_followed_up_but_a_mention_of_it_is(
    tmp_path: Path, protocol: str
) -> None:
    async with file_store_gateway(protocol, tmp_path) as harness:
        harness.script_texts(then="part ")
        await harness.send('<**stopMessage:"go on",2**>')
        answer = await harness.send("  Context checkpoint compaction: sum up what was said")
        assert harness.answer_text(answer, stream=False) == "part 0"
        assert answer.headers["x-routecodex-notice"] == "stopMessage skipped: role compaction"
        assert stored_uses(tmp_path) == 0
        answer = await harness.send("They said: Context checkpoint compaction. What is it?")
        assert harness.answer_text(answer, stream=False) == "part 1\n\npart 2\n\npart 3"
        assert stored_uses(tmp_path) == 2


async def test_when_bd_has_no_work_nothing_follows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = tmp_path / "bin" / "bd"
    command.parent.mkdir()
    command.write_text('#!/bin/sh\ncat "issues.$3$2"\n')
    command.chmod(0o755)
    work = tmp_path / "work"
    work.mkdir()
    (work / "issues.--jsonlist").write_text('[{"id": "a-1", "status": "closed"}]')
    (work / "issues.--jsonready").write_text("[]")
    monkeypatch.setenv("PATH", f"{command.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("ROUTECODEX_STOPMESSAGE_BD_WORKDIR", str(work))
    monkeypatch.setenv("ROUTECODEX_STOPMESSAGE_BD_CACHE_TTL_MS", "0")
    monkeypatch.setenv("ROUTECODEX_STOPMESSAGE_BD_TIMEOUT_MS", "20000")
    async with file_store_gateway("chat", tmp_path / "state") as harness:
        harness.script_texts(then="part ")
        answer = await harness.send(SET_STOP_MESSAGE.format(1))
        assert harness.answer_text(answer, stream=False) == "part 0"
        assert answer.headers["x-routecodex-notice"] == "stopMessage skipped: bd_idle"
        (work / "issues.--jsonready").write_text('[{"id": "a-2", "status": "open"}]')
        answer = await harness.send("go on")
        assert harness.answer_text(answer, stream=False) == "part 1\n\npart 2"


@streaming
@protocols
async def test_a_disabled_stop_message_tag_is_still_stripped(
    tmp_path: Path, protocol: str, stream: bool
) -> None:
    async with file_store_gateway(
        protocol, tmp_path, more="[server_tools.stop_message]\nenabled = false\n"
    ) as harness:
        harness.script_texts(then="part ")
        answer = await harness.send(SET_STOP_MESSAGE.format(3), stream=stream)
        assert harness.answer_text(answer, stream=stream) == "part 0"
        assert b"stopMessage" not in harness.upstream.requests[0].body
        assert len(harness.upstream_texts) == 1


@protocols
async def test_the_answer_can_be_left_out_of_the_follow_up(tmp_path: Path, protocol: str) -> None:
    async with file_store_gateway(
        protocol, tmp_path, more="[server_tools.stop_message]\ninclude_answer = false\n"
    ) as harness:
        harness.script_texts("one", "two")
        answer = await harness.send(SET_STOP_MESSAGE.format(1))
        assert harness.answer_text(answer, stream=False) == "one\n\ntwo"
        assert harness.upstream_texts[1] == [("user", "Hello"), ("user", "go on")]


@streaming
@protocols
async def test_only_the_last_round_is_shown_when_configured(
    tmp_path: Path, protocol: str, stream: bool
) -> None:
    async with file_store_gateway(
        protocol, tmp_path, more='[server_tools]\nvisible_rounds = "last"\n'
    ) as harness:
        harness.script_texts("one", "two", "three")
        answer = await harness.send(SET_STOP_MESSAGE.format(2), stream=stream)
        assert harness.answer_text(answer, stream=stream) == "three"
        assert token_usage(protocol, answer, stream=stream) == (21, 9)


@streaming
@pytest.mark.parametrize("protocol", ["chat", "messages", "gemini"])
async def test_without_a_session_a_stop_message_lasts_for_the_request(
    tmp_path: Path, protocol: str, stream: bool
) -> None:
    async with file_store_gateway(protocol, tmp_path) as harness:
        harness.script_texts(then="part ")
        answer = await harness.send(SET_STOP_MESSAGE.format(2), stream=stream, headers={})
        assert harness.answer_text(answer, stream=stream) == "part 0\n\npart 1\n\npart 2"
        await harness.send("Hello", stream=stream, headers={})
        assert (len(harness.upstream_texts), harness.counts[-1]) == (4, None)


async def test_a_chain_of_responses_is_a_session_of_its_own(tmp_path: Path) -> None:
    async with file_store_gateway("responses", tmp_path, upstream_protocol="chat") as harness:
        harness.script(
            lambda request, number: (
                answers.length("chat", "cut", False)
                if not number
                else harness.text_answer(f"part {number}", request)
            )
        )
        first = await harness.send(SET_STOP_MESSAGE.format(1), headers={})
        body = {"model": "up.m", "input": "and?", "previous_response_id": first.json["id"]}
        second = await harness.send(body=body, headers={})
        assert harness.answer_text(second, stream=False) == "part 1\n\npart 2"
        assert harness.upstream_texts[2] == [
            ("user", "Hello"),
            ("assistant", "cut"),
            ("user", "and?"),
            ("assistant", "part 1"),
            ("user", "go on"),
        ]
        third = {"model": "up.m", "input": "so?", "previous_response_id": second.json["id"]}
        await harness.send(body=third, headers={})
        assert harness.upstream_texts[3][3] == ("assistant", "part 1\n\npart 2")


@protocols
async def test_fields_of_the_protocol_are_sent_in_every_round(tmp_path: Path, protocol: str) -> None:
    async with file_store_gateway(protocol, tmp_path) as harness:
        harness.script_texts("one", "two")
        body = asking.body(protocol, SET_STOP_MESSAGE.format(1), stream=False, tools=True)
        special = {"chat": "seed", "responses": "truncation", "messages": "top_k", "gemini": "cachedContent"}
        values = {"chat": 7, "responses": "auto", "messages": 4, "gemini": "cachedContents/1"}
        body |= {special[protocol]: values[protocol], "x_unknown": {"deep": [1]}}
        await harness.send(body=body)
        first, second = (request.json for request in harness.upstream.requests)
        entries = {"chat": "messages", "responses": "input", "messages": "messages", "gemini": "contents"}
        before, after = first.pop(entries[protocol]), second.pop(entries[protocol])
        assert first == second
        assert after[: len(before)] == before
        assert first["x_unknown"] == {"deep": [1]}
        assert first[special[protocol]] == values[protocol]


async def test_the_same_answer_twice_to_the_same_message_ends_it_with_a_notice(tmp_path: Path) -> None:
    async with file_store_gateway("chat", tmp_path) as harness:
        harness.script_texts("one", "done", "done", "never")
        answer = await harness.send(SET_STOP_MESSAGE.format(9))
        assert harness.answer_text(answer, stream=False) == "one\n\ndone\n\ndone"
        notice = answer.headers["x-routecodex-notice"]
        assert notice == "no follow-up: the model gave the same answer twice in a row"
        assert stored_uses(tmp_path) == 2


async def test_rounds_are_logged_by_their_ids(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with file_store_gateway("chat", tmp_path) as harness:
        harness.script_texts("one", "two", "three")
        with caplog.at_level(logging.INFO, "routecodex.server_tools"):
            answer = await harness.send(SET_STOP_MESSAGE.format(2))
        id = answer.headers["x-request-id"]
        assert [record.getMessage() for record in caplog.records] == [
            f"{id}:stop_followup: round 2",
            f"{id}:stop_followup: round 3",
            f"{id}:stop_followup: stopMessage skipped: no uses left",
        ]
        sent = b"".join(request.body for request in harness.upstream.requests)
        assert b"followup" not in sent
        assert b"serverTool" not in sent


async def test_signed_reasoning_is_sent_in_the_follow_up_in_order(tmp_path: Path) -> None:
    async with file_store_gateway("messages", tmp_path) as harness:

        def answer(request: Request, number: int) -> UpstreamAnswer:
            return answers.thinking("messages", "hm", f"part {number}", answers.wants_stream(request))

        harness.script(answer)
        reply = await harness.send(SET_STOP_MESSAGE.format(1), stream=False)
        asking.check("messages", reply, stream=False)
        assert [block["type"] for block in reply.json["content"]] == ["thinking", "text", "thinking", "text"]
        assert [block["text"] for block in reply.json["content"][1::2]] == ["part 0", "\n\npart 1"]
        blocks = harness.upstream.requests[1].json["messages"][1]["content"]
        assert [block["type"] for block in blocks] == ["thinking", "text"]
        assert blocks[0]["signature"]


async def test_several_choices_are_passed_on_without_follow_up(tmp_path: Path) -> None:
    async with file_store_gateway("chat", tmp_path) as harness:

        def two_choices(request: Request, _: int) -> UpstreamAnswer:
            whole = harness.text_answer("one", request)
            assert isinstance(whole, Json)
            choice = whole.body["choices"][0]
            return Json(200, {**whole.body, "choices": [choice, {**choice, "index": 1}]})

        harness.script(two_choices)
        reply = await harness.send(
            body=asking.body("chat", SET_STOP_MESSAGE.format(2), stream=False) | {"n": 2}
        )
        assert [choice["index"] for choice in reply.json["choices"]] == [0, 1]
        assert reply.headers["x-routecodex-notice"] == "server tools skipped: the request wants 2 answers"
        assert (stored_uses(tmp_path), len(harness.upstream.requests)) == (0, 1)
