"""Finds the role of a request: a session of an agent carries more than one conversation.

main         the conversation with the user
subagent     an agent that a model started
utility      titles, digests, suggestions and other small work that the client does on its own behalf
compaction   a summary that replaces the history

A header or field decides first, then the openings of system texts and of each text of the newest user
message. Neither a model's name nor missing tools make a role. Measured with Claude Code 2.1.326, Codex 0.169,
Gemini CLI 0.61, opencode 1.18, Qwen Code 0.24, pi 0.73 and aider 0.86; Crush 0.96 by its sources.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

import msgspec
from msgspec import Struct

from routecodex.canon.agent_texts import LEADING
from routecodex.canon.request import COMPACTION_TRIGGER, RoleName
from routecodex.routing.request_role import MAIN, RequestRole

ROLE_HEADER = "x-routecodex-role"
"""Request header in which a host names the role; the response header has the same name."""


class RoleOpening(NamedTuple):
    """The beginning of a text that shows a role.

    `place`: a system text, a text of the newest user message, or either. `lean`: only without declared tools.
    """

    client: str
    role: RoleName
    place: Literal["system", "user", "any"]
    text: str
    lean: bool = False


ROLE_OPENINGS: tuple[RoleOpening, ...] = (
    RoleOpening("Claude Code", "subagent", "system", "You are an agent for Claude Code"),
    RoleOpening("Claude Code", "compaction", "user", "CRITICAL: Respond with TEXT ONLY"),
    RoleOpening("Claude Code", "compaction", "user", "Your task is to create a detailed summary"),
    RoleOpening(
        "Claude Code", "compaction", "system", "You are a helpful AI assistant tasked with summarizing"
    ),
    RoleOpening("Claude Code", "utility", "system", "You are naming a coding session"),
    RoleOpening("Claude Code", "utility", "system", "Generate a concise, sentence-case title"),
    RoleOpening("Claude Code", "utility", "system", "You are coming up with a succinct title"),
    RoleOpening(
        "Claude Code", "utility", "any", "Analyze if this message indicates a new conversation topic"
    ),
    RoleOpening("Claude Code", "utility", "any", "Please write a 5-10 word title"),
    RoleOpening("Claude Code", "utility", "any", "Summarize this coding conversation in under 50 characters"),
    RoleOpening("Claude Code", "utility", "system", "You run a web search for another Claude model"),
    RoleOpening(
        "Claude Code", "utility", "system", "You are an assistant for performing a web search tool use"
    ),
    RoleOpening(
        "Claude Code", "utility", "system", "You are a security monitor for autonomous AI coding agents"
    ),
    RoleOpening(
        "Claude Code", "utility", "system", "You are selecting memories that will be useful to Claude Code"
    ),
    RoleOpening("Claude Code", "utility", "any", "You are now acting as the memory extraction subagent"),
    RoleOpening(
        "Claude Code",
        "utility",
        "any",
        "Write a short summary label describing what these tool calls accomplished",
    ),
    RoleOpening("Claude Code", "utility", "any", "Generate a short kebab-case name"),
    RoleOpening("Claude Code", "utility", "system", "You are evaluating a hook in Claude Code"),
    RoleOpening(
        "Claude Code", "utility", "system", "You are evaluating a stop-condition hook in Claude Code"
    ),
    RoleOpening("Claude Code", "utility", "user", "Web page content:", lean=True),
    RoleOpening("Claude Code", "utility", "user", "[SUGGESTION MODE:"),
    RoleOpening("Claude Code", "utility", "user", "The user stepped away and is coming back."),
    RoleOpening("Claude Code", "utility", "user", "<policy_spec>", lean=True),
    RoleOpening("Claude Code", "utility", "user", "<system-reminder>This is a side question from the user."),
    RoleOpening("Codex", "compaction", "user", "You are performing a CONTEXT CHECKPOINT COMPACTION"),
    RoleOpening("Codex", "compaction", "user", COMPACTION_TRIGGER),
    RoleOpening(
        "Codex",
        "utility",
        "any",
        "You are a helpful assistant. You will be presented with a user prompt, and your job is to provide a",
    ),
    RoleOpening("Codex", "utility", "any", "Generate a concise, single-line title"),
    RoleOpening(
        "Gemini CLI",
        "compaction",
        "system",
        "You are a specialized system component responsible for distilling chat history",
    ),
    RoleOpening(
        "Gemini CLI", "compaction", "system", "You are the component that summarizes internal chat history"
    ),
    RoleOpening("Gemini CLI", "utility", "system", "You are a specialized Task Routing AI"),
    RoleOpening(
        "Gemini CLI",
        "utility",
        "user",
        "Analyze *only* the content and structure of your immediately preceding response",
    ),
    RoleOpening(
        "Gemini CLI", "utility", "any", "Summarize the user's primary intent or goal in this conversation"
    ),
    RoleOpening("opencode", "utility", "system", "You are a title generator"),
    RoleOpening("opencode", "utility", "user", "Generate a title for this conversation"),
    RoleOpening("opencode", "compaction", "system", "You are a context summarization agent."),
    RoleOpening("opencode", "compaction", "system", "You are an anchored context summarization assistant"),
    RoleOpening("opencode", "compaction", "user", "Here is the conversation so far:", lean=True),
    RoleOpening("opencode", "utility", "any", "Summarize what was done in this conversation"),
    RoleOpening(
        "Qwen Code", "subagent", "system", "You are a general-purpose subagent working for a parent agent."
    ),
    RoleOpening("Qwen Code", "compaction", "any", "You are the component that summarizes a conversation"),
    RoleOpening(
        "Qwen Code", "utility", "system", "You are now acting as the managed memory extraction subagent"
    ),
    RoleOpening("pi", "compaction", "system", "You are a context summarization assistant."),
    RoleOpening("aider", "compaction", "system", "*Briefly* summarize this partial conversation"),
    RoleOpening("aider", "utility", "system", "You are an expert software engineer that generates concise,"),
    RoleOpening("Crush", "compaction", "system", "You are summarizing a conversation to preserve context"),
    RoleOpening("Crush", "utility", "system", "You will generate a short title"),
    RoleOpening("Open WebUI", "utility", "user", "Generate a concise, 3-5 word title"),
    RoleOpening(
        "Open WebUI",
        "utility",
        "user",
        "Generate 1-3 broad tags categorizing the main themes of the chat history",
    ),
)
"""Openings by which requests other than the main conversation are known, by client."""

QUOTA_CHECK: Final = RoleOpening("Claude Code", "utility", "user", "quota")
"""The whole message with which Claude Code asks for one token, to see its rate limits."""


class RoleTool(NamedTuple):
    """A tool that a client declares only in requests of one role; `agent` begins its `user-agent`."""

    client: str
    agent: str
    role: RoleName
    tool: str


ROLE_TOOLS: tuple[RoleTool, ...] = (
    # Its sub-agents have neither a header nor an opening in common, but report by this tool.
    RoleTool("Gemini CLI", "geminicli", "subagent", "complete_task"),
)
"""Tools by which requests are known whose client shows the role in no other way."""

_CLAUDE_CLASSES: dict[str, RoleName] = {
    "main": "main",
    "subagent": "subagent",
    "workflow": "subagent",
    "compaction": "compaction",
    "auxiliary": "utility",
    "side_reply": "utility",
}
_CODEX_KINDS: dict[str, RoleName] = {"compaction": "compaction", "memory": "utility", "prewarm": "utility"}
_CODEX_LABELS: dict[str, RoleName] = {"compact": "compaction", "memory_consolidation": "utility"}
_ROLES: dict[str, RoleName] = {
    "main": "main",
    "subagent": "subagent",
    "utility": "utility",
    "compaction": "compaction",
}

_CODEX_TURN = "x-codex-turn-metadata"
_CLASS = "x-claude-code-request-class"
_CLAUDE_COMPACTION = "x-claude-code-compaction"
_CLAUDE_AGENT = "x-claude-code-agent-id"
_CLAUDE_PARENT = "x-claude-code-parent-agent-id"
_CLAUDE_AGENT_TYPE = "x-claude-code-agent-type"
_CLAUDE_PROMPT = "x-claude-code-prompt-id"
_CODEX_LABEL = "x-openai-subagent"
_CODEX_PARENT = "x-codex-parent-thread-id"
_PARENT_SESSION = "x-parent-session-id"

ROLE_HEADERS: Final = frozenset(
    (
        ROLE_HEADER,
        _CODEX_TURN,
        _CLASS,
        _CLAUDE_COMPACTION,
        _CLAUDE_AGENT,
        _CLAUDE_PARENT,
        _CLAUDE_AGENT_TYPE,
        _CLAUDE_PROMPT,
        _CODEX_LABEL,
        _CODEX_PARENT,
        _PARENT_SESSION,
    )
)
"""Headers that show the role of a request, or name its user turn."""
_MAX_ID = 128
_SEARCHED = 300


class CodexTurn(Struct, frozen=True):
    """The fields of Codex's turn metadata that show the role of a request."""

    request_kind: str = ""
    thread_source: str = ""
    turn_id: str = ""


