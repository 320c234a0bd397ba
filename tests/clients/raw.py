"""Plain HTTP, as a client without an SDK sends it."""

from __future__ import annotations

import http.client
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import msgspec

from routecodex.protocols.grammar.frames import ServedFrame, read
from tests.clients.gateway import Gateway

TIMEOUT = 20


@dataclass(frozen=True)
class Answer:
    """An answer read to the end of its body."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)

    @property
    def frames(self) -> list[ServedFrame]:
        return read(self.body)

    @property
    def events(self) -> list[str | None]:
        return [frame.event for frame in self.frames]


def call(
    gateway: Gateway, method: str, path: str, *, body: Any = None, headers: dict[str, str] | None = None
) -> Answer:
    """Send one request on its own connection; reading the body to its end must not time out."""
    place = urlsplit(gateway.url)
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=TIMEOUT)
    try:
        data = None if body is None else msgspec.json.encode(body)
        connection.request(method, path, data, {"content-type": "application/json", **(headers or {})})
        response = connection.getresponse()
        named = {name.lower(): value for name, value in response.getheaders()}
        return Answer(response.status, named, response.read())
    finally:
        connection.close()
