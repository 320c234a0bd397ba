"""What a person says to the gateway in the chat, over HTTP: obeyed, confirmed, and never passed on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.clients.agent_requests import CLAUDE_HEADERS, SESSION, claude_code
from tests.gateway.instruction_gateway import (
    DEFAULT,
    HERE,
    PROTOCOLS,
    World,
    as_told,
    conversation,
    steered,
    target,
    told,
    turns,
    words,
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
HOME = {DEFAULT}

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
    """A session of its own for each row of a table."""
    return f"s-{place}", {"x-session-id": f"s-{place}"}


async def stop_message(world: World, session: str = "s-1") -> dict[str, Any] | None:
    found = (await world.state(session)).get("stop_message")
    return found and {name: found[name] for name in ("text", "max_repeats", "used")}


@streams
@protocols
async def test_force_holds_for_one_turn_of_the_user(protocol: str, stream: bool) -> None:
    async with steered(protocol) as world:
        for place, (tag, (name, expected)) in enumerate(FORCES.items()):
            session, headers = at(place)
            forced = await world.say(f"{tag} hi", stream=stream, headers=headers)
            assert (tag, forced.status, world.last in expected) == (tag, 200, True)
            assert told(forced) == {
                "route": "force",
                "target": target(forced),
                "reason": f"this message asks for {name}",
            }
            assert await world.state(session) == {"force": name}
            await world.say(*turns(f"{tag} hi", "and now?"), stream=stream, headers=headers)
            assert (tag, world.last) == (tag, DEFAULT)
            assert await world.state(session) == {}


@streams
@protocols
async def test_what_is_set_for_the_session_lasts(protocol: str, stream: bool) -> None:
    async with steered(protocol) as world:
        for place, (tag, (state, expected)) in enumerate(LASTING.items()):
            session, headers = at(place)
            for texts in ((f"{tag} hi",), (f"{tag} hi", "and now?"), ("a new conversation",)):
                answer = await world.say(*turns(*texts), stream=stream, headers=headers)
                assert (tag, answer.status, world.last in expected) == (tag, 200, True), world.last
                assert (tag, await world.state(session)) == (tag, state)


@protocols
async def test_a_stop_message_is_set_and_cleared(
    protocol: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROUTECODEX_USER_DIR", str(tmp_path))
    (tmp_path / "stopMessage").mkdir()
    (tmp_path / "stopMessage" / "x.md").write_text("from a file\n")
    async with steered(protocol) as world:
        for place, (tag, expected) in enumerate(STOPS.items()):
            session, headers = at(place)
            await world.say(tag, headers=headers)
            assert (tag, await stop_message(world, session)) == (tag, expected)
            await world.say(*turns(tag, "<**clear**>"), headers=headers)
            assert (tag, await stop_message(world, session)) == (tag, expected)
            await world.say(*turns(tag, "<**clear**>", "<**stopMessage: Clear**>"), headers=headers)
            assert (tag, await world.state(session)) == (tag, {})
    assert world.requests == []


async def test_a_file_that_is_not_there_is_said_and_the_rest_applied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROUTECODEX_USER_DIR", str(tmp_path))
    async with steered() as world:
        answer = await world.say("<**stopMessage:<file://stopMessage/no.md>**><**!glm.1**> hi")
        assert await world.state() == {"sticky": "glm.1"}
    notice = "stopMessage not set: the message file 'stopMessage/no.md' does not exist below the user dir"
    assert told(answer)["notice"] == notice


@streams
@protocols
async def test_force_holds_for_the_whole_tool_loop(protocol: str, stream: bool) -> None:
    async with steered(protocol) as world:
        steps: list[Step] = [("user", "<**glm.b.glm-4.7**> look at it")]
        for turn in range(4):
            await world.say(*steps, stream=stream)
            assert (turn, world.last) == (turn, ("key-glm-b", "glm-4.7"))
            steps += [("call", "Write", {"path": f"f{turn}"}), ("result", f"done {turn}")]
        # Without the tag the writing of files would have led to the route `coding`.
        await world.say(*steps, ("assistant", "done"), ("user", "thanks"), stream=stream)
        assert world.last == DEFAULT


async def test_another_conversation_of_the_session_does_not_end_what_is_forced() -> None:
    loop: list[Step] = [("user", "<**glm.2**> look"), ("call", "Read", {"path": "f"}), ("result", "text")]
    async with steered("messages") as world:
        await world.say(loop[0])
        await world.say(*turns("one", "two", "of a sub-agent"))
        assert world.last == DEFAULT
        await world.say(*loop)
        assert world.last in AIR_B


@protocols
async def test_an_agent_that_sends_its_message_again_applies_it_once(protocol: str) -> None:
    steps: list[Step] = [("user", "<**!glm.2**><**#eye**> hi")]
    async with steered(protocol) as world:
        await world.say(*steps)
        assert await world.state() == {"sticky": "glm.2", "disable": ["eye"]}
        await world.operate(session="s-1", clear=True)
        for turn in range(2):
            steps += [("call", "Read", {"path": f"f{turn}"}), ("result", "text")]
            await world.say(*steps)
            assert (turn, await world.state()) == (turn, {})
        assert world.last == DEFAULT


@protocols
async def test_the_same_words_typed_later_apply_again(protocol: str) -> None:
    async with steered(protocol) as world:
        await world.say("<**!glm.2**> hi")
        await world.operate(session="s-1", clear=True)
        await world.say("<**!glm.2**> hi")
        assert (world.last, await world.state()) == (DEFAULT, {})
        await world.say(*turns("<**!glm.2**> hi", "<**!glm.2**> hi"))
        assert (world.last in AIR_B, await world.state()) == (True, {"sticky": "glm.2"})


@protocols
async def test_a_tag_in_the_history_never_applies(protocol: str) -> None:
    async with steered(protocol) as world:
        await world.say(*turns("<**!glm.2**> hi", "<**#gpt**>", "and now?"))
        assert (world.last, await world.state()) == (DEFAULT, {})


@protocols
async def test_a_new_message_replaces_the_disabled_ones_of_an_earlier_one(protocol: str) -> None:
    async with steered(protocol) as world:
        await world.say("<**#gpt.1**> hi")
        assert world.last == ("key-gpt-2", "gpt-5.2")
        await world.say(*turns("<**#gpt.1**> hi", "<**#gpt.2**> hi"))
        assert (world.last, await world.state()) == (DEFAULT, {"disable": ["gpt.2"]})


CONFIRMED: dict[str, str] = {
    "<**!glm.2**>": "set for this conversation:\n- sticky: glm.2",
    " <**#gpt**>\n<**!glm**>\u200b ": "set for this conversation:\n- allow: glm\n- disabled: gpt",
    "<**clear**>": "nothing is set.",
    "<**glm.2**>": "set for this conversation:\n- force: glm.2, for this message alone",
    '<**stopMessage:"go on",3**>': 'set for this conversation:\n- stopMessage: "go on", 0 of 3 used',
    "<**clock:clear**>": "nothing is set.\n- all clock tasks are cleared",
    "<**glm glm**>": (
        "nothing is set.\n- ignored <**glm glm**>: 'glm glm' is not a valid name: it contains white space"
    ),
}


@streams
@protocols
async def test_a_message_of_tags_alone_is_confirmed_without_a_provider(protocol: str, stream: bool) -> None:
    async with steered(protocol) as world:
        for place, (text, expected) in enumerate(CONFIRMED.items()):
            answer = await world.say(text, stream=stream, headers=at(place)[1])
            asking.check(protocol, answer, stream=stream)
            assert (text, words(protocol, answer, stream=stream)) == (text, f"[RouteCodex] {expected}")
            assert told(answer)["target"] == "gateway"
    assert world.requests == []


async def test_a_gemini_client_without_sse_gets_the_confirmation_as_an_array() -> None:
    body = {"contents": [{"parts": [{"text": "<**!glm.2**>"}]}]}
    async with steered("gemini") as world:
        path = "/v1beta/models/auto:streamGenerateContent"
        answer = await call(world.gateway.port, path, body, headers=HERE)
    said = "".join(part["text"] for piece in answer.json for part in _parts(piece))
    assert said == "[RouteCodex] set for this conversation:\n- sticky: glm.2"


def _parts(piece: dict[str, Any]) -> list[dict[str, str]]:
    parts: list[dict[str, str]] = piece["candidates"][0].get("content", {}).get("parts", [])
    return parts


async def test_a_bare_input_of_tags_alone_is_confirmed() -> None:
    async with steered("responses") as world:
        for stream in (False, True):
            answer = await world.post({"model": "auto", "input": "<**!glm.2**>", "stream": stream})
            asking.check("responses", answer, stream=stream)
    assert world.requests == []


@streams
@protocols
async def test_status_and_help_are_answered_by_the_gateway(protocol: str, stream: bool) -> None:
    async with steered(protocol) as world:
        await world.say('<**!glm.2**><**#eye**><**stopMessage:"go on"**>', stream=stream)
        status = await world.say("<**status**>", stream=stream)
        helping = await world.say("<**help**>", stream=stream)
    asking.check(protocol, status, stream=stream)
    asking.check(protocol, helping, stream=stream)
    assert words(protocol, status, stream=stream) == (
        "[RouteCodex] status of session:s-1\n\n"
        "| setting | this conversation |\n| --- | --- |\n"
        '| sticky | glm.2 |\n| disabled | eye |\n| stopMessage | "go on", 0 of 10 used |\n\n'
        "All keys are healthy."
    )
    assert "| `<**clear**>` |" in words(protocol, helping, stream=stream)
    assert world.requests == []


async def test_status_shows_nothing_that_was_forced_in_an_earlier_turn() -> None:
    async with steered() as world:
        await world.say("<**glm.2**> hi")
        status = await world.say(*turns("<**glm.2**> hi", "<**status**>"))
    assert "force" not in words("chat", status, stream=False)


@streams
@protocols
async def test_what_was_said_to_the_gateway_and_its_answer_are_left_out_later(
    protocol: str, stream: bool
) -> None:
    async with steered(protocol) as world:
        said = await world.say("<**!glm.2**>", stream=stream)
        own = words(protocol, said, stream=stream)
        steps: list[Step] = [("user", "<**!glm.2**>"), ("assistant", own), ("user", "hi")]
        await world.say(*steps, stream=stream)
        await world.say(*steps, ("assistant", "hello there"), ("user", "<**#eye**> more"), stream=stream)
        first, second = (conversation(protocol, request) for request in world.requests)
    assert first == as_told(protocol, ("user", "hi"))
    assert second == as_told(protocol, ("user", "hi"), ("assistant", "hello there"), ("user", " more"))


async def test_what_an_agent_adds_to_a_message_of_tags_is_no_word_of_the_person() -> None:
    """Claude Code puts the project's notes beside what was typed: they are needed later, the rest is not."""
    first = claude_code("auto", "<**!glm.2**>", stream=False)
    async with steered("messages") as world:
        said = await world.post(first, headers=CLAUDE_HEADERS)
        assert words("messages", said, stream=False) == (
            "[RouteCodex] set for this conversation:\n- sticky: glm.2"
        )
        assert (world.requests, await world.state(SESSION)) == ([], {"sticky": "glm.2"})
        own = {"role": "assistant", "content": said.json["content"]}
        messages = [*first["messages"], own, {"role": "user", "content": "hi"}]
        await world.post({**first, "messages": messages}, headers=CLAUDE_HEADERS)
        notes = {**first["messages"][0]["content"][0], "cache_control": {"type": "ephemeral"}}
        assert world.requests[0].json["messages"] == [
            {"role": "user", "content": [notes]},
            {"role": "user", "content": "hi"},
        ]