_objects = msgspec.json.Decoder(dict[str, Any])
_NO_TURN = CodexTurn()


def role_by_headers(headers: Mapping[str, str], *, named: str | None, metadata: str | None) -> RequestRole:
    """Return the role that headers show; `named` and `metadata` are those of the body, if it has them.

    MAIN without any signal. A role without a signal may still name the user turn.
    """
    if named is None and metadata is None and ROLE_HEADERS.isdisjoint(headers):
        return MAIN
    codex = _codex_turn(headers.get(_CODEX_TURN) or metadata)
    turn = _bounded(headers.get(_CLAUDE_PROMPT) or codex.turn_id)
    name, signal = _signal(headers, codex, named)
    agent = _agent(headers) if name == "subagent" else ""
    return RequestRole(name, signal, agent, turn)


def is_role(value: object) -> bool:
    """Return whether a value names a role."""
    return isinstance(value, str) and value in _ROLES


def _signal(headers: Mapping[str, str], codex: CodexTurn, named: str | None) -> tuple[RoleName, str]:
    host = headers.get(ROLE_HEADER, "").strip().lower()
    if host in _ROLES:
        return _ROLES[host], f"header {ROLE_HEADER}"
    if named is not None and named in _ROLES:
        return _ROLES[named], "metadata.role"
    for find in _SIGNALS:
        found = find(headers, codex)
        if found is not None:
            return found
    return "main", ""


