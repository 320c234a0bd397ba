"""What the state of a request is kept under."""

from __future__ import annotations

from typing import Final, Literal

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
