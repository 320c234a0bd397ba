"""Logins of the console: in, out, who is logged in, and one-time codes.

| Path                | GET                         | POST                                                |
|---------------------|-----------------------------|-----------------------------------------------------|
| `/admin/login`      |                             | logs in with the token, a client key or a code      |
| `/admin/login/code` |                             | makes a one-time code, for callers with the token   |
| `/admin/logout`     |                             | ends the login                                      |
| `/admin/me`         | name, role, csrf, server    |                                                     |
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from msgspec import Struct
from msgspec.json import Decoder

from routecodex.accounting.client_store import ClientDirectory
from routecodex.accounting.timestamps import iso_time
from routecodex.canon.errors import BadRequest, ClientError, KeyRefused, NotFound, Unauthorized
from routecodex.config import ConsoleConfig, key_digest
from routecodex.server.admin_access import ADMIN, AdminAccess, Caller, login_required
from routecodex.server.announce import Announcement
from routecodex.server.http import HttpRequest
from routecodex.server.login_state import LoginState
from routecodex.server.login_tokens import Login, login_url
from routecodex.wire import json

_HOUR: Final = 3600.0


class LoginRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Credentials of a login: one of the three."""

    token: str | None = None
    key: str | None = None
    code: str | None = None


_requests = Decoder(LoginRequest)


class LoginCalls:
    """The calls on logins of one server."""

    def __init__(
        self,
        about: Announcement,
        *,
        access: AdminAccess,
        state: LoginState,
        console: Callable[[], ConsoleConfig],
        clients: Callable[[], ClientDirectory],
    ) -> None:
        self._about = about
        self._access = access
        self._state = state
        self._console = console
        self._clients = clients

    async def confirm(self, caller: Caller) -> None:
        """Reject a login that was ended."""
        if caller.login is not None and await self._state.is_revoked(caller.login):
            raise login_required()

    async def is_valid(self, caller: Caller) -> bool:
        """Return whether a caller that was admitted may still be served."""
        login = caller.login
        if login is None:
            return True
        if not self._console().enabled or login.expires_at <= time.time():
            return False
        return self._access.role_of(login) is not None and not await self._state.is_revoked(login)

    async def log_in(self, request: HttpRequest) -> tuple[Caller, bytes]:
        """Return who logs in, and the value of the cookie."""
        console = self._console()
        if not console.enabled:
            raise NotFound("the console is off; set console.enabled", code="console_off")
        sent = json.read(request.body or b"{}", _requests)
        if sum(one is not None for one in (sent.token, sent.key, sent.code)) != 1:
            raise BadRequest("send one of token, key and code")
        now = time.time()
        address = request.client[0] if request.client is not None else ""
        await self._state.admit(address, now)
        login = await self._login(sent, now, console.session_hours * _HOUR)
        await self._state.forgive(address, now)
        caller = Caller(login.client or ADMIN, self._access.role_of(login), login)
        return caller, self._cookie(self._access.signer.encode_login(login), login.expires_at - now)

    async def _login(self, sent: LoginRequest, now: float, seconds: float) -> Login:
        signer = self._access.signer
        if sent.key is not None:
            client = self._client_of(sent.key, now)
            digest = key_digest(sent.key.strip())
            return signer.new_login(now=now, seconds=seconds, client=client, digest=digest)
        if sent.token is not None and not self._access.is_token(sent.token.strip()):
            raise Unauthorized("this is not the admin token", code="invalid_admin_token")
        if sent.code is not None:
            code = signer.decode_code(sent.code.strip(), now)
            if code is None or not await self._state.use(code, now):
                raise Unauthorized(
                    "the code is wrong, was used, or is older than 10 minutes; `routecodex ui` makes another",
                    code="invalid_code",
                )
        return signer.new_login(now=now, seconds=seconds)

    def _client_of(self, key: str, now: float) -> str:
        """Return the name of the client with this key and a role."""
        try:
            client = self._clients().table.authenticate(key.strip(), now) if key.strip() else None
        except KeyRefused as exc:
            raise Unauthorized(exc.message, code="invalid_api_key") from exc
        if client is None or not client.keys:
            raise Unauthorized("this is not a client key of this gateway", code="invalid_api_key")
        if not client.role:
            raise ClientError(
                f"client {client.name!r} has no role in the console; set role under [clients.{client.name}], "
                f"or run `routecodex keys set {client.name} --role viewer`",
                status=403,
                code="no_role",
            )
        return client.name

    async def log_out(self, caller: Caller) -> bytes:
        """End the login; return the value of the cookie that removes it."""
        if caller.login is not None:
            await self._state.revoke(caller.login, time.time())
        return self._cookie("", 0)

    def _cookie(self, text: str, seconds: float) -> bytes:
        secure = "; Secure" if self._console().is_secure else ""
        name = self._access.cookie_name
        attributes = f"Path=/admin; Max-Age={max(0, int(seconds))}; HttpOnly; SameSite=Strict{secure}"
        return f"{name}={text}; {attributes}".encode()

    def make_code(self) -> dict[str, Any]:
        """Return a one-time code with the address that logs in by it."""
        if not self._console().enabled:
            raise NotFound("the console is off; set console.enabled", code="console_off")
        code, expires_at = self._access.signer.new_code(time.time())
        return {"code": code, "url": login_url(self._about.url, code), "expires_at": iso_time(expires_at)}

    def me(self, caller: Caller) -> dict[str, Any]:
        """Return who is logged in; a caller with the token needs no csrf."""
        csrf = "" if caller.login is None else self._access.signer.csrf(caller.login)
        return {"name": caller.name, "role": caller.role, "csrf": csrf}
