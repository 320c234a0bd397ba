"""A turn with server tools: one client request, answered in one or more rounds.

The turn engine runs the rounds, and this is its host. Each round is planned, tried and written like any
request; its events pass the round merger on their way to the client, so that all rounds are one answer there.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from typing import Protocol, TypeAlias

from msgspec.structs import replace

from routecodex.accounting.cost import CostKind
from routecodex.canon.errors import GatewayError, LimitExceeded, UpstreamRejected
from routecodex.canon.events import (
    AnswerPart,
    Event,
    Failed,
    Finished,
    PartFinished,
    PartStarted,
    Started,
    Usage,
    UsageReported,
)
from routecodex.canon.finish import Finish
from routecodex.canon.parts import Reasoning, Text, ToolCall
from routecodex.canon.request import Message, Request
from routecodex.canon.response import Response, ResponseBuilder
from routecodex.gateway.answer.attempt import Attempt
from routecodex.gateway.answer.event_stream import EventBatch, FirstContentBuffer, observed_in
from routecodex.gateway.answer.failover import Failover, RequestPlanner
from routecodex.gateway.answer.prepared_target import PreparedTarget
from routecodex.gateway.answer.writer import EventWriter
from routecodex.gateway.context.routing_context import RoutingContext
from routecodex.gateway.records import FollowUpRecord
from routecodex.gateway.request import ClientConnection, ClientRequest, RequestRecord, interruption
from routecodex.gateway.services import GatewayServices
from routecodex.gateway.state.reasoning_cache import ReasoningRecorder
from routecodex.routing.registry import PlanStep
from routecodex.server_tools.empty_reply import can_continue
from routecodex.server_tools.framework import ServerToolPlugin, TurnContext
from routecodex.server_tools.round_merger import RoundMerger, VisibleRounds
from routecodex.turns.engine import Engine

_NO_CONTENT = (Started, UsageReported, Finished)
_GONE = 499


class TurnTools(Protocol):
    """The server tools of one turn."""

    @property
    def turn(self) -> TurnContext: ...
    @property
    def plugin(self) -> ServerToolPlugin: ...
    @property
    def visible(self) -> VisibleRounds: ...
    @property
    def continues(self) -> bool:
        """Whether an answer that was cut off is continued."""

    def fit(self, request: Request, prepared: PreparedTarget) -> Request:
        """Return the request of a round for one target: with the gateway's search if the target has none."""


class RoundAnswer:
    """The answer of one round while it grows; `kept`: later rounds get it in their history."""

    __slots__ = ("_builder", "_open", "finished", "kept", "provider")

    def __init__(self) -> None:
        self._builder = ResponseBuilder()
        self._open: set[int] = set()
        self.finished = False
        self.kept = True
        self.provider = ""

    def add(self, event: Event) -> None:
        self._builder.add(event)
        if isinstance(event, PartStarted):
            self._open.add(event.index)
        elif isinstance(event, PartFinished):
            self._open.discard(event.index)

    def cut_off(self) -> list[Event]:
        """Return the events that end an answer which was cut off."""
        return [*map(PartFinished, sorted(self._open)), Finished(Finish("error"))]

    def response(self) -> Response:
        """Return the answer so far."""
        return self._builder.response()


RoundMessage: TypeAlias = Message | RoundAnswer


