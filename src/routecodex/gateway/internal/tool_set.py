"""The server tools of a gateway, and which of them a request needs."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from importlib.metadata import entry_points

from msgspec.structs import replace

from routecodex.canon.errors import ConfigError
from routecodex.canon.request import ProtocolName, Request
from routecodex.config import Config
from routecodex.gateway.answer.prepared_target import PreparedTarget
from routecodex.gateway.context.identity import Scope
from routecodex.gateway.context.routing_context import RoutingContext
from routecodex.gateway.internal.clock_service import ClockService
from routecodex.gateway.internal.internal_calls import AnyTarget
from routecodex.gateway.internal.search_backends import lacking, may_declare, searches
from routecodex.gateway.request import ClientRequest
from routecodex.gateway.state.sessions import Sessions
from routecodex.routing.instructions import strip
from routecodex.routing.state import SessionState, StopMessageState
from routecodex.server_tools import beads, stop_message, web_search
from routecodex.server_tools.empty_reply import EmptyReplyTool
from routecodex.server_tools.framework import ServerTool, ServerToolPlugin, TurnContext
from routecodex.server_tools.hidden_calls import HiddenToolCalls
from routecodex.stores.store import Store

ENTRY_POINTS = "routecodex.server_tools"
"""Where other packages name server tools of their own: each a function of no arguments that gives one."""

_KINDS = ("session:", "conversation:", "chain:")
"""How the names of those begin that are not a session's own id: a session id that does is spelled out too."""
_UNREAD = Request(model="", messages=(), source="chat")

_AT_NEED = (stop_message.StopMessageTool, EmptyReplyTool, web_search.WebSearchTool)
"""Tools that make no request go in rounds unless something in it, or in its session, calls for them."""


class ServerToolSet:
    """Everything the gateway can do by itself between a model's answers."""

    def __init__(
        self,
        config: Config,
        *,
        sessions: Sessions,
        store: Store,
        clock: Callable[[], float],
        clockwork: ClockService,
        environ: Mapping[str, str] | None = None,
        search: web_search.Search | None = None,
    ) -> None:
        self._config = config.server_tools
        self._clockwork = clockwork
        self._environ = os.environ if environ is None else environ
        self._sessions = sessions
        self._clock = clock
        self._pairs = HiddenToolCalls(store)
        self.visible = self._config.visible_rounds
        self.continues = self._config.empty_reply_continue.enabled
        self._web_search = self._made_web_search(search)
        self._trusting = search is None
        self._searchless = (
            lacking(config, trusting=self._trusting) if self._web_search is not None else frozenset()
        )
        self._tools: list[ServerTool] = [*self._own(), *_foreign()]
        self._always = any(not isinstance(tool, _AT_NEED) for tool in self._tools)

    def _own(self) -> list[ServerTool]:
        tools: list[ServerTool] = []
        said = self._config.stop_message
        if said.enabled:
            options = stop_message.StopMessageOptions(
                include_answer=said.include_answer, sentinels=said.compaction_sentinels
            )
            settings = beads.beads_settings(self._environ)
            run = beads.BeadsCommand(environ=self._environ, workdir=settings.workdir)
            tools.append(
                stop_message.StopMessageTool(
                    self._take,
                    give_back=self._give_back,
                    is_idle=beads.BeadsWork(settings, run=run).is_idle,
                    options=options,
                )
            )
        if self._web_search is not None:
            tools.append(self._web_search)
        if self.continues:
            tools.append(EmptyReplyTool())
        if self._clockwork.row.enabled:
            tools.append(self._clockwork.alarm)
        return tools

    def _made_web_search(self, search: web_search.Search | None) -> web_search.WebSearchTool | None:
        said = self._config.web_search
        if not said.enabled:
            return None
        options = web_search.WebSearchOptions(max_uses=said.max_uses, max_results=said.max_results)
        return web_search.WebSearchTool(search, options=options)

    def may_want(self, session: SessionState, ask: ClientRequest) -> bool:
        """Whether a request of this session may need a tool; asked of every request."""
        return self._always or session.stop_message is not None or self._may_search(ask)

    def _may_search(self, ask: ClientRequest) -> bool:
        return ask.inbound.protocol in self._searchless and may_declare(ask.inbound)

    def _searches(self, lane: AnyTarget, source: ProtocolName) -> bool:
        return searches(lane, source, trusting=self._trusting)

    def _lacks(self, request: Request, lanes: Sequence[AnyTarget]) -> bool:
        if not web_search.declares_search(request):
            return False
        return not all(self._searches(lane, request.source) for lane in lanes)

    def fitted(self, situation: TurnContext, request: Request, lane: PreparedTarget) -> Request:
        """The request for one target: with a search of ours where it has none of its own."""
        if lane.codec.name == "messages":
            request = _lenient(request, situation.names)
        if self._web_search is None or self._searches(lane, situation.captured.source):
            return request
        return self._web_search.replace_search(situation, request)

    def situation(
        self, ask: ClientRequest, course: RoutingContext, *, lanes: Sequence[AnyTarget]
    ) -> tuple[TurnContext, Sequence[ServerTool]]:
        """The turn as tools see it, and those that take part; `lanes` are the targets it may go to."""
        scope = course.scope
        only_search = not self._always and course.session.stop_message is None
        if only_search and all(self._searches(lane, ask.codec.name) for lane in lanes):
            # Whoever it goes to searches by itself: the request need not even be read.
            return TurnContext(id=ask.id, session=None, captured=_UNREAD, now=self._clock), []
        situation = TurnContext(
            id=ask.id,
            session=session_name(scope),
            captured=ask.codec.decode_request(ask.inbound),
            now=self._clock,
            streaming=ask.inbound.stream,
        )
        situation.notes = ask.notices
        situation.named = scope.kind in ("session", "conversation")
        situation.data["scope"] = scope
        situation.data["stop_message"] = course.session.stop_message
        situation.data["has_stop_message"] = has_uses(course.session.stop_message)
        spent = course.session.stop_message
        if spent is not None and self._config.stop_message.enabled and not has_uses(spent):
            situation.note(f"stopMessage skipped: all {spent.max_repeats} uses are spent")
        situation.data["course"] = course
        situation.data["lacks_search"] = self._may_search(ask) and self._lacks(situation.captured, lanes)
        wanting = [tool for tool in self._tools if tool.wants(situation)]
        if wanting and situation.captured.n > 1:
            # Which of several answers would go on? They are all passed on as they come.
            situation.note(f"server tools skipped: the request wants {situation.captured.n} answers")
            return situation, []
        # To mend an empty answer no request goes in rounds: an exchange can do that by itself.
        return situation, [] if all(isinstance(tool, EmptyReplyTool) for tool in wanting) else wanting

    def plugin(self, tools: Sequence[ServerTool], situation: TurnContext) -> ServerToolPlugin:
        """The tools of one turn for the engine."""
        return ServerToolPlugin(tools, situation, pairs=self._pairs, seconds=self._config.max_turn_ms / 1000)

    async def _take(self, situation: TurnContext) -> str | None:
        """Counts one use of the session's stopMessage for good; its text, or None when none is left."""
        scope: Scope = situation.data["scope"]
        if not scope.lasts:
            stop, situation.data["stop_message"] = counted(situation.data["stop_message"], self._clock())
            return _speakable(stop)
        taken: list[StopMessageState | None] = [None]

        def change(state: SessionState) -> SessionState:
            taken[0], left = counted(state.stop_message, self._clock())
            return state if taken[0] is None else replace(state, stop_message=left)

        await self._sessions.change(scope, change)
        situation.data["stop_message"] = taken[0] or situation.data["stop_message"]
        return _speakable(taken[0])

    async def _give_back(self, situation: TurnContext) -> None:
        """Takes back the count of the last use, unless the message was set anew since."""
        taken: StopMessageState = situation.data["stop_message"]

        def change(state: SessionState) -> SessionState:
            stop = state.stop_message
            if stop is None or stop.updated_at != taken.updated_at or not stop.used:
                return state
            return replace(state, stop_message=replace(stop, used=stop.used - 1))

        await self._sessions.change(situation.data["scope"], change)


