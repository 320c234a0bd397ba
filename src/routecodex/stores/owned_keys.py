"""Keys of values that belong to one of several clients; pure functions.

The client's name stands before the key. Every pair of client and key has its own result: the name is encoded
and ends at the first colon, and a plain key that begins as a client's one is given to the client without a
name, which does not exist.
"""

from __future__ import annotations

from functools import lru_cache
from urllib.parse import quote, unquote

OWNED = "client~"
"""Prefix of the keys of a client's values."""


def owned_key(owner: str, key: str) -> str:
    """Return the key of a client's value; without an owner the key itself."""
    return _prefix(owner) + key if owner or key.startswith(OWNED) else key


def split_key(key: str) -> tuple[str, str]:
    """Return the owner and the plain key of a key that `owned_key` made."""
    if not key.startswith(OWNED):
        return "", key
    name, _, plain = key[len(OWNED) :].partition(":")
    return unquote(name, errors="surrogatepass"), plain


def plain_key(key: str) -> str:
    """Return the key without its owner, for people."""
    return split_key(key)[1]


@lru_cache(maxsize=1024)
def _prefix(owner: str) -> str:
    name = quote(owner.encode("utf-8", "surrogatepass"), safe="")
    return f"{OWNED}{name}:"
