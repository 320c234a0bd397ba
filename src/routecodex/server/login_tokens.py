"""Logins and one-time codes as signed texts: any worker, and a restarted one, can check them without a list.

The key is derived from the admin token: another token ends all logins, and nodes with the same token accept
each other's.
"""

from __future__ import annotations

import hmac
import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Final

from msgspec import DecodeError, Struct
from msgspec.json import Decoder

from routecodex.wire import json

CODE_SECONDS: Final = 600
"""Seconds for which a one-time code can be used."""

_ID_BYTES: Final = 12
_MAC_BYTES: Final = 16
_LONGEST_TEXT: Final = 2048


class Login(Struct, frozen=True, kw_only=True):
    """A login as its cookie holds it.

    `client` is the client whose key opened it, and `key` marks that key; both are empty for the admin.
    """

    id: str
    expires_at: int
    client: str = ""
    key: str = ""


class OneTimeCode(Struct, frozen=True):
    """A code that was read and is genuine; whether it was used is in the store."""

    id: str
    expires_at: int


_logins = Decoder(Login)


class LoginSigner:
    """Signs logins and codes with a key of the admin token, and checks them."""

    def __init__(self, token: str) -> None:
        self._key = hmac.digest(_bytes(token), b"routecodex console login 1", "sha256")

    def new_login(self, *, now: float, seconds: float, client: str = "", digest: str = "") -> Login:
        """Return a new login; `digest` is that of the client's key."""
        return Login(
            id=secrets.token_hex(_ID_BYTES),
            expires_at=int(now + seconds),
            client=client,
            key=self.key_mark(digest) if digest else "",
        )

    def encode_login(self, login: Login) -> str:
        """Return the text of a cookie."""
        payload = _encode(json.encode(login))
        return f"{payload}.{_encode(self._mac(b'login', payload.encode()))}"

    def decode_login(self, text: str, now: float) -> Login | None:
        """Return the login of a cookie; None if it is not genuine, or has ended."""
        payload, dot, mac = text.partition(".")
        if not dot or len(text) > _LONGEST_TEXT:
            return None
        if not hmac.compare_digest(_encode(self._mac(b"login", _bytes(payload))).encode(), _bytes(mac)):
            return None
        try:
            login = _logins.decode(_decode(payload))
        except (DecodeError, ValueError):
            return None
        return login if login.expires_at > now else None

    def key_mark(self, digest: str) -> str:
        """Return a mark of a client's key that does not help to guess the key."""
        return self._mac(b"key", digest.encode())[:_MAC_BYTES].hex()

    def csrf(self, login: Login) -> str:
        """Return the text that a page sends with every write of this login."""
        return _encode(self._mac(b"csrf", login.id.encode()))

    def new_code(self, now: float) -> tuple[str, int]:
        """Return a one-time code and the time at which it ends."""
        expires_at = int(now) + CODE_SECONDS
        head = expires_at.to_bytes(5, "big") + secrets.token_bytes(_ID_BYTES)
        return _encode(head + self._mac(b"code", head)[:_MAC_BYTES]), expires_at

    def decode_code(self, text: str, now: float) -> OneTimeCode | None:
        """Return a genuine code that has not ended; None for any other text."""
        try:
            raw = _decode(text) if len(text) <= _LONGEST_TEXT else b""
        except ValueError:
            return None
        head, mac = raw[:-_MAC_BYTES], raw[-_MAC_BYTES:]
        if _encode(raw) != text or len(head) != 5 + _ID_BYTES:
            return None
        if not hmac.compare_digest(self._mac(b"code", head)[:_MAC_BYTES], mac):
            return None
        expires_at = int.from_bytes(head[:5], "big")
        return OneTimeCode(head[5:].hex(), expires_at) if expires_at > now else None

    def _mac(self, purpose: bytes, data: bytes) -> bytes:
        return hmac.digest(self._key, purpose + b"\0" + data, "sha256")


def login_url(server: str, code: str) -> str:
    """Return the address that opens the console and logs in; browsers never send what is behind the #."""
    return f"{server}/ui/#login={code}"


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _encode(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()


def _decode(text: str) -> bytes:
    return urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4))
