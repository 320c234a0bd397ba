"""Access to the admin API: from where, by whom, from which page, and with which role.

A caller sends the admin token as Bearer, or the cookie of a login. The cookie is held to more: browsers send
it from every page of the same site, and the port does not divide sites (measured in Chromium 150: a page of
127.0.0.1:B sends the cookies of 127.0.0.1:A, with `Sec-Fetch-Site: same-site`). So the call must come from
the console's own page, and a write must repeat a value that only this page can read.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from hashlib import sha256
from time import time
from typing import Final, cast
from urllib.parse import quote, unquote

from msgspec import Struct

from routecodex.accounting.client_store import ClientDirectory
from routecodex.accounting.clients import Client
from routecodex.canon.errors import BadRequest, ClientError, TooLarge, Unauthorized
from routecodex.config import ConsoleConfig
from routecodex.server.access import is_local
from routecodex.server.admin_calls import RANKS, AdminEndpoint, AdminRole, find_call
from routecodex.server.http import HttpRequest
from routecodex.server.login_tokens import Login, LoginSigner
from routecodex.server.origins import COOKIE_PREFIX, is_json, is_origin_of

CSRF_HEADER: Final = "x-routecodex-csrf"
VIA_HEADER: Final = "x-routecodex-via"
"""Id of the server that sends a call on; it counts only with the admin token."""
_CALLER_HEADER: Final = "x-routecodex-caller"
ADMIN: Final = "admin"
"""Name of the caller that holds the admin token or logged in with a one-time code."""


_LONGEST_ID: Final = 128
_LARGEST_LOGIN: Final = 16 * 1024
"""Bytes of a body that is read of strangers."""


class Caller(Struct, frozen=True):
    """Caller of the admin API: the admin, or a client with a role; `login` is that of its cookie, if any.

    `role` is None for a call that needs no login. `via` is the server that admitted the caller and sent the
    call on, if it was another.
    """

    name: str
    role: AdminRole | None
    login: Login | None = None
    via: str = ""

    @property
    def shown(self) -> str:
        """The caller as the log names it."""
        if self.role is None:
            return "nobody"
        name = self.name if self.name == self.role else f"{self.role} {self.name!r}"
        return f"{name} via server {self.via!r}" if self.via else name


_NOBODY = Caller("", None)
_BEARER = Caller(ADMIN, "admin")


class AdminAccess:
    """Admits callers that send the admin token or the cookie of a login; others than this machine by setting.

    `console` and `clients` are called each time, because a reload replaces both.
    """

    def __init__(
        self,
        token: str,
        *,
        host: str,
        port: int,
        console: Callable[[], ConsoleConfig],
        clients: Callable[[], ClientDirectory],
    ) -> None:
        self.signer = LoginSigner(token)
        self.cookie_name = f"{COOKIE_PREFIX}{port}"
        self._token = _digest(token)
        self._host = host
        self._console = console
        self._clients = clients

    def check(self, request: HttpRequest, name: str) -> Caller:
        """Return who calls `/admin/<name>`; reject a caller that may not."""
        self.check_place(request)
        row = find_call(request.method, name)
        if "authorization" in request.headers:
            return self._bearer(request, row)
        cookie = self._cookie(request)
        if row.is_open:
            return self._open_call(request, row, cookie)
        if cookie is None or row.bearer_only:
            raise _unknown_caller(request, row)
        return self._by_cookie(request, row, cookie)

    def check_place(self, request: HttpRequest) -> None:
        """Reject calls from other machines, unless they are allowed."""
        if not (self._console().remote or is_local(request.client, self._host)):
            raise ClientError(
                "the admin API is available on this machine only", status=403, code="admin_not_local"
            )

    def is_token(self, text: str) -> bool:
        """Return whether this is the admin token."""
        return hmac.compare_digest(self._token, _digest(text))

    def role_of(self, login: Login) -> AdminRole | None:
        """Return the role that a login has now; None if the client or the key that opened it is gone."""
        if not login.client:
            return "admin"
        client = self._clients().table.clients.get(login.client)
        if client is None or not self._has_key(client, login.key):
            return None
        return client.role or None

    def _has_key(self, client: Client, mark: str) -> bool:
        now = time()
        return any(
            hmac.compare_digest(self.signer.key_mark(key.digest), mark)
            and client.refusal(client.expiry_of(key), now) is None
            for key in client.keys
        )

    def _bearer(self, request: HttpRequest, row: AdminEndpoint) -> Caller:
        scheme, _, token = request.headers["authorization"].partition(" ")
        if scheme.lower() != "bearer" or not self.is_token(token.strip()):
            raise _wrong_token()
        if VIA_HEADER not in request.headers:
            return _BEARER
        caller = _forwarded_caller(request)
        _check_role(caller.role, row)
        return caller

    def _cookie(self, request: HttpRequest) -> str | None:
        """Return the login that the request carries; None while the console is off."""
        if not self._console().enabled:
            return None
        for pair in request.headers.get("cookie", "").split(";"):
            name, mark, value = pair.strip().partition("=")
            if mark and name == self.cookie_name:
                return value
        return None

    def _open_call(self, request: HttpRequest, row: AdminEndpoint, cookie: str | None) -> Caller:
        """Return the caller of a call that needs no login: a page must be the console's own all the same."""
        headers = request.headers
        length = headers.get("content-length", "0")
        if "transfer-encoding" in headers or not length.isdigit() or int(length) > _LARGEST_LOGIN:
            raise TooLarge("the body of a login is larger than 16 KB")
        if "sec-fetch-site" in headers or "origin" in headers:
            self._check_page(request)
        login = None if cookie is None else self.signer.decode_login(cookie, time())
        if login is None or row.path == "login":
            return _NOBODY
        self._check_write(request, login)
        return Caller(login.client or ADMIN, self.role_of(login), login)

    def _by_cookie(self, request: HttpRequest, row: AdminEndpoint, cookie: str) -> Caller:
        self._check_page(request)
        login = self.signer.decode_login(cookie, time())
        role = None if login is None else self.role_of(login)
        if login is None or role is None:
            raise login_required()
        _check_role(role, row)
        if row.is_write:
            self._check_write(request, login)
        return Caller(login.client or ADMIN, role, login)

    def _check_page(self, request: HttpRequest) -> None:
        headers = request.headers
        site, origin = headers.get("sec-fetch-site"), headers.get("origin", "")
        if site is not None:
            is_own = site.lower() == "same-origin"
        else:
            public = self._console().origin
            is_own = is_origin_of(headers.get("host", ""), origin) or bool(
                public and origin.lower() == public
            )
        if not is_own:
            raise ClientError(
                "a login counts only for calls of the console's own page", status=403, code="cross_site"
            )

    def _check_write(self, request: HttpRequest, login: Login) -> None:
        sent = request.headers.get(CSRF_HEADER, "")
        if not hmac.compare_digest(_digest(sent), _digest(self.signer.csrf(login))):
            raise ClientError(
                f"send the value of `csrf` of GET /admin/me as {CSRF_HEADER}", status=403, code="csrf"
            )
        if not is_json(request.headers):
            raise ClientError(
                "send content-type: application/json", status=415, code="unsupported_content_type"
            )


