"""What the state of a request is kept under."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

Kind = Literal["session", "conversation", "chain", "request"]


class Scope(Struct, frozen=True):
    """What a request's state is kept under."""

    kind: Kind
    id: str

    @property
    def key(self) -> str:
        """The key in a store; no kind can have the key of another one."""
        return f"{self.kind}:{self.id}"

    @property
    def lasts(self) -> bool:
        """Whether a later request can have the same scope."""
        return self.kind != "request"


class User(Struct):
    """What an Anthropic client may say of its user."""

    session_id: str | None = None
