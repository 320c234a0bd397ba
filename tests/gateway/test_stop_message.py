"""stopMessage over HTTP: one well-formed answer out of several rounds, counted exactly."""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path

import pytest

from tests.gateway.continuation_gateway import (
    HERE,
    PROTOCOLS,
    SET,
    again,
    continuing,
    stop_message,
    usage,
    used,
)
from tests.kit import answers, asking
from tests.kit.raw_client import call
from tests.kit.steps import Answer as Given
from tests.kit.steps import Json, Sse
from tests.kit.upstream import Request

pairs = pytest.mark.parametrize(
    ("protocol", "speaks"),
    [pytest.param(one, other, id=f"{one}-to-{other}") for one in PROTOCOLS for other in PROTOCOLS],
)
protocols = pytest.mark.parametrize("protocol", PROTOCOLS)
streaming = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


@streaming
@pairs
async def test_three_parts_are_one_answer(tmp_path: Path, protocol: str, speaks: str, stream: bool) -> None:
    async with continuing(protocol, tmp_path, speaks=speaks) as talk:
        talk.says("one", "two\n", "\nthree")
        answer = await talk.ask(SET.format(2), stream=stream)
        assert talk.words(answer, stream=stream) == "one\n\ntwo\n\nthree"
        assert usage(protocol, answer, stream=stream) == (63, 27)
        assert talk.counts == [0, 1, 2]
        first = [("user", "Hello")]
        second = [*first, ("assistant", "one"), ("user", "go on")]
        third = [*second, ("assistant", "two\n"), ("user", "go on")]
        assert talk.heard == [first, second, third]
    found = stop_message(tmp_path)
    assert found is not None
    assert (found["text"], found["max_repeats"], found["used"]) == ("go on", 2, 2)
    assert found["last_used_at"] >= found["updated_at"] > 0


@protocols
async def test_each_round_is_told_as_it_comes(tmp_path: Path, protocol: str) -> None:
    async with continuing(protocol, tmp_path) as talk:
        goes_on = asyncio.Event()

        def answer(request: Request, number: int) -> Given:
            whole = answers.text(protocol, f"part {number}", True)
            assert isinstance(whole, Sse)
            return Sse(whole.frames, pace={0: goes_on} if number else {})

        talk.script(answer)
        under_way = await talk.begin(SET.format(1))
        await under_way.head()
        while b"part 0" not in under_way.answer.body:
            assert await under_way.piece()
        goes_on.set()
        reply = await under_way.rest()
        await under_way.close()
        assert talk.words(reply, stream=True) == "part 0\n\npart 1"


@streaming
@protocols
async def test_the_count_goes_on_across_requests_and_ten_is_the_default(
    tmp_path: Path, protocol: str, stream: bool
) -> None:
    async with continuing(protocol, tmp_path) as talk:
        talk.script(
            lambda request, number: (
                answers.length(protocol, "cut", answers.wants_stream(request))
                if number == 4
                else talk.text(f"part {number}", request)
            )
        )
        await talk.ask('<**stopMessage:"go on"**>Hello', stream=stream)
        assert used(tmp_path) == 4
        answer = await talk.ask("and now?", stream=stream)
        assert talk.words(answer, stream=stream).split("\n\n") == [
            f"part {number}" for number in range(5, 12)
        ]
        assert (used(tmp_path), len(talk.heard)) == (10, 12)
        last = await talk.ask("more?", stream=stream)
        assert len(talk.heard) == 13
        assert last.headers["x-routecodex-notice"] == "stopMessage skipped: all 10 uses are spent"


async def test_another_gateway_on_the_same_state_goes_on_counting(tmp_path: Path) -> None:
    async with continuing("chat", tmp_path) as talk:
        talk.script(
            lambda request, number: (
                answers.length("chat", "cut", False) if number == 1 else talk.text(f"part {number}", request)
            )
        )
        await talk.ask(SET.format(3))
        async with again(talk) as other:
            path = asking.path("chat", stream=False)
            await call(other.port, path, asking.body("chat", "again", stream=False), headers=HERE)
        assert (used(tmp_path), talk.counts) == (3, [0, 1, 1, 2, 3])


@protocols
async def test_setting_it_anew_begins_anew_and_clear_ends_it(tmp_path: Path, protocol: str) -> None:
    async with continuing(protocol, tmp_path) as talk:
        talk.says(then="part ")
        await talk.ask(SET.format(1))
        assert used(tmp_path) == 1
        await talk.ask('<**stopMessage:"do more",2**>Next')
        found = stop_message(tmp_path)
        assert found is not None
        assert (found["text"], found["used"], found["max_repeats"], len(talk.heard)) == ("do more", 2, 2, 5)
        await talk.ask('<**stopMessage:"again",5**><**stopMessage:clear**>Stop it')
        assert (stop_message(tmp_path), len(talk.heard)) == (None, 6)
        assert talk.heard[5] == [("user", "Stop it")]


