"""Chat instructions over HTTP: applied, confirmed, and never passed on."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from tests.clients.agent_requests import CLAUDE_HEADERS, SESSION, claude_code
from tests.gateway.instruction_gateway import (
    DEFAULT_TARGET,
    PROTOCOLS,
    SESSION_HEADER,
    InstructionHarness,
    answer_text,
    client_messages,
    instruction_gateway,
    routing_headers,
    target,
    upstream_messages,
    user_turns,
)
from tests.kit import asking
from tests.kit.raw_client import call
from tests.routing.instruction_texts import Step

protocols = pytest.mark.parametrize("protocol", PROTOCOLS)
streams = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])

GLM = {("key-glm-a", "glm-4.7"), ("key-glm-b", "glm-4.7")}
AIR = {("key-glm-a", "air"), ("key-glm-b", "air")}
AIR_A, AIR_B = {("key-glm-a", "air")}, {("key-glm-b", "air")}
NEXT_KEY = {("key-gpt-2", "gpt-5.2")}
HOME = {DEFAULT_TARGET}

FORCES: dict[str, tuple[str, set[tuple[str, str]]]] = {
    "<**glm.glm-4.7**>": ("glm.glm-4.7", GLM),
    "<**glm.b.glm-4.7**>": ("glm.b.glm-4.7", {("key-glm-b", "glm-4.7")}),
    "<**glm.2.glm-4.7**>": ("glm.2.glm-4.7", {("key-glm-b", "glm-4.7")}),
    "<**glm.b**>": ("glm.b", AIR_B),
    "<**glm.2**>": ("glm.2", AIR_B),
    "<**eye.seer**>": ("eye.seer", {("key-eye-1", "seer")}),
    "<**\u200b glm.2 \n**>": ("glm.2", AIR_B),
}
LASTING: dict[str, tuple[dict[str, Any], set[tuple[str, str]]]] = {
    "<**glm**>": ({"allow": ["glm"]}, AIR),
    "<**!glm**>": ({"allow": ["glm"]}, AIR),
    "<**!eye,glm**>": ({"allow": ["eye", "glm"]}, AIR),
    "<**!glm.glm-4.7**>": ({"sticky": "glm.glm-4.7"}, GLM),
    "<**!glm.a.glm-4.7**>": ({"sticky": "glm.a.glm-4.7"}, {("key-glm-a", "glm-4.7")}),
    "<**!glm.2**>": ({"sticky": "glm.2"}, AIR_B),
    "<**！glm.2**>": ({"sticky": "glm.2"}, AIR_B),
    "<**#gpt**>": ({"disable": ["gpt"]}, AIR),
    "<**#gpt.1**>": ({"disable": ["gpt.1"]}, NEXT_KEY),
    "<**#gpt.key1**>": ({"disable": ["gpt.key1"]}, NEXT_KEY),
    "<**#gpt.gpt-5.2**>": ({"disable": ["gpt.gpt-5.2"]}, AIR),
    "<**#gpt,glm.a**>": ({"disable": ["gpt", "glm.a"]}, AIR_B),
    "<**#gpt**><**#glm.1**>": ({"disable": ["gpt", "glm.1"]}, AIR_B),
    "<**#gpt,glm**><**@gpt**>": ({"disable": ["glm"]}, HOME),
    "<**#gpt**><**@gpt.2**>": ({"disable": ["gpt.key1"]}, NEXT_KEY),
    "<**#gpt.1**><**@gpt.key1**>": ({}, HOME),
    "<**#gpt,glm.a**><**@gpt,glm.1**>": ({}, HOME),
    "<**#gpt**><**!glm.1**><**CLEAR**>": ({}, HOME),
    "<**clear**><**#gpt.1**>": ({"disable": ["gpt.1"]}, NEXT_KEY),
    "<**!glm.1**><**!glm.2**>": ({"sticky": "glm.2"}, AIR_B),
    "<**!gpt**><**!glm.2**>": ({"allow": ["gpt"], "sticky": "glm.2"}, AIR_B),
    "<**clock:clear**>": ({}, HOME),
}
STOPS: dict[str, dict[str, Any]] = {
    '<**stopMessage:"go on"**>': {"text": "go on", "max_repeats": 10, "used": 0},
    '<**STOPMESSAGE:"继续",3**>': {"text": "继续", "max_repeats": 3, "used": 0},
    r'<**stopMessage:"say \"hi\""**>': {"text": 'say "hi"', "max_repeats": 10, "used": 0},
    '<**stopMessage:"a **> b",2**>': {"text": "a **> b", "max_repeats": 2, "used": 0},
    "<**stopMessage:<file://stopMessage/x.md>**>": {"text": "from a file", "max_repeats": 10, "used": 0},
    "<**stopMessage:<file://stopMessage/x.md>,4**>": {"text": "from a file", "max_repeats": 4, "used": 0},
}


def at(place: int) -> tuple[str, dict[str, str]]:
    """Return the header of a separate session for each row of a table."""
    return f"s-{place}", {"x-session-id": f"s-{place}"}


async def stop_message(harness: InstructionHarness, session: str = "s-1") -> dict[str, Any] | None:
    found = (await harness.session_state(session)).get("stop_message")
    return found and {name: found[name] for name in ("text", "max_repeats", "used")}


@streams
@protocols
async def test_force_applies_to_one_turn_of_the_user(protocol: str, stream: bool) -> None:
    async with instruction_gateway(protocol) as harness:
        for place, (tag, (name, expected)) in enumerate(FORCES.items()):
            session, headers = at(place)
            forced = await harness.send(f"{tag} hi", stream=stream, headers=headers)
            assert (tag, forced.status, harness.last_target in expected) == (tag, 200, True)
            assert routing_headers(forced) == {
                "route": "force",
                "target": target(forced),
                "reason": f"this message asks for {name}",
            }
            assert await harness.session_state(session) == {"force": name}
            await harness.send(*user_turns(f"{tag} hi", "and now?"), stream=stream, headers=headers)
            assert (tag, harness.last_target) == (tag, DEFAULT_TARGET)
            assert await harness.session_state(session) == {}


@streams
@protocols
async def test_session_settings_last(protocol: str, stream: bool) -> None:
    async with instruction_gateway(protocol) as harness:
        for place, (tag, (state, expected)) in enumerate(LASTING.items()):
            session, headers = at(place)
            for texts in ((f"{tag} hi",), (f"{tag} hi", "and now?"), ("a new conversation",)):
                answer = await harness.send(*user_turns(*texts), stream=stream, headers=headers)
                assert (tag, answer.status, harness.last_target in expected) == (tag, 200, True), (
                    harness.last_target
                )
                assert (tag, await harness.session_state(session)) == (tag, state)


@protocols
async def test_a_stop_message_is_set_and_cleared(
    protocol: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROUTECODEX_USER_DIR", str(tmp_path))
    (tmp_path / "stopMessage").mkdir()
    (tmp_path / "stopMessage" / "x.md").write_text("from a file\n")
    async with instruction_gateway(protocol) as harness:
        for place, (tag, expected) in enumerate(STOPS.items()):
            session, headers = at(place)
            await harness.send(tag, headers=headers)
            assert (tag, await stop_message(harness, session)) == (tag, expected)
            await harness.send(*user_turns(tag, "<**clear**>"), headers=headers)
            assert (tag, await stop_message(harness, session)) == (tag, expected)
            await harness.send(*user_turns(tag, "<**clear**>", "<**stopMessage: Clear**>"), headers=headers)
            assert (tag, await harness.session_state(session)) == (tag, {})
    assert harness.requests == []


async def test_a_missing_file_is_a_notice_and_the_other_instructions_apply(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROUTECODEX_USER_DIR", str(tmp_path))
    async with instruction_gateway() as harness:
        answer = await harness.send("<**stopMessage:<file://stopMessage/no.md>**><**!glm.1**> hi")
        assert await harness.session_state() == {"sticky": "glm.1"}
    notice = "stopMessage not set: the message file 'stopMessage/no.md' does not exist below the user dir"
    assert routing_headers(answer)["notice"] == notice


@streams
@protocols
async def test_force_applies_to_the_whole_tool_loop(protocol: str, stream: bool) -> None:
    async with instruction_gateway(protocol) as harness:
        steps: list[Step] = [("user", "<**glm.b.glm-4.7**> look at it")]
        for turn in range(4):
            await harness.send(*steps, stream=stream)
            assert (turn, harness.last_target) == (turn, ("key-glm-b", "glm-4.7"))
            steps += [("call", "Write", {"path": f"f{turn}"}), ("result", f"done {turn}")]
        # Without the tag, writing files would select the route `coding`.
        await harness.send(*steps, ("assistant", "done"), ("user", "thanks"), stream=stream)
        assert harness.last_target == DEFAULT_TARGET


async def test_another_conversation_of_the_session_does_not_end_a_force() -> None:
    loop: list[Step] = [("user", "<**glm.2**> look"), ("call", "Read", {"path": "f"}), ("result", "text")]
    async with instruction_gateway("messages") as harness:
        await harness.send(loop[0])
        await harness.send(*user_turns("one", "two", "of a sub-agent"))
        assert harness.last_target == DEFAULT_TARGET
        await harness.send(*loop)
        assert harness.last_target in AIR_B


@protocols
async def test_an_agent_that_sends_its_message_again_applies_it_once(protocol: str) -> None:
    steps: list[Step] = [("user", "<**!glm.2**><**#eye**> hi")]
    async with instruction_gateway(protocol) as harness:
        await harness.send(*steps)
        assert await harness.session_state() == {"sticky": "glm.2", "disable": ["eye"]}
        await harness.change_routing(session="s-1", clear=True)
        for turn in range(2):
            steps += [("call", "Read", {"path": f"f{turn}"}), ("result", "text")]
            await harness.send(*steps)
            assert (turn, await harness.session_state()) == (turn, {})
        assert harness.last_target == DEFAULT_TARGET


@protocols
async def test_the_same_text_sent_later_applies_again(protocol: str) -> None:
    async with instruction_gateway(protocol) as harness:
        await harness.send("<**!glm.2**> hi")
        await harness.change_routing(session="s-1", clear=True)
        await harness.send("<**!glm.2**> hi")
        assert (harness.last_target, await harness.session_state()) == (DEFAULT_TARGET, {})
        await harness.send(*user_turns("<**!glm.2**> hi", "<**!glm.2**> hi"))
        assert (harness.last_target in AIR_B, await harness.session_state()) == (True, {"sticky": "glm.2"})


@protocols
async def test_a_tag_in_the_history_never_applies(protocol: str) -> None:
    async with instruction_gateway(protocol) as harness:
        await harness.send(*user_turns("<**!glm.2**> hi", "<**#gpt**>", "and now?"))
        assert (harness.last_target, await harness.session_state()) == (DEFAULT_TARGET, {})


@protocols
async def test_a_new_message_replaces_the_disabled_ones_of_an_earlier_one(protocol: str) -> None:
    async with instruction_gateway(protocol) as harness:
        await harness.send("<**#gpt.1**> hi")
        assert harness.last_target == ("key-gpt-2", "gpt-5.2")
        await harness.send(*user_turns("<**#gpt.1**> hi", "<**#gpt.2**> hi"))
        assert (harness.last_target, await harness.session_state()) == (
            DEFAULT_TARGET,
            {"disable": ["gpt.2"]},
        )


DISABLED_BEFORE = "<**#gpt.1,glm.b,eye**>"
REPLACES = "a new <**#…**> replaces the list, name all in one message"
REPLACED: dict[str, str | None] = {
    "<**#spare**>": f"enabled again: gpt.1, glm.b, eye; {REPLACES}",
    "<**#gpt.key1**><**#glm**>": f"enabled again: eye; {REPLACES}",
    "<**#gpt,glm.2,eye.seer,eye**>": None,
    "<**clear**><**#spare**>": None,
    "<**@eye**><**#glm.b,gpt.1**>": None,
    "<**@eye**>": None,
}


@protocols
async def test_a_disable_list_that_drops_the_old_one_says_so(protocol: str) -> None:
    async with instruction_gateway(protocol) as harness:
        for place, (tags, notice) in enumerate(REPLACED.items()):
            _, headers = at(place)
            first = await harness.send(f"{DISABLED_BEFORE} hi", headers=headers)
            assert "notice" not in routing_headers(first)
            turns = user_turns(f"{DISABLED_BEFORE} hi", f"{tags} hi")
            answer = await harness.send(*turns, headers=headers)
            header = routing_headers(answer).get("notice")
            assert (tags, header and unquote(header)) == (tags, notice)
            again = await harness.send(*turns, headers=headers)
            assert "notice" not in routing_headers(again)


CONFIRMED: dict[str, str] = {
    "<**!glm.2**>": "set for this conversation:\n- sticky: glm.2",
    " <**#gpt**>\n<**!glm**>\u200b ": "set for this conversation:\n- allow: glm\n- disabled: gpt",
    "<**clear**>": "nothing is set.",
    "<**glm.2**>": "set for this conversation:\n- force: glm.2, for this message alone",
    '<**stopMessage:"go on",3**>': 'set for this conversation:\n- stopMessage: "go on", 0 of 3 used',
    "<**clock:clear**>": "nothing is set.\n- all clock tasks are cleared",
    "<**glm glm**>": (
        "nothing is set.\n- instruction ignored: <**glm glm**>: "
        "'glm glm' is not a valid name: it contains white space"
    ),
}


@streams
@protocols
async def test_a_message_of_tags_alone_is_confirmed_without_a_provider(protocol: str, stream: bool) -> None:
    async with instruction_gateway(protocol) as harness:
        for place, (text, expected) in enumerate(CONFIRMED.items()):
            answer = await harness.send(text, stream=stream, headers=at(place)[1])
            asking.check(protocol, answer, stream=stream)
            assert (text, answer_text(protocol, answer, stream=stream)) == (text, f"[RouteCodex] {expected}")
            assert routing_headers(answer)["target"] == "gateway"
    assert harness.requests == []


async def test_a_gemini_client_without_sse_gets_the_confirmation_as_an_array() -> None:
    body = {"contents": [{"parts": [{"text": "<**!glm.2**>"}]}]}
    async with instruction_gateway("gemini") as harness:
        path = "/v1beta/models/auto:streamGenerateContent"
        answer = await call(harness.gateway.port, path, body, headers=SESSION_HEADER)
    reply = "".join(part["text"] for piece in answer.json for part in _parts(piece))
    assert reply == "[RouteCodex] set for this conversation:\n- sticky: glm.2"


def _parts(piece: dict[str, Any]) -> list[dict[str, str]]:
    parts: list[dict[str, str]] = piece["candidates"][0].get("content", {}).get("parts", [])
    return parts


async def test_a_bare_input_of_tags_alone_is_confirmed() -> None:
    async with instruction_gateway("responses") as harness:
        for stream in (False, True):
            answer = await harness.post({"model": "auto", "input": "<**!glm.2**>", "stream": stream})
            asking.check("responses", answer, stream=stream)
    assert harness.requests == []


@streams
@protocols
async def test_status_and_help_are_answered_by_the_gateway(protocol: str, stream: bool) -> None:
    async with instruction_gateway(protocol) as harness:
        await harness.send('<**!glm.2**><**#eye**><**stopMessage:"go on"**>', stream=stream)
        status = await harness.send("<**status**>", stream=stream)
        helping = await harness.send("<**help**>", stream=stream)
    asking.check(protocol, status, stream=stream)
    asking.check(protocol, helping, stream=stream)
    assert answer_text(protocol, status, stream=stream) == (
        "[RouteCodex] status of session:s-1\n\n"
        "| setting | this conversation |\n| --- | --- |\n"
        '| sticky | glm.2 |\n| disabled | eye |\n| stopMessage | "go on", 0 of 10 used |\n\n'
        "All keys are healthy."
    )
    assert "| `<**clear**>` |" in answer_text(protocol, helping, stream=stream)
    assert harness.requests == []


async def test_status_does_not_show_a_force_of_an_earlier_turn() -> None:
    async with instruction_gateway() as harness:
        await harness.send("<**glm.2**> hi")
        status = await harness.send(*user_turns("<**glm.2**> hi", "<**status**>"))
    assert "force" not in answer_text("chat", status, stream=False)


@streams
@protocols
async def test_instructions_and_their_confirmation_are_left_out_of_later_requests(
    protocol: str, stream: bool
) -> None:
    async with instruction_gateway(protocol) as harness:
        reply = await harness.send("<**!glm.2**>", stream=stream)
        own = answer_text(protocol, reply, stream=stream)
        steps: list[Step] = [("user", "<**!glm.2**>"), ("assistant", own), ("user", "hi")]
        await harness.send(*steps, stream=stream)
        await harness.send(*steps, ("assistant", "hello there"), ("user", "<**#eye**> more"), stream=stream)
        first, second = (upstream_messages(protocol, request) for request in harness.requests)
    assert first == client_messages(protocol, ("user", "hi"))
    assert second == client_messages(
        protocol, ("user", "hi"), ("assistant", "hello there"), ("user", " more")
    )


async def test_text_that_an_agent_adds_to_a_message_of_tags_is_not_user_text() -> None:
    """Claude Code adds the project's notes to the user text: later requests keep them, not the tags."""
    first = claude_code("auto", "<**!glm.2**>", stream=False)
    async with instruction_gateway("messages") as harness:
        reply = await harness.post(first, headers=CLAUDE_HEADERS)
        assert answer_text("messages", reply, stream=False) == (
            "[RouteCodex] set for this conversation:\n- sticky: glm.2"
        )
        assert (harness.requests, await harness.session_state(SESSION)) == ([], {"sticky": "glm.2"})
        own = {"role": "assistant", "content": reply.json["content"]}
        messages = [*first["messages"], own, {"role": "user", "content": "hi"}]
        await harness.post({**first, "messages": messages}, headers=CLAUDE_HEADERS)
        notes = {**first["messages"][0]["content"][0], "cache_control": {"type": "ephemeral"}}
        assert harness.requests[0].json["messages"] == [
            {"role": "user", "content": [notes]},
            {"role": "user", "content": "hi"},
        ]


