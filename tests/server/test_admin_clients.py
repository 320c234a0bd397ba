"""Clients and teams through the admin API: made, changed, rotated, revoked."""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit import answers, asking
from tests.kit.gateway import one_target, serving
from tests.kit.raw_client import Answer, call
from tests.kit.upstream import Upstream

OPERATOR = {"authorization": "Bearer operator"}
TEAMS = '[teams.core]\nlimits = ["$200/month"]\nallow = { providers = ["up"] }\n'
FILE = '[clients.laptop]\nkey = "key-of-the-laptop"\nteam = "core"\nlimits = ["$20/day"]\n'
KEY = re.compile(r"rcx-[A-Za-z0-9_-]{43}\Z")
FIELDS = {
    *("name", "team", "source", "keys", "created_at", "expires_at", "last_used_at", "blocked", "allow"),
    *("instructions", "role", "mcp", "concurrent", "in_flight", "limits"),
}


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROUTECODEX_USER_DIR", str(tmp_path))


def priced(text: str) -> str:
    """Return the configuration with a price: a client with a money limit needs one."""
    return text.replace("max_output_tokens = 4096", 'max_output_tokens = 4096\nprice = "free"')


class Admin:
    """The admin API of a gateway."""

    def __init__(self, port: int) -> None:
        self.port = port

    async def call(self, path: str, body: Any = None, **headers: str) -> Answer:
        method = "GET" if body is None else "POST"
        return await call(self.port, f"/admin/{path}", body, method=method, headers=headers or OPERATOR)

    async def done(self, path: str, body: Any = None, status: int = 200) -> Any:
        answer = await self.call(path, body)
        assert answer.status == status, answer.body
        return answer.json

    async def refused(self, path: str, body: Any = None) -> tuple[int, str]:
        answer = await self.call(path, body)
        assert answer.json["error"]["code"] == answer.json["code"]
        assert answer.json["error"]["message"]
        return answer.status, answer.json["code"]

    async def status_of(self, key: str) -> int:
        answer = await call(
            self.port,
            asking.path("chat", stream=False),
            asking.body("chat", stream=False),
            headers={"x-api-key": key},
        )
        return answer.status


@contextlib.asynccontextmanager
async def admin(text: str = TEAMS + FILE) -> AsyncIterator[Admin]:
    async with (
        Upstream(lambda _: answers.text("chat", "hi", False)) as up,
        serving(priced(one_target("chat", up, server='admin_token = "operator"')) + text) as gateway,
    ):
        yield Admin(gateway.port)


async def test_a_client_that_is_made_is_answered_at_once_and_its_key_is_shown_once() -> None:
    async with admin() as api:
        made = await api.done("clients", {"name": "ci", "team": "core", "rpm": 60}, status=201)
        assert set(made) == {"client", "key"}
        assert KEY.match(made["key"])
        assert set(made["client"]) == FIELDS
        assert made["client"]["keys"][0]["prefix"] == made["key"][:8]
        assert await api.status_of(made["key"]) == 200
        shown = await api.call("clients")
        assert made["key"].encode() not in shown.body
        assert [row["name"] for row in shown.json["clients"]] == ["ci", "laptop"]
        limits = [(row["limit"], row["owner"]) for row in made["client"]["limits"]]
        assert limits == [("60 requests/60s", "client:ci"), ("$200/month", "team:core")]


async def test_a_client_is_shown_alone() -> None:
    async with admin() as api:
        row = (await api.done("clients/laptop"))["client"]
        assert all(re.fullmatch(r"20..-..-..T00:00:00Z", limit["resets_at"]) for limit in row["limits"])
        assert (row["name"], row["team"], row["source"]) == ("laptop", "core", "file")
        assert row["limits"] == [
            {
                "limit": text,
                "owner": owner,
                "unit": "usd",
                "max": most,
                "used": 0,
                "reserved": 0,
                "remaining": most,
                "resets_at": resets,
                "mode": "enforce",
                "models": [],
            }
            for text, owner, most, resets in (
                ("$20/day", "client:laptop", 20, row["limits"][0]["resets_at"]),
                ("$200/month", "team:core", 200, row["limits"][1]["resets_at"]),
            )
        ]


