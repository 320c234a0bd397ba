"""One call as the endpoints see it."""

from __future__ import annotations

from msgspec import Struct

from routecodex.server.http import HttpRequest, Reply
from routecodex.server.paths import Endpoint


class Call(Struct, frozen=True):
    """One admitted call: what was asked, where, by whom, under which id."""

    request: HttpRequest
    reply: Reply
    endpoint: Endpoint
    id: str
    who: str
