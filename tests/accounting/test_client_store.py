"""Run-time clients in a real file store, as two processes see them; a failing store never opens the door."""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from routecodex.accounting.client_calls import ClientCalls
from routecodex.accounting.client_store import ClientDirectory, new_key
from routecodex.canon.errors import GatewayError
from routecodex.config import key_digest, loads
from routecodex.stores.file import FileStore
from routecodex.stores.store import StoreError
from tests.config.checked import BASE

NOW = 1_800_000_000.0
TEAMS = '[teams.core]\nlimits = ["$200/month"]\nallow = { providers = ["glm"] }\n'
LAPTOP = '[clients.laptop]\nkey = "key-of-the-laptop"\n'
KEY = re.compile(r"rcx-[A-Za-z0-9_-]{43}\Z")


class Clock:
    """A clock that tests set."""

    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> float:
        return self.now


class Process:
    """The clients as one process has them."""

    def __init__(self, store: FileStore, text: str = "", clock: Clock | None = None) -> None:
        self.directory = ClientDirectory(store, clock=clock or Clock())
        self.calls = ClientCalls(self.directory)
        self.directory.configure(loads(BASE + TEAMS + text, environ={}, stored_clients=True))

    async def add(self, name: str, **settings: Any) -> str:
        answer = await self.calls.add(msgspec.json.encode({"name": name, **settings}))
        return str(answer["key"])

    async def change(self, name: str, **settings: Any) -> dict[str, Any]:
        return dict((await self.calls.change(name, msgspec.json.encode(settings)))["client"])

    async def rotate(self, name: str, overlap: str) -> str:
        answer = await self.calls.rotate(name, msgspec.json.encode({"overlap": overlap}))
        return str(answer["key"])

    async def row(self, name: str) -> dict[str, Any]:
        return dict((await self.calls.show(name))["client"])

    async def outcome(self, key: str, now: float = NOW) -> str:
        """Return the name of a key's client, or the code with which it is refused."""
        await self.directory.refresh()
        try:
            found = self.directory.table.authenticate(key, now)
        except GatewayError as error:
            return str(error.code)
        return "" if found is None else found.name


@contextlib.asynccontextmanager
async def store(folder: Path) -> AsyncIterator[FileStore]:
    opened = FileStore(folder)
    try:
        yield opened
    finally:
        await opened.close()


async def refused(work: Any) -> tuple[int, str | None]:
    with pytest.raises(GatewayError) as caught:
        await work
    return caught.value.status, caught.value.code


def test_a_key_has_32_random_bytes() -> None:
    keys = {new_key() for _ in range(50)}
    assert len(keys) == 50
    assert all(KEY.match(key) for key in keys)


async def test_a_client_of_one_process_is_one_of_the_other(tmp_path: Path) -> None:
    async with store(tmp_path) as one, store(tmp_path) as other:
        first, second = Process(one), Process(other)
        assert await second.outcome("") == ""
        key = await first.add("ci")
        assert [await process.outcome(key) for process in (first, second)] == ["ci", "ci"]
        assert await second.outcome("") == "invalid_api_key"


async def test_only_digests_are_at_rest(tmp_path: Path) -> None:
    async with store(tmp_path) as opened:
        process = Process(opened)
        keys = [await process.add("ci"), await process.rotate("ci", "24h")]
    stored = b"".join(file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())
    assert all(key.encode() not in stored for key in keys)
    assert all(key_digest(key).encode() in stored for key in keys)


