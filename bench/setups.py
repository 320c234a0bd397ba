"""Setups of our gateway: further settings, and sessions with state on disk."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from bench.requests import CLIENT_KEY
from routecodex.gateway.context.identity import Scope
from routecodex.gateway.state import sessions
from routecodex.routing.state import SessionState, StopMessageState
from routecodex.stores import file_format
from routecodex.stores.store import Stored

PLAIN = "plain"

CALL_A_TOOL = "Now call a tool."
"""The mock provider answers a chat request that ends with this text with a tool call."""
DIGITS = 8


@dataclass(frozen=True, slots=True)
class Setup:
    """Number of sessions, the state of each, and further settings; or the number of clients with limits.

    `settings` are lines for the table `[server_tools.clock]`, the last of the configuration, or more tables.
    `last_words` end the request. Sessions that are not `met` are new to the gateway. With `redis` the state
    is in a Redis of its own.
    """

    sessions: int = 0
    state: SessionState | None = None
    settings: str = ""
    last_words: str = ""
    met: bool = True
    redis: bool = False
    clients: int = 0

    @property
    def numbers(self) -> int:
        """Sessions or clients, one of which each request belongs to; 0 if all are the same."""
        return self.sessions or self.clients

    @property
    def headers(self) -> dict[str, str]:
        """Header of the session or the client; the load generator inserts its number."""
        if self.clients:
            return {"Authorization": f"Bearer {client_key('#' * DIGITS)}"}
        return {"x-session-id": session_id("#" * DIGITS)} if self.sessions else {}


def session_id(number: str) -> str:
    """Return the id of a session, as clients send it."""
    return f"bench-{number}"


def client_key(number: str) -> str:
    """Return the key of one of many clients."""
    return f"sk-bench-{number}"


STICKY = SessionState(sticky="mock.gpt-mock")
# The text makes the mock end the next round with a tool call: one follow-up per request.
ARMED = SessionState(stop_message=StopMessageState(text=CALL_A_TOOL, max_repeats=1_000_000_000))

CLIENT = f'[clients.bench]\nkey = "{CLIENT_KEY}"\n'
# Limits that are never reached: money by the calendar, requests and tokens in a rolling window.
LIMITS = 'limits = ["$1M/month", "1000M requests/60s", "1000000M tokens/60s"]\n'

MANY_CLIENTS = 100
_CLIENTS = "".join(
    f'[clients.bench-{number}]\nkey = "{client_key(f"{number:0{DIGITS}}")}"\n{LIMITS}'
    for number in range(MANY_CLIENTS)
)

# Every request sets a sticky target, nearly always in a new session: one write of the store.
SET_STICKY = "<**!mock.gpt-mock**> go on"
MANY = 10_000_000

SETUPS = {
    PLAIN: Setup(),
    "off": Setup(settings="[usage]\nenabled = false\n"),
    "keys": Setup(settings=CLIENT),
    "budget": Setup(settings=CLIENT + LIMITS),
    "sticky": Setup(sessions=1, state=STICKY),
    "known": Setup(sessions=10_000, state=STICKY),
    "armed": Setup(sessions=100, state=ARMED),
    "redis": Setup(redis=True),
    "redisbudget": Setup(settings=CLIENT + LIMITS, redis=True),
    "redisclients": Setup(clients=MANY_CLIENTS, settings=_CLIENTS, redis=True),
    "filesticky": Setup(sessions=MANY, last_words=SET_STICKY, met=False),
    "redissticky": Setup(sessions=MANY, last_words=SET_STICKY, met=False, redis=True),
    "clock": Setup(sessions=100, settings='enabled = true\ntime_tag = "always"\n'),
}


def write_sessions(setup: Setup, session_dir: Path) -> None:
    """Write the session files that a gateway would have left after serving these sessions."""
    if setup.state is None:
        return
    space = session_dir / sessions.SPACE
    space.mkdir(parents=True)
    now = time.time()
    for number in range(setup.sessions):
        scope = Scope("session", session_id(f"{number:0{DIGITS}}"))
        value = sessions.encode(scope.key, setup.state)
        file = space / file_format.encode_name(scope.key)
        file.write_bytes(file_format.encode_value(scope.key, Stored(value, number + 1, now + sessions.TTL)))
        # Two writes of a space never have the same timestamp.
        stamp = file_format.stamp(int(now * 1e6) - setup.sessions + number, sessions.TTL)
        os.utime(file, ns=(stamp, stamp))
