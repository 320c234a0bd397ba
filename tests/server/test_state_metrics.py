"""Failing providers and a failing store as metrics show them, and the documents that name every metric."""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from routecodex.canon.errors import UpstreamFailed
from routecodex.gateway.state.key_health import KeyHealth
from routecodex.routing.registry import Target
from routecodex.stores.file import FileStore
from tests.cli.process import ROOT
from tests.gateway.store_outage import down, read_only
from tests.kit import answers, asking
from tests.kit.gateway import Running, provider, serving
from tests.kit.raw_client import Answer, call
from tests.kit.steps import CutOff, Raw
from tests.kit.upstream import Upstream

TEXT = partial(answers.text, "chat", "hi")
FAILURES: dict[str, tuple[Any, str]] = {
    "limited": (answers.error("chat", 429, "slow down", retry_after="60"), "limited"),
    "quota": (answers.error("chat", 402, "pay first"), "quota"),
    "key": (answers.error("chat", 401, "invalid api key"), "key_refused"),
    "model": (answers.error("chat", 404, "the model `m` does not exist"), "model_unknown"),
    "server": (answers.error("chat", 500), "failed"),
    "overload": (answers.error("chat", 529), "overloaded"),
    "connection": (Raw([CutOff()]), "no_connection"),
    "nonsense": (Raw([]), "no_connection"),
}


def config(first: Upstream, second: Upstream, *, store: str = "memory:") -> str:
    return (
        f'[server]\nport = 0\ndrain_seconds = 1\nadmin_token = "operator"\n[store]\nurl = "{store}"\n'
        + provider("first", "chat", first)
        + provider("second", "chat", second)
        + '[routing]\ndefault = [{ mode = "priority", targets = ["first.m", "second.m"] }]\n'
        + "[routing_options]\nmax_wait_ms = 0\n"
    )


@contextlib.asynccontextmanager
async def gateway(answer: Any, *, store: str = "memory:") -> AsyncIterator[Running]:
    """Run a gateway whose first provider answers like this; the second one works."""
    script: Callable[[Any], Any] = answer if callable(answer) else lambda _: answer
    async with (
        Upstream(script) as first,
        Upstream(lambda request: TEXT(answers.wants_stream(request))) as second,
        serving(config(first, second, store=store)) as running,
    ):
        yield running


async def ask(running: Running, *, stream: bool = False, model: str = "auto") -> Answer:
    return await call(running.port, "/v1/chat/completions", asking.body("chat", stream=stream, model=model))


async def metrics(running: Running) -> dict[str, list[tuple[dict[str, str], float]]]:
    """Return the samples of each metric, without the label `worker`."""
    text = (await call(running.port, "/metrics", method="GET")).body.decode()
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = {name: value for name, value in sample.labels.items() if name != "worker"}
            found.setdefault(sample.name, []).append((labels, sample.value))
    return found


def of(found: dict[str, list[tuple[dict[str, str], float]]], name: str, *labels: str) -> dict[Any, float]:
    return {tuple(row[label] for label in labels): value for row, value in found.get(name, [])}


@pytest.mark.parametrize(("answer", "outcome"), FAILURES.values(), ids=FAILURES)
async def test_a_failing_provider_is_named_with_the_outcome_of_its_attempts(
    answer: Any, outcome: str
) -> None:
    async with gateway(answer) as running:
        assert (await ask(running)).headers["x-routecodex-target"] == "second.primary.m"
        found = await metrics(running)
    assert of(found, "routecodex_attempts_total", "provider", "model", "outcome") == {
        ("first", "m", outcome): 1,
        ("second", "m", "ok"): 1,
    }
    assert of(found, "routecodex_failovers_total", "provider") == {("first",): 1}


async def test_a_stream_that_breaks_off_is_counted_as_broken_at_its_provider() -> None:
    async with gateway(answers.cut_off("chat", "one, two, and then much more of it")) as running:
        assert (await ask(running, stream=True)).status == 200
        found = await metrics(running)
    assert of(found, "routecodex_requests_total", "provider", "status") == {("first", "broken"): 1}
    assert of(found, "routecodex_broken_streams_total", "provider", "model") == {("first", "m"): 1}
    assert of(found, "routecodex_attempts_total", "provider", "outcome") == {("first", "broken"): 1}


STATES: dict[str, tuple[Any, int, dict[Any, float], dict[Any, float]]] = {
    "limited": (FAILURES["limited"][0], 1, {("first", "primary", "", "limited"): 60.0}, {}),
    "quota": (FAILURES["quota"][0], 1, {("first", "primary", "", "quota"): 600.0}, {}),
    "key": (FAILURES["key"][0], 1, {("first", "primary", "", "key_refused"): 600.0}, {}),
    "model": (FAILURES["model"][0], 1, {("first", "primary", "m", "model_unknown"): 600.0}, {}),
    "breaker": (
        FAILURES["server"][0],
        3,
        {("first", "primary", "m", "failing"): 5.0},
        {("first", "primary", "m", "open"): 1.0},
    ),
}


