"""What our gateway is set up with beside its upstream: settings, and sessions whose state is on disk."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from routecodex.gateway.context.identity import Scope
from routecodex.gateway.state import sessions
from routecodex.routing.state import SessionState, StopMessageState
from routecodex.stores import file_format
from routecodex.stores.store import Stored

PLAIN = "plain"

CALL_A_TOOL = "Now call a tool."
"""What the mock provider answers with a tool call when a chat request ends with it."""
DIGITS = 8


@dataclass(frozen=True, slots=True)
class Setup:
    """How many sessions the requests belong to, in what state each is found, and further settings.

    `settings` are lines for the table `[server_tools.clock]`, with which the configuration ends.
    """

    sessions: int = 0
    state: SessionState | None = None
    settings: str = ""

    @property
    def headers(self) -> dict[str, str]:
        """What names the session; the load generator puts its number in."""
        return {"x-session-id": session_id("#" * DIGITS)} if self.sessions else {}


STICKY = SessionState(sticky="mock.gpt-mock")
# Its own text makes the mock end the next round with a tool call: one follow-up for each request, for ever.
ARMED = SessionState(stop_message=StopMessageState(text=CALL_A_TOOL, max_repeats=1_000_000_000))

SETUPS = {
    PLAIN: Setup(),
    "sticky": Setup(sessions=1, state=STICKY),
    "known": Setup(sessions=10_000, state=STICKY),
    "armed": Setup(sessions=100, state=ARMED),
    "clock": Setup(sessions=100, settings='enabled = true\ntime_tag = "always"\n'),
}


def session_id(number: str) -> str:
    """The id of a session, as clients name it."""
    return f"bench-{number}"


def write_sessions(setup: Setup, session_dir: Path) -> None:
    """Writes the files that a gateway would have left behind which had served these sessions before."""
    if setup.state is None:
        return
    space = session_dir / sessions.SPACE
    space.mkdir(parents=True)
    now = time.time()
    for number in range(setup.sessions):
        scope = Scope("session", session_id(f"{number:0{DIGITS}}"))
        value = sessions.encode(scope, setup.state)
        file = space / file_format.encode_name(scope.key)
        file.write_bytes(file_format.encode_value(scope.key, Stored(value, number + 1, now + sessions.TTL)))
        # No two writes of a space have the same moment.
        stamp = file_format.stamp(int(now * 1e6) - setup.sessions + number, sessions.TTL)
        os.utime(file, ns=(stamp, stamp))
