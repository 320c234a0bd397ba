"""State of clients that come and go at run time, and of team members that share it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from tests.gateway.continuation_gateway import GatewayHarness
from tests.gateway.test_client_scope import OPERATOR, SESSION
from tests.kit import asking
from tests.kit.gateway import one_target, serving
from tests.kit.raw_client import Answer, call
from tests.kit.upstream import Upstream

TEAM = """
[teams.core]
shared_sessions = ["laptop", "ci"]
[clients.laptop]
key = "key-laptop"
team = "core"
[clients.other]
key = "key-other"
team = "core"
"""


@contextlib.asynccontextmanager
async def gateway(folder: Path, clients: str = "", protocol: str = "chat") -> AsyncIterator[GatewayHarness]:
    async with Upstream() as upstream:
        harness = GatewayHarness(protocol, protocol, folder, upstream)
        upstream.answer_with(lambda request: harness.text_answer("ok", request))
        store = f'[store]\nurl = "file:{folder}"\n'
        server = 'admin_token = "operator"'
        async with serving(store + clients + one_target(protocol, upstream, server=server)) as running:
            harness.port = running.port
            yield harness


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"} if key else {}


async def say(harness: GatewayHarness, key: str, text: str) -> str:
    answer = await harness.send(text, headers={**bearer(key), **SESSION})
    return harness.answer_text(answer, stream=False)


async def admin(harness: GatewayHarness, path: str, body: Any = None) -> Any:
    method = "GET" if body is None else "POST"
    answer = await call(harness.port, f"/admin/{path}", body, method=method, headers=OPERATOR)
    assert answer.status in (200, 201), answer.body
    return answer.json


async def is_set(harness: GatewayHarness, key: str) -> bool:
    return "up.m" in await say(harness, key, "<**status**>")


async def test_the_first_client_keeps_the_sessions_and_the_second_starts_fresh_ones(tmp_path: Path) -> None:
    async with gateway(tmp_path) as harness:
        await say(harness, "", "<**!up.m**>")
        first = (await admin(harness, "clients", {"name": "first"}))["key"]
        assert await is_set(harness, first)
        second = (await admin(harness, "clients", {"name": "second"}))["key"]
        assert [await is_set(harness, key) for key in (first, second)] == [False, False]
        await say(harness, second, "<**!up.m**>")
        assert [await is_set(harness, key) for key in (first, second)] == [False, True]
        rows = (await admin(harness, "routing?session=s-1&client=second"))["sessions"]
        assert [(row["client"], row["sticky"]) for row in rows] == [("second", "up.m")]
        await admin(harness, "clients/second/revoke", {})
        assert await is_set(harness, first)


async def respond(harness: GatewayHarness, key: str, method: str, path: str = "", **fields: Any) -> Answer:
    body = asking.body("responses", "hello", stream=False) | fields if method == "POST" else None
    return await call(harness.port, f"/v1/responses{path}", body, method=method, headers=bearer(key))


async def test_a_response_of_a_client_of_the_store_is_unknown_to_another(tmp_path: Path) -> None:
    async with gateway(tmp_path, protocol="responses") as harness:
        keys = [(await admin(harness, "clients", {"name": name}))["key"] for name in ("a", "b")]
        stored = (await respond(harness, keys[0], "POST")).json["id"]
        continued = await respond(harness, keys[1], "POST", previous_response_id=stored)
        assert (continued.status, continued.json["error"]["code"]) == (400, "previous_response_not_found")
        for method in ("GET", "DELETE"):
            assert (await respond(harness, keys[1], method, f"/{stored}")).status == 404
        assert len(harness.upstream.requests) == 1
        assert (await respond(harness, keys[0], "GET", f"/{stored}")).status == 200
        rotated = (await admin(harness, "clients/a/rotate", {"overlap": "0s"}))["key"]
        assert (await respond(harness, rotated, "GET", f"/{stored}")).status == 200


async def test_members_named_by_the_team_share_their_sessions(tmp_path: Path) -> None:
    async with gateway(tmp_path, TEAM) as harness:
        ci = (await admin(harness, "clients", {"name": "ci", "team": "core"}))["key"]
        await say(harness, "key-laptop", "<**!up.m**>")
        assert [await is_set(harness, key) for key in ("key-laptop", ci, "key-other")] == [True, True, False]
        rows = (await admin(harness, "routing?session=s-1&client=ci"))["sessions"]
        assert [(row["client"], row["sticky"]) for row in rows] == [("team:core", "up.m")]
        await admin(harness, "clients/ci", {"team": None})
        assert not await is_set(harness, ci)


async def test_members_named_by_the_team_share_their_responses(tmp_path: Path) -> None:
    async with gateway(tmp_path, TEAM, protocol="responses") as harness:
        ci = (await admin(harness, "clients", {"name": "ci", "team": "core"}))["key"]
        stored = (await respond(harness, "key-laptop", "POST")).json["id"]
        assert (await respond(harness, ci, "POST", previous_response_id=stored)).status == 200
        assert (await respond(harness, "key-other", "GET", f"/{stored}")).status == 404
        assert (await respond(harness, ci, "DELETE", f"/{stored}")).status == 200