async def test_what_an_agent_says_after_a_message_of_tags_is_no_word_of_the_person() -> None:
    reminder = "<system-reminder>mind the notes</system-reminder>"
    async with steered() as world:
        answer = await world.say("<**!glm.2**>", reminder)
        assert (target(answer), world.requests) == ("gateway", [])
        own = ("assistant", words("chat", answer, stream=False))
        await world.say("<**!glm.2**>", reminder, own, "hi")
        expected = as_told("chat", ("user", reminder), ("user", "hi"))
        assert conversation("chat", world.requests[0]) == expected


async def test_a_reminder_that_comes_and_goes_makes_no_new_message() -> None:
    def parts(*texts: str) -> dict[str, Any]:
        content = [{"type": "text", "text": text} for text in texts]
        return {"model": "auto", "max_tokens": 9, "messages": [{"role": "user", "content": content}]}

    reminder = "<system-reminder>mind the notes</system-reminder>"
    async with steered("messages") as world:
        await world.post(parts("<**!glm.2**> hi"))
        await world.operate(session="s-1", clear=True)
        await world.post(parts(reminder, "<**!glm.2**> hi"))
        assert (world.last, await world.state()) == (DEFAULT, {})


TITLE = "Summarize this coding conversation in under 50 characters"


@protocols
async def test_a_request_for_a_title_is_stripped_and_not_obeyed(protocol: str) -> None:
    async with steered(protocol) as world:
        await world.say("<**glm.2**> hi")
        before = await world.state()
        await world.say(("user", f"{TITLE}: <**!eye.seer**> hi"))
        assert (world.last, await world.state()) == (DEFAULT, before)
        assert b"<**" not in world.requests[1].body
        await world.say("<**glm.2**> hi", ("call", "Read", {"path": "f"}), ("result", "text"))
        assert world.last in AIR_B