@pytest.mark.parametrize(("answer", "times", "cooldowns", "breakers"), STATES.values(), ids=STATES)
async def test_cooldowns_and_breakers_are_shown_by_key_and_cause(
    answer: Any, times: int, cooldowns: dict[Any, float], breakers: dict[Any, float]
) -> None:
    async with gateway(answer) as running:
        assert of(await metrics(running), "routecodex_key_up", "provider", "key") == {
            ("first", "primary"): 1,
            ("second", "primary"): 1,
        }
        for _ in range(times):
            await ask(running)
        found = await metrics(running)
    shown = of(found, "routecodex_key_cooldown_seconds", "provider", "key", "model", "cause")
    assert shown.keys() == cooldowns.keys()
    assert all(cooldowns[key] - 30 < seconds <= cooldowns[key] for key, seconds in shown.items())
    assert of(found, "routecodex_breaker_state", "provider", "key", "model", "state") == breakers
    whole_key = any(not model for _, _, model, _ in cooldowns)
    assert of(found, "routecodex_key_up", "provider", "key") == {
        ("first", "primary"): 0 if whole_key else 1,
        ("second", "primary"): 1,
    }


async def test_health_that_another_process_saved_is_shown(tmp_path: Path) -> None:
    async with gateway(TEXT(False), store=f"file:{tmp_path}") as running:
        await metrics(running)
        store = FileStore(tmp_path)
        other = KeyHealth(store)
        for target in (Target("first", "primary", "m"), Target("unknown here", "primary", "m")):
            for _ in range(3):
                other.failed(target, UpstreamFailed("it broke", upstream_status=500))
        await other.flush()
        await store.close()
        found = await metrics(running)
    assert of(found, "routecodex_breaker_state", "provider", "state") == {("first", "open"): 1}


OPERATIONS = {"get", "put", "delete", "update", "keys", "trim"}


@pytest.mark.parametrize(("outage", "failing"), [(down, {"get", "update"}), (read_only, {"update"})])
async def test_the_store_is_shown_with_its_errors_and_times(
    tmp_path: Path, outage: Any, failing: set[str]
) -> None:
    folder = tmp_path / "store"
    headers = {"x-session-id": "s"}
    body = asking.body("chat", "hi <**!second.m**>", stream=False, model="auto")
    async with gateway(TEXT(False), store=f"file:{folder}") as running:
        before = await metrics(running)
        with outage(folder):
            refused = await call(running.port, "/v1/chat/completions", body, headers=headers)
            during = await metrics(running)
    assert refused.status == 503
    assert (of(before, "routecodex_store_up", "kind"), of(during, "routecodex_store_up", "kind")) == (
        {("file",): 1},
        {("file",): 0},
    )
    assert of(before, "routecodex_store_errors_total", "op") == {(op,): 0 for op in OPERATIONS}
    errors = of(during, "routecodex_store_errors_total", "op")
    assert {op for (op,), count in errors.items() if count} >= failing
    assert {op for (op,), count in errors.items() if count} <= failing | {"keys", "get"}
    counts = of(during, "routecodex_store_seconds_count", "op")
    assert counts.keys() == {(op,) for op in OPERATIONS}
    assert counts["update",] >= errors["update",] >= 1


SECTION = re.search(
    r"^## Metrics\n(.*?)^## ", (ROOT / "docs" / "operations.md").read_text("utf-8"), re.DOTALL | re.MULTILINE
)
NAME = re.compile(r"routecodex_[a-z_]+")
SUFFIX = re.compile(r"_(bucket|sum|count)$")


def documented() -> str:
    assert SECTION is not None
    return SECTION[1]


async def exported() -> dict[str, str]:
    """Return the names of all metrics, with or without a series, and their kinds."""
    async with gateway(TEXT(False)) as running:
        text = (await call(running.port, "/metrics", method="GET")).body.decode()
    families = text_string_to_metric_families(text)
    return {f"{one.name}_total" if one.type == "counter" else one.name: one.type for one in families}


async def test_every_metric_is_documented_and_every_documented_one_exists() -> None:
    rows = dict(re.findall(r"^\| `(routecodex_[a-z_]+)` \| ([a-z]+) \|", documented(), re.MULTILINE))
    assert rows == await exported()


async def test_every_metric_has_an_example_of_an_alert() -> None:
    expressions = " ".join(re.findall(r"^\s+expr: (.*)$", documented(), re.MULTILINE))
    used = {SUFFIX.sub("", name) for name in NAME.findall(expressions)}
    assert used == set(await exported())


def test_labels_in_the_alerts_are_labels_of_the_metric() -> None:
    labels = {
        name: set(re.findall(r"`([a-z_]+)`", cells)) | {"worker", "le"}
        for name, cells in re.findall(
            r"^\| `(routecodex_[a-z_]+)` \| [a-z]+ \|([^|]*)\|", documented(), re.MULTILINE
        )
    }
    for name, matchers in re.findall(r"(routecodex_[a-z_]+)\{([^}]*)\}", documented()):
        used = set(re.findall(r"([a-z_]+)(?:=~|!=|!~|=)", matchers))
        assert used <= labels[SUFFIX.sub("", name)], name
