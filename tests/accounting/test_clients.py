"""The table of clients: whose a key is, what its client may do, and when it is refused."""

from __future__ import annotations

from typing import Any

import pytest

from routecodex.accounting.clients import (
    NO_CLIENTS,
    AllowRules,
    Client,
    ClientKey,
    ClientTable,
    StoredClient,
    StoredClients,
    build_table,
)
from routecodex.canon.errors import AccessDenied, ClientError, GatewayError, KeyRefused, Overloaded
from routecodex.config import AllowConfig, LimitConfig, key_digest, loads
from tests.config.checked import BASE

NOW = 1_800_000_000.0
LATER = NOW + 3600


def client(name: str = "a", **lines: str) -> str:
    rows = {"key": f'"key-of-{name}"', **lines}
    return f"[clients.{name}]\n" + "".join(f"{field} = {value}\n" for field, value in rows.items())


def table(text: str = "", *, server: str = "", stored: StoredClients | None = None) -> ClientTable:
    return build_table(loads(f"[server]\n{server}\n{BASE}{text}", environ={}), stored or StoredClients())


def stored(name: str = "s", **fields: Any) -> StoredClients:
    key = ClientKey(digest=key_digest(f"key-of-{name}"), prefix="rcx-abcd", created_at=NOW)
    return StoredClients(clients={name: StoredClient(**{"keys": (key,), "created_at": NOW, **fields})})


def known(found: Client | None) -> Client:
    assert found is not None
    return found


def refusal(clients: ClientTable, key: str, now: float = NOW) -> GatewayError:
    with pytest.raises(GatewayError) as caught:
        clients.authenticate(key, now)
    return caught.value


def test_without_clients_no_key_is_needed_and_any_is_accepted() -> None:
    clients = table()
    assert (clients.is_open, clients.authenticate("", NOW), clients.authenticate("x", NOW)) == (
        *(True, None, None),
    )
    assert NO_CLIENTS.is_open


def test_a_key_belongs_to_a_client_of_a_table_of_the_list_or_of_the_store() -> None:
    clients = table(client(), server='client_keys = [{ name = "l", key = "key-of-l" }]', stored=stored())
    found = [known(clients.authenticate(f"key-of-{name}", NOW)) for name in "als"]
    assert [(one.name, one.source) for one in found] == [("a", "file"), ("l", "file"), ("s", "store")]


def test_as_soon_as_there_is_a_client_every_request_needs_a_key() -> None:
    for clients in (table(client()), table(stored=stored())):
        assert not clients.is_open
        for key in ("", "wrong"):
            error = refusal(clients, key)
            assert isinstance(error, KeyRefused)
            assert (error.status, error.code, error.never_retry) == (401, "invalid_api_key", True)


def test_an_open_address_needs_a_key_even_when_the_last_client_is_gone() -> None:
    gone = StoredClients(revoked={key_digest("key-of-s"): "s"})
    config = loads(f'[server]\nhost = "0.0.0.0"\n{BASE}', environ={}, stored_clients=True)
    clients = build_table(config, gone)
    assert [refusal(clients, key).code for key in ("", "x", "key-of-s")] == [
        *("invalid_api_key", "invalid_api_key", "key_revoked"),
    ]


def test_requests_without_a_key_are_those_of_anonymous_and_a_wrong_key_is_not() -> None:
    clients = table("[clients.anonymous]\nrpm = 1\n" + client(blocked="true"))
    assert known(clients.authenticate("", NOW)).name == "anonymous"
    assert refusal(clients, "wrong").code == "invalid_api_key"
    assert refusal(clients, "key-of-a").code == "key_blocked"


def test_anonymous_can_be_blocked_and_can_expire() -> None:
    blocked = table("[clients.anonymous]\nblocked = true\n")
    expired = table('[clients.anonymous]\nexpires = "2026-01-01"\n')
    assert (refusal(blocked, "").code, refusal(expired, "").code) == ("key_blocked", "key_expired")


def test_a_revoked_key_stays_revoked_while_no_key_is_needed() -> None:
    clients = table(stored=StoredClients(revoked={key_digest("key-of-s"): "s"}))
    error = refusal(clients, "key-of-s")
    assert (error.status, error.code, error.details) == (401, "key_revoked", {"client": "s"})
    assert (clients.authenticate("", NOW), clients.authenticate("other", NOW)) == (None, None)


