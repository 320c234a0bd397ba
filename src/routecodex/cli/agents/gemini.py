"""Gemini CLI: the address in its environment, and a copy of its folder with another sign-in method.

With a base URL it infers the sign-in method `gateway`, which it then refuses without a terminal (exit 41),
and a method that was chosen earlier takes precedence over the key. System settings would override it, but
are read only from files that belong to root. So it gets a home of its own: there `.gemini` has the person's
settings with the method replaced, and links to everything else.
"""

from __future__ import annotations

from pathlib import Path

from routecodex.cli.agents.addresses import SESSION_HEADER, base_url, chosen_session, fits_header
from routecodex.cli.agents.agent import Agent, LaunchPlan, LaunchRequest, PlannedFile
from routecodex.cli.agents.overlay import json_text, links, merge, read_object

_HEADERS = "GEMINI_CLI_CUSTOM_HEADERS"
_METHOD = {"security": {"auth": {"selectedType": "gemini-api-key"}}}
_SETTINGS = "settings.json"
_OTHER_LOGINS = ("GOOGLE_API_KEY", "GOOGLE_GENAI_USE_VERTEXAI", "GOOGLE_GENAI_USE_GCA")


def _plan(request: LaunchRequest) -> LaunchPlan:
    session = chosen_session(request)
    by_header = fits_header(session)
    env = {
        "GOOGLE_GEMINI_BASE_URL": base_url(request, None if by_header else session),
        "GEMINI_API_KEY": request.key,
        "GEMINI_CLI_HOME": str(request.folder / "home"),
    }
    if by_header:
        env[_HEADERS] = _with_session(request.environ.get(_HEADERS, ""), session)
    return LaunchPlan(
        flags=("-m", request.model) if request.model is not None else (),
        env=env,
        unset=_OTHER_LOGINS,
        files=_overlay(request),
    )


def _with_session(headers: str, session: str) -> str:
    """Return the person's own headers with that of the session."""
    others = [line for line in headers.split(",") if line.partition(":")[0].strip().lower() != SESSION_HEADER]
    return ",".join((*(line.strip() for line in others if line.strip()), f"{SESSION_HEADER}: {session}"))


def _overlay(request: LaunchRequest) -> tuple[PlannedFile, ...]:
    ours = request.folder / "home" / ".gemini"
    person = Path(request.environ.get("GEMINI_CLI_HOME") or request.home) / ".gemini"
    if person == ours:
        # The shell is one in which the output of `routecodex env gemini` was evaluated.
        person = request.home / ".gemini"
    settings = merge(read_object(person / _SETTINGS), _METHOD)
    # A method that an organisation enforces would be refused otherwise.
    settings["security"]["auth"].pop("enforcedType", None)
    written = PlannedFile(path=ours / _SETTINGS, content=json_text(settings))
    return (written, *links(person, ours, but=(_SETTINGS,)))


GEMINI = Agent(
    name="gemini",
    title="Gemini CLI",
    executables=("gemini",),
    package="@google/gemini-cli",
    install="npm install -g @google/gemini-cli",
    tested="0.61.0",
    plan=_plan,
    keeps_models=True,
)
