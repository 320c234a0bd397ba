"""A turn with server tools: the turn engine's host on the gateway's side.

One client request is one turn of one or more rounds. Each round is planned and tried like any request; its
events pass the gate on their way to the client, so that all rounds are one answer there.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing
from functools import partial

from msgspec.structs import replace

from routecodex.canon import finish
from routecodex.canon.errors import GatewayError, UpstreamError, UpstreamRejected
from routecodex.canon.events import (
    AnswerPart,
    Event,
    Failed,
    Finished,
    PartFinished,
    PartStarted,
    Started,
    UsageReported,
)
from routecodex.canon.finish import Finish
from routecodex.canon.parts import Reasoning, Text, ToolCall
from routecodex.canon.request import Message, Request
from routecodex.canon.response import Response, ResponseBuilder
from routecodex.gateway.answer.attempt import AttemptServices
from routecodex.gateway.answer.event_stream import (
    EventBatch,
    FirstContentBuffer,
    read_first_content,
    response_batches,
    single_event_batches,
)
from routecodex.gateway.answer.keep_alive import KeepAlive
from routecodex.gateway.answer.prepared_target import PreparedTarget
from routecodex.gateway.answer.writer import JSON, SSE, ClientWriter, answer_headers
from routecodex.gateway.records import FollowUpRecord
from routecodex.gateway.request import ClientConnection, ClientRequest, RequestRecord
from routecodex.gateway.state.reasoning_cache import ReasoningRecorder
from routecodex.protocols.codec import AnswerOutcome
from routecodex.routing.registry import PlanStep, Target
from routecodex.routing.route_plan import RoutePlan
from routecodex.server_tools.empty_reply import can_continue
from routecodex.server_tools.framework import ServerToolPlugin, TurnContext
from routecodex.server_tools.round_merger import RoundMerger, VisibleRounds
from routecodex.turns.engine import Engine

Fit = Callable[[Request, PreparedTarget], Awaitable[Request]]
"""What a request becomes for a target that lacks something it needs."""
_NO_CONTENT = (Started, UsageReported, Finished)


class RoundAnswer:
    """One answer of the model, as it grows; `kept` says whether later rounds are told of it."""

    __slots__ = ("_folding", "_open", "finished", "kept", "provider")

    def __init__(self) -> None:
        self._folding = ResponseBuilder()
        self._open: set[int] = set()
        self.finished = False
        self.kept = True
        self.provider = ""

    def add(self, event: Event) -> None:
        self._folding.add(event)
        if isinstance(event, PartStarted):
            self._open.add(event.index)
        elif isinstance(event, PartFinished):
            self._open.discard(event.index)

    def cut(self) -> list[Event]:
        """The events that end an answer which will not come to its own end."""
        return [*map(PartFinished, sorted(self._open)), Finished(Finish("error"))]

    def response(self) -> Response:
        """The answer so far."""
        return self._folding.response()


RoundMessage = Message | RoundAnswer


class ServerToolTurn:
    """Answers one request in as many rounds as its server tools ask for."""

    def __init__(
        self,
        parts: AttemptServices,
        ask: ClientRequest,
        client: ClientConnection,
        *,
        record: RequestRecord,
        situation: TurnContext,
        tools: ServerToolPlugin,
        visible: VisibleRounds,
        reach: Callable[[ServerToolTurn], Awaitable[None]],
        broke: Callable[[Target, UpstreamError], None],
        fit: Fit,
        continues: bool = False,
    ) -> None:
        self._parts = parts
        self._ask = ask
        self._client = client
        self.record = record
        self._situation = situation
        self._tools = tools
        self._reach = reach
        self._broke = broke
        self._fit = fit
        self._continues = continues
        self._cut: Failed | None = None
        self._gate = RoundMerger(situation.names.__contains__, visible=visible)
        self._captured = situation.captured
        self._request = situation.captured
        self._opened: FirstContentBuffer | None = None
        self._watch: ReasoningRecorder | None = None
        self._over = False
        self._dispatched = 0
        self._followed: list[tuple[FollowUpRecord, RoundAnswer]] = []
        self.messages: list[RoundMessage] = list(situation.captured.messages)

    async def run(self) -> None:
        """Answers the request; what goes wrong before the answer has begun is raised."""
        reply = self._parts.reply_to(self._ask, None)
        reply.request = self._captured
        self._reply = reply
        stream = self._ask.inbound.stream
        # Made of what they need, not of this object, which holds them: nothing is left to the collector.
        headers = partial(answer_headers, self._ask, self.record, SSE if stream else JSON)
        watched = partial(self._parts.keep_alives.watch, self._client, head=headers)
        self._outlet = ClientWriter(
            self._ask.codec,
            self._client,
            reply,
            headers=headers,
            dispatched=self._tools.dispatched,
            watch=watched if stream else None,
            notices=self._ask.notices,
        )
        self._keep_alive = self._outlet.keep_alive
        try:
            engine: Engine[Request, RoundMessage, EventBatch] = Engine((self._tools, self), max_requests=None)
            await engine.begin(self).run()
        finally:
            self.record.followups = tuple(_told(*followed) for followed in self._followed)
            if self._keep_alive is not None:
                self._keep_alive.stop()

    async def on_turn_end(self, _turn: object) -> None:
        """Ends the answer, before the tools let go of what they hold: part of it may go out only now."""
        if self._cut is not None and not self._over:
            await self._fail(self._cut)
        elif not self._over:
            await self._outlet.end(self._gate.end(), self._settle)

    def build_request(self) -> Request:
        """The captured request with what was said since."""
        return replace(self._captured, messages=tuple(_messages(self.messages)))

    def with_messages(self, request: Request, messages: Sequence[object]) -> Request:
        return replace(request, messages=tuple(_messages(messages)))

    def new_message(self) -> RoundAnswer:
        self._answer = RoundAnswer()
        return self._answer

    def merge(self, message: RoundMessage, chunk: EventBatch) -> bool:
        assert isinstance(message, RoundAnswer)
        for event in chunk:
            message.add(event)
        return any(not isinstance(event, _NO_CONTENT) for event in chunk)

    def place(self, message: RoundMessage) -> None:
        self.messages.append(message)

    def as_message(self, given: object) -> RoundMessage:
        if isinstance(given, Message | RoundAnswer):
            return given
        raise TypeError(f"{given!r} is no message")

    def processing(self, state: str) -> None:
        """Nobody asks what a turn of the gateway is doing."""

    async def send(self, request: Request) -> AsyncGenerator[EventBatch, None]:
        """The events of one round; the client has been told of each before it is given on."""
        situation = self._situation
        first = situation.round == 1
        self._request = request
        try:
            await self._reach(self)
        except GatewayError as error:
            if first:
                raise
            await self._fall_through(error)
            return
        if not first:
            # Only now: a round that never began leaves the last one as it was.
            self._gate.begin_round(seamless=self._cut is not None)
            self._follow()
        self._cut = None
        situation.data["cut_off"] = False
        answer, watch = self._opened, self._watch
        assert answer is not None
        assert watch is not None
        async with aclosing(answer.batches()) as batches:
            async for batch in batches:
                failed = batch[-1] if batch and isinstance(batch[-1], Failed) else None
                told = batch if failed is None else batch[:-1]
                await self._tell(told, watch)
                yield told
                if failed is not None:
                    break
            else:
                self._answer.finished = True
                watch.settle()
                return
        yield await self._cut_off(failed)

    async def _tell(self, batch: EventBatch, watch: ReasoningRecorder) -> None:
        shown: list[Event] = []
        for event in batch:
            watch(event)
            shown += self._gate.feed(event)
        if not shown:
            return
        if self._keep_alive is not None and any(not isinstance(event, Started) for event in shown):
            await self._dispatch()
        await self._outlet.tell(shown)

    async def _dispatch(self) -> None:
        """Once in each round: what was reserved for it is delivered with its first word, and not before."""
        if self._dispatched != self._situation.round:
            self._dispatched = self._situation.round
            await self._tools.dispatched()

    async def attempt(self, step: PlanStep, _keep_alive: KeepAlive | None) -> None:
        """Opens this target's answer; raises UpstreamError while another one may be tried."""
        record = self.record
        record.target, record.route = step.target, step.route
        record.attempts += 1
        try:
            self._opened = await read_first_content(await self._events(step.target))
        except UpstreamError as error:
            error.provider = error.provider or step.target.provider
            raise
        self._reply.provider = self._answer.provider = step.target.provider
        self._watch = ReasoningRecorder(self._parts.memory, step.target.provider)

    def note(self, plan: RoutePlan) -> None:
        """Notes the plan that the next attempts follow."""
        if self._situation.round == 1:
            self.record.reason = plan.reason
        self._ask.notices.extend(line for line in plan.notices if line not in self._ask.notices)

    def keep_alive(self) -> KeepAlive | None:
        """The stream is watched over from the first round to the last, not attempt by attempt."""
        return None

    async def _events(self, target: Target) -> AsyncGenerator[EventBatch, None]:
        lane = self._parts.lane(target)
        self._situation.sent = self._situation.round
        if not isinstance(lane, PreparedTarget):
            return single_event_batches(lane(self._request))
        request = await self._fit(self._request, lane)
        request = self._parts.memory.recall(request, target.provider)
        encoded = lane.codec.encode_request(request, lane.aim)
        makers = self._parts.memory.makers
        if makers.asked_in_vain and await makers.learn():
            encoded = lane.codec.encode_request(request, lane.aim)
        self._ask.notices.extend(line for line in encoded.notices if line not in self._ask.notices)
        same = lane.codec is self._ask.codec
        response = await lane.send(
            encoded.body,
            stream=self._request.stream,
            headers=self._ask.headers if same else None,
            query=self._ask.query if same else "",
        )
        return response_batches(response, lane)

    def _follow(self, error: GatewayError | None = None) -> None:
        """Notes for the log that this round is none of the client's."""
        situation, target = self._situation, self.record.target
        followed = FollowUpRecord(
            request=situation.request_id,
            metadata=situation.metadata,
            target=str(target) if target is not None else "",
            error=error.message if error is not None else "",
        )
        self._followed.append((followed, self._answer))

    async def _fall_through(self, error: GatewayError) -> None:
        """A later round gave nothing: what the client has is whole, unless it ended with calls of ours."""
        self._follow(error.detached())
        self._situation.note(f"the follow-up failed: {error.message}")
        self._situation.broken = True
        if self._cut is not None or self._situation.owes:
            await self._fail(self._cut or Failed(error))

    async def _cut_off(self, failed: Failed) -> list[Event]:
        """An answer broke off: its events end here if the model may yet go on, else the whole answer does."""
        error = failed.error
        if self.record.target is not None and isinstance(error, UpstreamError):
            self._broke(self.record.target, error)
        lasts = isinstance(error, UpstreamRejected) or not can_continue(self._answer.response())
        if lasts or not self._continues:
            await self._fail(failed)
            return []
        self._cut = failed
        self._situation.data["cut_off"] = True
        ends = self._answer.cut()
        await self._outlet.tell([shown for end in ends for shown in self._gate.feed(end)])
        return ends

    async def _fail(self, failed: Failed) -> None:
        self._over = self._situation.broken = True
        self.record.error, self.record.status = failed.error, 200
        await self._outlet.fail(self._gate.fail(failed)[:-1], failed.error)

    async def _settle(self, outcome: AnswerOutcome) -> None:
        """Notes how the answer ended, and keeps what may be continued, before the client sees its end."""
        record, ask = self.record, self._ask
        record.status = 200
        record.usage = outcome.usage
        end = outcome.finish
        if end is not None:
            record.finish = end.reason
            if finish.tracing():
                finish.trace(ask.id, end, outcome.sent_finish or finish.encode(ask.codec.name, end))
        if outcome.body is not None and ask.codec.name == "responses":
            await self._parts.remember(ask, None, outcome)


def _told(followed: FollowUpRecord, answer: RoundAnswer) -> FollowUpRecord:
    """The round with what came of it."""
    response = answer.response()
    usage = response.usage
    return replace(
        followed,
        finish=response.finish.reason if answer.finished else "",
        input_tokens=usage.input if usage is not None else None,
        output_tokens=usage.output if usage is not None else None,
    )


def _messages(spoken: Iterable[object]) -> Iterable[Message]:
    for one in spoken:
        if isinstance(one, RoundAnswer):
            said = (part for part in one.response().parts if not isinstance(part, Text) or part.text)
            parts = tuple(_signed(part, one.provider) for part in said)
            if one.kept and parts:
                yield Message("assistant", parts)
        else:
            assert isinstance(one, Message)
            yield one


def _signed(part: AnswerPart, provider: str) -> AnswerPart:
    """The part with the name of its maker: to no other provider its signature may go."""
    if isinstance(part, Reasoning | ToolCall) and part.signature is not None:
        return replace(part, origin=provider)
    return part
