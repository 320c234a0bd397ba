"""State that survives SIGKILL, several processes, damaged files and a full disk."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result

from routecodex.cli import main
from tests.cli.process import Command, running, until
from tests.kit import answers, asking
from tests.kit.raw_client import Answer, begin, call
from tests.kit.steps import Hang, Steps
from tests.kit.upstream import Request, Upstream

SPEAKING = partial(answers.text, "chat", "hi", False)
LIMITED = answers.error("chat", 429, "slow down", retry_after="300")


def config(up: Upstream, *, name: str = "main", keys: str = "ab", server: str = "") -> str:
    """Return the configuration of a server with one model and several keys in rotation."""
    auth = ", ".join(f'{{ alias = "{key}", value = "key-{key}" }}' for key in keys)
    return (
        f'[server]\nport = 0\nid = "{name}"\nadmin_token = "operator"\ndrain_seconds = 1\n{server}\n'
        f'[providers.up]\nprotocol = "chat"\nbase_url = "{up.url}/v1"\nauth = [{auth}]\n'
        '[providers.up.models.m]\n[routing]\ndefault = ["up.m"]\n[routing_options]\nmax_wait_ms = 0\n'
    )


@contextlib.asynccontextmanager
async def serving(
    folder: Path, text: str, *more: str, name: str = "main", environ: Mapping[str, str] | None = None
) -> AsyncIterator[tuple[Command, int]]:
    """Run `routecodex serve` in its own process until it is ready; it is killed at the end."""
    file = folder / f"{name}.toml"
    file.write_text(text, "utf-8")
    async with running(folder, "serve", "--config", str(file), *more, environ=environ) as command:
        yield command, await command.port()


def by_key(**given: Any) -> Callable[[Request], Any]:
    """Let the provider answer like this for these keys, and normally for the others."""
    return lambda request: given.get(key(request)) or SPEAKING()


def key(request: Request) -> str:
    return request.headers["authorization"].removeprefix("Bearer key-")


def models_called(up: Upstream) -> list[str]:
    return [key(request) for request in up.requests]


async def chat(port: int, text: str = "hi", *, session: str = "") -> Answer:
    headers = {"x-session-id": session} if session else {}
    body = asking.body("chat", text, stream=False, model="auto")
    return await call(port, "/v1/chat/completions", body, headers=headers)


async def admin(port: int, path: str, body: object = None) -> Any:
    method = "GET" if body is None else "POST"
    bearer = {"authorization": "Bearer operator"}
    return (await call(port, f"/admin/{path}", body, method=method, headers=bearer)).json


async def sticky(port: int, session: str) -> str | None:
    found: str | None = (await admin(port, f"routing?session={session}"))["sessions"][0]["sticky"]
    return found


def here(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


def stored(folder: Path, space: str, name: str = "main") -> list[Path]:
    return sorted((folder / "user" / "sessions" / name / space).glob("*.json"))


async def test_cooldowns_survive_a_sigkill_in_the_middle_of_an_answer(tmp_path: Path) -> None:
    async with Upstream(by_key(a=LIMITED)) as up:
        async with serving(tmp_path, config(up)) as (command, port):
            assert (await chat(port)).status == 200
            await until(lambda: stored(tmp_path, "health"), "the cooldown is on disk")
            up.queue(Steps((Hang(),)))
            body = asking.body("chat", stream=True, model="auto")
            under_way = await begin(port, "/v1/chat/completions", body)
            await up.received(3)
            command.signal(signal.SIGKILL)
            await command.ended()
            await under_way.leave()
        async with serving(tmp_path, config(up)) as (_, port):
            assert [(await chat(port)).status for _ in range(4)] == [200] * 4
            (row,) = (await admin(port, "health"))["health"]
    assert (row["name"], row["state"], row["error"]) == ("up.a", "cooling", "slow down")
    assert Counter(models_called(up)) == {"a": 1, "b": 6}


async def test_workers_share_their_cooldowns(tmp_path: Path) -> None:
    async with (
        Upstream(by_key(a=LIMITED)) as up,
        serving(tmp_path, config(up), "--workers", "2") as (_, port),
    ):
        assert (await chat(port)).status == 200
        await until(lambda: stored(tmp_path, "health"), "the cooldown is on disk")
        assert {(await chat(port)).status for _ in range(40)} == {200}
        assert await workers(port) == {"0", "1"}
    assert models_called(up).count("a") == 1


async def workers(port: int) -> set[str]:
    """Call a port until two workers have answered; return their names."""
    workers: set[str] = set()
    while len(workers) < 2:
        text = (await call(port, "/metrics", method="GET")).body.decode()
        workers.add(text.partition('worker="')[2].partition('"')[0])
    return workers


async def test_a_refused_key_is_used_again_after_a_reload(tmp_path: Path, user: Path) -> None:
    async with (
        Upstream(by_key(a=answers.error("chat", 401))) as up,
        serving(tmp_path, config(up)) as (_, port),
    ):
        assert [(await chat(port)).status for _ in range(4)] == [200] * 4
        up.answer_with(by_key())
        assert here("daemon", "reload").exit_code == 0
        assert [(await chat(port)).status for _ in range(4)] == [200] * 4
    assert models_called(up)[:5] == ["a", "b", "b", "b", "b"]
    assert Counter(models_called(up)[5:]) == {"a": 2, "b": 2}


async def test_what_an_instruction_set_survives_a_sigkill_right_after_its_answer(tmp_path: Path) -> None:
    async with Upstream(by_key()) as up:
        for chosen in ("a", "b"):
            async with serving(tmp_path, config(up)) as (command, port):
                answer = await chat(port, f"<**!up.{chosen}.m**>", session="s")
                command.signal(signal.SIGKILL)
                assert answer.status == 200
                await command.ended()
            async with serving(tmp_path, config(up)) as (_, port):
                assert await sticky(port, "s") == f"up.{chosen}.m"
                answer = await chat(port, session="s")
                assert answer.headers["x-routecodex-target"] == f"up.{chosen}.m"


async def test_what_an_instruction_set_is_on_disk_before_a_provider_is_asked(tmp_path: Path) -> None:
    async with Upstream(lambda _: Steps((Hang(),))) as up:
        async with serving(tmp_path, config(up)) as (command, port):
            body = asking.body("chat", "hi <**!up.b.m**><**#up.a**>", stream=True, model="auto")
            waiting = await begin(port, "/v1/chat/completions", body, headers={"x-session-id": "s"})
            request = await up.received()
            command.signal(signal.SIGKILL)
            await command.ended()
            await waiting.leave()
        assert (key(request), request.json["messages"][-1]["content"]) == ("b", "hi ")
        async with serving(tmp_path, config(up)) as (_, port):
            (session,) = (await admin(port, "routing"))["sessions"]
    assert (session["id"], session["sticky"], session["disable"]) == ("s", "up.b.m", ["up.a"])


DAMAGES: dict[str, tuple[Callable[[bytes], bytes], str, str]] = {
    "cut off": (lambda data: data[: len(data) // 2], "sessions", "set aside as .*corrupt-1"),
    "empty": (lambda _: b"", "sessions", "set aside as .*corrupt-1"),
    "other bytes": (lambda _: b"\xff\x00" * 50, "sessions", "set aside as .*corrupt-1"),
    "no state": (
        lambda data: data.partition(b'"value":')[0] + b'"value": {"version": 1, "sticky": 7}}',
        "sessions.corrupt",
        "is not the state of a session; set aside in sessions.corrupt",
    ),
}


@pytest.mark.parametrize(("damage", "space", "message"), DAMAGES.values(), ids=list(DAMAGES))
async def test_a_damaged_state_is_set_aside_and_the_session_starts_clean(
    tmp_path: Path, damage: Callable[[bytes], bytes], space: str, message: str
) -> None:
    async with Upstream(by_key()) as up:
        async with serving(tmp_path, config(up)) as (_, port):
            for session in ("s", "other"):
                assert (await chat(port, "<**!up.b.m**>", session=session)).status == 200
        (file,) = [one for one in stored(tmp_path, "sessions") if b'"session:s"' in one.read_bytes()]
        spoiled = damage(file.read_bytes())
        file.write_bytes(spoiled)
        async with serving(tmp_path, config(up)) as (command, port):
            assert (await chat(port, session="s")).status == 200
            await command.wait_for(message)
            assert (await sticky(port, "s"), await sticky(port, "other")) == (None, "up.b.m")
            assert (await chat(port, "<**!up.a.m**>", session="s")).status == 200
            assert await sticky(port, "s") == "up.a.m"
        set_aside = [one.read_bytes() for one in (file.parent.parent / space).iterdir() if one.name[0] != "."]
    assert any(spoiled in content or b'"sticky": 7' in content for content in set_aside)


async def test_a_damaged_word_of_the_operator_is_set_aside_and_another_can_be_given(
    tmp_path: Path, user: Path
) -> None:
    async with Upstream(by_key()) as up:
        async with serving(tmp_path, config(up)):
            assert here("daemon", "set", "routing", "--disable", "up.a").exit_code == 0
        (file,) = stored(tmp_path, "server")
        file.write_bytes(file.read_bytes().partition(b'"value":')[0] + b'"value": [7]}')
        async with serving(tmp_path, config(up)) as (command, port):
            assert [(await chat(port)).status for _ in range(2)] == [200] * 2
            assert here("daemon", "set", "routing", "--disable", "up.b").exit_code == 0
            assert (await admin(port, "routing"))["routing"]["disable"] == ["up.b"]
            message = [line for line in command.err if "server/'routing' is not the routing state" in line]
        assert len(message) == 1
        (set_aside,) = stored(tmp_path, "server.corrupt")
    assert b"[7]" in set_aside.read_bytes()


async def test_a_full_disk_is_a_clear_error_and_nothing_is_half_applied(tmp_path: Path, user: Path) -> None:
    async with Upstream(by_key()) as up, serving(tmp_path, config(up)) as (command, port):
        assert (await chat(port, "<**!up.a.m**>", session="s")).status == 200
        _, hard = resource.prlimit(command.process.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(command.process.pid, resource.RLIMIT_FSIZE, (0, hard))
        refused = await chat(port, "hi <**!up.b.m**> <**#up.a**>", session="s")
        ordered = here("daemon", "set", "routing", "--disable", "up.a")
        assert up.requests == []
        assert await sticky(port, "s") == "up.a.m"
        assert [(await chat(port, session=name)).status for name in ("s", "new", "")] == [200] * 3
        resource.prlimit(command.process.pid, resource.RLIMIT_FSIZE, (hard, hard))
        again = await chat(port, "hi <**!up.b.m**>", session="s")
        assert here("daemon", "set", "routing", "--disable", "up.a").exit_code == 0
        assert await sticky(port, "s") == "up.b.m"
    assert (refused.status, refused.json["error"]["code"]) == (503, "state_not_saved")
    assert "nothing of the change was applied" in refused.json["error"]["message"]
    assert (ordered.exit_code, "nothing was changed" in ordered.stderr) == (1, True)
    assert (again.status, again.headers["x-routecodex-target"]) == (200, "up.b.m")
    assert models_called(up)[0] == "a"
    assert "raise the file size limit" in command.text
    assert "Traceback" not in command.text


async def test_without_a_place_for_state_requests_that_need_none_go_on(tmp_path: Path) -> None:
    (tmp_path / "user").mkdir()
    (tmp_path / "user" / "sessions").write_text("a file where a directory should be")
    async with Upstream(by_key(a=LIMITED)) as up, serving(tmp_path, config(up)) as (command, port):
        answers_ = [await chat(port, session=name) for name in ("", "s", "", "s")]
        refused = await chat(port, "<**!up.b.m**>", session="s")
    assert [one.status for one in answers_] == [200] * 4
    assert (refused.status, refused.json["error"]["code"]) == (503, "state_not_saved")
    assert models_called(up).count("a") == 1, "health is still known, if only to this process"
    assert sum("cannot be read" in line for line in command.err) <= 2
    assert "Traceback" not in command.text


async def test_two_processes_that_write_the_same_session_lose_nothing(tmp_path: Path) -> None:
    names = [f"up.{name}" for name in "abcdefghijklmnop"]
    shared = {"ROUTECODEX_SESSION_DIR": str(tmp_path / "shared")}
    async with Upstream(by_key()) as up:
        text = partial(config, up, keys="abcdefghijklmnop")
        async with (
            serving(tmp_path, text(name="one"), name="one", environ=shared) as (_, one),
            serving(tmp_path, text(name="two"), name="two", environ=shared) as (_, two),
        ):
            ports = [one if number % 2 else two for number in range(len(names))]
            orders = [{"session": "s", "disable": [name]} for name in names]
            calls = (admin(port, "routing", order) for port, order in zip(ports, orders, strict=True))
            await asyncio.gather(*calls)
            message = [
                (await admin(port, "routing?session=s"))["sessions"][0]["disable"] for port in (one, two)
            ]
    assert [sorted(disabled) for disabled in message] == [names, names]


async def test_servers_on_any_free_port_have_names_and_state_of_their_own(tmp_path: Path, user: Path) -> None:
    async with Upstream(by_key()) as up:
        text = config(up).replace('id = "main"\n', "")
        async with (
            serving(tmp_path, text, name="one") as (_, one),
            serving(tmp_path, text, name="two") as (_, two),
        ):
            done = here("daemon", "set", "routing", "--disable", "up.a", "--server", f"127.0.0.1-{one}")
            assert done.exit_code == 0
            message = msgspec.json.decode(here("daemon", "status", "routing", "--json").stdout)["servers"]
        assert {(row["id"], tuple(row["routing"]["disable"])) for row in message} == {
            (f"127.0.0.1-{one}", ("up.a",)),
            (f"127.0.0.1-{two}", ()),
        }
        async with serving(tmp_path, text, "--port", str(one), name="one") as (_, port):
            assert (await admin(port, "routing"))["routing"]["disable"] == ["up.a"]
    assert (user / "sessions" / f"127.0.0.1-{one}" / "server").is_dir()
    assert not (user / "sessions" / "127.0.0.1-0").exists()
