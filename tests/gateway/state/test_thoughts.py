"""Reasoning behind tool calls in the store: shared, bounded, and never the cause of a failure."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from routecodex.canon.events import Event, Finished, PartFinished, PartStarted, SignatureDelta
from routecodex.canon.finish import Finish
from routecodex.canon.parts import Part, Reasoning, Text, ToolCall, ToolResult
from routecodex.canon.request import Message, Request
from routecodex.gateway.state.reasoning_cache import ReasoningCache, ReasoningRecorder
from routecodex.gateway.state.thoughts import SPACE, TTL, AnswerThoughts, ThoughtStore
from routecodex.stores.file import FileStore
from routecodex.stores.memory import MemoryStore
from routecodex.stores.store import Stored, StoreError

THOUGHT = Reasoning("Hm.", signature="signed", origin="up", extras={"index": 1})


class Moving:
    """A clock in seconds that the test sets."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


class Watched(MemoryStore):
    """A store that lists its reads, can be down, and does not know which keys exist before they are read."""

    def __init__(self, clock: Moving | None = None) -> None:
        super().__init__(clock=clock or Moving())
        self.reads: list[str] = []
        self.trims: list[int] = []
        """The size to which each trim cut a space."""
        self.is_down = False
        self.is_remote = False
        self._unknown = 0

    def _check(self) -> None:
        if self.is_down:
            raise StoreError("the disk is full")

    async def get(self, space: str, key: str) -> Stored | None:
        self._check()
        self.reads.append(key)
        return await super().get(space, key)

    async def put(self, space: str, key: str, value: bytes, **options: Any) -> int:
        self._check()
        return await super().put(space, key, value, **options)

    async def trim(self, space: str, *, entries: int, size: int) -> int:
        self.trims.append(size)
        return await super().trim(space, entries=entries, size=size)

    def stamp_of(self, space: str, key: str) -> int:
        self._unknown -= 1
        return self._unknown if self.is_remote or self.is_down else super().stamp_of(space, key)


def worker(store: Any, clock: Moving | None = None, *, calls: int = 1000) -> ReasoningCache:
    return ReasoningCache(thoughts=ThoughtStore(store), clock=clock or Moving(), calls=calls)


async def answer(
    cache: ReasoningCache, *calls: str, thought: Reasoning | None = THOUGHT, owner: str = ""
) -> ReasoningRecorder:
    """Record an answer with these calls behind a thought, and store it."""
    recorder = ReasoningRecorder(cache, "up", owner)
    events: list[Event] = [PartStarted(0, thought), PartFinished(0)] if thought is not None else []
    for index, call in enumerate(calls, 1):
        events += [PartStarted(index, ToolCall(call, "f")), PartFinished(index)]
    for event in [*events, Finished(Finish("tool_calls"))]:
        recorder(event)
    recorder.settle()
    if recorder.is_unsaved:
        await recorder.save()
    return recorder


def history(*calls: str) -> Request:
    parts: tuple[Part, ...] = tuple(ToolCall(call, "f") for call in calls)
    results = tuple(ToolResult(call, (Text("1"),)) for call in calls)
    messages = (Message("user", (Text("hi"),)), Message("assistant", parts), Message("tool", results))
    return Request(model="m", source="chat", messages=messages)


async def recalled(cache: ReasoningCache, request: Request, owner: str = "") -> tuple[Part, ...]:
    """Return the parts of the assistant's message as the provider gets them."""
    unknown = cache.unknown_calls(request, owner)
    if unknown:
        await cache.learn(unknown, owner)
    return cache.recall(request, "up", owner).messages[1].parts


async def test_another_worker_restores_the_reasoning() -> None:
    store = Watched()
    await answer(worker(store), "c1", "c2")
    assert (await recalled(worker(store), history("c1", "c2")))[0] == THOUGHT


async def test_reasoning_survives_a_restart_in_files(tmp_path: Path) -> None:
    first = FileStore(tmp_path)
    await answer(worker(first), "c1", owner="alice")
    await first.close()
    second = FileStore(tmp_path)
    cache = worker(second)
    assert (await recalled(cache, history("c1"), "alice"))[0] == THOUGHT
    assert (await recalled(cache, history("c1"), "bob"))[0] == history("c1").messages[1].parts[0]
    assert len(list((tmp_path / SPACE).glob("*.json"))) == 1
    await second.close()


async def test_signatures_of_calls_are_restored_with_the_first_call_of_their_answer() -> None:
    store = Watched()
    recorder = ReasoningRecorder(cache := worker(store), "up")
    for index, call in enumerate(("c1", "c2")):
        recorder(PartStarted(index, ToolCall(call, "f")))
        if call == "c2":
            recorder(SignatureDelta(index, "sig-2"))
    recorder.settle()
    await recorder.save()
    other = worker(store)
    for one in (cache, other):
        parts = await recalled(one, history("c1", "c2"))
        assert [part.signature for part in parts if isinstance(part, ToolCall)] == [None, "sig-2"]
    assert store.reads == ["c1"]