async def test_text_that_an_agent_sends_after_a_message_of_tags_is_not_user_text() -> None:
    reminder = "<system-reminder>mind the notes</system-reminder>"
    async with instruction_gateway() as harness:
        answer = await harness.send("<**!glm.2**>", reminder)
        assert (target(answer), harness.requests) == ("gateway", [])
        own = ("assistant", answer_text("chat", answer, stream=False))
        await harness.send("<**!glm.2**>", reminder, own, "hi")
        expected = client_messages("chat", ("user", reminder), ("user", "hi"))
        assert upstream_messages("chat", harness.requests[0]) == expected


async def test_a_reminder_that_comes_and_goes_makes_no_new_message() -> None:
    def parts(*texts: str) -> dict[str, Any]:
        content = [{"type": "text", "text": text} for text in texts]
        return {"model": "auto", "max_tokens": 9, "messages": [{"role": "user", "content": content}]}

    reminder = "<system-reminder>mind the notes</system-reminder>"
    async with instruction_gateway("messages") as harness:
        await harness.post(parts("<**!glm.2**> hi"))
        await harness.change_routing(session="s-1", clear=True)
        await harness.post(parts(reminder, "<**!glm.2**> hi"))
        assert (harness.last_target, await harness.session_state()) == (DEFAULT_TARGET, {})