class ServerToolTurn:
    """Answers one request in as many rounds as its server tools request."""

    def __init__(
        self,
        services: GatewayServices,
        request: ClientRequest,
        client: ClientConnection,
        *,
        context: RoutingContext,
        record: RequestRecord,
        tools: TurnTools,
    ) -> None:
        self._services = services
        self._request = request
        self._client = client
        self._context = context
        self._record = record
        self._tools = tools
        self._turn = tools.turn
        self._planner = RequestPlanner(services, request, context)
        self._merger = RoundMerger(tools.turn.tool_names.__contains__, visible=tools.visible)
        reply = self._reply = services.reply_context(request, None)
        reply.request = tools.turn.captured
        self._writer = EventWriter(
            services, request, client, record, reply=reply, before_end=tools.plugin.before_end
        )
        self._answer = RoundAnswer()
        self._failed: Failed | None = None
        """The failure that cut the last round off, while it may be continued."""
        self._is_over = False
        self._dispatched_round = 0
        self._follow_ups: list[tuple[FollowUpRecord, RoundAnswer]] = []
        self.messages: list[RoundMessage] = list(tools.turn.captured.messages)

    async def run(self) -> None:
        """Answer the request; a failure before the answer has begun is raised."""
        try:
            engine: Engine[Request, RoundMessage, EventBatch] = Engine(
                (self._tools.plugin, self), max_requests=None
            )
            await engine.begin(self).run()
        except asyncio.CancelledError:
            stopped = None if self._is_over or not self._client.started else interruption(self._client)
            if stopped is None:
                raise
            await self._fail(Failed(stopped))
        finally:
            self._record.followups = tuple(_completed(*row) for row in self._follow_ups)
            self._writer.close()

    async def on_turn_end(self, _turn: object) -> None:
        """End the answer before the tools release their reservations: part of it may be sent only now."""
        if self._is_over:
            return
        if self._failed is not None:
            await self._fail(self._failed)
        else:
            await self._writer.end(self._merger.end())
            await self._dispatch()

    def build_request(self) -> Request:
        """Return the captured request with the messages added since."""
        return self.with_messages(self._turn.captured, self.messages)

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

    def as_message(self, value: object) -> RoundMessage:
        if isinstance(value, Message | RoundAnswer):
            return value
        raise TypeError(f"{value!r} is not a message")

    def processing(self, state: str) -> None:
        """Ignore the state of the turn: clients do not see it."""

    async def send(self, request: Request) -> AsyncGenerator[EventBatch, None]:
        """Yield the events of one round; the client gets each before it is yielded."""
        first = self._turn.round == 1
        if not first:
            # The rounds before may have taken minutes.
            await self._services.health.read_latest()
            if self._record.limits is not None:
                self._record.limits.settle_round()
        failover = Failover(
            self._services,
            self._planner,
            record=self._record,
            notices=self._request.notices,
            keep_reason=not first,
        )
        try:
            try:
                answer = await failover.open(
                    self._planner.plan_round(self._record.target), lambda step: self._open(step, request)
                )
            except GatewayError as error:
                if first:
                    raise
                await self._after_failed_round(error)
                return
            self._begin_round(answer, first=first)
            async with aclosing(self._written(answer, failover)) as written:
                async for batch in written:
                    yield batch
        finally:
            failover.close()

    async def _open(self, step: PlanStep, request: Request) -> FirstContentBuffer:
        """Open the answer of one target to the request of this round."""
        self._turn.sent = self._turn.round
        prepared = self._services.prepare(step.target)
        if isinstance(prepared, PreparedTarget):
            request = self._tools.fit(request, prepared)
        attempt = Attempt(self._services, self._request, self._context, step, record=self._record)
        return await attempt.open_events(request)

    def _begin_round(self, answer: FirstContentBuffer, *, first: bool) -> None:
        """Begin a round that has an answer; one that failed leaves the last round as it was."""
        self._reply.provider = self._answer.provider = answer.provider
        if not first:
            self._merger.begin_round(seamless=self._failed is not None)
            self._note_follow_up()
        self._failed = None
        self._turn.cut_off = False

    async def _written(
        self, answer: FirstContentBuffer, failover: Failover
    ) -> AsyncGenerator[EventBatch, None]:
        """Write the events of an answer; yield each batch that was written."""
        recorder = ReasoningRecorder(self._services.reasoning, answer.provider, self._request.owner)
        failed: Failed | None = None
        seen: list[Event] = []
        try:
            async with aclosing(answer.batches()) as batches:
                async for batch in batches:
                    if batch and isinstance(batch[-1], Failed):
                        failed, batch = batch[-1], batch[:-1]
                    seen.extend(batch)
                    await self._write(batch, recorder)
                    yield batch
                    if failed is not None:
                        break
        except BaseException:
            self._count(self._observed(seen, answer), "observed", _GONE)
            self._trace_round(seen)
            raise
        self._count_ended(seen, answer, failed)
        self._trace_round(seen)
        if failed is None:
            self._answer.finished = True
            recorder.settle()
            if recorder.is_unsaved:
                await recorder.save()
            failover.settle(None)
        else:
            failover.settle(failed.error)
            yield await self._cut_off(failed)

    def _trace_round(self, seen: Sequence[Event]) -> None:
        """Keep what the answer of a round says of itself, for its trace."""
        trace = self._record.trace
        attempt = None if trace is None else trace.attempt
        if attempt is None:
            return
        started = next((event for event in seen if isinstance(event, Started)), Started())
        finish = next((event.finish.reason for event in reversed(seen) if isinstance(event, Finished)), "")
        attempt.note(model=started.model, id=started.id, finish=finish)
        if attempt.content is not None:
            attempt.content.add_events(seen)

    def _count_ended(self, seen: Sequence[Event], answer: FirstContentBuffer, failed: Failed | None) -> None:
        """Count a round that has ended: by the provider's usage, or by what was seen of it."""
        usage = next((event.usage for event in reversed(seen) if isinstance(event, UsageReported)), None)
        if failed is not None:
            self._count(self._observed(seen, answer), "observed", failed.error.status)
        else:
            self._count(usage or self._observed(seen, answer))

    def _observed(self, seen: Sequence[Event], answer: FirstContentBuffer) -> Usage:
        return observed_in(seen, answer.reported(), input_tokens=self._request.estimate_input())

    def _count(self, usage: Usage, certainty: CostKind = "reported", status: int = 200) -> None:
        target = self._record.target
        assert target is not None
        usage = self._request.complete_usage(usage)
        self._services.count_call(self._record, target, usage, certainty=certainty, status=status)

    async def _write(self, batch: EventBatch, recorder: ReasoningRecorder) -> None:
        shown: list[Event] = []
        for event in batch:
            recorder(event)
            shown += self._merger.feed(event)
        if not shown:
            return
        await self._writer.write_events(shown)
        streams = self._writer.keep_alive is not None
        if streams and any(not isinstance(event, Started) for event in shown):
            await self._dispatch()

    async def _dispatch(self) -> None:
        """Let the tools confirm their reservations once in each round, when its first content is written.

        The byte comes first: a process killed between the two delivers a reminder twice, but never not at
        all. A whole answer, and what is shown only at the end, counts as written when it has ended.
        """
        if self._dispatched_round != self._turn.round:
            self._dispatched_round = self._turn.round
            await self._tools.plugin.dispatched()

    def _note_follow_up(self, error: GatewayError | None = None) -> None:
        """Record for the log that a server tool requested this round, not the client."""
        turn, target = self._turn, self._record.target
        row = FollowUpRecord(
            request=turn.request_id,
            metadata=turn.metadata,
            target=str(target) if target is not None else "",
            error=error.message if error is not None else "",
        )
        self._follow_ups.append((row, self._answer))

    async def _after_failed_round(self, error: GatewayError) -> None:
        """Continue without this round: the answer is complete unless it ended with server-tool calls."""
        self._note_follow_up(error.detached())
        self._turn.note(f"the follow-up failed: {error.message}")
        self._turn.failed = True
        if isinstance(error, LimitExceeded) and self._failed is None and self._merger.has_text:
            # The budget is used: the turn ends with what the client has.
            return
        if self._failed is not None or self._turn.owes_answer:
            await self._fail(self._failed or Failed(error))

    async def _cut_off(self, failed: Failed) -> list[Event]:
        """Close the parts of an answer that was cut off if the model may continue it, else fail."""
        final = isinstance(failed.error, UpstreamRejected) or not can_continue(self._answer.response())
        if final or not self._tools.continues:
            await self._fail(failed)
            return []
        self._failed = failed
        self._turn.cut_off = True
        ends = self._answer.cut_off()
        await self._writer.write_events([shown for end in ends for shown in self._merger.feed(end)])
        return ends

    async def _fail(self, failed: Failed) -> None:
        self._is_over = self._turn.failed = True
        await self._writer.fail(self._merger.fail(failed)[:-1], failed.error)


def _completed(row: FollowUpRecord, answer: RoundAnswer) -> FollowUpRecord:
    """Return the record of a round with its finish and usage."""
    response = answer.response()
    usage = response.usage
    return replace(
        row,
        finish=response.finish.reason if answer.finished else "",
        input_tokens=usage.input if usage is not None else None,
        output_tokens=usage.output if usage is not None else None,
    )


def _messages(messages: Iterable[object]) -> Iterable[Message]:
    for message in messages:
        if isinstance(message, RoundAnswer):
            parts = tuple(
                _with_origin(part, message.provider)
                for part in message.response().parts
                if not isinstance(part, Text) or part.text
            )
            if message.kept and parts:
                yield Message("assistant", parts)
        else:
            assert isinstance(message, Message)
            yield message


def _with_origin(part: AnswerPart, provider: str) -> AnswerPart:
    """Return a signed part with its provider: the signature may not go to another one."""
    if isinstance(part, Reasoning | ToolCall) and part.signature is not None:
        return replace(part, origin=provider)
    return part