Signal = tuple[RoleName, str]


def _claude_compaction(headers: Mapping[str, str], _codex: CodexTurn) -> Signal | None:
    return ("compaction", f"header {_CLAUDE_COMPACTION}") if _CLAUDE_COMPACTION in headers else None


def _claude_class(headers: Mapping[str, str], _codex: CodexTurn) -> Signal | None:
    """Return the role of the class; a sub-agent is one whatever its class, unless that is not `main`."""
    role = _CLAUDE_CLASSES.get(headers.get(_CLASS, "").strip().lower())
    if role == "main" and headers.get(_CLAUDE_AGENT, "").strip():
        return None
    return (role, f"header {_CLASS}: {headers[_CLASS].strip().lower()}") if role is not None else None


def _codex_kind(_headers: Mapping[str, str], codex: CodexTurn) -> Signal | None:
    role = _CODEX_KINDS.get(codex.request_kind)
    return (role, f"request_kind {codex.request_kind}") if role is not None else None


def _codex_label(headers: Mapping[str, str], _codex: CodexTurn) -> Signal | None:
    label = headers.get(_CODEX_LABEL, "").strip()
    if not label:
        return None
    return _CODEX_LABELS.get(label.lower(), "subagent"), f"header {_CODEX_LABEL}: {label[:_MAX_ID]}"