TITLE = "Summarize this coding conversation in under 50 characters"


@protocols
async def test_tags_in_a_title_request_are_stripped_and_not_applied(protocol: str) -> None:
    async with instruction_gateway(protocol) as harness:
        await harness.send("<**glm.2**> hi")
        before = await harness.session_state()
        await harness.send(("user", f"{TITLE}: <**!eye.seer**> hi"))
        assert (harness.last_target, await harness.session_state()) == (DEFAULT_TARGET, before)
        assert b"<**" not in harness.requests[1].body
        await harness.send("<**glm.2**> hi", ("call", "Read", {"path": "f"}), ("result", "text"))
        assert harness.last_target in AIR_B


async def test_a_title_for_a_message_of_tags_alone_costs_no_request() -> None:
    async with instruction_gateway("messages") as harness:
        answer = await harness.send("<**!glm.2**>", system="You are a title generator")
        asking.check("messages", answer, stream=False)
        assert (harness.requests, await harness.session_state()) == ([], {})


async def test_instructions_apply_with_an_unknown_previous_response() -> None:
    async with instruction_gateway("responses") as harness:
        answer = await harness.send("<**!glm.2**><**x x**> hi", previous_response_id="resp_of_the_provider")
        assert (answer.status, harness.last_target in AIR_B, await harness.session_state()) == (
            200,
            True,
            {"sticky": "glm.2"},
        )
        assert routing_headers(answer)["notice"].count("ignored") == 1
        assert b"<**" not in harness.requests[0].body


@pytest.mark.parametrize("protocol", ["chat", "messages", "gemini"])
async def test_tags_alone_are_confirmed_where_the_client_has_begun_the_answer(protocol: str) -> None:
    async with instruction_gateway(protocol) as harness:
        alone = await harness.send("<**!glm.2**>", ("assistant", "{"))
        assert (target(alone), harness.sent_targets, await harness.session_state()) == (
            "gateway",
            [],
            {"sticky": "glm.2"},
        )
        await harness.send("<**!glm.1**> hi", ("assistant", "<**#glm**> {"))
        assert upstream_messages(protocol, harness.requests[-1]) == client_messages(
            protocol, ("user", " hi"), ("assistant", "<**#glm**> {")
        )
    assert harness.last_target[0] == "key-glm-a"