async def test_a_call_is_looked_up_once() -> None:
    store = Watched()
    store.is_remote = True
    await answer(worker(store), "c1")
    cache = worker(store)
    for _ in range(3):
        await recalled(cache, history("c1"))
        await recalled(cache, history("c9"))
    assert store.reads == ["c1", "c9"]


async def test_a_worker_does_not_look_up_its_own_calls() -> None:
    store = Watched()
    store.is_remote = True
    cache = worker(store)
    await answer(cache, "c1", thought=None)
    await answer(cache, "c2")
    assert cache.unknown_calls(history("c1")) == []
    assert cache.unknown_calls(history("c2")) == []


async def test_a_store_that_knows_its_keys_is_not_read_in_vain() -> None:
    store = Watched()
    await recalled(worker(store), history("c1"))
    assert store.reads == []


async def test_an_answer_without_signed_reasoning_is_not_stored() -> None:
    store = Watched()
    for thought in (None, Reasoning("unsigned")):
        recorder = await answer(worker(store), "c1", thought=thought)
        assert not recorder.is_unsaved
    await answer(worker(store))
    assert await store.keys(SPACE) == []


async def test_reasoning_expires_in_the_store_and_in_memory() -> None:
    clock = Moving()
    store = Watched(clock)
    first = worker(store, clock)
    await answer(first, "c1")
    clock.now += TTL - 1
    second = worker(store, clock)
    for cache in (first, second):
        assert (await recalled(cache, history("c1")))[0] == THOUGHT
    clock.now += 1
    for cache in (first, second, worker(store, clock)):
        assert await recalled(cache, history("c1")) == history("c1").messages[1].parts


async def test_what_memory_has_dropped_is_read_again() -> None:
    store = Watched()
    cache = worker(store, calls=2)
    for number in range(5):
        await answer(cache, f"c{number}")
    assert (await recalled(cache, history("c0")))[0] == THOUGHT
    assert store.reads == ["c0"]


async def test_the_space_is_bounded() -> None:
    store = Watched()
    thoughts = ThoughtStore(store, entries=10, size=100_000)
    cache = ReasoningCache(thoughts=thoughts)
    for number in range(128):
        await answer(cache, f"c{number}")
    await thoughts.settle()
    assert await store.keys(SPACE) == [f"c{number}" for number in range(118, 128)]


async def test_by_default_the_space_keeps_a_day_of_reasoning_in_64_mb() -> None:
    clock = Moving()
    store = Watched(clock)
    kept = ThoughtStore(store)
    for number in range(64):
        await kept.save(f"c{number}", AnswerThoughts("up", (THOUGHT,), {}), owner="")
    await kept.settle()
    found = await kept.find("c1", owner="")
    assert found is not None
    assert found.expires == clock.now + 24 * 3600
    assert store.trims == [64 * 1024 * 1024]


async def test_a_store_that_is_down_costs_only_what_other_workers_answered() -> None:
    store = Watched()
    await answer(worker(store), "c1")
    store.is_down = True
    cache = worker(store)
    await answer(cache, "c2")
    assert (await recalled(cache, history("c2")))[0] == THOUGHT
    assert await recalled(cache, history("c1")) == history("c1").messages[1].parts
    store.is_down = False
    assert (await recalled(cache, history("c1")))[0] == THOUGHT


async def test_a_text_that_cannot_be_encoded_is_not_stored() -> None:
    store = Watched()
    cache = worker(store)
    await answer(cache, "c1", thought=Reasoning("half \ud83d", signature="s"))
    await answer(cache, "half \ud83d")
    assert await store.keys(SPACE) == []


async def test_a_value_of_another_kind_is_ignored(caplog: pytest.LogCaptureFixture) -> None:
    store = Watched()
    await store.put(SPACE, "c1", b'["else"]')
    with caplog.at_level(logging.WARNING):
        assert await recalled(worker(store), history("c1")) == history("c1").messages[1].parts
    assert "thoughts/'c1' is not the reasoning of an answer; it is ignored" in caplog.text


async def test_a_long_conversation_is_looked_up_from_its_end() -> None:
    store = Watched()
    store.is_remote = True
    messages = tuple(Message("assistant", (ToolCall(f"c{number}", "f"),)) for number in range(2000))
    request = Request(model="m", source="chat", messages=messages)
    cache = worker(store)
    unknown = cache.unknown_calls(request)
    assert (len(unknown), unknown[0]) == (1024, "c1999")
    await cache.learn(unknown)
    assert len(store.reads) == 1024
    assert cache.unknown_calls(request)[0] == "c975"


async def test_stored_values_can_be_read_back() -> None:
    store = Watched()
    thoughts = AnswerThoughts("up", (THOUGHT,), {"c1": None, "c2": "sig"})
    kept = ThoughtStore(store)
    await kept.save("c1", thoughts, owner="")
    found = await kept.find("c1", owner="")
    assert found is not None
    assert found.thoughts == thoughts