def forwarding_headers(caller: Caller, server_id: str) -> list[tuple[bytes, bytes]]:
    """Return the headers by which another server knows who makes a call, and that it is not to send it on."""
    name = f"{caller.role} {quote(caller.name, safe='')}"
    return [(VIA_HEADER.encode(), server_id.encode()), (_CALLER_HEADER.encode(), name.encode())]


def _forwarded_caller(request: HttpRequest) -> Caller:
    """Return the caller that another server admitted."""
    role, _, name = request.headers.get(_CALLER_HEADER, "").partition(" ")
    if role not in RANKS or not name:
        raise BadRequest(f"{_CALLER_HEADER} must have a role and a name", param=_CALLER_HEADER)
    return Caller(unquote(name), cast(AdminRole, role), via=request.headers[VIA_HEADER][:_LONGEST_ID])


def _check_role(role: AdminRole | None, row: AdminEndpoint) -> None:
    if RANKS.get(role or "", 0) < RANKS[row.role]:
        raise ClientError(
            f"this needs the role {row.role!r}; you are logged in as {role!r}", status=403, code="role"
        )


def login_required() -> Unauthorized:
    """Return the error for a call without a login that counts."""
    return Unauthorized("log in first: the console at /ui/ asks for it", code="login_required")


def _wrong_token() -> Unauthorized:
    return Unauthorized(
        "the admin token is missing or wrong; send Authorization: Bearer and the token",
        code="invalid_admin_token",
    )


def _unknown_caller(request: HttpRequest, row: AdminEndpoint) -> Unauthorized:
    """Return the error for a call without token and login: a page asks for a login."""
    is_page = row.path == "me" or "sec-fetch-site" in request.headers
    return login_required() if is_page and not row.bearer_only else _wrong_token()


def _digest(text: str) -> bytes:
    return sha256(text.encode("utf-8", "surrogateescape")).digest()