async def test_a_change_holds_from_the_next_request_on() -> None:
    async with admin() as api:
        key = (await api.done("clients", {"name": "ci"}, status=201))["key"]
        for blocked, status in ((True, 403), (False, 200)):
            row = (await api.done("clients/ci", {"blocked": blocked}))["client"]
            assert (row["blocked"], await api.status_of(key)) == (blocked, status)
        await api.done("clients/ci", {"allow": {"models": ["up.other"]}})
        assert await api.status_of(key) == 403


async def test_rotate_revoke_and_reset() -> None:
    async with admin() as api:
        old = (await api.done("clients", {"name": "ci"}, status=201))["key"]
        new = await api.done("clients/ci/rotate", {"overlap": "1h"})
        assert (set(new), bool(KEY.match(new["key"]))) == ({"client", "key"}, True)
        assert [await api.status_of(key) for key in (old, new["key"])] == [200, 200]
        last = await api.done("clients/ci/rotate", {"overlap": "0s"})
        keys = (old, new["key"], last["key"])
        assert [await api.status_of(key) for key in keys] == [401, 401, 200]
        assert set(await api.done("clients/ci/reset", {})) == {"client"}
        assert await api.done("clients/ci/revoke", {}) == {"revoked": True}
        assert [await api.status_of(key) for key in keys] == [401, 401, 401]
        assert await api.refused("clients/ci") == (404, "unknown_client")


async def test_a_rotation_without_a_body_keeps_the_old_key_for_a_day() -> None:
    async with admin() as api:
        await api.done("clients", {"name": "ci"}, status=201)
        row = (await api.done("clients/ci/rotate", {}))["client"]
        assert [key["expires_at"] is None for key in row["keys"]] == [False, True]


async def test_teams_are_listed() -> None:
    async with admin() as api:
        await api.done("clients", {"name": "ci", "team": "core"}, status=201)
        [team] = (await api.done("teams"))["teams"]
        assert set(team) == {"name", "members", "limits", "allow"}
        assert (team["name"], team["members"]) == ("core", ["laptop", "ci"])
        assert team["allow"] == {"providers": ["up"], "models": ["*"], "routes": ["*"]}


REFUSED = [
    ("clients", {"name": "laptop"}, (409, "client_exists")),
    ("clients", {"name": "a b"}, (400, "invalid_name")),
    ("clients", {"name": "x", "limits": ["free"]}, (400, "invalid_limit")),
    ("clients", {"name": "x", "team": "nobody"}, (400, "unknown_team")),
    ("clients/laptop", {"blocked": True}, (409, "client_in_file")),
    ("clients/laptop/rotate", {}, (409, "client_in_file")),
    ("clients/laptop/revoke", {}, (409, "client_in_file")),
    ("clients/nobody", {"blocked": True}, (404, "unknown_client")),
    ("clients/nobody", None, (404, "unknown_client")),
    ("clients/nobody/reset", {}, (404, "unknown_client")),
    ("clients/laptop/sing", {}, (404, "not_found")),
    ("clients/laptop/rotate/x", {}, (404, "not_found")),
    ("clients/laptop/rotate", None, (405, "method_not_allowed")),
    ("teams", {}, (405, "method_not_allowed")),
]


@pytest.mark.parametrize(("path", "body", "error"), REFUSED)
async def test_a_wrong_call_is_refused_with_its_code(path: str, body: Any, error: tuple[int, str]) -> None:
    async with admin() as api:
        assert await api.refused(path, body) == error


async def test_clients_may_not_call_it() -> None:
    async with admin() as api:
        for headers in ({"authorization": "Bearer key-of-the-laptop"}, {"x-api-key": "key-of-the-laptop"}):
            assert (await api.call("clients", **headers)).status == 401


async def test_an_unknown_parameter_is_refused() -> None:
    async with admin() as api:
        assert (await api.call("clients?name=laptop")).status == 400


async def test_the_first_client_closes_the_gateway_and_the_last_one_opens_it() -> None:
    async with admin("") as api:
        assert await api.status_of("any") == 200
        key = (await api.done("clients", {"name": "ci"}, status=201))["key"]
        assert [await api.status_of(one) for one in ("any", key)] == [401, 200]
        await api.done("clients/ci/revoke", {})
        assert [await api.status_of(one) for one in ("any", key)] == [200, 401]