async def test_the_same_message_sent_again_sets_nothing_anew(tmp_path: Path) -> None:
    async with continuing("chat", tmp_path) as talk:
        talk.says(then="part ")
        await talk.ask(SET.format(2))
        await talk.ask(SET.format(2))
        assert (used(tmp_path), len(talk.heard)) == (2, 4)


FORMS: list[tuple[str, str, int]] = [
    ('<**stopMessage:"go on"**>', "go on", 10),
    ('<**stopMessage:"say \\"yes\\"",1**>', 'say "yes"', 1),
    ('<**stopMessage:"立即执行待处理任务",2**>', "立即执行待处理任务", 2),
    ("<**stopMessage:<file://stopMessage/message1.md>**>", "立即执行\nnow", 10),
    ("<**stopMessage:<file://stopMessage/message1.md>,1**>", "立即执行\nnow", 1),
]


@pytest.mark.parametrize(("tag", "text", "most"), FORMS)
async def test_every_form_says_its_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tag: str, text: str, most: int
) -> None:
    home = tmp_path / "home"
    (home / "stopMessage").mkdir(parents=True)
    (home / "stopMessage" / "message1.md").write_text("立即执行\nnow\n", "utf-8")
    monkeypatch.setenv("ROUTECODEX_USER_DIR", str(home))
    async with continuing("chat", tmp_path / "state") as talk:
        talk.says(then="part ")
        await talk.ask(f"{tag}Hello")
        assert talk.heard[1][-1] == ("user", text)
        assert len(talk.heard) == most + 1


async def test_a_file_is_read_when_it_is_set_and_what_looks_like_a_tag_in_it_is_not_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "home" / "stopMessage" / "m.md"
    file.parent.mkdir(parents=True)
    file.write_text("go on <**!up**>please")
    monkeypatch.setenv("ROUTECODEX_USER_DIR", str(tmp_path / "home"))
    async with continuing("chat", tmp_path / "state") as talk:
        talk.script(
            lambda request, number: (
                answers.length("chat", "cut", False) if not number else talk.text("ok", request)
            )
        )
        await talk.ask("<**stopMessage:<file://stopMessage/m.md>,1**>Hello")
        file.write_text("other words")
        await talk.ask("Hello again")
        assert talk.heard[2][-1] == ("user", "go on please")


async def test_a_file_outside_is_refused_with_a_notice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    (home / "stopMessage").mkdir(parents=True)
    (tmp_path / "outside.md").write_text("secret")
    os.symlink(tmp_path / "outside.md", home / "stopMessage" / "link.md")
    (home / "stopMessage" / "big.md").write_text("x" * (64 * 1024 + 1))
    monkeypatch.setenv("ROUTECODEX_USER_DIR", str(home))
    async with continuing("chat", tmp_path / "state") as talk:
        talk.says(then="part ")
        for path in ("/etc/passwd", "../outside.md", "stopMessage/link.md", "stopMessage/big.md"):
            answer = await talk.ask(f"<**stopMessage:<file://{path}>**>Hello {path}")
            assert answer.headers["x-routecodex-notice"].startswith("stopMessage not set: "), path
        assert (len(talk.heard), stop_message(tmp_path / "state")) == (4, None)
        assert b"secret" not in b"".join(request.body for request in talk.upstream.requests)


@streaming
@protocols
async def test_calls_of_the_client_are_not_followed_up(tmp_path: Path, protocol: str, stream: bool) -> None:
    async with continuing(protocol, tmp_path) as talk:
        talk.script(
            lambda request, _: answers.tool_call(
                protocol, "get_weather", {"city": "Oslo"}, stream=answers.wants_stream(request)
            )
        )
        answer = await talk.ask(SET.format(3), stream=stream, tools=True)
        asking.check(protocol, answer, stream=stream)
        assert b"get_weather" in answer.body
        assert (used(tmp_path), len(talk.heard)) == (0, 1)
        if not stream:
            notice = answer.headers["x-routecodex-notice"]
            assert notice == "stopMessage skipped: the answer calls tools of the client"


