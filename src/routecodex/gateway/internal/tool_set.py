"""Server tools of this gateway, and which a request needs."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from msgspec.structs import replace

from routecodex.canon.request import ProtocolName, Request
from routecodex.config import Config
from routecodex.gateway.answer.prepared_target import AnyTarget, PreparedTarget
from routecodex.gateway.context.routing_context import RoutingContext
from routecodex.gateway.internal.clock_service import ClockService
from routecodex.gateway.internal.installed_tools import load_installed
from routecodex.gateway.internal.search_backends import lacking, may_declare, searches
from routecodex.gateway.internal.tool_turn import GatewayTurn, ToolTurn, has_stop_message, has_uses
from routecodex.gateway.request import ClientRequest, RequestRecord
from routecodex.gateway.state.sessions import Sessions, StateNotSaved
from routecodex.routing.instructions import strip
from routecodex.routing.state import SessionState, StopMessageState
from routecodex.server_tools import beads, stop_message, web_search
from routecodex.server_tools.empty_reply import EmptyReplyTool
from routecodex.server_tools.framework import ServerTool, ServerToolPlugin, TurnContext
from routecodex.server_tools.hidden_calls import HiddenToolCalls
from routecodex.stores.store import Store, StoreError

log = logging.getLogger("routecodex.server_tools")

_ON_DEMAND = (stop_message.StopMessageTool, EmptyReplyTool, web_search.WebSearchTool)
"""Tools that take part only if the request or its session calls for them."""


class ServerToolSet:
    """Server tools of this gateway, and which a request needs."""

    def __init__(
        self,
        config: Config,
        *,
        sessions: Sessions,
        store: Store,
        clock: Callable[[], float],
        clock_service: ClockService,
        environ: Mapping[str, str] | None = None,
        search: web_search.Search | None = None,
    ) -> None:
        self._config = config.server_tools
        self._clock_service = clock_service
        self._environ = os.environ if environ is None else environ
        self._sessions = sessions
        self._clock = clock
        self._hidden = HiddenToolCalls(store)
        self.visible = self._config.visible_rounds
        self.continues = self._config.empty_reply_continue.enabled
        self._web_search = self._make_web_search(search)
        self._trusting = search is None
        self._searchless = (
            lacking(config, trusting=self._trusting) if self._web_search is not None else frozenset()
        )
        installed, self.installed = load_installed(self._config.installed)
        self._tools: list[ServerTool] = [*self._make_tools(), *installed]
        self._always = any(not isinstance(tool, _ON_DEMAND) for tool in self._tools)

    def _make_tools(self) -> list[ServerTool]:
        tools: list[ServerTool] = []
        if self._config.stop_message.enabled:
            tools.append(self._make_stop_message())
        if self._web_search is not None:
            tools.append(self._web_search)
        if self.continues:
            tools.append(EmptyReplyTool())
        if self._clock_service.config.enabled:
            tools.append(self._clock_service.clock_tool)
        return tools

    def _make_stop_message(self) -> stop_message.StopMessageTool:
        row = self._config.stop_message
        settings = beads.beads_settings(self._environ)
        run = beads.BeadsCommand(environ=self._environ, workdir=settings.workdir)
        return stop_message.StopMessageTool(
            self._take_use,
            give_back=self._give_back_use,
            is_set=has_stop_message,
            is_idle=beads.BeadsWork(settings, run=run).is_idle,
            options=stop_message.StopMessageOptions(include_answer=row.include_answer),
        )

    def _make_web_search(self, search: web_search.Search | None) -> web_search.WebSearchTool | None:
        row = self._config.web_search
        if not row.enabled:
            return None
        options = web_search.WebSearchOptions(max_uses=row.max_uses, max_results=row.max_results)
        return web_search.WebSearchTool(search, options=options)

    def may_need_tools(self, session: SessionState, request: ClientRequest) -> bool:
        """Return whether a request of this session may need a tool; called for every request."""
        return self._always or session.stop_message is not None or self._may_search(request)

    def open_turn(
        self,
        request: ClientRequest,
        context: RoutingContext,
        targets: Iterable[AnyTarget],
        *,
        record: RequestRecord,
    ) -> ToolTurn | None:
        """Return the turn of a request with the tools that take part; None if none does.

        `targets` are those that the request may go to. Calls that a tool makes count in `record`.
        """
        reachable = list(targets)
        only_search = not self._always and context.session.stop_message is None
        if only_search and all(self._searches(target, request.codec.name) for target in reachable):
            # Every target searches itself: the request need not even be decoded.
            return None
        turn = GatewayTurn(request, context, record=record, captured=request.canonical(), now=self._clock)
        stop = turn.stop_message
        if (
            stop is not None
            and self._config.stop_message.enabled
            and not has_uses(stop)
            and turn.role == "main"
        ):
            turn.note(f"stopMessage skipped: all {stop.max_repeats} uses are spent")
        turn.lacks_search = self._may_search(request) and self._lacks_search(turn.captured, reachable)
        tools = [tool for tool in self._tools if _wants(tool, turn)]
        if tools and turn.captured.n > 1:
            # It is not clear which of several answers would be continued: all are passed on.
            turn.note(f"server tools skipped: the request wants {turn.captured.n} answers")
            return None
        # An empty answer alone does not need rounds: the attempt is repeated.
        if all(isinstance(tool, EmptyReplyTool) for tool in tools):
            return None
        plugin = ServerToolPlugin(tools, turn, hidden=self._hidden, seconds=self._config.max_turn_ms / 1000)
        return ToolTurn(turn, plugin, fit=self.fit, visible=self.visible, continues=self.continues)

    def fit(self, turn: TurnContext, request: Request, prepared: PreparedTarget) -> Request:
        """Return the request for one target: with the gateway's search if the target has none."""
        if prepared.codec.name == "messages":
            request = _without_strict(request, turn.tool_names)
        if self._web_search is None or self._searches(prepared, turn.captured.source):
            return request
        return self._web_search.replace_search(turn, request)

    def _may_search(self, request: ClientRequest) -> bool:
        return request.wire.protocol in self._searchless and may_declare(request.wire)

    def _searches(self, target: AnyTarget, source: ProtocolName) -> bool:
        return searches(target, source, trusting=self._trusting)

    def _lacks_search(self, request: Request, targets: Sequence[AnyTarget]) -> bool:
        if not web_search.declares_search(request):
            return False
        return not all(self._searches(target, request.source) for target in targets)

    async def _take_use(self, turn: TurnContext) -> str | None:
        """Count one use of the session's stopMessage for good; return its text, or None if none is left."""
        assert isinstance(turn, GatewayTurn)
        scope = turn.context.scope
        if not scope.lasts:
            taken, turn.stop_message = counted(turn.stop_message, self._clock())
            return _message_text(taken)
        uses: list[StopMessageState | None] = [None]

        def change(state: SessionState) -> SessionState:
            uses[0], left = counted(state.stop_message, self._clock())
            return state if uses[0] is None else replace(state, stop_message=left)

        try:
            await self._sessions.change(scope, change)
        except StateNotSaved as exc:
            raise StoreError(exc.message) from exc
        turn.stop_message = uses[0] or turn.stop_message
        return _message_text(uses[0])

    async def _give_back_use(self, turn: TurnContext) -> None:
        """Take back the count of the last use, unless the message was set anew since.

        While the store is down that waits for its return.
        """
        assert isinstance(turn, GatewayTurn)
        taken = turn.stop_message
        assert taken is not None

        def change(state: SessionState) -> SessionState:
            stop = state.stop_message
            if stop is None or stop.updated_at != taken.updated_at or not stop.used:
                return state
            return replace(state, stop_message=replace(stop, used=stop.used - 1))

        await self._sessions.take_back(turn.context.scope, change)


def _wants(tool: ServerTool, turn: TurnContext) -> bool:
    """Return whether a tool takes part; one that fails does not, and the request goes on."""
    try:
        return tool.wants(turn)
    except Exception:
        log.exception("%s: %s cannot tell whether it takes part", turn.request_id, tool.name)
        return False


def _without_strict(request: Request, names: Collection[str]) -> Request:
    """Return the request without `strict` on the gateway's own tools.

    Older Claude models and other upstreams of the messages protocol reject it; the gateway's tools check
    their arguments themselves.
    """
    if not any(tool.strict and tool.name in names for tool in request.tools):
        return request
    tools = (replace(tool, strict=None) if tool.name in names else tool for tool in request.tools)
    return replace(request, tools=tuple(tools))


def counted(
    stop: StopMessageState | None, now: float
) -> tuple[StopMessageState | None, StopMessageState | None]:
    """Take one use if one is left; return it, and the message afterwards."""
    if stop is None or not has_uses(stop):
        return None, stop
    left = replace(stop, used=stop.used + 1, last_used_at=now)
    return left, left


def _message_text(stop: StopMessageState | None) -> str | None:
    # A message file may hold instruction tags; providers must not see them.
    return None if stop is None else strip(stop.text)
