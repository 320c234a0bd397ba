"""Names of the keys in Redis, and the stripe of each; pure functions.

All keys of a stripe have one hash tag, so that a cluster keeps them on one server and a script may use them
together. Spaces with many keys have several stripes, which a cluster spreads over its servers.
"""

from __future__ import annotations

import re
from zlib import crc32

from msgspec import Struct

STRIPES = 16

_STRIPED = frozenset({"sessions", "clock", "tools", "responses", "responses.items", "pairs", "thoughts"})
"""Spaces whose keys are sessions, responses or calls."""


class Stripe(Struct, frozen=True):
    """One part of a space, and the names of its keys."""

    space: str
    number: int
    lists: tuple[str, str, str, str]
    """Keys by version, keys by expiry, sizes, generation."""
    values: str
    """Beginning of the names of its values."""

    @property
    def generation(self) -> str:
        return self.lists[3]

    @property
    def place(self) -> str:
        """Space and number, as a message about a change has them."""
        return f"{self.space} {self.number}"

    def value(self, key: str) -> str:
        """Return the name of a value."""
        return self.values + key

    def aside(self, key: str) -> str:
        """Return the name for a damaged value."""
        return f"{self.values.removesuffix('v:')}damaged:{key}"


class KeyNames:
    """The names of one prefix."""

    def __init__(self, prefix: str) -> None:
        self.channel = f"{prefix}:changes"
        self.epoch = f"{prefix}:epoch"
        self.returned = f"{prefix}:{{{self.epoch}}}:returned"
        """Its hash tag is the name of the epoch: scripts use both."""
        self.probe = f"{prefix}:probe"
        self.any_generation = f"{prefix}:{{*}}:g"
        """Pattern of the names of all generations; those of values may match it too."""
        self._prefix = prefix
        self._generation = re.compile(rf"{re.escape(prefix)}:\{{([a-z][a-z0-9._-]*)\.[0-9]+\}}:g")
        self._stripes: dict[str, tuple[Stripe, ...]] = {}

    def processes(self, topic: str) -> str:
        """Return the name of the rows of all processes about a topic."""
        return f"{self._prefix}:processes:{topic}"

    def stripes(self, space: str) -> tuple[Stripe, ...]:
        """Return all stripes of a space."""
        found = self._stripes.get(space)
        if found is None:
            count = STRIPES if space in _STRIPED else 1
            found = self._stripes[space] = tuple(self._stripe(space, number) for number in range(count))
        return found

    def space_of(self, name: str) -> str:
        """Return the space that the name of a generation belongs to; empty for any other name.

        The key of a value comes from a client, and may end as a generation does.
        """
        found = self._generation.fullmatch(name)
        return "" if found is None else found[1]

    def stripe(self, space: str, key: str) -> Stripe:
        """Return the stripe of a key."""
        every = self.stripes(space)
        return every[0] if len(every) == 1 else every[crc32(key.encode()) % STRIPES]

    def _stripe(self, space: str, number: int) -> Stripe:
        tag = f"{self._prefix}:{{{space}.{number}}}:"
        lists = (f"{tag}i", f"{tag}x", f"{tag}s", f"{tag}g")
        return Stripe(space, number, lists, f"{tag}v:")