@streaming
@protocols
async def test_an_answer_that_was_cut_off_is_not_followed_up(
    tmp_path: Path, protocol: str, stream: bool
) -> None:
    async with continuing(protocol, tmp_path) as talk:
        talk.script(lambda request, _: answers.length(protocol, "and so on", answers.wants_stream(request)))
        answer = await talk.ask(SET.format(3), stream=stream)
        assert talk.words(answer, stream=stream) == "and so on"
        assert (used(tmp_path), len(talk.heard)) == (0, 1)
        if not stream:
            notice = answer.headers["x-routecodex-notice"]
            assert notice == "stopMessage skipped: the answer ended with length"


@streaming
async def test_a_messages_provider_that_says_more_of_its_end_is_quoted(tmp_path: Path, stream: bool) -> None:
    word = "model_context_window_exceeded"

    def answer(request: Request, _: int) -> Given:
        given = answers.length("messages", "and so on", answers.wants_stream(request))
        if isinstance(given, Json):
            return Json(body={**given.body, "stop_reason": word})
        return Sse([one.replace(b'"max_tokens"', b'"%s"' % word.encode()) for one in given.frames])

    async with continuing("messages", tmp_path) as talk:
        talk.script(answer)
        said = await talk.ask(SET.format(3), stream=stream)
        assert talk.words(said, stream=stream) == "and so on"
        assert said.body.count(word.encode()) == 1


@protocols
async def test_a_compaction_is_not_followed_up_but_its_words_elsewhere_are_nothing(
    tmp_path: Path, protocol: str
) -> None:
    async with continuing(protocol, tmp_path) as talk:
        talk.says(then="part ")
        first = '<**stopMessage:"go on",2**>  Context checkpoint compaction: sum up what was said'
        answer = await talk.ask(first)
        assert talk.words(answer, stream=False) == "part 0"
        assert answer.headers["x-routecodex-notice"] == "stopMessage skipped: compaction"
        answer = await talk.ask("They said: Context checkpoint compaction. What is it?")
        assert talk.words(answer, stream=False) == "part 1\n\npart 2\n\npart 3"
        assert used(tmp_path) == 2


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
    async with continuing("chat", tmp_path / "state") as talk:
        talk.says(then="part ")
        answer = await talk.ask(SET.format(1))
        assert talk.words(answer, stream=False) == "part 0"
        assert answer.headers["x-routecodex-notice"] == "stopMessage skipped: bd_idle"
        (work / "issues.--jsonready").write_text('[{"id": "a-2", "status": "open"}]')
        answer = await talk.ask("go on")
        assert talk.words(answer, stream=False) == "part 1\n\npart 2"


@streaming
@protocols
async def test_when_it_is_off_the_tag_is_still_taken_out(tmp_path: Path, protocol: str, stream: bool) -> None:
    async with continuing(protocol, tmp_path, more="[server_tools.stop_message]\nenabled = false\n") as talk:
        talk.says(then="part ")
        answer = await talk.ask(SET.format(3), stream=stream)
        assert talk.words(answer, stream=stream) == "part 0"
        assert b"stopMessage" not in talk.upstream.requests[0].body
        assert len(talk.heard) == 1


@protocols
async def test_the_answer_can_be_left_out_of_the_follow_up(tmp_path: Path, protocol: str) -> None:
    async with continuing(
        protocol, tmp_path, more="[server_tools.stop_message]\ninclude_answer = false\n"
    ) as talk:
        talk.says("one", "two")
        answer = await talk.ask(SET.format(1))
        assert talk.words(answer, stream=False) == "one\n\ntwo"
        assert talk.heard[1] == [("user", "Hello"), ("user", "go on")]


@streaming
@protocols
async def test_only_the_last_round_is_shown_when_that_is_wanted(
    tmp_path: Path, protocol: str, stream: bool
) -> None:
    async with continuing(protocol, tmp_path, more='[server_tools]\nvisible_rounds = "last"\n') as talk:
        talk.says("one", "two", "three")
        answer = await talk.ask(SET.format(2), stream=stream)
        assert talk.words(answer, stream=stream) == "three"
        assert usage(protocol, answer, stream=stream) == (63, 27)


@streaming
@pytest.mark.parametrize("protocol", ["chat", "messages", "gemini"])
async def test_without_a_session_it_lives_for_the_request(
    tmp_path: Path, protocol: str, stream: bool
) -> None:
    async with continuing(protocol, tmp_path) as talk:
        talk.says(then="part ")
        answer = await talk.ask(SET.format(2), stream=stream, headers={})
        assert talk.words(answer, stream=stream) == "part 0\n\npart 1\n\npart 2"
        await talk.ask("Hello", stream=stream, headers={})
        assert (len(talk.heard), talk.counts[-1]) == (4, None)