def test_a_blocked_client_is_refused_with_403() -> None:
    error = refusal(table(client(blocked="true")), "key-of-a")
    assert isinstance(error, AccessDenied)
    assert (error.status, error.code, error.details, error.never_retry) == (
        *(403, "key_blocked", {"client": "a"}, True),
    )


def test_a_key_is_valid_up_to_its_expiry() -> None:
    clients = table(client(expires='"2027-01-15T08:00:00Z"'))
    assert known(clients.authenticate("key-of-a", NOW - 1)).name == "a"
    error = refusal(clients, "key-of-a", NOW)
    assert (error.status, error.code) == (401, "key_expired")
    assert "expired at 2027-01-15T08:00:00Z" in error.message


def test_a_key_whose_place_another_took_is_valid_until_the_overlap_ends() -> None:
    old = ClientKey(digest=key_digest("old"), expires_at=LATER)
    new = ClientKey(digest=key_digest("new"))
    clients = table(stored=stored(keys=(old, new)))
    assert known(clients.authenticate("old", LATER - 1)).name == "s"
    assert refusal(clients, "old", LATER).code == "key_expired"
    assert known(clients.authenticate("new", LATER)).name == "s"


def test_the_expiry_of_the_client_holds_for_all_its_keys() -> None:
    keys = (ClientKey(digest=key_digest("old"), expires_at=LATER), ClientKey(digest=key_digest("new")))
    clients = table(stored=stored(keys=keys, expires_at=NOW + 60))
    found = known(clients.authenticate("new", NOW))
    assert [found.expiry_of(key) for key in found.keys] == [NOW + 60, NOW + 60]


def test_the_file_wins_over_a_client_of_the_store_with_its_name_or_its_key() -> None:
    same_name = table(client("s", key='"another"'), stored=stored())
    assert refusal(same_name, "key-of-s").code == "invalid_api_key"
    assert known(same_name.authenticate("another", NOW)).source == "file"
    same_key = table(client("a", key='"key-of-s"'), stored=stored())
    assert known(same_key.authenticate("key-of-s", NOW)).name == "a"


def test_a_client_whose_team_is_gone_is_refused_because_nobody_knows_its_rules() -> None:
    error = refusal(table(stored=stored(team="core")), "key-of-s")
    assert (error.status, error.code) == (403, "key_blocked")
    assert "the team 'core', which is not configured" in error.message


def test_while_the_store_cannot_be_read_an_unknown_key_is_not_called_wrong() -> None:
    config = loads(BASE + client(), environ={})
    clients = build_table(config, StoredClients(), incomplete="the disk is gone")
    assert known(clients.authenticate("key-of-a", NOW)).name == "a"
    for key in ("", "other"):
        error = refusal(clients, key)
        assert isinstance(error, Overloaded)
        assert (error.status, error.code) == (503, "store_unavailable")
        assert "the disk is gone" in error.message


TEAMS = """\
[teams.core]
limits = ["$200/month"]
allow = { providers = ["glm"], models = ["glm-*", "blind"] }
instructions = ["status", "routing"]
"""


def test_allow_is_the_intersection_with_the_team() -> None:
    text = TEAMS + client(team='"core"', allow='{ models = ["*4.7", "x.*"] }')
    rules = known(table(text).authenticate("key-of-a", NOW)).rules
    assert rules is not None
    names = [("glm", "glm-4.7"), ("glm", "blind"), ("x", "glm-4.7"), ("glm", "glm-5")]
    assert [rules.admits_target(*name) for name in names] == [True, False, False, False]
    assert (rules.admits_provider("glm"), rules.admits_provider("x")) == (True, False)


@pytest.mark.parametrize(
    ("own", "kinds"),
    [
        ('"all"', {"status", "routing"}),
        ('"none"', set()),
        ('["routing", "clock"]', {"routing"}),
    ],
)
def test_instructions_are_the_stricter_of_client_and_team(own: str, kinds: set[str]) -> None:
    found = known(table(TEAMS + client(team='"core"', instructions=own)).authenticate("key-of-a", NOW))
    assert found.kinds == frozenset(kinds)
    assert found.may_instruct("routing") == ("routing" in kinds)


