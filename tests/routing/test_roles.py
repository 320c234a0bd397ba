from __future__ import annotations

import json

import pytest

from routecodex.routing.request_role import MAIN, RequestRole
from routecodex.routing.roles import ROLE_OPENINGS, RoleTable, role_by_headers

CODEX = "x-codex-turn-metadata"


def turn(**fields: str) -> str:
    return json.dumps(fields)


HEADERS: list[tuple[dict[str, str], RequestRole]] = [
    ({}, MAIN),
    ({"user-agent": "x", "x-claude-1p-request-class": "summary-extraction"}, MAIN),
    (
        {"x-claude-code-request-class": "main", "x-claude-code-prompt-id": "p-1"},
        RequestRole("main", "header x-claude-code-request-class: main", turn="p-1"),
    ),
    (
        {"x-claude-code-request-class": "subagent", "x-claude-code-agent-id": "a-1"},
        RequestRole("subagent", "header x-claude-code-request-class: subagent", agent="a-1"),
    ),
    (
        {"x-claude-code-request-class": "workflow"},
        RequestRole("subagent", "header x-claude-code-request-class: workflow"),
    ),
    (
        {"x-claude-code-agent-id": "a-1", "x-claude-code-prompt-id": "p-1"},
        RequestRole("subagent", "header x-claude-code-agent-id", agent="a-1", turn="p-1"),
    ),
    (
        {"x-claude-code-request-class": "compaction"},
        RequestRole("compaction", "header x-claude-code-request-class: compaction"),
    ),
    (
        {"x-claude-code-request-class": "main", "x-claude-code-compaction": "manual"},
        RequestRole("compaction", "header x-claude-code-compaction"),
    ),
    ({"x-claude-code-context-compacted": "manual"}, MAIN),
    (
        {"x-claude-code-request-class": "auxiliary"},
        RequestRole("utility", "header x-claude-code-request-class: auxiliary"),
    ),
    (
        {"x-claude-code-request-class": "side_reply"},
        RequestRole("utility", "header x-claude-code-request-class: side_reply"),
    ),
    ({"x-claude-code-request-class": "something new"}, MAIN),
    (
        {CODEX: turn(request_kind="turn", thread_source="user", turn_id="t-1")},
        RequestRole("main", "request_kind turn", turn="t-1"),
    ),
    (
        {CODEX: turn(request_kind="turn", thread_source="subagent"), "thread-id": "th-1"},
        RequestRole("subagent", "thread_source subagent", agent="th-1"),
    ),
    (
        {"x-openai-subagent": "collab_spawn", "thread-id": "th-1"},
        RequestRole("subagent", "header x-openai-subagent: collab_spawn", agent="th-1"),
    ),
    ({"x-openai-subagent": "review"}, RequestRole("subagent", "header x-openai-subagent: review")),
    ({"x-codex-parent-thread-id": "th-0"}, RequestRole("subagent", "header x-codex-parent-thread-id")),
    (
        {CODEX: turn(request_kind="compaction", thread_source="subagent")},
        RequestRole("compaction", "request_kind compaction"),
    ),
    ({"x-openai-subagent": "compact"}, RequestRole("compaction", "header x-openai-subagent: compact")),
    ({CODEX: turn(request_kind="memory")}, RequestRole("utility", "request_kind memory")),
    ({CODEX: turn(request_kind="prewarm")}, RequestRole("utility", "request_kind prewarm")),
    (
        {"x-openai-subagent": "memory_consolidation"},
        RequestRole("utility", "header x-openai-subagent: memory_consolidation"),
    ),
    ({CODEX: "{ not JSON"}, MAIN),
    ({CODEX: '{"turn_id": 3}'}, MAIN),
    ({CODEX: "[]"}, MAIN),
    (
        {CODEX: '{"request_kind": "memory", "turn_id": null, "thread_source": 3}'},
        RequestRole("utility", "request_kind memory"),
    ),
    (
        {"x-claude-code-request-class": "main", "x-claude-code-agent-id": "a-1"},
        RequestRole("subagent", "header x-claude-code-agent-id", agent="a-1"),
    ),
    (
        {"x-claude-code-parent-agent-id": "a-0"},
        RequestRole("subagent", "header x-claude-code-parent-agent-id"),
    ),
    ({"x-claude-code-agent-type": "Explore"}, RequestRole("subagent", "header x-claude-code-agent-type")),
    ({"x-claude-code-compaction": ""}, RequestRole("compaction", "header x-claude-code-compaction")),
    (
        {"x-parent-session-id": "ses_0", "x-session-id": "ses_1"},
        RequestRole("subagent", "header x-parent-session-id", agent="ses_1"),
    ),
    (
        {"x-routecodex-role": " Compaction ", "x-claude-code-request-class": "main"},
        RequestRole("compaction", "header x-routecodex-role"),
    ),
    ({"x-routecodex-role": "boss"}, MAIN),
]


@pytest.mark.parametrize(("headers", "role"), HEADERS)
def test_a_header_shows_the_role(headers: dict[str, str], role: RequestRole) -> None:
    assert role_by_headers(headers, named=None, metadata=None) == role


def test_codex_names_the_turn_in_its_body_too() -> None:
    role = role_by_headers({}, named=None, metadata=turn(request_kind="compaction", turn_id="t"))
    assert role == RequestRole("compaction", "request_kind compaction", turn="t")


def test_a_host_names_the_role_in_metadata() -> None:
    headers = {"x-claude-code-request-class": "main"}
    assert role_by_headers(headers, named="utility", metadata=None).name == "utility"


@pytest.mark.parametrize("row", ROLE_OPENINGS, ids=lambda row: f"{row.client}: {row.text[:30]}")
def test_an_opening_shows_the_role_in_its_place(row: object) -> None:
    assert isinstance(row, tuple)
    table = RoleTable()
    _, role, place, text, _ = row
    found = {
        "system": table.by_system(f"\n  {text} and so on"),
        "user": table.by_user(f"\n  {text.upper()} and so on"),
    }
    for where, opening in found.items():
        if place in (where, "any"):
            assert opening is not None
            assert opening.role == role
    assert table.by_user(f"I quote: {text}") is None
    assert table.by_system(f"I quote: {text}") is None


@pytest.mark.parametrize(
    "text",
    [
        "You are a helpful assistant.",
        "You are Claude Code, Anthropic's official CLI for Claude.",
        "You are Codex, a coding agent.",
        "You are opencode, an agent",
        "Write a title for my blog",
        "Summarize this file",
        "quota",
        "",
    ],
)
def test_ordinary_texts_show_no_role(text: str) -> None:
    assert RoleTable().by_system(text) is None
    assert RoleTable().by_user(text) is None


def test_openings_of_the_configuration_add_to_the_table() -> None:
    table = RoleTable(compactions=("Sum it up", " "), utilities=("name THIS chat",))
    compaction, utility = table.by_user("SUM IT UP now"), table.by_system("Name this chat please")
    assert compaction is not None
    assert compaction.role == "compaction"
    assert utility is not None
    assert utility.role == "utility"
    assert table.by_user("CRITICAL: Respond with TEXT ONLY. Do NOT call any tools.") is not None
    assert table.by_user("hello") is None