async def test_a_client_is_shown_with_its_prefix_and_the_limits_of_its_team(tmp_path: Path) -> None:
    async with store(tmp_path) as opened:
        process = Process(opened)
        limits = ["$20/day", {"limit": "$10/week", "models": ["glm.*"], "mode": "shadow"}]
        key = await process.add(
            "ci",
            team="core",
            rpm=60,
            concurrent=8,
            limits=limits,
            allow={"models": ["glm.*"]},
            instructions=["status"],
            role="viewer",
            mcp=["github.*"],
            expires="30d",
        )
        unknown = {"used": None, "reserved": None, "remaining": None, "resets_at": None}
        own = {"owner": "client:ci", **unknown, "mode": "enforce", "models": ()}
        week = {"limit": "$10/week", "unit": "usd", "max": 10.0, "mode": "shadow", "models": ("glm.*",)}
        assert await process.row("ci") == {
            "name": "ci",
            "team": "core",
            "source": "store",
            "keys": [
                {
                    "prefix": key[:8],
                    "created_at": "2027-01-15T08:00:00Z",
                    "expires_at": "2027-02-14T08:00:00Z",
                }
            ],
            "created_at": "2027-01-15T08:00:00Z",
            "expires_at": "2027-02-14T08:00:00Z",
            "last_used_at": None,
            "blocked": False,
            "allow": {"providers": ["*"], "models": ["glm.*"], "routes": ["*"]},
            "instructions": ("status",),
            "role": "viewer",
            "mcp": ("github.*",),
            "concurrent": 8,
            "in_flight": 0,
            "limits": [
                {**own, "limit": "60 requests/60s", "unit": "requests", "max": 60},
                {**own, "limit": "$20/day", "unit": "usd", "max": 20.0},
                {**own, **week},
                {**own, "limit": "$200/month", "owner": "team:core", "unit": "usd", "max": 200.0},
            ],
        }


async def test_a_rotated_key_is_valid_for_the_overlap_and_settings_stay(tmp_path: Path) -> None:
    async with store(tmp_path) as opened:
        process = Process(opened)
        old = await process.add("ci", rpm=60)
        before = await process.row("ci")
        new = await process.rotate("ci", "24h")
        assert [await process.outcome(key, NOW + 86_399) for key in (old, new)] == ["ci", "ci"]
        assert [await process.outcome(key, NOW + 86_400) for key in (old, new)] == ["key_expired", "ci"]
        row = await process.row("ci")
        assert [key["expires_at"] for key in row["keys"]] == ["2027-01-16T08:00:00Z", None]
        assert {**row, "keys": before["keys"]} == before


async def test_a_key_without_an_overlap_ends_at_once(tmp_path: Path) -> None:
    async with store(tmp_path) as opened:
        process = Process(opened)
        old = await process.add("ci")
        new = await process.rotate("ci", "0s")
        assert [await process.outcome(key) for key in (old, new)] == ["key_expired", "ci"]
        assert [key["prefix"] for key in (await process.row("ci"))["keys"]] == [new[:8]]


async def test_of_many_keys_the_valid_ones_stay_and_the_list_is_bounded(tmp_path: Path) -> None:
    async with store(tmp_path) as opened:
        clock = Clock()
        process = Process(opened, clock=clock)
        keys = [await process.add("ci"), *[await process.rotate("ci", "24h") for _ in range(12)]]
        assert {await process.outcome(key) for key in keys} == {"ci"}
        clock.now = later = NOW + 86_400
        newest = await process.rotate("ci", "24h")
        assert len(process.directory.stored.clients["ci"].keys) == 8
        outcomes = [await process.outcome(key, later) for key in (keys[0], keys[-2], keys[-1], newest)]
        assert outcomes == ["key_revoked", "key_expired", "ci", "ci"]


async def test_a_revoked_key_is_called_so_until_its_client_is_made_again(tmp_path: Path) -> None:
    async with store(tmp_path) as opened:
        process = Process(opened)
        key = await process.add("ci")
        other = await process.add("other")
        assert await process.calls.revoke("ci", b"{}") == {"revoked": True}
        assert [await process.outcome(one) for one in (key, other)] == ["key_revoked", "other"]
        again = await process.add("ci")
        assert [await process.outcome(one) for one in (key, again)] == ["key_revoked", "ci"]


async def test_revoking_the_last_client_leaves_its_key_refused(tmp_path: Path) -> None:
    async with store(tmp_path) as opened:
        process = Process(opened)
        key = await process.add("ci")
        await process.calls.revoke("ci", b"{}")
        assert [await process.outcome(one) for one in (key, "", "other")] == ["key_revoked", "", ""]