def test_a_client_without_rules_may_do_everything() -> None:
    found = known(table(client()).authenticate("key-of-a", NOW))
    assert (found.rules, found.kinds, found.may_instruct("clock")) == (None, None, True)


def test_the_members_of_a_team_come_from_file_and_store() -> None:
    clients = table(TEAMS + client(team='"core"') + client("b"), stored=stored(team="core"))
    assert clients.teams["core"].members == ("a", "s")
    assert clients.limits_of(clients.clients["s"]) == [("team:core", LimitConfig(limit="$200/month"))]


def test_limits_are_the_clients_own_then_those_of_its_team() -> None:
    clients = table(TEAMS + client(team='"core"', rpm="60", limits='["$20/day"]'))
    assert [(owner, limit.limit) for owner, limit in clients.limits_of(clients.clients["a"])] == [
        ("client:a", "60 requests/60s"),
        ("client:a", "$20/day"),
        ("team:core", "$200/month"),
    ]


def owners(clients: ClientTable) -> dict[str, str]:
    return {name: one.owner for name, one in clients.clients.items()}


def test_state_has_an_owner_once_there_are_two_clients() -> None:
    assert owners(table(client())) == {"a": ""}
    both = table(client(), stored=stored())
    assert owners(both) == {"a": "a", "s": "s"}
    assert (both.isolates, both.owners) == (True, ("a", "s"))
    assert (table(client()).isolates, table(client()).owners) == (False, ())


def test_anonymous_is_a_client_of_its_own() -> None:
    assert owners(table(client() + "[clients.anonymous]\n")) == {"a": "a", "anonymous": "anonymous"}


def test_members_that_share_their_sessions_have_one_owner() -> None:
    text = '[teams.core]\nshared_sessions = ["a", "s"]\n' + client(team='"core"') + client("b", team='"core"')
    clients = table(text, stored=stored(team="core"))
    assert owners(clients) == {"a": "team:core", "b": "b", "s": "team:core"}


def test_only_members_of_the_team_share_its_sessions() -> None:
    text = '[teams.core]\nshared_sessions = ["s"]\n[teams.other]\n' + client()
    assert owners(table(text, stored=stored(team="other"))) == {"a": "a", "s": "s"}


def test_a_short_key_of_the_file_is_not_shown_in_part() -> None:
    clients = table(client(key='"0123456789abcdef"') + client("b", key='"0123456789abcde"'))
    shown = [key.prefix for one in clients.clients.values() for key in one.keys]
    assert shown == ["01234567", None]


ALLOWED = [
    (({},), {"providers": ["*"], "models": ["*"], "routes": ["*"]}),
    (
        ({"models": ["glm.*", "a"]}, {"providers": ["glm"]}),
        {"providers": ["glm"], "models": ["glm.*", "a"], "routes": ["*"]},
    ),
    (
        ({"models": ["glm.glm-4", "b"]}, {"models": ["glm.*"]}),
        {"providers": ["*"], "models": ["glm.glm-4"], "routes": ["*"]},
    ),
    (
        ({"models": ["a*"]}, {"models": ["*b"]}),
        {"providers": ["*"], "models": ["a* and *b"], "routes": ["*"]},
    ),
]


@pytest.mark.parametrize(("rows", "shown"), ALLOWED)
def test_what_is_allowed_is_shown_as_patterns(
    rows: tuple[dict[str, list[str]], ...], shown: dict[str, list[str]]
) -> None:
    made = [AllowConfig(**{name: tuple(value) for name, value in row.items()}) for row in rows]
    assert AllowRules(tuple(made)).as_dict() == shown


def test_a_refused_target_is_named_with_what_is_allowed() -> None:
    found = known(table(client(allow='{ providers = ["glm"] }')).authenticate("key-of-a", NOW))
    error: ClientError = found.not_allowed("claude.opus")
    assert (error.status, error.code, error.never_retry) == (403, "not_allowed", True)
    assert error.details == {
        "client": "a",
        "allow": {"providers": ["glm"], "models": ["*"], "routes": ["*"]},
    }
    assert error.message == "client 'a' may not use claude.opus; GET /v1/models lists what it may use"