def _codex_source(_headers: Mapping[str, str], codex: CodexTurn) -> Signal | None:
    if codex.thread_source == "subagent":
        return "subagent", "thread_source subagent"
    return ("main", f"request_kind {codex.request_kind}") if codex.request_kind == "turn" else None


def _present(name: str, role: RoleName) -> Callable[[Mapping[str, str], CodexTurn], Signal | None]:
    def find(headers: Mapping[str, str], _codex: CodexTurn) -> Signal | None:
        return (role, f"header {name}") if headers.get(name, "").strip() else None

    return find


_SIGNALS: tuple[Callable[[Mapping[str, str], CodexTurn], Signal | None], ...] = (
    _claude_compaction,
    _claude_class,
    _present(_CLAUDE_AGENT, "subagent"),
    _present(_CLAUDE_PARENT, "subagent"),
    _present(_CLAUDE_AGENT_TYPE, "subagent"),
    _codex_kind,
    _codex_label,
    _present(_CODEX_PARENT, "subagent"),
    _codex_source,
    # opencode: the session that started this one.
    _present(_PARENT_SESSION, "subagent"),
)
"""Signals of headers, in the order in which they are asked."""


def _agent(headers: Mapping[str, str]) -> str:
    """Return the client's id of the sub-agent: opencode's is a session of its own below its parent."""
    names = (_CLAUDE_AGENT, "thread-id", "thread_id", "x-session-id" if _PARENT_SESSION in headers else "")
    return next((id for name in names if (id := _bounded(headers.get(name, "")))), "")


def _bounded(id: str) -> str:
    """Return a client's id for logs: without white space around it, of bounded length."""
    return id.strip()[:_MAX_ID]


def _codex_turn(text: str | None) -> CodexTurn:
    if not text:
        return _NO_TURN
    try:
        fields = _objects.decode(text)
    except msgspec.DecodeError:
        return _NO_TURN
    # A field of another type counts as absent, and hides none of the others.
    known = {name: fields.get(name) for name in CodexTurn.__struct_fields__}
    return CodexTurn(**{name: value for name, value in known.items() if isinstance(value, str)})


def role_tool(headers: Mapping[str, str]) -> RoleTool | None:
    """Return the tool by which requests of this client show a role, if it has one."""
    agent = headers.get("user-agent", "").lower()
    return next((row for row in ROLE_TOOLS if agent.startswith(row.agent)), None)


class RoleTable:
    """Finds roles by openings: those of `ROLE_OPENINGS`, and those of the configuration."""

    def __init__(self, *, compactions: Sequence[str] = (), utilities: Sequence[str] = ()) -> None:
        added = [RoleOpening("", "compaction", "any", text) for text in compactions if text.strip()]
        added += [RoleOpening("", "utility", "any", text) for text in utilities if text.strip()]
        rows = (*ROLE_OPENINGS, *added)
        self._system = _by_beginning(rows, "system")
        self._user = _by_beginning(rows, "user")
        self._system_beginnings = tuple(self._system)
        self._user_beginnings = tuple(self._user)
        self.beginnings = (*self._system, *self._user)
        """All openings, in lower case."""

    def by_system(self, text: str) -> RoleOpening | None:
        """Return the row whose opening this system text has."""
        return _row(_start(text), self._system_beginnings, self._system)

    def by_user(self, text: str) -> RoleOpening | None:
        """Return the row whose opening this text of the newest user message has."""
        return _row(_start(text), self._user_beginnings, self._user)


def _by_beginning(rows: Sequence[RoleOpening], place: str) -> dict[str, RoleOpening]:
    return {row.text.strip().lower(): row for row in rows if row.place in (place, "any")}


def _start(text: str) -> str:
    return text[:_SEARCHED].lstrip(LEADING).lower()


def _row(start: str, beginnings: tuple[str, ...], rows: dict[str, RoleOpening]) -> RoleOpening | None:
    if not start.startswith(beginnings):
        return None
    return next(row for beginning, row in rows.items() if start.startswith(beginning))