async def test_a_key_that_exists_already_is_taken_over_by_its_digest(tmp_path: Path) -> None:
    async with store(tmp_path) as opened:
        process = Process(opened)
        digest = key_digest("sk-their-own").upper()
        body = {"name": "ann", "key_sha256": digest}
        answer = await process.calls.add(msgspec.json.encode(body))
        assert (answer["key"], answer["client"]["keys"][0]["prefix"]) == (None, None)
        assert await process.outcome("sk-their-own") == "ann"
        again = msgspec.json.encode({**body, "name": "bob"})
        assert await refused(process.calls.add(again)) == (409, "key_exists")


async def test_a_dry_run_checks_and_changes_nothing(tmp_path: Path) -> None:
    async with store(tmp_path) as opened:
        process = Process(opened)
        await process.add("ci")
        body = {"name": "ann", "dry_run": True}
        assert await process.calls.add(msgspec.json.encode(body)) == {"client": None, "key": None}
        taken = msgspec.json.encode({**body, "name": "ci"})
        assert await refused(process.calls.add(taken)) == (409, "client_exists")
        assert [row["name"] for row in (await process.calls.list())["clients"]] == ["ci"]


BAD = [
    ({"name": "a b"}, (400, "invalid_name")),
    ({"name": "console"}, (400, "invalid_name")),
    ({"name": "anonymous"}, (400, "invalid_name")),
    ({"name": "x" * 65}, (400, "invalid_name")),
    ({}, (400, "missing_field")),
    ({"name": "x", "team": "nobody"}, (400, "unknown_team")),
    ({"name": "x", "limits": ["$-1/day"]}, (400, "invalid_limit")),
    ({"name": "x", "limits": ["$99999999999/day"]}, (400, "invalid_limit")),
    ({"name": "x", "limits": "many"}, (400, "invalid_limit")),
    ({"name": "x", "limits": [5]}, (400, "invalid_limit")),
    ({"name": "x", "limits": [{"limit": "$1/day", "on_exceeded": "route:x"}]}, (400, "invalid_limit")),
    ({"name": "x", "limits": ["$1/day"] * 65}, (400, "invalid_limit")),
    ({"name": "x", "rpm": -1}, (400, "invalid_limit")),
    ({"name": "x", "tpm": 0}, (400, "invalid_limit")),
    ({"name": "x", "concurrent": "8"}, (400, "invalid_limit")),
    ({"name": "x", "rpm": True}, (400, "invalid_limit")),
    ({"name": "x", "expires": "soon"}, (400, "invalid_expires")),
    ({"name": "x", "expires": "2020-01-01"}, (400, "invalid_expires")),
    ({"name": "x", "instructions": ["sing"]}, (400, "invalid_type")),
    ({"name": "x", "role": "root"}, (400, "invalid_type")),
    ({"name": "x", "key_sha256": "abc"}, (400, None)),
    ({"name": "x", "colour": 1}, (400, "invalid_type")),
]


@pytest.mark.parametrize(("body", "error"), BAD)
async def test_a_wrong_setting_is_refused_and_nothing_is_made(
    tmp_path: Path, body: dict[str, Any], error: tuple[int, str | None]
) -> None:
    async with store(tmp_path) as opened:
        process = Process(opened)
        assert await refused(process.calls.add(msgspec.json.encode(body))) == error
        assert (await process.calls.list())["clients"] == []


async def test_limits_that_are_not_a_list_are_refused_with_an_example(tmp_path: Path) -> None:
    async with store(tmp_path) as opened:
        with pytest.raises(GatewayError) as caught:
            await Process(opened).calls.add(b'{"name": "x", "limits": "$1/day"}')
    assert caught.value.message == 'limits: must be a list, as in ["$20/day", "60 requests/60s"]'


