"""A connection that has sent large bodies: what it sends is read to where it stays."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from routecodex.server.http.connection import ServerConnection

_ONE_READ: Final = 65536

_FIRST: Final = 16384
"""Bytes of a head and what follows it: few, as these are copied."""


class BufferedConnection(asyncio.BufferedProtocol):
    """Has a connection's bytes read into the room of a body, or else into what all connections share."""

    __slots__ = ("_connection", "_first", "_room", "_shared")

    def __init__(self, connection: ServerConnection, shared: memoryview) -> None:
        self._connection = connection
        self._shared = shared
        self._first = shared[:_FIRST]
        self._room = False

    def get_buffer(self, sizehint: int) -> memoryview:
        room = self._connection.room()
        self._room = room is not None
        if room is not None:
            return room.rest()
        return self._first if self._connection.is_between() else self._shared

    def buffer_updated(self, nbytes: int) -> None:
        if self._room:
            self._connection.filled(nbytes)
        else:
            self._connection.data_received(bytes(self._shared[:nbytes]))

    def eof_received(self) -> None:
        self._connection.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connection.connection_lost(exc)

    def pause_writing(self) -> None:
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        self._connection.resume_writing()


def shared_buffer() -> memoryview:
    """What bytes are read into that do not belong to a large body: from there they are taken at once."""
    return memoryview(bytearray(_ONE_READ))