async def test_a_title_for_a_message_of_tags_alone_costs_no_request() -> None:
    async with steered("messages") as world:
        answer = await world.say("<**!glm.2**>", system="You are a title generator")
        asking.check("messages", answer, stream=False)
        assert (world.requests, await world.state()) == ([], {})


async def test_an_unknown_response_that_a_provider_may_know_takes_no_instruction_away() -> None:
    async with steered("responses") as world:
        answer = await world.say("<**!glm.2**><**x x**> hi", previous_response_id="resp_of_the_provider")
        assert (answer.status, world.last in AIR_B, await world.state()) == (200, True, {"sticky": "glm.2"})
        assert told(answer)["notice"].count("ignored") == 1
        assert b"<**" not in world.requests[0].body


@pytest.mark.parametrize("protocol", ["chat", "messages", "gemini"])
async def test_tags_alone_are_confirmed_where_the_client_has_begun_the_answer(protocol: str) -> None:
    async with steered(protocol) as world:
        alone = await world.say("<**!glm.2**>", ("assistant", "{"))
        assert (target(alone), world.sent, await world.state()) == ("gateway", [], {"sticky": "glm.2"})
        await world.say("<**!glm.1**> hi", ("assistant", "<**#glm**> {"))
        assert conversation(protocol, world.requests[-1]) == as_told(
            protocol, ("user", " hi"), ("assistant", "<**#glm**> {")
        )
    assert world.last[0] == "key-glm-a"