async def test_settings_that_are_not_sent_stay_and_null_removes_one(tmp_path: Path) -> None:
    async with store(tmp_path) as opened:
        process = Process(opened)
        await process.add("ci", team="core", rpm=60, limits=["$20/day"], expires="30d", role="viewer")
        row = await process.change("ci", rpm=None, expires=None, team=None)
        assert (row["team"], row["expires_at"], row["role"]) == (None, None, "viewer")
        assert [limit["limit"] for limit in row["limits"]] == ["$20/day"]
        row = await process.change("ci", blocked=True, limits=[], role=None)
        assert (row["blocked"], row["limits"], row["role"]) == (True, [], "")


async def test_a_change_of_nothing_or_of_an_unknown_client_is_refused(tmp_path: Path) -> None:
    async with store(tmp_path) as opened:
        process = Process(opened)
        await process.add("ci")
        assert await refused(process.calls.change("ci", b"{}")) == (400, None)
        for call in (process.calls.change("x", b'{"rpm":1}'), process.calls.rotate("x", b"{}")):
            assert await refused(call) == (404, "unknown_client")
        for call in (process.calls.revoke("x", b"{}"), process.calls.show("x")):
            assert await refused(call) == (404, "unknown_client")
        assert await refused(process.calls.rotate("ci", b'{"overlap":"long"}')) == (400, "invalid_overlap")


async def test_a_client_of_the_file_is_shown_and_not_changed(tmp_path: Path) -> None:
    async with store(tmp_path) as opened:
        process = Process(opened, LAPTOP)
        row = await process.row("laptop")
        assert (row["source"], row["keys"]) == (
            *("file", [{"prefix": "key-of-t", "created_at": None, "expires_at": None}]),
        )
        for call in (
            process.calls.change("laptop", b'{"blocked":true}'),
            process.calls.rotate("laptop", b"{}"),
            process.calls.revoke("laptop", b"{}"),
        ):
            assert await refused(call) == (409, "client_in_file")
        with pytest.raises(GatewayError) as caught:
            await process.add("laptop")
        assert (caught.value.status, caught.value.code) == (409, "client_exists")
        assert caught.value.message == "client 'laptop' exists in the configuration file; change it there"


async def test_of_two_processes_that_add_one_name_at_once_one_wins(tmp_path: Path) -> None:
    async with store(tmp_path) as one, store(tmp_path) as other:
        first, second = Process(one), Process(other)
        await first.directory.refresh()
        await second.directory.refresh()
        await first.add("ci")
        assert await refused(second.add("ci")) == (409, "client_exists")
        assert await second.add("other")
        assert [row["name"] for row in (await first.calls.list())["clients"]] == ["ci", "other"]


async def test_a_reload_of_the_file_keeps_the_clients_of_the_store(tmp_path: Path) -> None:
    async with store(tmp_path) as opened:
        process = Process(opened)
        key = await process.add("ci", team="core")
        process.directory.configure(loads(BASE + TEAMS + LAPTOP, environ={}))
        assert [await process.outcome(one) for one in (key, "key-of-the-laptop")] == ["ci", "laptop"]
        process.directory.configure(loads(BASE, environ={}))
        assert await process.outcome(key) == "key_blocked"


async def test_teams_are_listed_with_their_members(tmp_path: Path) -> None:
    async with store(tmp_path) as opened:
        process = Process(opened)
        await process.add("ci", team="core")
        [row] = (await process.calls.teams())["teams"]
        assert (row["name"], row["members"], row["allow"]["providers"]) == ("core", ("ci",), ["glm"])
        assert [limit["limit"] for limit in row["limits"]] == ["$200/month"]


def damage(folder: Path) -> None:
    (folder / "clients" / "all.json").write_text("{")


async def test_damaged_clients_do_not_open_the_door(tmp_path: Path) -> None:
    async with store(tmp_path) as opened:
        key = await Process(opened).add("ci")
    damage(tmp_path)
    async with store(tmp_path) as opened:
        process = Process(opened)
        assert [await process.outcome(one) for one in (key, "", "x")] == ["store_unavailable"] * 3
        assert await refused(process.add("new")) == (503, "store_unavailable")
    assert (tmp_path / "clients" / "all.json").read_text() == "{"


