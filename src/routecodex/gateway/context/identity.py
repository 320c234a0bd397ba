"""Identifies the session of a request by headers and control fields.

What the state of a request is kept under.

Which conversation a request belongs to, from what its client says of it and never from its messages.

An id is hostile input and means only itself: it is kept as it came, but for white space around it. Two
different ids never become one, not even where one of them is no valid Unicode; one that is longer than
anybody's is kept as its hash, so that what remembers ids stays small.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from hashlib import blake2b
from typing import Final, Literal

from msgspec.json import Decoder

from routecodex.gateway.records import AnthropicUser
from routecodex.protocols.control_fields import NO_CONTROL_FIELDS, ControlFields
from routecodex.wire import json

ScopeKind = Literal["session", "conversation", "chain", "request"]


class Scope:
    """What a request's state is kept under; `lasts` says whether a later request can have the same."""

    __slots__ = ("id", "kind", "lasts")

    def __init__(self, kind: ScopeKind, id: str) -> None:
        self.kind: Final = kind
        self.id: Final = id
        self.lasts: Final = kind != "request"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Scope) and self.kind == other.kind and self.id == other.id

    def __hash__(self) -> int:
        return hash((self.kind, self.id))

    def __repr__(self) -> str:
        return f"Scope({self.kind!r}, {self.id!r})"

    @property
    def key(self) -> str:
        """The key in a store; no kind can have the key of another one."""
        return f"{self.kind}:{self.id}"


SESSION_HEADERS: tuple[str, ...] = (
    "x-session-id",  # opencode, Crush, Kilo Code, and the name we ask others to use
    "session-id",  # Codex
    "session_id",  # older Codex, pi, Roo Code
    "x-claude-code-session-id",  # Claude Code; its sub-agents send the id of the session they work for
    "x-opencode-session",  # opencode, to the providers of its own makers
    "x-session-affinity",  # opencode, Crush, pi
    "x-affinity",  # pi, to Mistral
    "x-amp-thread-id",  # Amp
    "x-kilocode-taskid",  # Kilo Code
    "x-roo-task-id",  # Roo Code
    "x-task-id",  # Cline
    "x-client-session-id",  # Copilot CLI
    "x-hermes-session-id",  # Hermes
    "x-litellm-session-id",  # OpenHands, and clients set up for LiteLLM
)
"""Where clients name their session. Qwen Code has no header: it sends `metadata.sessionId`, and Gemini CLI
names its session to its makers' own service alone. `x-client-request-id` is not here: Codex puts its thread
into it, but for everybody else it names one request."""

CONVERSATION_HEADERS: tuple[str, ...] = (
    "x-conversation-id",
    "conversation_id",  # older Codex, beside its session_id
    "conversation-id",
    "thread-id",  # Codex, beside its session-id
    "thread_id",
    "x-openwebui-chat-id",  # Open WebUI
    "x-grok-conv-id",  # clients set up for xAI
)
"""Where clients name their conversation."""

_NAMING: Final = frozenset((*SESSION_HEADERS, *CONVERSATION_HEADERS))
_OPAQUE = "hex~"
_HASHED = "hash~"
_LONGEST = 512
_OWS = " \t"


def identify(
    codec_name: str,
    headers: Mapping[str, str],
    controls: ControlFields,
    *,
    chain: str | None,
    request_id: str,
) -> Scope:
    """The scope of a request; `chain` is the id of the request that began its chain of responses, if any.

    The first request of a chain gets the scope that the ones continuing it will have.
    """
    responses = codec_name == "responses"
    if controls is NO_CONTROL_FIELDS and not responses and _NAMING.isdisjoint(headers):
        return Scope("request", request_id)
    session = (
        _told(controls.session_id)
        or _told_in(headers, SESSION_HEADERS)
        or session_of_user(controls.user_id)
        or (responses and (_told(controls.prompt_cache_key) or _told(controls.conversation)))
    )
    if session:
        return Scope("session", _exact(session))
    conversation = _told(controls.conversation_id) or _told_in(headers, CONVERSATION_HEADERS)
    if conversation:
        return Scope("conversation", _exact(conversation))
    if responses:
        return Scope("chain", _exact(_told(chain) or request_id))
    return Scope("request", request_id)


_users = Decoder(AnthropicUser)
_LAST = re.compile(r"(?<![0-9A-Za-z])session_(?=[A-Za-z-]*[0-9])([0-9A-Za-z][0-9A-Za-z-]{5,})\Z")
_UUID = re.compile(
    r"(?<![0-9A-Za-z])session_([0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12})(?![0-9A-Za-z-])"
)


def session_of_user(user_id: str | None) -> str:
    """The session in the `metadata.user_id` of an Anthropic client; empty when it names none.

    It is the end of `user_<hash>_account_<uuid>_session_<uuid>`, or a field of a JSON object.
    """
    text = _told(user_id)
    if not text:
        return ""
    user = json.try_read(text, _users) if text.startswith("{") else None
    if user is not None and (session := _told(user.session_id)):
        return session
    last = _LAST.search(text)
    if last is not None:
        return last[1]
    found = _UUID.findall(text)
    return found[-1] if found else ""


def _told(value: str | None) -> str:
    """The value without white space around it, as HTTP has it; empty when it says nothing."""
    if value is None or not value.strip():
        return ""
    return value.strip(_OWS)


def _told_in(headers: Mapping[str, str], names: tuple[str, ...]) -> str:
    if _NAMING.isdisjoint(headers):
        return ""
    for name in names:
        value = headers.get(name)
        if value is not None and (told := _told(_text(value))):
            return told
    return ""


def _text(value: str) -> str:
    """What a header's bytes, which reach us one character each, spell in UTF-8: the body's ids are in it."""
    if value.isascii():
        return value
    try:
        return value.encode("latin-1").decode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return value


def _exact(value: str) -> str:
    """The value, or a form in hex digits of one that UTF-8 cannot carry or that looks like such a form."""
    if len(value) > _LONGEST:
        return kept(value)
    try:
        value.encode()
    except UnicodeEncodeError:
        return _OPAQUE + value.encode("utf-8", "surrogatepass").hex()
    return _OPAQUE + value.encode().hex() if value.startswith((_OPAQUE, _HASHED)) else value


def kept(id: str) -> str:
    """An id as it is kept: as its hash where it is too long."""
    if len(id) <= _LONGEST:
        return id
    return _HASHED + blake2b(id.encode("utf-8", "surrogatepass"), digest_size=32).hexdigest()
