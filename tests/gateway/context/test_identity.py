"""The conversation of a request: every header and field that names it, and hostile ids."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routecodex.gateway.context.identity import (
    CONVERSATION_HEADERS,
    SESSION_HEADERS,
    Scope,
    ScopeKind,
    bounded_id,
    identify,
    session_of_user,
)
from routecodex.protocols.control_fields import ControlFields
from routecodex.stores.file_format import encode_name
from routecodex.stores.owned_keys import split_key

UUID = "6f0b3a52-4c1e-4b57-9d11-0a7c52f6b8aa"
OTHER = "c31ac7cf-56a7-4c0a-b363-2b726377687d"
HASH = "e56b97a3504ae3c04ad0332730777bf378fb75c9ecff9802c098717565372a90"
CLAUDE_USER = f'{{"device_id":"d1","account_uuid":"","session_id":"{UUID}"}}'
PROTOCOLS = ("chat", "messages", "responses", "gemini")


def scope_of(
    headers: dict[str, str] | None = None, *, protocol: str = "chat", chain: str | None = None, **fields: Any
) -> Scope:
    return identify(protocol, headers or {}, ControlFields(**fields), chain=chain, request_id="req-1")


@pytest.mark.parametrize("name", SESSION_HEADERS)
def test_every_session_header_names_a_session(name: str) -> None:
    assert scope_of({"user-agent": "x", name: UUID}) == Scope("session", UUID)


@pytest.mark.parametrize("name", CONVERSATION_HEADERS)
def test_every_conversation_header_names_a_conversation(name: str) -> None:
    assert scope_of({"user-agent": "x", name: UUID}) == Scope("conversation", UUID)


ORDER: list[tuple[dict[str, str], dict[str, str], Scope]] = [
    ({}, {"session_id": "s1"}, Scope("session", "s1")),
    ({"x-session-id": "s2"}, {}, Scope("session", "s2")),
    ({}, {"user_id": f"user_{HASH}_account__session_{UUID}"}, Scope("session", UUID)),
    ({}, {"prompt_cache_key": "s4"}, Scope("session", "s4")),
    ({}, {"conversation": "s5"}, Scope("session", "s5")),
    ({}, {"conversation_id": "c1"}, Scope("conversation", "c1")),
    ({"x-conversation-id": "c2"}, {}, Scope("conversation", "c2")),
]
"""The ways of a Responses request to be known, the first that applies first."""


@pytest.mark.parametrize("first", range(len(ORDER)))
def test_the_first_way_that_applies_counts(first: int) -> None:
    headers: dict[str, str] = {}
    fields: dict[str, str] = {}
    for more_headers, more_fields, _ in ORDER[first:]:
        headers |= more_headers
        fields |= more_fields
    assert scope_of(headers, protocol="responses", chain="r0", **fields) == ORDER[first][2]


def test_a_chain_of_responses_is_identified_by_its_first_request() -> None:
    first = scope_of(protocol="responses")
    later = identify("responses", {}, ControlFields(), chain="req-1", request_id="req-2")
    assert first == later == Scope("chain", "req-1")
    assert first.lasts


@pytest.mark.parametrize("protocol", ["chat", "messages", "gemini"])
def test_a_request_without_an_id_has_its_own_scope(protocol: str) -> None:
    scope = scope_of(protocol=protocol)
    assert scope == Scope("request", "req-1")
    assert not scope.lasts


@pytest.mark.parametrize("protocol", ["chat", "messages", "gemini"])
def test_a_cache_key_names_a_session_in_responses_only(protocol: str) -> None:
    scope = scope_of(protocol=protocol, prompt_cache_key="k", conversation="c", chain="r0")
    assert scope == Scope("request", "req-1")


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("blank", ["", " ", "\t \t", "\u00a0", "\u3000"])
def test_blank_fields_are_ignored(protocol: str, blank: str) -> None:
    on_the_wire = blank.encode().decode("latin-1")
    headers = dict.fromkeys(SESSION_HEADERS, on_the_wire) | {"x-conversation-id": "c1"}
    fields = {"session_id": blank, "user_id": blank, "prompt_cache_key": blank, "conversation": blank}
    assert scope_of(headers, protocol=protocol, **fields) == Scope("conversation", "c1")


CLIENTS: dict[str, tuple[dict[str, str], dict[str, str], Scope]] = {
    "Claude Code": (
        {"x-claude-code-session-id": UUID, "x-claude-code-agent-id": "agent-7", "x-app": "cli"},
        {"user_id": CLAUDE_USER},
        Scope("session", UUID),
    ),
    "Claude Code behind a proxy that drops its headers": (
        {},
        {"user_id": CLAUDE_USER},
        Scope("session", UUID),
    ),
    "older Claude Code": (
        {"x-app": "cli"},
        {"user_id": f"user_{HASH}_account_{OTHER}_session_{UUID}"},
        Scope("session", UUID),
    ),
    "Codex": (
        {"session-id": UUID, "thread-id": OTHER, "x-client-request-id": OTHER},
        {"prompt_cache_key": OTHER},
        Scope("session", UUID),
    ),
    "older Codex": (
        {"session_id": UUID, "conversation_id": UUID},
        {"prompt_cache_key": UUID},
        Scope("session", UUID),
    ),
    "pi": ({"session_id": UUID}, {"prompt_cache_key": UUID}, Scope("session", UUID)),
    "pi, without its headers": ({}, {"prompt_cache_key": UUID}, Scope("session", UUID)),
    "opencode": (
        {
            "x-session-affinity": "ses_5f3cab21ffeA",
            "x-session-id": "ses_5f3cab21ffeA",
            "x-parent-session-id": "ses_0",
        },
        {},
        Scope("session", "ses_0"),
    ),
    "opencode, the main conversation": (
        {"x-session-affinity": "ses_5f3cab21ffeA", "x-session-id": "ses_5f3cab21ffeA"},
        {},
        Scope("session", "ses_5f3cab21ffeA"),
    ),
    "a session in the path, before every other": (
        {":session": "my work", "x-session-id": "other"},
        {"session_id": "third"},
        Scope("session", "my work"),
    ),
    "opencode, as its own provider": (
        {"x-opencode-session": "ses_5f3cab21ffeA", "x-opencode-request": "msg_1"},
        {},
        Scope("session", "ses_5f3cab21ffeA"),
    ),
    "Crush": (
        {"x-session-id": "9d4e1e23bd5b7270", "x-session-affinity": "9d4e1e23bd5b7270"},
        {},
        Scope("session", "9d4e1e23bd5b7270"),
    ),
    "Roo Code": ({"session_id": UUID, "originator": "roo-code"}, {}, Scope("session", UUID)),
    "Cline": ({"x-task-id": "1760000000000"}, {}, Scope("session", "1760000000000")),
    "Qwen Code": ({}, {"session_id": UUID}, Scope("session", UUID)),
    "Open WebUI": ({"x-openwebui-chat-id": UUID}, {}, Scope("conversation", UUID)),
}


@pytest.mark.parametrize("client", CLIENTS)
def test_clients_are_identified_by_their_own_fields(client: str) -> None:
    headers, fields, scope = CLIENTS[client]
    assert scope_of(headers, protocol="responses", **fields) == scope


def test_gemini_cli_sends_no_id_and_gets_no_session() -> None:
    headers = {"user-agent": "GeminiCLI/0.50.0/gemini-3-pro", "x-goog-api-key": "k"}
    assert scope_of(headers, protocol="gemini") == Scope("request", "req-1")


USERS = {
    f"user_{HASH}_account__session_{UUID}": UUID,
    f"user_{HASH}_account_{OTHER}_session_{UUID.upper()}": UUID.upper(),
    f"session_{UUID}": UUID,
    f"user_session_{OTHER}_account__session_{UUID}": UUID,
    f"user_session_{UUID}_account_{OTHER}": UUID,
    f"session_{UUID}|more": UUID,
    "user_abc_account__session_0a1b-2c3d": "0a1b-2c3d",
    '{"device_id":"d","account_uuid":"","session_id":"s 1"}': "s 1",
    f'{{"session_id": "{UUID}", "more": [1, {{}}]}}': UUID,
    f'{{"session_id": 7, "note": "session_{UUID}"}}': UUID,
}
NO_SESSION = [
    None,
    "",
    "alice",
    f"user_{HASH}",
    f"user_{HASH}_account_{UUID}",
    UUID,
    f"obsession_{UUID}",
    "my_session_",
    "user_session_id",
    "user_session_token",
    "session_1",
    "{",
    "{}",
    "null",
    '{"session_id": null}',
    '{"session_id": "  "}',
    '{"session_id": {"id": "x"}}',
    '{"session": "abc123"}',
    '["session_id"]',
    "{" * 10_000,
    "[" * 10_000,
    "\udcff{",
    '{"session_id": "\udcff',
]


@pytest.mark.parametrize("user", USERS)
def test_a_user_id_may_name_the_session(user: str) -> None:
    assert session_of_user(user) == USERS[user]


@pytest.mark.parametrize("user", NO_SESSION)
def test_a_user_id_that_names_no_session_is_none(user: str | None) -> None:
    assert session_of_user(user) == ""
    assert scope_of(user_id=user) == Scope("request", "req-1")


HOSTILE = [
    "../../etc/passwd",
    "..",
    "/",
    "a/b\\c",
    "%2e%2e%2f",
    "A" * 10_240,
    "A" * 10_239 + "B",
    "abc",
    "ABC",
    "Abc",
    "a b",
    "a  b",
    "a\tb",
    "a\u00a0b",
    "a-b",
    "a_b",
    "a.b",
    "a\x00b",
    "a\x01b",
    "a\x7fb",
    "\x00",
    "session:abc",
    "conversation:abc",
    "会话-1",
    "é",
    "e\u0301",
    "\udce9",
    "a\udcffb",
    "a\udcfeb",
    "\ud83d\ude00",
    "\U0001f600",
    "hex~",
    "hex~edb3a9",
    "hex~hex~",
    "ntp-state",
    "-rf",
    "con",
    "null",
    "0",
]


def test_hostile_ids_stay_distinct_and_are_never_paths() -> None:
    scopes = [scope_of(session_id=value) for value in HOSTILE]
    scopes += [scope_of(conversation_id=value) for value in HOSTILE]
    names = {encode_name(scope.key) for scope in scopes}
    assert len(names) == len(scopes)
    assert not any("/" in name or name.startswith((".", "-")) for name in names)


@pytest.mark.parametrize("value", [value for value in HOSTILE if value.isascii()])
def test_an_id_is_kept_as_it_came(value: str) -> None:
    if value.startswith("hex~") or len(value) > 512:
        return
    assert scope_of(session_id=value) == scope_of({"x-session-id": value}) == Scope("session", value)


def test_white_space_around_an_id_is_not_part_of_it() -> None:
    assert scope_of({"x-session-id": " \tab c\t "}) == Scope("session", "ab c")


def test_an_id_in_a_header_is_the_same_one_in_the_body() -> None:
    on_the_wire = "会话-1".encode().decode("latin-1")
    assert (
        scope_of({"x-session-id": on_the_wire}) == scope_of(session_id="会话-1") == Scope("session", "会话-1")
    )


ids = st.text(
    alphabet=st.one_of(st.characters(), st.sampled_from("\ud800\udcff\udc80hex~:_0 ")), min_size=1
).filter(lambda text: text.strip(" \t") == text and text.strip())


@given(one=ids, other=ids)
def test_two_ids_have_two_keys_that_utf_8_can_carry(one: str, other: str) -> None:
    keys = [scope_of(session_id=value).key for value in (one, other)]
    assert (keys[0] == keys[1]) == (one == other)
    assert (encode_name(keys[0]) == encode_name(keys[1])) == (one == other)


wire = st.binary(min_size=1, max_size=12).filter(
    lambda raw: (
        raw.strip(b" \t") == raw and raw.decode("latin-1").strip() and raw.decode("utf-8", "replace").strip()
    )
)


@given(one=wire, other=wire)
def test_two_header_values_have_two_keys(one: bytes, other: bytes) -> None:
    keys = [scope_of({"session_id": value.decode("latin-1")}).key for value in (one, other)]
    assert (keys[0] == keys[1]) == (one == other)
    assert all(key.startswith("session:") and encode_name(key) for key in keys)


kinds: st.SearchStrategy[ScopeKind] = st.sampled_from(("session", "conversation", "chain", "request"))


@given(one=kinds, other=kinds, id=st.text(), other_id=st.text())
def test_scopes_of_different_kinds_have_different_keys(
    one: ScopeKind, other: ScopeKind, id: str, other_id: str
) -> None:
    assert (Scope(one, id).key == Scope(other, other_id).key) == ((one, id) == (other, other_id))


# Letters of prefixes and separators, so that one pair comes close to another.
hostile = st.text(alphabet="client~:%7Eason \u00e9", max_size=16) | st.text(max_size=4)
scopes = st.builds(Scope, kinds, hostile, hostile)


@given(one=scopes, other=scopes)
def test_no_client_and_id_make_the_key_of_another_pair(one: Scope, other: Scope) -> None:
    same = (one.kind, one.id, one.owner) == (other.kind, other.id, other.owner)
    assert (one.key == other.key) == (one == other) == same
    assert split_key(one.key) == (one.owner, one.name)


def test_a_scope_without_an_owner_has_the_plain_key() -> None:
    scope = scope_of({"x-session-id": "s-1"})
    assert (scope.key, scope.name, scope.owner) == ("session:s-1", "session:s-1", "")
    owned = Scope("session", "s-1", "a b:c")
    assert (owned.key, owned.name) == ("client~a%20b%3Ac:session:s-1", "session:s-1")


@given(text=st.text(alphabet="session_ {}\"':-0aF"))
def test_any_user_id_can_be_read(text: str) -> None:
    assert session_of_user(text) in text


def test_a_very_long_id_is_stored_as_its_hash() -> None:
    long = "x" * 30_000
    scope = scope_of(session_id=long)
    assert scope == scope_of({"x-session-id": long}) == Scope("session", bounded_id(long))
    assert (len(scope.id), scope.id[:5], bounded_id(scope.id)) == (69, "hash~", scope.id)
    assert len({scope_of(session_id=long + end).id for end in ("", "y", "Y", "\udcff")}) == 4


def test_the_hash_of_a_long_id_does_not_open_its_session() -> None:
    long = "x" * 30_000
    assert scope_of(session_id=bounded_id(long)) != scope_of(session_id=long)
