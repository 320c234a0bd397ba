"""Every cache has a bound in memory, whatever clients send; docs/operations.md says what they add up to.

Each is filled with more and longer entries than it may keep. Allocations are counted, and not the size of the
process, which depends on the allocator.
"""

from __future__ import annotations

import ast
import asyncio
import gc
import re
import tracemalloc
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pytest

from routecodex.accounting.client_store import ClientDirectory
from routecodex.canon.parts import Reasoning
from routecodex.canon.request import Request, Tool
from routecodex.config import Config, loads
from routecodex.gateway.answer.writer import answer_headers
from routecodex.gateway.context.identity import Scope
from routecodex.gateway.request import RequestRecord
from routecodex.gateway.state.reasoning_cache import CallReasoning, ReasoningCache, size_of
from routecodex.gateway.state.sessions import Sessions
from routecodex.gateway.state.signature_owners import SignatureOwners
from routecodex.gateway.state.thoughts import ThoughtStore
from routecodex.protocols.codecs import CODECS
from routecodex.protocols.dialect import Dialect
from routecodex.protocols.messages.client_quirks import message_stop_rule
from routecodex.providers.catalog import PRESETS
from routecodex.providers.http import HttpClient, origin_of
from routecodex.providers.http.client import encode_head
from routecodex.providers.upstream import Upstream
from routecodex.routing.pools import RoundRobin
from routecodex.routing.registry import Model, Pool, Provider, Registry, Target
from routecodex.routing.route_plan import RouteQuery
from routecodex.routing.router import Router
from routecodex.routing.state import ServerState, SessionState, StopMessageState
from routecodex.server import paths
from routecodex.server.access import ClientAccess
from routecodex.server.access_log import LineEncoder
from routecodex.server.request_log import RequestLog
from routecodex.server.request_spans import SpanBuilder
from routecodex.server_tools.clock.declared_tools import DeclaredTools
from routecodex.server_tools.clock.task import SessionTasks, Task
from routecodex.server_tools.clock.task_store import TaskStore
from routecodex.server_tools.hidden_calls import HiddenCall, HiddenToolCalls
from routecodex.server_tools.vision import DescriptionCache
from routecodex.stores.folder import Folder
from routecodex.stores.memory import MemoryStore
from routecodex.stores.redis.kept_values import KeptValues
from routecodex.stores.redis.stamp_table import StampTable
from routecodex.stores.store import Change, Stored
from routecodex.telemetry import protobuf
from routecodex.telemetry.exporter import QueuedTrace
from routecodex.telemetry.request_trace import Tracer
from routecodex.telemetry.span import Resource
from tests.kit import source_tree

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "routecodex"
MB = 1_000_000
T = TypeVar("T")
ONE = Provider(name="p", protocol="chat", keys=("k",), models={"m": Model(id="m", context_tokens=None)})
TARGET = Target("p", "k", "m")


class Forgetful:
    """A store that keeps nothing, so that only the cache before it takes memory."""

    kind = "memory"
    reads_by_updates = False

    async def update(self, space: str, key: str, change: Change, *, ttl: float | None = None) -> bytes | None:
        return change(None)

    async def trim(self, space: str, *, entries: int, size: int) -> int:
        return 0

    def stamp_of(self, space: str, key: str) -> int:
        return 1


STORE: Any = Forgetful()


def long_id(number: int, size: int = 100) -> str:
    return f"{number:0{size}d}"


def _replace(value: T, _before: object) -> T:
    return value


async def fill_reasoning() -> object:
    cache = ReasoningCache(thoughts=ThoughtStore(STORE))
    for number in range(20_000):
        parts = (Reasoning(text=long_id(number, 5000), signature=long_id(number, 500)),)
        cache.keep(long_id(number), CallReasoning("p", parts, None, size_of(parts)))
        cache.note_without(long_id(number, 1000))
    return cache


