"""The engine without any conversation: a host whose requests, messages and chunks are its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest

from routecodex.turns import Engine, TurnRun


@dataclass(frozen=True)
class Request:
    items: tuple[str, ...]
    target: str = "first"


@dataclass
class Words:
    words: list[str] = field(default_factory=list)


class Chunks:
    """An async iterator that is no generator, and remembers being closed."""

    def __init__(self, chunks: Sequence[str]) -> None:
        self._left = iter(chunks)
        self.closed = False

    def __aiter__(self) -> Chunks:
        return self

    async def __anext__(self) -> str:
        for chunk in self._left:
            return chunk
        raise StopAsyncIteration

    async def aclose(self) -> None:
        self.closed = True


class WordHost:
    def __init__(self, *answers: Sequence[str]) -> None:
        self.messages: list[Words] = [Words(["hi"])]
        self.requests: list[Request] = []
        self.streams = [Chunks(answer) for answer in answers]
        self.states: list[str] = []

    def build_request(self) -> Request:
        return Request(tuple(" ".join(message.words) for message in self.messages))

    def with_messages(self, request: Request, messages: Sequence[object]) -> Request:
        return replace(request, items=tuple(map(str, messages)))

    def send(self, request: Request) -> AsyncIterator[str]:
        self.requests.append(request)
        return self.streams[len(self.requests) - 1]

    def new_message(self) -> Words:
        return Words()

    def merge(self, message: Words, chunk: str) -> bool:
        if chunk.startswith("#"):
            return False
        message.words.append(chunk)
        return True

    def place(self, message: Words) -> None:
        self.messages.append(message)

    def as_message(self, given: object) -> Words:
        return given if isinstance(given, Words) else Words([str(given)])

    def processing(self, state: str) -> None:
        self.states.append(state)


async def finished(host: WordHost, *plugins: object) -> TurnRun[Request, Words, str]:
    engine: Engine[Request, Words, str] = Engine(plugins)
    run = engine.begin(host, host.messages)
    await run.run()
    return run


async def test_a_turn_without_plugins_is_one_request() -> None:
    host = WordHost(["#start", "hello", "you", "#usage"])
    run = await finished(host)
    assert run.answer == Words(["hello", "you"])
    assert run.request_state == "completed"
    assert run.last_choice_chunk == "you"
    assert run.current_turn == host.messages == [Words(["hi"]), Words(["hello", "you"])]
    assert host.states == ["requesting", "streaming"]
    assert host.streams[0].closed


async def test_frozen_requests_are_replaced_and_follow_ups_are_rounds_of_the_same_loop() -> None:
    def aim(turn: Any) -> None:
        turn.request_body = replace(turn.request_body, target=f"target {turn.requests}")

    def follow_up(turn: Any) -> None:
        if turn.requests < 3:
            turn.append_and_request("go on")

    host = WordHost(["a"], ["b"], ["c"])
    await finished(host, SimpleNamespace(on_before_request=aim, on_after_request=follow_up))
    assert host.requests == [
        Request(("hi",), "target 1"),
        Request(("hi", "a", "go on"), "target 2"),
        Request(("hi", "a", "go on", "b", "go on"), "target 3"),
    ]
    assert all(stream.closed for stream in host.streams)


async def test_request_messages_are_set_by_the_host() -> None:
    def shorten(turn: Any) -> None:
        turn.set_request_messages(["x"])

    host = WordHost(["a"])
    await finished(host, SimpleNamespace(on_before_request=shorten))
    assert host.requests == [Request(("x",))]


async def test_a_stream_is_closed_when_a_hook_fails() -> None:
    def fail(turn: Any) -> None:
        raise ValueError("no")

    host = WordHost(["a", "b"])
    with pytest.raises(ValueError, match="no"):
        await finished(host, SimpleNamespace(on_stream_data=fail))
    assert host.streams[0].closed


async def test_an_error_of_closing_is_told_beside_the_main_one() -> None:
    class Broken(Chunks):
        async def aclose(self) -> None:
            raise OSError("close")

    def fail(turn: Any) -> None:
        raise ValueError("main")

    host = WordHost(["a"])
    host.streams = [Broken(["a"])]
    with pytest.raises(ExceptionGroup) as caught:
        await finished(host, SimpleNamespace(on_stream_data=fail))
    assert [str(error) for error in caught.value.exceptions] == ["main", "close"]


async def test_an_iterator_without_close_will_do() -> None:
    class Plain:
        def __init__(self) -> None:
            self._left = iter(["a"])

        def __aiter__(self) -> Plain:
            return self

        async def __anext__(self) -> str:
            for chunk in self._left:
                return chunk
            raise StopAsyncIteration

    host = WordHost()
    host.streams = [Plain()]  # type: ignore[list-item]  # less than the others
    assert (await finished(host)).answer == Words(["a"])
