"""One call as the endpoints see it."""

from __future__ import annotations

from typing import Final

from routecodex.server.http import HttpRequest, Reply
from routecodex.server.paths import Endpoint


class ApiCall:
    """One admitted call: what was asked, where, by whom, under which id."""

    __slots__ = ("endpoint", "id", "reply", "request", "who")

    def __init__(self, request: HttpRequest, reply: Reply, *, endpoint: Endpoint, id: str, who: str) -> None:
        self.request: Final = request
        self.reply: Final = reply
        self.endpoint: Final = endpoint
        self.id: Final = id
        self.who: Final = who
