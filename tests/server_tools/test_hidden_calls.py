"""Hidden tool calls, restored at their original position."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from routecodex.canon.parts import Text, ToolCall, ToolResult
from routecodex.canon.request import Message, Request
from routecodex.server_tools import hidden_calls as kept
from routecodex.server_tools.hidden_calls import HiddenCall, HiddenToolCalls
from routecodex.stores.file import FileStore
from routecodex.stores.memory import MemoryStore
from routecodex.stores.store import StoreError
from tests.server_tools.turn_driver import HELLO, request_with

CLOCK = HiddenCall("k1", "clock", '{"action":"get"}', "noon")
READ, WRITE = ToolCall("r1", "read", "{}"), ToolCall("w1", "write", "{}")
SERVER_CALL = ToolCall("k1", "clock", '{"action":"get"}')
SERVER_RESULT = ToolResult("k1", (Text("noon"),), name="clock")


def result(id: str) -> ToolResult:
    return ToolResult(id, (Text(f"result of {id}"),))


def back(*more: Message) -> Request:
    return request_with(HELLO, *more)


def assistant(*parts: ToolCall | Text) -> Message:
    return Message("assistant", parts)


def tool(*parts: ToolResult) -> Message:
    return Message("tool", parts)


async def with_pairs(
    *pairs: HiddenCall, beside: tuple[str, ...], session: str | None = "s"
) -> HiddenToolCalls:
    box = HiddenToolCalls(MemoryStore())
    await box.keep(session, pairs, beside=beside)
    return box


ORDERS: list[tuple[str, Message]] = [
    ("", assistant(READ, WRITE, SERVER_CALL)),
    ("w1", assistant(READ, SERVER_CALL, WRITE)),
    ("r1", assistant(SERVER_CALL, READ, WRITE)),
    ("gone", assistant(READ, WRITE, SERVER_CALL)),
]


@pytest.mark.parametrize(("before", "calls"), ORDERS)
async def test_a_call_stands_where_the_model_made_it(before: str, calls: Message) -> None:
    pair = HiddenCall("k1", "clock", '{"action":"get"}', "noon", before=before)
    box = await with_pairs(pair, beside=("r1", "w1"))
    restored = await box.restored(back(assistant(READ, WRITE), tool(result("r1"), result("w1"))), "s")
    assert restored.messages[1:] == (calls, tool(SERVER_RESULT, result("r1"), result("w1")))


async def test_results_in_messages_of_their_own_are_found() -> None:
    box = await with_pairs(CLOCK, beside=("r1", "w1"))
    restored = await box.restored(back(assistant(READ, WRITE), tool(result("w1")), tool(result("r1"))), "s")
    assert restored.messages[2:] == (tool(SERVER_RESULT, result("w1")), tool(result("r1")))


async def test_calls_told_one_by_one_get_ours_once() -> None:
    box = await with_pairs(CLOCK, beside=("r1", "w1"))
    restored = await box.restored(
        back(assistant(READ), tool(result("r1")), assistant(WRITE), tool(result("w1"))), "s"
    )
    assert restored.messages[1:] == (
        assistant(READ, SERVER_CALL),
        tool(SERVER_RESULT, result("r1")),
        assistant(WRITE),
        tool(result("w1")),
    )


async def test_a_call_that_is_there_already_is_not_put_back_again() -> None:
    box = await with_pairs(CLOCK, beside=("r1",))
    whole = back(assistant(SERVER_CALL, READ), tool(SERVER_RESULT, result("r1")))
    assert await box.restored(whole, "s") == whole
    once = await box.restored(back(assistant(READ), tool(result("r1"))), "s")
    assert await box.restored(once, "s") == once


async def test_a_client_that_came_back_with_some_of_its_calls_gets_ours_too() -> None:
    box = await with_pairs(CLOCK, beside=("r1", "w1"))
    restored = await box.restored(back(assistant(WRITE), tool(result("w1"))), "s")
    assert restored.messages[1:] == (assistant(WRITE, SERVER_CALL), tool(SERVER_RESULT, result("w1")))


UNTOUCHED: list[tuple[Message, ...]] = [
    (),
    (assistant(Text("hello")),),
    (assistant(READ),),
    (assistant(READ), Message("user", (Text("never mind"),))),
    (assistant(READ), assistant(Text("so")), tool(result("r1"))),
    (assistant(WRITE), tool(result("w1"))),
]


@pytest.mark.parametrize("messages", UNTOUCHED)
async def test_nothing_is_put_where_the_history_would_not_be_whole(messages: tuple[Message, ...]) -> None:
    box = await with_pairs(CLOCK, beside=("r1",))
    request = back(*messages)
    assert await box.restored(request, "s") is request


async def test_a_session_gets_its_own_alone_and_who_has_none_goes_by_the_calls() -> None:
    request = back(assistant(READ), tool(result("r1")))
    box = await with_pairs(CLOCK, beside=("r1",), session="s")
    assert await box.restored(request, "other") is request
    assert await box.restored(request, None) is request
    free = await with_pairs(CLOCK, beside=("r1",), session=None)
    assert (await free.restored(request, None)).messages[1] == assistant(READ, SERVER_CALL)


async def test_a_signature_comes_back_with_its_maker() -> None:
    pair = HiddenCall("k1", "clock", "{}", "noon", "sealed", "glm")
    box = await with_pairs(pair, beside=("r1",))
    restored = await box.restored(back(assistant(READ), tool(result("r1"))), "s")
    assert restored.messages[1].parts[1] == ToolCall("k1", "clock", "{}", signature="sealed", origin="glm")


async def test_they_outlive_the_process(tmp_path: Path) -> None:
    first = FileStore(tmp_path)
    await HiddenToolCalls(first).keep("s", [CLOCK], beside=["r1"])
    await first.close()
    second = FileStore(tmp_path)
    restored = await HiddenToolCalls(second).restored(back(assistant(READ), tool(result("r1"))), "s")
    await second.close()
    assert restored.messages[1] == assistant(READ, SERVER_CALL)


class Down(MemoryStore):
    """A store that cannot be reached any more."""

    down = False

    async def update(self, *args: Any, **options: Any) -> bytes | None:
        if self.down:
            raise StoreError("no space left")
        return await super().update(*args, **options)

    async def get(self, *args: object) -> None:
        raise StoreError("gone")


async def test_a_store_that_is_down_costs_no_request(caplog: pytest.LogCaptureFixture) -> None:
    store = Down()
    box = HiddenToolCalls(store)
    await box.keep("s", [CLOCK], beside=["r1"])
    request = back(assistant(READ), tool(result("r1")))
    with caplog.at_level(logging.DEBUG, "routecodex.server_tools"):
        assert await HiddenToolCalls(store).restored(request, "s") is request
        store.down = True
        await box.keep("s", [CLOCK], beside=["r1"])
    assert [record.message for record in caplog.records] == [
        "calls of server tools cannot be put back: gone",
        "calls of server tools cannot be put back later: no space left",
    ]
    assert (await box.restored(request, "s")).messages[1] == assistant(READ, SERVER_CALL), (
        "the last known calls"
    )


async def test_what_cannot_be_read_is_told_and_left_out(caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryStore()
    box = HiddenToolCalls(store)
    await box.keep("s", [CLOCK], beside=["r1"])
    (key,) = await store.keys(kept.SPACE)
    await store.put(kept.SPACE, key, b'{"session": 1}')
    request = back(assistant(READ), tool(result("r1")))
    with caplog.at_level(logging.WARNING, "routecodex.server_tools"):
        assert await HiddenToolCalls(store).restored(request, "s") is request
    assert key in caplog.text


async def test_an_answer_with_many_client_calls_is_not_stored_for_each_of_them() -> None:
    store = MemoryStore()
    ids = tuple(f"r{number}" for number in range(1000))
    await HiddenToolCalls(store).keep("s", [CLOCK], beside=ids)
    assert len(await store.keys(kept.SPACE)) == 64