def _lenient(request: Request, names: Collection[str]) -> Request:
    """The request without `strict` at our own tools.

    Upstreams that speak messages, and older models of its maker, refuse requests with it; our tools look at
    their arguments themselves.
    """
    if not any(tool.strict and tool.name in names for tool in request.tools):
        return request
    tools = (replace(tool, strict=None) if tool.name in names else tool for tool in request.tools)
    return replace(request, tools=tuple(tools))


def session_name(scope: Scope) -> str | None:
    """What a session is called in what is kept for it; None when it does not outlive the request."""
    if not scope.lasts:
        return None
    plain = scope.kind == "session" and not scope.id.startswith(_KINDS)
    return scope.id if plain else scope.key


def has_uses(stop: StopMessageState | None) -> bool:
    """Whether there is a message that can still be said."""
    return stop is not None and stop.used < stop.max_repeats


def counted(
    stop: StopMessageState | None, now: float
) -> tuple[StopMessageState | None, StopMessageState | None]:
    """One use of the message, if one is left, and the message after it."""
    if stop is None or not has_uses(stop):
        return None, stop
    left = replace(stop, used=stop.used + 1, last_used_at=now)
    return left, left


def _speakable(stop: StopMessageState | None) -> str | None:
    # A file may hold what looks like an instruction; no provider sees one.
    return None if stop is None else strip(stop.text)


def _foreign() -> Iterator[ServerTool]:
    """The tools of other packages; one that cannot be had is an error that names it."""
    for point in entry_points(group=ENTRY_POINTS):
        try:
            yield point.load()()
        except Exception as exc:
            raise ConfigError(
                f"the server tool {point.name!r} ({point.value}) cannot be loaded: {exc!r}; "
                "mend or uninstall the package that brings it"
            ) from exc
