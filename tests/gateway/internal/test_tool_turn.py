"""The names under which server tools store the state of a session."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routecodex.gateway.context.identity import Scope, ScopeKind
from routecodex.gateway.internal.tool_turn import session_name

kinds: st.SearchStrategy[ScopeKind] = st.sampled_from(("session", "conversation", "chain"))
# Letters of prefixes and separators, so that one name comes close to another.
hostile = st.text(alphabet="client~:%7Easonvrtidh", max_size=16)
ids = hostile | st.builds("{}:{}".format, kinds, hostile) | st.builds("client~{}:{}".format, hostile, hostile)
scopes = st.builds(Scope, kinds, ids, hostile)


@given(one=scopes, other=scopes)
def test_no_scope_has_the_name_of_another(one: Scope, other: Scope) -> None:
    assert (session_name(one) == session_name(other)) == (one == other)


@pytest.mark.parametrize(
    ("scope", "name"),
    [
        (Scope("session", "s-1"), "s-1"),
        (Scope("session", "chain:1"), "session:chain:1"),
        (Scope("conversation", "c-1"), "conversation:c-1"),
        (Scope("session", "s-1", "laptop"), "client~laptop:s-1"),
        (Scope("chain", "r-1", "laptop"), "client~laptop:chain:r-1"),
        (Scope("session", "client~laptop:s-1"), "client~:client~laptop:s-1"),
        (Scope("request", "r-1", "laptop"), None),
    ],
)
def test_a_plain_session_is_stored_by_its_id(scope: Scope, name: str | None) -> None:
    assert session_name(scope) == name
