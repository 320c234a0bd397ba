"""Merges the reports of all workers into frames, and gives them to all subscribers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from time import time
from typing import Any, Final

from msgspec import Raw

from routecodex.canon.errors import Overloaded
from routecodex.server.events.frames import EventRing, encode_frame
from routecodex.server.events.subscriber import Subscriber
from routecodex.server.events.tap import MOST_ROWS, WorkerReport, usd_of
from routecodex.server.log_numbers import stamp

MOST_SUBSCRIBERS: Final = 20
_ROW_BYTES: Final = 56 * 1024
"""Bytes of rows in one frame; the rest of its limit is for what stands around them."""
_MOST_SESSIONS: Final = 200
_MOST_TIMES: Final = 4000

Hello = Callable[[], dict[str, Any]]


class EventHub:
    """The frames of one server; `hello` returns the facts that every stream begins with."""

    def __init__(self, hello: Hello) -> None:
        self._hello = hello
        self._ring = EventRing()
        self._subscribers: set[Subscriber] = set()
        self._active: dict[str, int] = {}
        self._had_traffic = False
        self._reset_rows()
        self._reset_second()

    @property
    def boot(self) -> str:
        """Name of this hub in the ids of its frames."""
        return self._ring.boot

    @property
    def subscribers(self) -> int:
        """Number of streams."""
        return len(self._subscribers)

    @property
    def ring_bytes(self) -> int:
        """Bytes that are kept to resume from."""
        return self._ring.size

    def wants(self, topic: str) -> bool:
        """Return whether somebody subscribes to this topic."""
        return any(topic in one.topics for one in self._subscribers)

    def subscribe(self, topics: Collection[str], last_id: str = "") -> Subscriber:
        """Add a stream; it begins with `hello` and, if it can be resumed, with the frames that it missed."""
        if len(self._subscribers) >= MOST_SUBSCRIBERS:
            raise Overloaded(
                f"{MOST_SUBSCRIBERS} pages watch this gateway already; close one", code="too_many_subscribers"
            )
        missed = self._ring.since(last_id, topics) if last_id else None
        facts = {
            **self._hello(),
            "boot": self._ring.boot,
            "resumed": missed is not None,
            "at": stamp(time()),
        }
        hello = encode_frame("hello", facts, self._ring.last_id if missed is None else last_id)
        subscriber = Subscriber(topics, (hello, *(missed or ())))
        self._subscribers.add(subscriber)
        return subscriber

    def leave(self, subscriber: Subscriber) -> None:
        """Remove a stream."""
        self._subscribers.discard(subscriber)
        subscriber.close()

    def close(self) -> None:
        """End all streams."""
        for subscriber in list(self._subscribers):
            self.leave(subscriber)

    def publish(self, topic: str, value: Any) -> None:
        """Send an event to everybody who subscribes to its topic."""
        frame = self._ring.add(topic, value)
        for subscriber in self._subscribers:
            subscriber.offer(topic, frame)

    def take(self, worker: str, report: WorkerReport) -> None:
        """Add the report of a worker to those of this moment."""
        rows = self._rows
        rows.skipped_started += report.skipped_started + _extend(rows.started, report.started)
        rows.skipped_finished += report.skipped_finished + _extend(rows.finished, report.finished)
        self._active[worker] = report.active
        for result in report.configs:
            self.publish("config", result)
        second = self._second
        for name in ("requests", "errors", "input_tokens", "output_tokens", "nanos"):
            setattr(second, name, getattr(second, name) + getattr(report, name))
        second.first_bytes.extend(report.first_bytes[: _MOST_TIMES - len(second.first_bytes)])
        self._sessions.update(report.sessions[: _MOST_SESSIONS - len(self._sessions)])

    def forget(self, worker: str) -> None:
        """Drop a worker that is gone: nothing is under way in it any more."""
        self._active.pop(worker, None)

    def flush_rows(self) -> None:
        """Send the rows of this moment; called at most four times a second."""
        rows = self._rows
        if rows.is_empty:
            return
        self._reset_rows()
        size = 0
        kept: dict[str, list[Raw]] = {"finished": [], "started": []}
        for name, found in (("finished", rows.finished), ("started", rows.started)):
            for row in found:
                size += len(bytes(row)) + 1
                if size > _ROW_BYTES:
                    setattr(rows, f"skipped_{name}", getattr(rows, f"skipped_{name}") + 1)
                else:
                    kept[name].append(row)
        skipped = {"started": rows.skipped_started, "finished": rows.skipped_finished}
        value = {"started": kept["started"], "finished": kept["finished"], "skipped": skipped}
        self.publish("requests", value)

    def flush_second(self) -> None:
        """Send the figures of the last second, and the sessions that had requests; none without traffic."""
        second, sessions = self._second, sorted(self._sessions)
        self._reset_second()
        active = sum(self._active.values())
        has_traffic = bool(second.requests or active)
        if has_traffic or self._had_traffic:
            self.publish("stats", _stats(second, active))
        self._had_traffic = has_traffic
        if sessions:
            self.publish("sessions", {"changed": sessions})

    def _reset_rows(self) -> None:
        self._rows = WorkerReport()

    def _reset_second(self) -> None:
        self._second = WorkerReport()
        self._sessions: set[str] = set()


def _extend(rows: list[Raw], more: Sequence[Raw]) -> int:
    """Add rows up to the limit; return how many were left out."""
    free = MOST_ROWS - len(rows)
    rows.extend(more[:free])
    return max(0, len(more) - free)


def _stats(second: WorkerReport, active: int) -> dict[str, Any]:
    times = sorted(second.first_bytes)
    return {
        "at": stamp(time()),
        "active": active,
        "requests": second.requests,
        "errors": second.errors,
        "input_tokens": second.input_tokens,
        "output_tokens": second.output_tokens,
        "cost": usd_of(second.nanos),
        "first_byte_p50": _quantile(times, 0.5),
        "first_byte_p95": _quantile(times, 0.95),
    }


def _quantile(times: Sequence[float], share: float) -> float | None:
    return round(times[min(len(times) - 1, int(len(times) * share))], 4) if times else None
