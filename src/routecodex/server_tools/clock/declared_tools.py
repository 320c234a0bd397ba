"""Tools that a session declared last, for a request with a reminder that lacks some of them.

The client can run them: it declared them itself. Only plain functions are kept. Hosted tools run at one
provider, and the names of custom and namespaced tools come back in their own form only to a request that
declares them.
"""

from __future__ import annotations

import logging
from collections.abc import Collection

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from routecodex.canon.request import Request, Tool
from routecodex.stores.background_trim import BackgroundTrim
from routecodex.stores.cell import Cell, CellFormat
from routecodex.stores.owned_keys import plain_key
from routecodex.stores.store import Store, StoreError

SPACE = "tools"
_CACHED = 256
_TTL = 7 * 24 * 3600.0
_MAX_ENTRIES = 5000
_MAX_BYTES = 256 * 1024 * 1024
_TRIM_EVERY = 100

log = logging.getLogger("routecodex.clock")


class SessionTools(Struct, frozen=True):
    """The functions that a session declared last."""

    tools: tuple[Tool, ...] = ()


_NO_TOOLS = SessionTools()
_decoder = msgspec.json.Decoder(SessionTools)
FORMAT = CellFormat(
    space=SPACE,
    empty=lambda key: _NO_TOOLS,
    encode=lambda key, tools: msgspec.json.encode(tools),
    decode=lambda key, raw: _decoder.decode(raw),
    noun="a list of tools",
    outage="the tools of sessions cannot be read",
    log=log,
)


class DeclaredTools:
    """The functions of each session; written only when they change."""

    def __init__(self, store: Store) -> None:
        self._cell = Cell(store, FORMAT, cached=_CACHED, ttl=_TTL)
        self._trim = BackgroundTrim(
            store, SPACE, entries=_MAX_ENTRIES, size=_MAX_BYTES, every=_TRIM_EVERY, log=log
        )

    async def record(self, session: str, request: Request) -> None:
        """Remember the functions of a request; one without tools leaves those of an earlier one."""
        declared = SessionTools(tuple(tool for tool in request.tools if _is_plain(tool)))
        if not declared.tools or self._cell.peek(session) == declared:
            return
        # What this process has written is read once, and is known then.
        if self._cell.is_cached(session) and await self._cell.find(session) == declared:
            return
        try:
            await self._cell.edit(session, lambda _: (declared, None))
            self._trim.wrote()
        except StoreError as exc:
            log.debug("the tools of session %.80r cannot be kept: %s", plain_key(session), exc)

    async def complete(self, session: str, request: Request, *, taken: Collection[str]) -> Request:
        """Return the request with the functions of the session that it lacks, behind its own tools.

        `taken` are names that the gateway's own tools have in this turn.
        """
        choice = request.tool_choice
        if choice is not None and choice.mode == "none":
            return request
        known = self._cell.peek(session) or await self._cell.load(session)
        names = {tool.name for tool in request.tools} | set(taken)
        missing = tuple(tool for tool in known.tools if tool.name not in names)
        return replace(request, tools=(*request.tools, *missing)) if missing else request


def _is_plain(tool: Tool) -> bool:
    return tool.kind == "function" and tool.namespace is None
