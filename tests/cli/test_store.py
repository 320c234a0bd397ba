"""`routecodex store copy` and `store check`, on real stores."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result

import routecodex as routecodex_package
from routecodex.cli import main
from routecodex.stores import open_store
from routecodex.stores.copying import LEFT_OUT, SPACES
from routecodex.stores.store import Store
from tests.kit.redis_server import RedisServer

pytestmark = pytest.mark.usefixtures("user")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    running = RedisServer(tmp_path / "redis")
    yield running
    running.kill()


def routecodex(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["store", *arguments])


@contextlib.asynccontextmanager
async def opened(url: str) -> AsyncIterator[Store]:
    store = open_store(url, session_dir=Path("unused"))
    try:
        yield store
    finally:
        await store.close()


async def fill(url: str) -> None:
    async with opened(url) as store:
        await store.put("sessions", "session:a", b'{"a": 1}', ttl=1000)
        await store.put("sessions", "Ä/ :b", b"[2]")
        await store.put("health", "glm.primary", b"{}")
        await store.put("servers", "gw-1", b"{}")
        await store.put("health.probes", "glm", b"{}")


async def contents(url: str) -> dict[str, dict[str, Any]]:
    async with opened(url) as store:
        return {
            space: {key: stored.value for key, stored in await store.read_all(space, most=100)}
            for space in await store.spaces()
        }


COPIED = {
    "sessions": {"session:a": b'{"a": 1}', "Ä/ :b": b"[2]"},
    "health": {"glm.primary": b"{}"},
}


def test_state_moves_from_files_to_redis_and_back(tmp_path: Path, server: RedisServer) -> None:
    source, back = f"file:{tmp_path}/from", f"file:{tmp_path}/back"
    asyncio.run(fill(source))
    done = routecodex("copy", source, server.url, "--json")
    assert done.exit_code == 0, done.output
    assert msgspec.json.decode(done.stdout) == {"copied": 3, "spaces": {"health": 1, "sessions": 2}}
    assert asyncio.run(contents(server.url)) == COPIED
    assert routecodex("copy", server.url, back).exit_code == 0
    assert asyncio.run(contents(back)) == COPIED

    async def expires() -> float | None:
        async with opened(back) as store:
            stored = await store.get("sessions", "session:a")
            return None if stored is None else stored.expires

    assert asyncio.run(expires()) is not None


def test_nothing_is_copied_over_what_is_there_unless_asked_for(tmp_path: Path, server: RedisServer) -> None:
    source = f"file:{tmp_path}/from"
    asyncio.run(fill(source))

    async def put() -> None:
        async with opened(server.url) as store:
            await store.put("sessions", "session:a", b"9")

    asyncio.run(put())
    refused = routecodex("copy", source, server.url)
    assert refused.exit_code == 1
    assert "nothing was copied: TO has sessions/'session:a' already; use --replace" in refused.stderr
    assert asyncio.run(contents(server.url)) == {"sessions": {"session:a": b"9"}}
    assert routecodex("copy", source, server.url, "--replace").exit_code == 0
    assert asyncio.run(contents(server.url)) == COPIED


def test_spaces_and_prefix_are_chosen(tmp_path: Path, server: RedisServer) -> None:
    source = f"file:{tmp_path}/from"
    asyncio.run(fill(source))
    done = routecodex("copy", source, server.url, "--spaces", "health", "--prefix", "other", "--json")
    assert msgspec.json.decode(done.stdout) == {"copied": 1, "spaces": {"health": 1}}
    assert asyncio.run(contents(server.url)) == {}
    with server.client(decode_responses=True) as client:
        assert client.hget("other:{health.0}:v:glm.primary", "d") == "{}"


ODD_KEYS = ("a.b}:g", "}:g", "x\ny", " lead", "é\u202e", "a:{b}:g", "server.0}:g", "k" * 5000)


def test_keys_that_look_like_other_names_in_redis_are_copied_like_any(
    tmp_path: Path, server: RedisServer
) -> None:
    async def put() -> None:
        async with opened(server.url) as store:
            for key in ODD_KEYS:
                await store.put("sessions", key, b"1", ttl=1000)

    asyncio.run(put())
    done = routecodex("copy", server.url, f"file:{tmp_path}/to", "--json")
    assert done.exit_code == 0, done.stderr
    assert msgspec.json.decode(done.stdout) == {"copied": 8, "spaces": {"sessions": 8}}
    assert asyncio.run(contents(f"file:{tmp_path}/to")) == {"sessions": dict.fromkeys(ODD_KEYS, b"1")}


@pytest.mark.parametrize("options", [(), ("--replace",)], ids=["new", "replace"])
def test_nothing_is_copied_if_a_value_of_any_space_is_damaged(
    tmp_path: Path, server: RedisServer, options: tuple[str, ...]
) -> None:
    source = f"file:{tmp_path}/from"
    asyncio.run(fill(source))
    damaged = tmp_path / "from" / "sessions" / "broken.json"
    damaged.write_text("{broken")
    refused = routecodex("copy", source, server.url, *options)
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert f"{damaged} is damaged" in refused.stderr
    assert "nothing was copied: damaged values: 1" in refused.stderr
    assert asyncio.run(contents(server.url)) == {}
    damaged.unlink()
    assert routecodex("copy", source, server.url, *options).exit_code == 0
    assert asyncio.run(contents(server.url)) == COPIED


def test_a_damaged_value_in_redis_is_named_too(tmp_path: Path, server: RedisServer) -> None:
    asyncio.run(fill(server.url))
    with server.client() as client:
        client.hdel("routecodex:{health.0}:v:glm.primary", "n")
    refused = routecodex("copy", server.url, f"file:{tmp_path}/to")
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert "health/'glm.primary' has no version" in refused.stderr
    assert not (tmp_path / "to").exists()


def test_a_copy_that_fails_halfway_says_how_much_was_copied(tmp_path: Path, server: RedisServer) -> None:
    source = f"file:{tmp_path}/from"
    asyncio.run(fill(source))
    with server.client() as client:
        # A value of another type, which no list of keys shows: only its write fails.
        for stripe in range(16):
            client.set(f"routecodex:{{sessions.{stripe}}}:v:session:a", "text")
    done = routecodex("copy", source, server.url)
    assert (done.exit_code, done.stdout) == (1, "")
    copied = sum(map(len, asyncio.run(contents(server.url)).values()))
    assert f"the copy has failed, TO has got {copied} of the values" in done.stderr
    assert "copy again with --replace" in done.stderr


@pytest.mark.parametrize(
    ("spaces", "message"),
    [
        ("sesions", "nothing was copied: FROM has no space 'sesions'; it has health, sessions"),
        ("servers", "nothing was copied: 'servers' belongs to running processes and is never copied"),
    ],
)
def test_a_space_that_cannot_be_copied_is_an_error(
    tmp_path: Path, server: RedisServer, spaces: str, message: str
) -> None:
    asyncio.run(fill(f"file:{tmp_path}/from"))
    done = routecodex("copy", f"file:{tmp_path}/from", server.url, "--spaces", spaces)
    assert (done.exit_code, done.stdout) == (1, "")
    assert message in done.stderr
    assert asyncio.run(contents(server.url)) == {}


def test_a_space_that_has_no_value_yet_is_copied_as_nothing(tmp_path: Path, server: RedisServer) -> None:
    asyncio.run(fill(f"file:{tmp_path}/from"))
    done = routecodex("copy", f"file:{tmp_path}/from", server.url, "--spaces", "health,clock", "--json")
    assert done.exit_code == 0, done.output
    assert list(msgspec.json.decode(done.stdout)["spaces"]) == ["health"]


def test_every_space_of_the_gateway_can_be_named_or_is_left_out() -> None:
    """A space is a constant, `SPACE` or `_…_SPACE`, of the module that keeps its values there."""
    sources = Path(routecodex_package.__file__).parent.rglob("*.py")
    named = {
        found[1]
        for source in sources
        for found in re.finditer(r'^(?:_?[A-Z]+_|_)?SPACE(?:: Final)? = "([^"]+)"$', source.read_text(), re.M)
    }
    assert len(named) > 10
    assert named - {"conversations"} == SPACES | LEFT_OUT


def test_a_source_without_a_directory_is_an_error(tmp_path: Path, server: RedisServer) -> None:
    done = routecodex("copy", f"file:{tmp_path}/typo", server.url)
    assert (done.exit_code, done.stdout) == (1, "")
    assert f"nothing was copied: FROM is {tmp_path}/typo, which is not a directory" in done.stderr


def test_a_store_is_checked_and_its_weaknesses_are_named(server: RedisServer) -> None:
    with server.client() as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
    done = routecodex("check", server.url, "--json")
    assert done.exit_code == 0, done.output
    found = msgspec.json.decode(done.stdout)
    assert found["round_trip_ms"] > 0
    assert found["version"].split()[0] in ("redis", "valkey")
    assert {name: found[name] for name in ("kind", "reachable", "writable", "persistence", "eviction")} == {
        "kind": "redis",
        "reachable": True,
        "writable": True,
        "persistence": "none",
        "eviction": "allkeys-lru",
    }
    assert len(found["warnings"]) == 2
    shown = routecodex("check", server.url)
    assert shown.exit_code == 0
    assert "maxmemory-policy is allkeys-lru" in shown.stderr
    assert "appendonly yes" in shown.stderr


def test_a_store_that_is_gone_or_unwritable_fails_the_check(server: RedisServer) -> None:
    with server.client() as client:
        client.execute_command("REPLICAOF", "127.0.0.1", "1")
    unwritable = routecodex("check", server.url, "--json")
    assert unwritable.exit_code == 1
    found = msgspec.json.decode(unwritable.stdout)
    assert (found["reachable"], found["writable"]) == (True, False)
    server.kill()
    gone = routecodex("check", server.url.replace("://", "://ann:secret@"))
    assert gone.exit_code == 1
    assert "secret" not in gone.output + gone.stderr
    assert "error" in gone.stderr


def test_the_store_of_the_configuration_is_checked_without_a_url(user: Path, server: RedisServer) -> None:
    user.mkdir(exist_ok=True)
    (user / "config.toml").write_text(
        f'[store]\nurl = "{server.url}"\n'
        '[providers.demo]\nprotocol = "demo"\n[providers.demo.models.m]\n[routing]\ndefault = ["demo.m"]\n'
    )
    done = routecodex("check", "--json")
    assert done.exit_code == 0, done.output + done.stderr
    assert msgspec.json.decode(done.stdout)["kind"] == "redis"


@pytest.mark.parametrize(
    "arguments",
    [
        ("copy", "x:", "file:/tmp/x"),
        ("copy", "memory:", "redis+sentinel://h"),
        ("copy", "file:"),
        ("copy", "memory:", "memory:", "--prefix", "a{b}"),
        ("copy", "memory:", "memory:", "--spaces", " ,"),
        ("check", "x:"),
        ("check", "redis+sentinel://h"),
        ("check", "redis://"),
        ("check", "file:here"),
        ("nonsense",),
    ],
)
def test_wrong_arguments_are_refused(arguments: tuple[str, ...]) -> None:
    done = routecodex(*arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr


@pytest.mark.parametrize("url", ["rediz://ann:secret@h", "redis://ann:secret@", "ann:secret@h"])
@pytest.mark.parametrize("command", [("check",), ("copy", "memory:")], ids=" ".join)
def test_a_wrong_url_is_refused_without_its_password(command: tuple[str, ...], url: str) -> None:
    done = routecodex(*command, url)
    assert (done.exit_code, done.stdout) == (2, "")
    assert "store.url" in done.stderr
    assert "secret" not in done.stderr


def test_a_target_that_is_gone_is_no_success_even_with_nothing_to_copy(server: RedisServer) -> None:
    server.kill()
    done = routecodex("copy", "memory:", server.url)
    assert (done.exit_code, done.stdout) == (1, "")
    assert "is down" in done.stderr