async def test_a_chain_of_responses_is_a_session_of_its_own(tmp_path: Path) -> None:
    async with continuing("responses", tmp_path, speaks="chat") as talk:
        talk.script(
            lambda request, number: (
                answers.length("chat", "cut", False) if not number else talk.text(f"part {number}", request)
            )
        )
        first = await talk.ask(SET.format(1), headers={})
        body = {"model": "up.m", "input": "and?", "previous_response_id": first.json["id"]}
        second = await talk.ask(body=body, headers={})
        assert talk.words(second, stream=False) == "part 1\n\npart 2"
        assert talk.heard[2] == [
            ("user", "Hello"),
            ("assistant", "cut"),
            ("user", "and?"),
            ("assistant", "part 1"),
            ("user", "go on"),
        ]
        third = {"model": "up.m", "input": "so?", "previous_response_id": second.json["id"]}
        await talk.ask(body=third, headers={})
        assert talk.heard[3][3] == ("assistant", "part 1\n\npart 2")


@protocols
async def test_what_is_special_to_the_protocol_goes_along(tmp_path: Path, protocol: str) -> None:
    async with continuing(protocol, tmp_path) as talk:
        talk.says("one", "two")
        body = asking.body(protocol, SET.format(1), stream=False, tools=True)
        special = {"chat": "seed", "responses": "truncation", "messages": "top_k", "gemini": "cachedContent"}
        values = {"chat": 7, "responses": "auto", "messages": 4, "gemini": "cachedContents/1"}
        body |= {special[protocol]: values[protocol], "x_unknown": {"deep": [1]}}
        await talk.ask(body=body)
        first, second = (request.json for request in talk.upstream.requests)
        entries = {"chat": "messages", "responses": "input", "messages": "messages", "gemini": "contents"}
        before, after = first.pop(entries[protocol]), second.pop(entries[protocol])
        assert first == second
        assert after[: len(before)] == before
        assert first["x_unknown"] == {"deep": [1]}
        assert first[special[protocol]] == values[protocol]


async def test_the_same_answer_twice_to_the_same_message_ends_it_with_a_note(tmp_path: Path) -> None:
    async with continuing("chat", tmp_path) as talk:
        talk.says("one", "done", "done", "never")
        answer = await talk.ask(SET.format(9))
        assert talk.words(answer, stream=False) == "one\n\ndone\n\ndone"
        notice = answer.headers["x-routecodex-notice"]
        assert notice == "no follow-up: the model gave the same answer twice in a row"
        assert used(tmp_path) == 2


async def test_rounds_are_logged_by_their_ids(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with continuing("chat", tmp_path) as talk:
        talk.says("one", "two", "three")
        with caplog.at_level(logging.INFO, "routecodex.server_tools"):
            answer = await talk.ask(SET.format(2))
        id = answer.headers["x-request-id"]
        assert [record.getMessage() for record in caplog.records] == [
            f"{id}:stop_followup: round 2",
            f"{id}:stop_followup: round 3",
            f"{id}:stop_followup: stopMessage skipped: no uses left",
        ]
        sent = b"".join(request.body for request in talk.upstream.requests)
        assert b"followup" not in sent
        assert b"serverTool" not in sent


async def test_thoughts_go_along_signed_and_stay_in_their_place(tmp_path: Path) -> None:
    async with continuing("messages", tmp_path) as talk:

        def answer(request: Request, number: int) -> Given:
            return answers.thinking("messages", "hm", f"part {number}", answers.wants_stream(request))

        talk.script(answer)
        reply = await talk.ask(SET.format(1), stream=False)
        asking.check("messages", reply, stream=False)
        assert [block["type"] for block in reply.json["content"]] == ["thinking", "text", "thinking", "text"]
        assert [block["text"] for block in reply.json["content"][1::2]] == ["part 0", "\n\npart 1"]
        told = talk.upstream.requests[1].json["messages"][1]["content"]
        assert [block["type"] for block in told] == ["thinking", "text"]
        assert told[0]["signature"]


async def test_several_answers_at_once_are_passed_on_and_none_goes_on(tmp_path: Path) -> None:
    async with continuing("chat", tmp_path) as talk:

        def both(request: Request, _: int) -> Given:
            whole = talk.text("one", request)
            assert isinstance(whole, Json)
            choice = whole.body["choices"][0]
            return Json(200, {**whole.body, "choices": [choice, {**choice, "index": 1}]})

        talk.script(both)
        reply = await talk.ask(body=asking.body("chat", SET.format(2), stream=False) | {"n": 2})
        assert [choice["index"] for choice in reply.json["choices"]] == [0, 1]
        assert reply.headers["x-routecodex-notice"] == "server tools skipped: the request wants 2 answers"
        assert (used(tmp_path), len(talk.upstream.requests)) == (0, 1)
