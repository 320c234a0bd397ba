"""Metrics of limits."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.gateway.limit_gateway import KEY, client, limited
from tests.kit.raw_client import call


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROUTECODEX_USER_DIR", str(tmp_path))


async def lines(port: int, name: str) -> list[str]:
    text = (await call(port, "/metrics", method="GET", headers=KEY)).body.decode()
    return re.findall(rf"^({name}\{{.*)$", text, re.MULTILINE)


async def test_refusals_and_used_shares_are_shown_by_owner_and_limit() -> None:
    team = '[teams.core]\nlimits = ["8 requests/day"]\n'
    async with limited(team + client("laptop", 'team = "core"\nlimits = ["4 requests/day"]')) as gateway:
        for _ in range(6):
            await gateway.ask()
        port = gateway.gateway.port
        refusals = await lines(port, "routecodex_limit_refusals_total")
        ratios = await lines(port, "routecodex_limit_used_ratio")
    assert refusals == [
        'routecodex_limit_refusals_total{limit="4 requests/day",owner="client:laptop",worker="0"} 2.0'
    ]
    assert ratios == [
        'routecodex_limit_used_ratio{limit="4 requests/day",owner="client:laptop",worker="0"} 1.0',
        'routecodex_limit_used_ratio{limit="8 requests/day",owner="team:core",worker="0"} 0.5',
    ]


async def test_limits_that_differ_in_models_or_time_zone_are_told_apart() -> None:
    same = ", ".join(
        f'{{ limit = "4 requests/day", {more} }}'
        for more in ('models = ["up.*"]', 'models = ["x.*"]', 'timezone = "Asia/Shanghai"', "warn_at = 0.5")
    )
    async with limited(client("laptop", f"limits = [{same}]")) as gateway:
        await gateway.ask()
        ratios = await lines(gateway.gateway.port, "routecodex_limit_used_ratio")
    found = [re.findall(r'limit="([^"]+)".* (\S+)$', line)[0] for line in ratios]
    assert sorted(found) == [
        ("4 requests/day", "0.25"),
        ("4 requests/day for up.*", "0.25"),
        ("4 requests/day for x.*", "0.0"),
    ]


async def test_beyond_200_clients_the_rest_is_other() -> None:
    many = "".join(client(f"c{number}", 'limits = ["1 requests/day"]') for number in range(201))
    async with limited(many) as gateway:
        for name in ("c0", "c200"):
            for _ in range(2):
                await gateway.ask(key={"x-api-key": f"key-{name}"})
        refusals = await lines_of_refusals(gateway.gateway.port)
        ratios = await call(gateway.gateway.port, "/metrics", method="GET", headers={"x-api-key": "key-c0"})
    assert refusals == {"client:c0": "1.0", "other": "1.0"}
    assert ratios.body.count(b"routecodex_limit_used_ratio{") == 200


async def lines_of_refusals(port: int) -> dict[str, str]:
    text = (await call(port, "/metrics", method="GET", headers={"x-api-key": "key-c0"})).body.decode()
    found = re.findall(r'^routecodex_limit_refusals_total\{.*owner="([^"]+)".*\} (\S+)$', text, re.MULTILINE)
    return dict(found)


async def test_without_limits_there_is_nothing_to_show() -> None:
    async with limited(client("laptop", "")) as gateway:
        await gateway.ask()
        port = gateway.gateway.port
        assert await lines(port, "routecodex_limit_refusals_total") == []
        assert await lines(port, "routecodex_limit_used_ratio") == []
