"""One session, several conversations: roles of requests over HTTP."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.process import serve
from tests.gateway.clock_gateway import admin_call, clock_gateway
from tests.gateway.continuation_gateway import (
    SET_STOP_MESSAGE,
    GatewayHarness,
    configuration,
    file_store_gateway,
    message_texts,
    stored_uses,
)
from tests.gateway.instruction_gateway import (
    DEFAULT_TARGET,
    OPERATOR,
    PROTOCOLS,
    SESSION_HEADER,
    instruction_gateway,
    routing_headers,
    user_turns,
)
from tests.kit import asking
from tests.kit.raw_client import Answer, call
from tests.kit.upstream import Upstream
from tests.routing.instruction_texts import Step

protocols = pytest.mark.parametrize("protocol", PROTOCOLS)
streams = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])

ROLES = {"role": "x-routecodex-role"}
ROLE_HEADERS = {
    "subagent": {"x-claude-code-agent-id": "agent-1"},
    "utility": {"x-claude-code-request-class": "auxiliary"},
    "compaction": {"x-claude-code-compaction": "manual"},
}
other_roles = pytest.mark.parametrize("role", ROLE_HEADERS)
COMPACTION = "CRITICAL: Respond with TEXT ONLY. Do NOT call any tools.\n\nSum up."
CONTINUED = "This session is being continued from a previous conversation that ran out of context. Summary: …"
JSON_OUTPUT: dict[str, dict[str, Any]] = {
    "chat": {"response_format": {"type": "json_object"}},
    "responses": {"text": {"format": {"type": "json_object"}}},
    "messages": {"output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}}},
    "gemini": {
        "generationConfig": {"responseMimeType": "application/json", "responseSchema": {"type": "OBJECT"}}
    },
}


def role_of(answer: Answer) -> str:
    return answer.headers["x-routecodex-role"]


def in_role(role: str) -> dict[str, str]:
    return {**SESSION_HEADER, **ROLE_HEADERS[role]}


@protocols
@streams
async def test_the_role_is_in_a_header(protocol: str, stream: bool) -> None:
    async with instruction_gateway(protocol) as harness:
        assert role_of(await harness.send("hello", stream=stream)) == "main"
        for role in ROLE_HEADERS:
            assert role_of(await harness.send("hello", stream=stream, headers=in_role(role))) == role


@protocols
async def test_an_opening_shows_the_role(protocol: str) -> None:
    async with instruction_gateway(protocol) as harness:
        assert role_of(await harness.send(COMPACTION)) == "compaction"
        assert role_of(await harness.send(*user_turns("hello", COMPACTION))) == "compaction"
        assert role_of(await harness.send(*user_turns(COMPACTION, "hello"))) == "main"
        assert role_of(await harness.send(f"They said: {COMPACTION}")) == "main"
        assert role_of(await harness.send("hello", system="You are a title generator.")) == "utility"
        assert role_of(await harness.send("hello", system="You are an agent.")) == "main"


@protocols
@pytest.mark.parametrize("before", ["\n\n", "  \t", "\ufeff"])
async def test_an_opening_behind_white_space_shows_the_role(protocol: str, before: str) -> None:
    async with instruction_gateway(protocol) as harness:
        assert role_of(await harness.send(f"{before}{COMPACTION}{'y' * 300}")) == "compaction"
        system = f"{before}You are a title generator. {'y' * 300}"
        assert role_of(await harness.send("hello", system=system)) == "utility"
        long = f"{before}This session is being continued from a previous conversation <**!glm.2**>"
        await harness.send(long)
        assert await harness.session_state() == {}


@pytest.mark.parametrize("protocol", ["chat", "messages"])
async def test_an_opening_with_escapes_shows_the_role(protocol: str) -> None:
    text = f"<system-reminder>This is a side question from the user. {'y' * 300}"
    async with instruction_gateway(protocol) as harness:
        body = asking.body(protocol, text, stream=False)
        escaped = json.dumps(body).replace("<", "\\u003c").encode()
        assert b"\\u003c" in escaped
        assert role_of(await harness.post(escaped)) == "utility"


async def test_an_opening_behind_a_tool_result_shows_the_role() -> None:
    async with instruction_gateway("messages") as harness:
        use = {"type": "tool_use", "id": "t", "name": "Read", "input": {}}
        result = {"type": "tool_result", "tool_use_id": "t", "content": "done"}
        body = {
            "model": "auto",
            "max_tokens": 9,
            "messages": [
                {"role": "user", "content": "read it"},
                {"role": "assistant", "content": [use]},
                {"role": "user", "content": [result, {"type": "text", "text": COMPACTION}]},
            ],
        }
        assert role_of(await harness.post(body)) == "compaction"


async def test_a_quota_check_is_utility_and_the_word_alone_is_not() -> None:
    async with instruction_gateway("messages") as harness:
        body = {"model": "auto", "max_tokens": 1, "messages": [{"role": "user", "content": "quota"}]}
        assert role_of(await harness.post(body)) == "utility"
        assert role_of(await harness.post(body | {"max_tokens": 2})) == "main"


async def test_a_page_digest_is_utility_only_without_tools() -> None:
    async with instruction_gateway("chat") as harness:
        body = asking.body("chat", "Web page content:\n---\nhello", stream=False)
        assert role_of(await harness.post(body)) == "utility"
        tools = asking.body("chat", "Web page content:\n---\nhello", stream=False, tools=True)
        assert role_of(await harness.post(tools)) == "main"


async def test_a_compaction_trigger_shows_the_role() -> None:
    async with instruction_gateway("responses", upstream="chat") as harness:
        items: list[dict[str, Any]] = [{"role": "user", "content": "hi"}]
        trigger = {"type": "compaction_trigger"}
        metadata = {"x-codex-turn-metadata": json.dumps({"request_kind": "compaction"})}
        answer = await harness.post({"model": "auto", "input": items, "client_metadata": metadata})
        assert role_of(answer) == "compaction"
        headers = {"x-codex-turn-metadata": json.dumps({"request_kind": "turn"})}
        answer = await harness.post({"model": "auto", "input": items}, headers=headers)
        assert role_of(answer) == "main"
        explained = await call(
            harness.gateway.port,
            "/admin/explain",
            {"protocol": "responses", "body": {"model": "auto", "input": [*items, trigger]}},
            headers=OPERATOR,
        )
        assert (explained.json["role"], explained.json["role_signal"]) == (
            "compaction",
            "an item compaction_trigger",
        )


async def test_a_sub_agent_of_gemini_cli_is_known_by_its_tool() -> None:
    cli = {**SESSION_HEADER, "user-agent": "GeminiCLI/0.61.0/gemini-3 (linux; x64)"}
    async with instruction_gateway("gemini") as harness:
        assert role_of(await harness.send("do it", tools=("complete_task",), headers=cli)) == "subagent"
        assert role_of(await harness.send("complete_task", tools=("other",), headers=cli)) == "main"
        assert role_of(await harness.send("do it", tools=("complete_task",))) == "main"


@protocols
async def test_an_error_has_the_role_too(protocol: str) -> None:
    async with instruction_gateway(protocol) as harness:
        answer = await harness.send("hello", headers=in_role("compaction"), model="glm.nothing")
        assert (answer.status, role_of(answer)) == (404, "compaction")


@protocols
async def test_a_host_names_the_role(protocol: str) -> None:
    async with instruction_gateway(protocol) as harness:
        answer = await harness.send("hello", metadata={"role": "utility", "kept": "yes"})
        assert role_of(answer) == "utility"
        assert b'"utility"' not in harness.requests[-1].body
        answer = await harness.send("hello", metadata={"role": "admin"})
        assert role_of(answer) == "main"
        headers = {**SESSION_HEADER, "x-routecodex-role": "subagent"}
        assert role_of(await harness.send("hello", headers=headers)) == "subagent"


async def test_role_and_agent_are_in_the_request_log(tmp_path: Path) -> None:
    async with Upstream() as upstream:
        harness = GatewayHarness("chat", "chat", tmp_path / "state", upstream)
        harness.script_texts(then="part ")
        text = configuration(harness).replace("[server]\n", '[server]\nadmin_token = "operator"\n')
        async with serve(tmp_path, text) as process:
            harness.port = await process.port()
            await harness.send("hello", headers=in_role("subagent"))
            await harness.send("hello")
            rows = (await admin_call(harness, "requests"))["requests"]
    assert sorted((row["role"], row.get("agent")) for row in rows) == [
        ("main", None),
        ("subagent", "agent-1"),
    ]


@protocols
@streams
@other_roles
async def test_a_tag_in_another_role_is_stripped_and_not_applied(
    protocol: str, stream: bool, role: str
) -> None:
    async with instruction_gateway(protocol) as harness:
        answer = await harness.send("<**!glm.2**> hello", stream=stream, headers=in_role(role))
        assert routing_headers(answer)["notice"] == f"instruction ignored: role {role}"
        assert await harness.session_state() == {}
        assert b"<**" not in harness.requests[-1].body
        assert b"hello" in harness.requests[-1].body


@protocols
@other_roles
async def test_routing_state_of_the_session_holds_in_every_role(protocol: str, role: str) -> None:
    async with instruction_gateway(protocol) as harness:
        await harness.send("<**!glm.glm-4.7**> hello")
        await harness.send("hello", headers=in_role(role))
        assert harness.last_target[1] == "glm-4.7"


@protocols
@streams
@other_roles
async def test_stop_message_does_not_continue_another_role(
    tmp_path: Path, protocol: str, stream: bool, role: str
) -> None:
    async with file_store_gateway(protocol, tmp_path) as harness:
        harness.script_texts(then="part ")
        await harness.send('<**stopMessage:"go on",2**>')
        other = await harness.send("sum up", stream=stream, headers=in_role(role))
        assert harness.answer_text(other, stream=stream) == "part 0"
        assert stored_uses(tmp_path) == 0
        main = await harness.send("hello", stream=stream)
        assert harness.answer_text(main, stream=stream) == "part 1\n\npart 2\n\npart 3"
        assert stored_uses(tmp_path) == 2


@protocols
async def test_structured_output_is_not_continued(tmp_path: Path, protocol: str) -> None:
    async with file_store_gateway(protocol, tmp_path) as harness:
        harness.script_texts('{"a":1}', then="part ")
        await harness.send('<**stopMessage:"go on",2**>')
        answer = await harness.send(
            body=asking.body(protocol, "as JSON", stream=False) | JSON_OUTPUT[protocol]
        )
        assert harness.answer_text(answer, stream=False) == '{"a":1}'
        assert routing_headers(answer)["notice"] == "stopMessage skipped: structured_output"
        assert stored_uses(tmp_path) == 0


@other_roles
async def test_the_clock_is_only_in_the_main_conversation(tmp_path: Path, role: str) -> None:
    async with clock_gateway("chat", tmp_path) as harness:
        harness.script_texts(then="part ")
        await harness.send("hello", headers=in_role(role))
        await harness.send("hello")
        other, main = harness.upstream.requests
        assert "tools" not in other.json
        assert [message["content"] for message in other.json["messages"]] == ["hello"]
        assert main.json["tools"][0]["function"]["name"] == "clock"


async def test_sub_agents_can_have_the_clock(tmp_path: Path) -> None:
    async with clock_gateway("chat", tmp_path, clock="subagents = true\n") as harness:
        harness.script_texts(then="part ")
        await harness.send("hello", headers=in_role("subagent"))
        assert harness.upstream.requests[-1].json["tools"][0]["function"]["name"] == "clock"


ROUTES = """
background = ["glm.air"]
subagent = ["glm.glm-4.7"]
compaction = ["spare.one"]
"""


@protocols
async def test_roles_take_their_routes(protocol: str) -> None:
    async with instruction_gateway(protocol, routes=ROUTES) as harness:
        seen = {}
        for role in ROLE_HEADERS:
            await harness.send("hello", headers=in_role(role))
            seen[role] = harness.last_target[1]
        assert seen == {"subagent": "glm-4.7", "utility": "air", "compaction": "one"}
        await harness.send("hello")
        assert harness.last_target == DEFAULT_TARGET


async def test_a_compaction_without_a_route_is_never_sent_to_background() -> None:
    async with instruction_gateway("chat", routes='background = ["glm.air"]\n') as harness:
        await harness.send("hello", headers=in_role("compaction"))
        assert harness.last_target == DEFAULT_TARGET
        await harness.send("hello", headers=in_role("subagent"))
        assert harness.last_target == DEFAULT_TARGET


@protocols
async def test_sub_agents_have_settings_of_their_own(protocol: str) -> None:
    async with instruction_gateway(protocol) as harness:
        await harness.send("<**!glm.air**><**agents:!glm.glm-4.7**> hello")
        assert await harness.session_state() == {
            "sticky": "glm.air",
            "agents": {"sticky": "glm.glm-4.7", "allow": [], "disable": []},
        }
        assert harness.last_target[1] == "air"
        await harness.send("hello", headers=in_role("subagent"))
        assert harness.last_target[1] == "glm-4.7"
        await harness.send(
            *user_turns("<**!glm.air**><**agents:!glm.glm-4.7**> hello", "<**agents:clear**> a")
        )
        await harness.send("hello", headers=in_role("subagent"))
        assert harness.last_target[1] == "air"
        assert await harness.session_state() == {"sticky": "glm.air"}


async def test_explain_shows_the_settings_of_sub_agents() -> None:
    async with instruction_gateway("chat") as harness:
        await harness.send("<**agents:!glm.glm-4.7**> hello")
        body = {"model": "auto", "messages": [{"role": "user", "content": "hello"}]}
        explained = await call(
            harness.gateway.port,
            "/admin/explain",
            {"protocol": "chat", "body": body, "headers": in_role("subagent")},
            headers=OPERATOR,
        )
        assert explained.json["agents"] == {"sticky": "glm.glm-4.7", "allow": [], "disable": []}
        assert {step["target"] for step in explained.json["steps"]} == {"glm.a.glm-4.7", "glm.b.glm-4.7"}


async def test_disabled_targets_of_sub_agents_add_to_those_of_the_session() -> None:
    async with instruction_gateway("chat") as harness:
        await harness.send("<**#gpt.1**><**agents:#gpt.2**> hello")
        assert harness.last_target == ("key-gpt-2", "gpt-5.2")
        await harness.send("hello", headers=in_role("subagent"))
        assert harness.last_target[1] == "air"
        answer = await harness.send("<**agents:#nobody**> hello")
        assert answer.status == 404
        await harness.send("<**clear**> hi")
        assert await harness.session_state() == {}


async def test_the_status_shows_the_settings_of_sub_agents() -> None:
    async with instruction_gateway("chat") as harness:
        await harness.send("<**agents:!glm.glm-4.7**>")
        answer = await harness.send("<**status**>")
        assert "| sub-agents sticky | glm.glm-4.7 |" in answer.json["choices"][0]["message"]["content"]


@protocols
async def test_a_tagged_message_is_not_applied_again_when_the_history_gets_shorter(protocol: str) -> None:
    first, second = "<**!glm.glm-4.7**> one", "<**!glm.air**> two"
    async with instruction_gateway(protocol) as harness:
        await harness.send(first)
        await harness.send(*user_turns(first, second))
        assert (await harness.session_state())["sticky"] == "glm.air"
        await harness.send(second)
        await harness.send(first)
        await harness.send(*user_turns("an edited message", first))
        assert (await harness.session_state())["sticky"] == "glm.air"


@protocols
async def test_the_same_text_in_a_new_turn_is_applied_again(protocol: str) -> None:
    tagged = "<**!glm.glm-4.7**> again"
    async with instruction_gateway(protocol) as harness:
        await harness.send(tagged)
        await harness.send(*user_turns(tagged, "<**clear**> other"))
        assert await harness.session_state() == {}
        await harness.send(*user_turns(tagged, "<**clear**> other", tagged))
        assert (await harness.session_state())["sticky"] == "glm.glm-4.7"


async def test_a_turn_that_the_client_names_decides_whether_a_message_is_new() -> None:
    tagged = "<**!glm.glm-4.7**> again"

    async def send(prompt: str, *steps: Step | str) -> None:
        await harness.send(*steps, headers={**SESSION_HEADER, "x-claude-code-prompt-id": prompt})

    async with instruction_gateway("messages") as harness:
        await send("p-1", tagged)
        await send("p-2", "<**clear**> other")
        await send("p-1", tagged)
        assert await harness.session_state() == {}
        await send("p-3", tagged)
        assert (await harness.session_state())["sticky"] == "glm.glm-4.7"


@protocols
async def test_a_message_of_the_client_behind_it_does_not_apply_it_again(protocol: str) -> None:
    tagged = "<**!glm.glm-4.7**> go"
    notification = (
        "<system-reminder>[SYSTEM NOTIFICATION] <task-notification>a</task-notification></system-reminder>"
    )
    async with instruction_gateway(protocol) as harness:
        await harness.send(tagged, headers={**SESSION_HEADER, "x-claude-code-prompt-id": "p-1"})
        await harness.change_routing(session="s-1", clear=True)
        await harness.send(
            *user_turns(tagged, notification), headers={**SESSION_HEADER, "x-claude-code-prompt-id": "p-2"}
        )
        await harness.send(*user_turns(tagged, CONTINUED))
        assert await harness.session_state() == {}


@protocols
async def test_the_same_text_in_a_new_turn_acts_with_a_message_of_the_client_behind_it(protocol: str) -> None:
    tagged, reminder = "<**!glm.air**> do it", "<system-reminder>x</system-reminder>"
    async with instruction_gateway(protocol) as harness:
        await harness.send(tagged, headers={**SESSION_HEADER, "x-claude-code-prompt-id": "1"})
        await harness.change_routing(session="s-1", clear=True)
        steps = [*user_turns(tagged, tagged), ("user", reminder)]
        await harness.send(*steps, headers={**SESSION_HEADER, "x-claude-code-prompt-id": "2"})
        assert (await harness.session_state())["sticky"] == "glm.air"


@protocols
async def test_a_forced_target_stays_while_the_client_speaks_for_the_user(protocol: str) -> None:
    tagged = "<**glm.glm-4.7**> go"
    async with instruction_gateway(protocol) as harness:
        await harness.send(tagged)
        for steps in (
            user_turns(tagged, CONTINUED),
            user_turns(CONTINUED),
            user_turns(tagged, COMPACTION),
            user_turns(CONTINUED, "<system-reminder>mind</system-reminder>"),
        ):
            await harness.send(*steps)
            assert harness.last_target[1] == "glm-4.7", steps
        await harness.send(*user_turns(tagged, "something else"))
        assert harness.last_target == DEFAULT_TARGET


@protocols
async def test_tags_quoted_in_a_summary_do_not_act(protocol: str) -> None:
    async with instruction_gateway(protocol) as harness:
        answer = await harness.send(f"{CONTINUED} The user wrote <**!glm.glm-4.7**> once.")
        assert routing_headers(answer)["notice"] == "instruction ignored: quoted"
        assert await harness.session_state() == {}
        assert b"<**" not in harness.requests[-1].body


@protocols
@streams
async def test_a_reply_of_the_gateway_never_reaches_a_provider(protocol: str, stream: bool) -> None:
    async with instruction_gateway(protocol) as harness:
        answer = await harness.send("<**!glm.2**>", stream=stream)
        own = ("assistant", "[RouteCodex] set for this conversation:\n- sticky: glm.2")
        assert answer.status == 200
        await harness.send("<**!glm.2**>", own, "hi", stream=stream)
        await harness.send(CONTINUED, own, "hi", stream=stream)
        await harness.send("<**!glm.2**>", own, COMPACTION, stream=stream)
        assert len(harness.requests) == 3
        assert [b"RouteCodex]" in request.body for request in harness.requests] == [False] * 3


@protocols
@pytest.mark.parametrize("headers", [SESSION_HEADER, {}], ids=["session", "no-session"])
async def test_a_status_reply_never_reaches_a_provider_after_a_compaction(
    protocol: str, headers: dict[str, str]
) -> None:
    async with instruction_gateway(protocol) as harness:
        await harness.send("<**status**>", headers=headers)
        for own in ("[RouteCodex] status of s-1\n\nAll keys are healthy.", "\n[RouteCodex] nothing is set."):
            await harness.send(CONTINUED, ("assistant", own), "hi", headers=headers)
            assert b"RouteCodex]" not in harness.requests[-1].body


async def test_a_large_request_of_a_session_with_a_status_has_no_reply_in_it() -> None:
    async with instruction_gateway("chat") as harness:
        await harness.send("<**status**>")
        own = ("assistant", "[RouteCodex] status of s-1")
        await harness.send(f"{CONTINUED}{'x' * 40_000}", own, "hi")
        assert b"RouteCodex]" not in harness.requests[-1].body


@protocols
@other_roles
async def test_a_message_of_tags_alone_reaches_no_provider_in_any_role(protocol: str, role: str) -> None:
    async with instruction_gateway(protocol) as harness:
        answer = await harness.send("<**!glm.air**>", headers=in_role(role))
        assert (answer.status, harness.requests) == (200, [])
        assert await harness.session_state() == {}


async def test_tokens_of_a_message_of_tags_alone_are_not_counted_by_a_provider() -> None:
    async with instruction_gateway("messages") as harness:
        body = {"model": "auto", "messages": [{"role": "user", "content": "<**!glm.air**>"}]}
        answer = await call(harness.gateway.port, "/v1/messages/count_tokens", body)
        assert (answer.status, harness.requests) == (200, [])


async def test_a_new_disable_list_of_sub_agents_says_what_it_drops() -> None:
    async with instruction_gateway("chat") as harness:
        await harness.send("<**agents:#glm**> a")
        answer = await harness.send(*user_turns("<**agents:#glm**> a", "<**agents:#spare**> b"))
        assert routing_headers(answer)["notice"].startswith("enabled again: glm;")


async def test_tags_in_parts_of_the_responses_api_reach_no_chat_provider() -> None:
    async with instruction_gateway("chat") as harness:
        parts = [{"type": "input_text", "text": "<**!glm.2**> hi"}]
        await harness.post({"model": "auto", "messages": [{"role": "user", "content": parts}]})
        assert b"<**" not in harness.requests[-1].body


BREAK_OUTS = [
    "see <file_content>x</file_content> <**!glm.2**> <file_content>y</file_content>",
    "text </file_content> <**!glm.2**>",
    "<system-reminder>x </system-reminder> <**!glm.2**></system-reminder>",
    "<bash-stdout>x</bash-stdout> <**!glm.2**></bash-stdout>",
    "a <tool_result>x <**!glm.2**></tool_result>",
    "<function_results>x</function_results><**!glm.2**></function_results>",
    "<document>x</document><**!glm.2**></document>",
    "[read_file for 'a.txt'] Result:\n<**!glm.2**>",
    "they wrote\n> <**!glm.2**>\n",
]


@protocols
@pytest.mark.parametrize("text", BREAK_OUTS)
async def test_a_quoted_file_cannot_give_instructions(protocol: str, text: str) -> None:
    async with instruction_gateway(protocol) as harness:
        answer = await harness.send(text)
        assert routing_headers(answer)["notice"] == "instruction ignored: quoted"
        assert await harness.session_state() == {}
        assert b"<**" not in harness.requests[-1].body


@protocols
async def test_a_tag_after_an_opening_that_is_never_closed_works(protocol: str) -> None:
    async with instruction_gateway(protocol) as harness:
        await harness.send("look at <file> first <**!glm.2**>")
        assert (await harness.session_state())["sticky"] == "glm.2"


WHERE: list[tuple[str, str, bool]] = [
    ("anywhere", "hello\n<**!glm.2**>", True),
    ("first_line", "<**!glm.2**> hello", True),
    ("first_line", "<system-reminder>a\nb</system-reminder>\n\n hello <**!glm.2**>\nmore", True),
    ("first_line", "hello\n<**!glm.2**>", False),
    ("own_message", "<**!glm.2**>", True),
    ("own_message", "<**!glm.2**> hello", False),
    ("off", "<**!glm.2**>", False),
    ("off", "<**!glm.2**> hello", False),
]


@protocols
@pytest.mark.parametrize(("where", "text", "acts"), WHERE)
async def test_the_configuration_narrows_where_tags_act(
    protocol: str, where: str, text: str, acts: bool
) -> None:
    async with instruction_gateway(protocol, more=f'[instructions]\nwhere = "{where}"\n') as harness:
        answer = await harness.send(text)
        assert (await harness.session_state()) == ({"sticky": "glm.2"} if acts else {})
        assert ("instruction ignored: where" in routing_headers(answer).get("notice", "")) is not acts
        assert all(b"<**" not in request.body for request in harness.requests)


async def test_opencode_puts_the_text_of_its_command_line_in_quotation_marks() -> None:
    async with instruction_gateway("chat") as harness:
        answer = await harness.send('"<**!glm.2**>"')
        assert answer.json["choices"][0]["message"]["content"].startswith("[RouteCodex] set for")
        assert harness.requests == []


@protocols
@streams
async def test_a_path_names_the_session(protocol: str, stream: bool) -> None:
    async with instruction_gateway(protocol) as harness:
        path = f"/s/my%2Fwork%20now{asking.path(protocol, stream=stream, model='auto')}"
        body = asking.body(protocol, "<**!glm.2**> hello", stream=stream)
        answer = await call(harness.gateway.port, path, body, headers=SESSION_HEADER)
        assert answer.status == 200
        assert await harness.session_state() == {}
        assert [row["id"] for row in await harness.stored_states()] == ["my/work now"]


async def test_every_endpoint_answers_below_a_session() -> None:
    async with instruction_gateway("messages") as harness:
        port = harness.gateway.port
        for method, path, status in (
            ("GET", "/s/x/v1/models", 200),
            ("GET", "/s/x/", 200),
            ("GET", "/s/x/health/live", 200),
            ("GET", "/s/x/nothing", 404),
            ("GET", f"/s/{'x' * 257}/v1/models", 400),
            ("GET", "/s//v1/models", 400),
            ("GET", "/s/%ff/v1/models", 400),
        ):
            assert (await call(port, path, method=method)).status == status, path
        body = {"model": "auto", "messages": [{"role": "user", "content": "a"}]}
        assert (await call(port, "/s/x/v1/messages/count_tokens", body)).status == 200


async def test_an_opencode_sub_agent_has_the_session_of_its_parent() -> None:
    async with instruction_gateway("chat") as harness:
        await harness.send("<**!glm.glm-4.7**> hello", headers={"x-session-id": "ses_0"})
        headers = {"x-session-id": "ses_1", "x-parent-session-id": "ses_0"}
        answer = await harness.send("hello", headers=headers)
        assert (role_of(answer), harness.last_target[1]) == ("subagent", "glm-4.7")


async def test_a_large_request_shows_its_role() -> None:
    filler: list[Step] = [("user", "x" * 40_000), ("assistant", "ok")]
    async with instruction_gateway("chat") as harness:
        assert role_of(await harness.send(*filler, COMPACTION)) == "compaction"
        assert role_of(await harness.send(*filler, "hello")) == "main"
        long = f"{COMPACTION}{'x' * 40_000}"
        assert role_of(await harness.send(*filler, long)) == "compaction"
        system = ("system", f"You are a title generator. {'x' * 40_000}")
        assert role_of(await harness.send(system, *filler, "hello")) == "utility"


async def test_the_stop_message_of_a_session_is_untouched_by_many_roles(tmp_path: Path) -> None:
    async with file_store_gateway("messages", tmp_path) as harness:
        harness.script_texts(then="part ")
        await _main_turn(harness, SET_STOP_MESSAGE.format(3), uses=3)
        for role in ROLE_HEADERS:
            await harness.send("hello", headers=in_role(role))
        assert message_texts("messages", harness.upstream.requests[-1]) == [("user", "hello")]
        assert stored_uses(tmp_path) == 3


async def _main_turn(harness: GatewayHarness, text: str, *, uses: int) -> None:
    answer = await harness.send(text)
    assert harness.answer_text(answer, stream=False).count("part") == uses + 1