async def test_a_process_that_knows_the_clients_writes_them_back(tmp_path: Path) -> None:
    async with store(tmp_path) as opened:
        process = Process(opened)
        key = await process.add("ci")
        damage(tmp_path)
        assert await process.outcome(key) == "ci"
    async with store(tmp_path) as opened:
        assert await Process(opened).outcome(key) == "ci"


class Down(FileStore):
    """A store that cannot be read."""

    async def get_intact(self, space: str, key: str) -> Any:
        raise StoreError("the disk is gone")


DOWN = [
    pytest.param("", "", id="this machine alone, as store.on_down says"),
    pytest.param('[store]\non_down = "refuse"\n', "store_unavailable", id="refuse"),
    pytest.param(LAPTOP, "store_unavailable", id="with clients in the file"),
    pytest.param('[server]\nhost = "0.0.0.0"\n', "store_unavailable", id="an open address"),
]


@pytest.mark.parametrize(("text", "outcome"), DOWN)
async def test_clients_that_were_never_read_are_not_taken_for_none(
    tmp_path: Path, text: str, outcome: str
) -> None:
    down = Down(tmp_path)
    process = Process(down, text)
    assert [await process.outcome(key) for key in ("", "x")] == [outcome, outcome]
    await down.close()


async def test_the_last_known_clients_stay_while_the_store_is_down(tmp_path: Path) -> None:
    async with store(tmp_path) as opened:
        process = Process(opened)
        key = await process.add("ci")
        (tmp_path / "clients" / "all.json").chmod(0)
        (tmp_path / "clients").rename(tmp_path / "moved")
        (tmp_path / "clients").write_text("not a directory")
        assert [await process.outcome(one) for one in (key, "x")] == ["ci", "invalid_api_key"]
        (tmp_path / "clients").unlink()
        (tmp_path / "moved").rename(tmp_path / "clients")
        (tmp_path / "clients" / "all.json").chmod(0o600)
        assert await process.outcome(key) == "ci"


async def test_the_last_use_is_kept_across_processes_and_forgotten_with_the_client(tmp_path: Path) -> None:
    clock = Clock()
    async with store(tmp_path) as one, store(tmp_path) as other:
        first, second = Process(one, clock=clock), Process(other)
        await first.add("ci")
        use = first.directory.use
        use.enter("ci")
        use.enter("ci")
        clock.now = NOW + 60
        use.leave("ci")
        row = await first.row("ci")
        assert (row["in_flight"], row["last_used_at"]) == (1, "2027-01-15T08:00:00Z")
        assert (await second.row("ci"))["last_used_at"] is None
        await first.directory.close()
        row = await second.row("ci")
        assert (row["in_flight"], row["last_used_at"]) == (0, "2027-01-15T08:00:00Z")
        await second.calls.revoke("ci", b"{}")
        await second.add("ci")
        assert (await second.row("ci"))["last_used_at"] is None


class Counted:
    """The use of limits, as the part that counts it supplies it."""

    def __init__(self) -> None:
        self.were_reset: list[str] = []

    def figures(self, owner: str, limit: Any) -> dict[str, Any]:
        return {"used": 3.5, "reserved": 0.5, "remaining": 16.0, "resets_at": "2027-01-16T00:00:00Z"}

    async def refresh(self) -> None:
        pass

    async def reset(self, client: str) -> None:
        self.were_reset.append(client)


async def test_the_use_of_limits_is_supplied_and_reset_by_the_part_that_counts(tmp_path: Path) -> None:
    async with store(tmp_path) as opened:
        process = Process(opened, LAPTOP)
        counted = process.directory.limit_use = Counted()
        await process.add("ci", limits=["$20/day"])
        [limit] = (await process.calls.reset("ci", b"{}"))["client"]["limits"]
        assert (limit["used"], limit["reserved"], limit["remaining"], limit["resets_at"]) == (
            *(3.5, 0.5, 16.0, "2027-01-16T00:00:00Z"),
        )
        await process.calls.reset("laptop", b"{}")
        assert counted.were_reset == ["ci", "laptop"]
        assert await refused(process.calls.reset("x", b"{}")) == (404, "unknown_client")
