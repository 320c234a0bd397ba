"""Accepting pauses while too many connections are open, and clients wait."""

from __future__ import annotations

import pytest

from tests.server.http.test_listener import Slow, idle_connection, streaming
from tests.server.http.wire import Stage, get, until


async def test_unused_connections_are_closed_to_make_room(stage: Stage) -> None:
    pressure: list[int] = []
    server = await stage.serve(open_at_once=2)
    server.on_pressure = lambda: pressure.append(server.connections)
    first, second = await idle_connection(stage), await idle_connection(stage)
    assert await first.rest() == b""
    third = await idle_connection(stage)
    assert await second.rest() == b""
    await third.send(get("/third"))
    assert (await third.answer()).body == b"GET /third "
    assert pressure


async def test_a_client_waits_while_connections_in_use_leave_no_room(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    slow = Slow()
    server = await stage.serve(slow, open_at_once=2)
    wires = [await streaming(stage) for _ in range(2)]
    late = await stage.connect()
    await late.send(get())
    await until(lambda: "2 client connections are open" in caplog.text)
    assert server.connections == 2
    slow.go.set()
    for wire in wires:
        await wire.reader.readuntil(b"0\r\n\r\n")
    assert (await late.answer()).body == b"first\nlast"
    assert caplog.text.count("new connections wait") == 1


async def test_a_high_descriptor_pauses_too(stage: Stage) -> None:
    server = await stage.serve(descriptors=0)
    first = await idle_connection(stage)
    assert await first.rest() == b""
    waits = await stage.connect()
    await waits.send(get())
    await until(lambda: server.connections == 0)
    server.limits = type(server.limits)()
    assert (await waits.answer()).status == 200


async def test_a_server_that_pauses_can_drain(stage: Stage) -> None:
    slow = Slow()
    server = await stage.serve(slow, open_at_once=1)
    wire = await streaming(stage)
    slow.go.set()
    assert await server.drain(20)
    await wire.reader.readuntil(b"0\r\n\r\n")
    with pytest.raises(OSError):
        await stage.connect()
