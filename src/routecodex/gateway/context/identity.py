"""Identifies the session of a request by headers and control fields, never by its messages.

An id is hostile input. It is stored as it came, without white space around it. Two different ids never become
one, even if one of them is not valid Unicode. An id longer than any client sends is stored as its hash, which
bounds the size of stored keys.

With several clients, what a request stores belongs to its client, the owner: `owned_key` puts the client's
name before the key. No id that a client chooses makes the key of another client. With one client, or none,
there is no owner, and keys are the plain ones.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from hashlib import blake2b
from typing import Final, Literal

from msgspec.json import Decoder

from routecodex.gateway.records import AnthropicUser
from routecodex.protocols.control_fields import NO_CONTROL_FIELDS, ControlFields
from routecodex.stores.owned_keys import owned_key
from routecodex.wire import json

ScopeKind = Literal["session", "conversation", "chain", "request"]


class Scope:
    """Key under which the state of a request is kept; `lasts` if a later request can have the same one.

    `owner` is the client that it belongs to, if there are several.
    """

    __slots__ = ("id", "kind", "lasts", "owner")

    def __init__(self, kind: ScopeKind, id: str, owner: str = "") -> None:
        self.kind: Final = kind
        self.id: Final = id
        self.owner: Final = owner
        self.lasts: Final = kind != "request"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Scope) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __repr__(self) -> str:
        return f"Scope({self.kind!r}, {self.id!r}{f', {self.owner!r}' if self.owner else ''})"

    @property
    def name(self) -> str:
        """The scope as its client and people see it, without the owner."""
        return f"{self.kind}:{self.id}"

    @property
    def key(self) -> str:
        """The key in a store; scopes of different kinds or owners never share one."""
        name = f"{self.kind}:{self.id}"
        return owned_key(self.owner, name) if self.owner else name


PATH_SESSION = ":session"
"""Key of the session that the path names, below `/s/<session>/`; no header can have this name."""

FORCED_TARGET = ":target"
"""Key of the target that a request must go to, whatever its session and its model say; no header can have
this name."""

SESSION_HEADERS: tuple[str, ...] = (
    "x-parent-session-id",  # opencode: a sub-agent names the session that started it
    "x-session-id",  # opencode, Crush, Kilo Code; the name our documentation recommends
    "session-id",  # Codex
    "session_id",  # older Codex, pi, Roo Code
    "x-claude-code-session-id",  # Claude Code; its sub-agents send the id of their parent session
    "x-opencode-session",  # opencode, to its own providers
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
"""Headers in which clients name their session. Qwen Code sends `metadata.sessionId` in the body instead, and
Gemini CLI names its session only to Google's own service. `x-client-request-id` is not a session header:
Codex puts its thread into it, but every other client names one request."""

CONVERSATION_HEADERS: tuple[str, ...] = (
    "x-conversation-id",
    "conversation_id",  # older Codex, beside its session_id
    "conversation-id",
    "thread-id",  # Codex, beside its session-id
    "thread_id",
    "x-openwebui-chat-id",  # Open WebUI
    "x-grok-conv-id",  # clients set up for xAI
)
"""Headers in which clients name their conversation."""

ID_HEADERS: Final = frozenset((PATH_SESSION, *SESSION_HEADERS, *CONVERSATION_HEADERS))
"""All headers that identify a session or a conversation."""
_HEX_PREFIX = "hex~"
_HASH_PREFIX = "hash~"
_LONGEST = 512
_OWS = " \t"


def identify(
    codec_name: str,
    headers: Mapping[str, str],
    controls: ControlFields,
    *,
    chain: str | None,
    request_id: str,
    owner: str = "",
) -> Scope:
    """Return the scope of a request; `chain` is the id of the request that began its chain of responses.

    The first request of a chain gets the same scope as those that continue it.
    """
    responses = codec_name == "responses"
    if controls is NO_CONTROL_FIELDS and not responses and ID_HEADERS.isdisjoint(headers):
        return Scope("request", request_id)
    session = (
        _trimmed(headers.get(PATH_SESSION))
        or _trimmed(controls.session_id)
        or _first_header(headers, SESSION_HEADERS)
        or session_of_user(controls.user_id)
        or (responses and (_trimmed(controls.prompt_cache_key) or _trimmed(controls.conversation)))
    )
    if session:
        return Scope("session", _stored_id(session), owner)
    conversation = _trimmed(controls.conversation_id) or _first_header(headers, CONVERSATION_HEADERS)
    if conversation:
        return Scope("conversation", _stored_id(conversation), owner)
    if responses:
        return Scope("chain", _stored_id(_trimmed(chain) or request_id), owner)
    return Scope("request", request_id)


_users = Decoder(AnthropicUser)
_LAST_SESSION = re.compile(r"(?<![0-9A-Za-z])session_(?=[A-Za-z-]*[0-9])([0-9A-Za-z][0-9A-Za-z-]{5,})\Z")
_UUID_SESSION = re.compile(
    r"(?<![0-9A-Za-z])session_([0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12})(?![0-9A-Za-z-])"
)


def session_of_user(user_id: str | None) -> str:
    """Return the session in the `metadata.user_id` of an Anthropic client, or an empty string.

    Claude Code sends a JSON object with `session_id`; older versions sent
    `user_<hash>_account_<uuid>_session_<uuid>`.
    """
    text = _trimmed(user_id)
    if not text:
        return ""
    user = json.try_read(text, _users) if text.startswith("{") else None
    if user is not None and (session := _trimmed(user.session_id)):
        return session
    last = _LAST_SESSION.search(text)
    if last is not None:
        return last[1]
    found = _UUID_SESSION.findall(text)
    return found[-1] if found else ""


def _trimmed(value: str | None) -> str:
    """Return the value without optional white space (RFC 9110, 5.6.3); empty if it is blank or absent."""
    if value is None or not value.strip():
        return ""
    return value.strip(_OWS)


def _first_header(headers: Mapping[str, str], names: tuple[str, ...]) -> str:
    if ID_HEADERS.isdisjoint(headers):
        return ""
    for name in names:
        value = headers.get(name)
        if value is not None and (id := _trimmed(_decode_header(value))):
            return id
    return ""


def _decode_header(value: str) -> str:
    """Decode a Latin-1 header value as UTF-8, so that it equals the same id in a body."""
    if value.isascii():
        return value
    try:
        return value.encode("latin-1").decode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return value


def _stored_id(value: str) -> str:
    """Return the id as it is stored: in hex if it is not valid Unicode, or begins with a prefix of ours."""
    if len(value) > _LONGEST:
        return bounded_id(value)
    try:
        value.encode()
    except UnicodeEncodeError:
        return _HEX_PREFIX + value.encode("utf-8", "surrogatepass").hex()
    return _HEX_PREFIX + value.encode().hex() if value.startswith((_HEX_PREFIX, _HASH_PREFIX)) else value


def bounded_id(id: str) -> str:
    """Return the id, or its hash if it is too long to be stored."""
    if len(id) <= _LONGEST:
        return id
    return _HASH_PREFIX + blake2b(id.encode("utf-8", "surrogatepass"), digest_size=32).hexdigest()
