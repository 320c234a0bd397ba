"""Base URLs and headers by which an agent's requests reach the gateway under a session."""

from __future__ import annotations

import re
from urllib.parse import quote

from routecodex.cli.agents.agent import LaunchRequest

SESSION_HEADER = "x-session-id"
_PLAIN = re.compile(r"[A-Za-z0-9._~:@/+-]+")
"""Sessions that fit into every header syntax; Gemini CLI, for one, separates headers by commas."""


def base_url(request: LaunchRequest, session: str | None) -> str:
    """Return the gateway's address, below the session's path if a session is given."""
    return f"{request.url}/s/{quote(session, safe='')}" if session else request.url


def chosen_session(request: LaunchRequest) -> str:
    """Return the session of an agent that names none itself."""
    return request.session or request.generated_session


def fits_header(session: str) -> bool:
    """Whether a header can carry the session as it is."""
    return _PLAIN.fullmatch(session) is not None