async def fill_stamps() -> object:
    table = StampTable()
    table.is_live = True
    for number in range(100_000):
        table.hear("sessions", number % 16, 1 + number // 16, key=long_id(number), stamp=number + 1)
    return table


async def fill_kept_values() -> object:
    kept = KeptValues(8 * 1024 * 1024)
    for number in range(100_000):
        kept.add(long_id(number), Stored(b"%0200d" % number, number))
    return kept


async def fill_signatures() -> object:
    owners = SignatureOwners()
    for number in range(100_000):
        owners.record("p", str(number))
    return owners


async def fill_sessions() -> object:
    sessions = Sessions(STORE)
    for number in range(20_000):
        text = long_id(number, 1000 if number % 2 else 10)
        state = SessionState(stop_message=StopMessageState(text=text))
        await sessions.change(Scope("session", long_id(number)), partial(_replace, state))
    return sessions


async def fill_tasks() -> object:
    store = TaskStore(STORE, now_ms=lambda: 0)
    for number in range(12_000):
        session = long_id(number)
        task = Task(
            task_id="t",
            session_id=session,
            due_at_ms=1,
            created_at_ms=1,
            updated_at_ms=1,
            task=long_id(number, 1000 if number % 2 else 10),
            delivery_count=0,
        )
        tasks = SessionTasks(version=1, session_id=session, tasks=(task,), updated_at_ms=1)
        await store.edit(session, partial(_replace, (tasks, None)))
    return store


async def fill_declared_tools() -> object:
    tools = DeclaredTools(STORE)
    for number in range(300):
        schema = {"properties": {long_id(one): {"type": "string"} for one in range(500)}}
        declared = tuple(Tool(name=f"t{one}", parameters=schema) for one in range(2))
        request = Request(model="m", messages=(), source="chat", tools=declared)
        await tools.record(long_id(number), request)
    return tools


async def fill_hidden_calls() -> object:
    hidden = HiddenToolCalls(STORE)
    for number in range(600):
        call = HiddenCall(long_id(number), "web_search", "{}", long_id(number, 100_000))
        await hidden.keep("s", [call], beside=[long_id(number)])
    return hidden


async def fill_descriptions() -> object:
    cache = DescriptionCache(STORE, ttl=1000)
    for number in range(600):
        await cache.save(long_id(number), long_id(number, 20_000), by_url=False)
    return cache


async def fill_file_names() -> object:
    folder = Folder(Path("/nowhere"), clock=lambda: 0.0, lock_wait=1.0)
    for number in range(20_000):
        folder.stamp_of(f"session:{long_id(number, 120)}")
    return folder


async def fill_names() -> object:
    registry = Registry([ONE], routes={}, aliases={"*": "p.m"})
    for number in range(10_000):
        name = long_id(number, 250)
        registry.alias_of(name)
        registry.targets_of(name)
        registry.resolve(name)
    return registry


class Quiet:
    quiet = True

    def until(self, target: Target, now: float) -> float:
        return 0.0

    def why(self, target: Target, now: float) -> str:
        return ""

    def is_limit(self, target: Target, now: float) -> bool:
        return False


async def fill_plans() -> object:
    router = Router(Registry([ONE], routes={"default": (Pool(id="d", targets=("p.m",)),)}, aliases={}))
    for number in range(4000):
        query = RouteQuery(model=long_id(number, 250), why=long_id(number))
        router.plan(
            query,
            session=SessionState(),
            server=ServerState(),
            health=Quiet(),
            now=0.0,
            next_turn=RoundRobin(),
        )
    return router


async def fill_affinities() -> object:
    keys = tuple("abcdefgh")
    provider = Provider(
        name="p", protocol="chat", keys=keys, models={"m": Model(id="m", context_tokens=None)}
    )
    router = Router(Registry([provider], routes={"default": (Pool(id="d", targets=("p.m",)),)}, aliases={}))
    for number in range(20_000):
        router.plan(
            RouteQuery(model="x", affinity=f"session:{long_id(number, 500)}"),
            session=SessionState(),
            server=ServerState(),
            health=Quiet(),
            now=0.0,
            next_turn=RoundRobin(),
        )
    return router


def record(number: int) -> RequestRecord:
    found = RequestRecord(
        id="req_1", protocol="chat", model=long_id(number, 250), stream=True, arrived=1.0, route="default"
    )
    found.target, found.reason, found.finished = TARGET, long_id(number, 400), 2.0
    return found


class Asked:
    id = "req_1"

    class role:  # noqa: N801  # the attribute of a request
        name = "main"

    class notices:  # noqa: N801  # the attribute of a request
        @staticmethod
        def lines() -> tuple[str, ...]:
            return ()


async def fill_routing_headers() -> object:
    request: Any = Asked()
    for number in range(4000):
        answer_headers(request, record(number), b"")
    return None


async def fill_log_fields() -> object:
    encoder = LineEncoder()
    for number in range(4000):
        encoder.encode(1.0, record(number))
    return encoder


async def fill_shapes() -> object:
    builder, tracer = SpanBuilder(demo_config()), Tracer()
    for number in range(2000):
        found = record(number)
        path = f"/v1/models/{long_id(number, 4000)}"
        found.trace = tracer.begin({}, method="GET", path=path, endpoint="model")
        found.trace.begin_attempt(TARGET, 1.0, 1)
        found.trace.attempts[0].model = long_id(number, 4000)
        protobuf.encode_request(Resource([], "1"), builder.spans([QueuedTrace(found, 10**18, 2, 0)]))
    return builder


async def fill_paths() -> object:
    for number in range(6000):
        paths.find(f"/v1/models/{long_id(number, 240)}")
    return None


async def fill_hosts() -> object:
    access = ClientAccess(demo_config(), ClientDirectory(MemoryStore()))
    for number in range(1000):
        access.check_host({"host": f"localhost:{long_id(number, 50_000 if number < 400 else 200)}"})
    return access


async def fill_header_blocks() -> object:
    url = "http://127.0.0.1:9"
    client = HttpClient()
    upstream = Upstream(
        "p", codec=CODECS["messages"], base_url=url, origin=origin_of(url), client=client, secrets={"k": "s"}
    )
    for number in range(1000):
        value = long_id(number, 50_000 if number < 400 else 1800)
        block = upstream.header_block("k", stream=True, headers={"anthropic-beta": value})
        encode_head(origin_of(url), block, method=b"POST", path=b"/v1/messages", length=5)
    return upstream


async def fill_messages_clients() -> object:
    for number in range(1000):
        message_stop_rule("auto", {"user-agent": long_id(number, 50_000 if number < 400 else 250)})
    return None


async def fill_request_log(tmp: Path = Path("/proc/nowhere")) -> object:
    log = RequestLog(tmp, max_bytes=1)
    for number in range(300):
        log.append([long_id(number, 2000).encode() for _ in range(100)])
    return log


DEMO = '[providers.p]\nprotocol = "demo"\n[providers.p.models.m]\n[routing]\ndefault = ["p.m"]\n'


def demo_config() -> Config:
    return loads(DEMO, source="t.toml", environ={}, presets=PRESETS, dialect_type=Dialect)


class Cache(NamedTuple):
    """A cache by its row in docs/operations.md, the file that holds it, and what it may take in MB."""

    file: str
    fill: Callable[[], Awaitable[object]]
    most: int


CACHES: dict[str, Cache] = {
    "reasoning behind tool calls": Cache("gateway/state/reasoning_cache.py", fill_reasoning, 24),
    "owners of signatures": Cache("gateway/state/signature_owners.py", fill_signatures, 15),
    "settings of sessions": Cache("gateway/state/sessions.py", fill_sessions, 16),
    "clock tasks": Cache("server_tools/clock/task_store.py", fill_tasks, 16),
    "declared tools": Cache("server_tools/clock/declared_tools.py", fill_declared_tools, 16),
    "hidden tool calls": Cache("server_tools/hidden_calls.py", fill_hidden_calls, 12),
    "image descriptions": Cache("server_tools/vision.py", fill_descriptions, 8),
    "stamps of keys in Redis, per space": Cache("stores/redis/stamp_table.py", fill_stamps, 8),
    "values of Redis": Cache("stores/redis/kept_values.py", fill_kept_values, 10),
    "file names of the store, per space": Cache("stores/folder.py", fill_file_names, 3),
    "names of models and targets": Cache("routing/registry.py", fill_names, 4),
    "plans": Cache("routing/router.py", fill_plans, 3),
    "order of targets by session, per pool": Cache("routing/pools.py", fill_affinities, 8),
    "headers of answers": Cache("gateway/answer/writer.py", fill_routing_headers, 2),
    "headers to providers, per provider": Cache("providers/upstream.py", fill_header_blocks, 3),
    "clients of messages": Cache("protocols/messages/client_quirks.py", fill_messages_clients, 1),
    "fields of log lines": Cache("server/access_log.py", fill_log_fields, 1),
    "common parts of spans": Cache("server/request_spans.py", fill_shapes, 8),
    "lines that wait for the request log": Cache("server/request_log.py", fill_request_log, 12),
    "paths": Cache("server/paths.py", fill_paths, 2),
    "Host names": Cache("server/access.py", fill_hosts, 1),
}


@pytest.fixture
def traced() -> Iterator[None]:
    tracemalloc.start()
    yield
    tracemalloc.stop()


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("name", CACHES)
async def test_a_cache_keeps_to_its_bound(name: str) -> None:
    cache = CACHES[name]
    gc.collect()
    before, _ = tracemalloc.get_traced_memory()
    kept = await cache.fill()
    await asyncio.sleep(0)
    gc.collect()
    after, _ = tracemalloc.get_traced_memory()
    assert after - before <= cache.most * MB
    del kept


BY_CONFIGURATION: dict[str, str] = {
    "accounting/client_store.py": "one value, which operators fill",
    "accounting/price_file.py": "the price file of the package",
    "gateway/codex_catalog.py": "the text of one file",
    "gateway/limit_headers.py": "seconds of the clock",
    "gateway/state/model_lists.py": "lists of configured providers",
    "providers/catalog.py": "the rows of the catalog",
    "providers/model_facts.py": "the facts of the package",
    "providers/recommended_models.py": "the recommendations of the package",
    "gateway/state/operator_state.py": "one value",
    "providers/http/client.py": "filled with the headers to providers",
    "providers/http/origin.py": "TLS options of providers",
    "protocols/messages/encode_stream.py": "parts of one answer",
    "protocols/responses/encode_items.py": "kinds of events",
    "protocols/responses/encode_stream.py": "parts of one answer",
    "routing/classify.py": "patterns of the configuration",
    "telemetry/protobuf.py": "names of attributes",
    "routing/instructions/tags.py": "names of envelopes that are known",
    "server/logs.py": "configured targets",
    "stores/uptime.py": "one value",
    "stores/owned_keys.py": "names of configured clients",
    "stores/memory.py": "the store itself",
    "stores/cell.py": "the caches that are built on it are in the list",
}
"""Files with a cache that clients cannot fill, or that is not one, and why."""

MAKERS = frozenset({"lru_cache", "cache", "OrderedDict", "Cell"})


def has_cache(path: Path) -> bool:
    """Return whether a file makes a cache: calls one of the makers, or is decorated with one."""
    for node in ast.walk(source_tree.read(path)):
        called = [node.func] if isinstance(node, ast.Call) else []
        decorators = node.decorator_list if isinstance(node, ast.FunctionDef) else []
        for found in (*called, *decorators):
            if getattr(found, "attr", getattr(found, "id", "")) in MAKERS:
                return True
    return False


def test_every_cache_is_in_the_list() -> None:
    files = {
        path.relative_to(SOURCE).as_posix()
        for path in SOURCE.rglob("*.py")
        if has_cache(path) and path.relative_to(SOURCE).parts[0] not in ("cli", "turns", "config")
    }
    listed = {cache.file for cache in CACHES.values()}
    assert files <= listed | BY_CONFIGURATION.keys()
    assert listed - files == {
        "providers/upstream.py",
        "server/access.py",
        "server/access_log.py",
        "server/request_log.py",
        "server/request_spans.py",
    }, "these bound a plain container"


def test_the_bounds_in_the_documents_are_those_that_hold() -> None:
    below = (ROOT / "docs" / "operations.md").read_text("utf-8").partition("\n## Memory\n")[2]
    rows = re.findall(r"^\| ([^|]+) \| [^|]+ \| (\d+) MB \|$", below.partition("\n## ")[0], re.MULTILINE)
    assert {name: int(most) for name, most in rows} == {name: row.most for name, row in CACHES.items()}
    total = re.search(r"add up to (\d+) MB", below)
    assert total is not None
    assert int(total[1]) == sum(row.most for row in CACHES.values())
