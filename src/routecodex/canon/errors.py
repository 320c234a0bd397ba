"""Error tree: the type says whose fault an error is, the fields hold the parts a client may see.

    GatewayError
    ├── ClientError                the request is at fault
    │   ├── BadRequest             400  a field is wrong; `param` names it
    │   ├── Unauthorized           401  the admin token, or the client's own key, is missing or unknown
    │   │   └── KeyRefused         401  the client's key is unknown, expired or revoked
    │   ├── AccessDenied           403  the client is known and may not do this
    │   ├── NotFound               404  no such path, model or response
    │   ├── MethodNotAllowed       405
    │   ├── TooLarge               413  body, depth or message limits
    │   └── UpgradeRequired        426  WebSocket probes
    ├── LimitExceeded              429  a limit of the client or its team
    ├── ProviderNotAvailable       a target requested by name is unknown 404, disabled or not allowed 403,
    │                              or unhealthy 503
    ├── Overloaded                 503  limits of the gateway: concurrency, draining
    ├── ConfigError                     the configuration is at fault
    └── UpstreamError              the provider is at fault, or rejected the request
        ├── UpstreamRejected       4xx of the request itself, passed on
        ├── UpstreamRefusedKey     424  the provider refused the configured key
        ├── UpstreamOutOfCredit    424  the account of the configured key has no credit
        ├── UpstreamUnknownModel   404  the provider does not serve the configured model with this key
        ├── UpstreamLimited        429  with retry_after
        ├── UpstreamOverloaded     529/503
        ├── UpstreamFailed         502  5xx, connection, unparsable or truncated response
        ├── LocalFault             503  this machine lacks descriptors, memory, ports or network
        └── UpstreamTimeout        504  no bytes within the timeout

Every error has `message` for people, `status` for HTTP, `kind` (one of `Kind`, which each codec maps to the
error type of its protocol), optional `code`, `param`, `details`, `notices` (sent in their own header) and
`routed`: route, target and reason of the last attempt, None if there was no attempt. `role` is that of the
request, once known.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal, Self

Kind = Literal[
    "invalid_request",
    "authentication",
    "permission",
    "not_found",
    "too_large",
    "key_unusable",
    "model_unknown",
    "rate_limit",
    "overloaded",
    "timeout",
    "api",
]

_KIND_OF_STATUS: dict[int, Kind] = {
    401: "authentication",
    402: "permission",
    403: "permission",
    404: "not_found",
    408: "timeout",
    413: "too_large",
    424: "key_unusable",
    429: "rate_limit",
    503: "overloaded",
    504: "timeout",
    529: "overloaded",
}


def kind_of_status(status: int) -> Kind:
    """Return the kind of error that an HTTP status stands for."""
    known = _KIND_OF_STATUS.get(status)
    if known is not None:
        return known
    return "invalid_request" if 400 <= status < 500 else "api"


class GatewayError(Exception):
    """An error that this gateway reports to a client."""

    status: int = 500
    default_code: ClassVar[str | None] = None
    protocol_code: str | None = None
    """The code inside the error object of chat and responses, where it is not `code`."""
    never_retry: bool = False
    """The client is told not to retry: only a person, or a long time, can remove the cause."""
    header_lines: bytes = b""
    """Complete header lines that the response has besides."""
    notices: tuple[str, ...] = ()
    routed: tuple[str, str, str] | None = None
    role: str = ""

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        code: str | None = None,
        param: str | None = None,
        details: dict[str, Any] | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        if status is not None:
            self.status = status
        self.code = code if code is not None else self.default_code
        self.param = param
        self.details = details
        self.retry_after = retry_after

    @property
    def kind(self) -> Kind:
        return kind_of_status(self.status)

    def detached(self) -> Self:
        """Drop traceback, context and cause, which would keep the request in memory; return this error."""
        self.__traceback__ = self.__context__ = self.__cause__ = None
        return self


class ClientDisconnected(Exception):
    """The client disconnected. This is not an error: no response can reach it any more."""


class ClientError(GatewayError):
    """The request is at fault; sending it again unchanged will fail again."""

    status = 400


class BadRequest(ClientError):
    """A field of the request is missing, of the wrong type or not acceptable; `param` names it."""

    status = 400


class Unauthorized(ClientError):
    """The client's own key is missing or unknown."""

    status = 401
    default_code = "invalid_api_key"
    never_retry = True


class KeyRefused(Unauthorized):
    """The client's key is unknown, expired or revoked; `code` says which."""

    protocol_code = "invalid_api_key"


class AccessDenied(ClientError):
    """The client is known, and may not do this: `key_blocked`, `not_allowed`."""

    status = 403
    default_code = "not_allowed"
    never_retry = True


class NotFound(ClientError):
    """The path, model or stored response does not exist."""

    status = 404
    default_code = "not_found"


class MethodNotAllowed(ClientError):
    """The path exists, but not for this method."""

    status = 405
    default_code = "method_not_allowed"


class TooLarge(ClientError):
    """The request exceeds a limit of the gateway."""

    status = 413
    default_code = "request_too_large"


class UpgradeRequired(ClientError):
    """The client tried to open a WebSocket; the same path works over plain HTTP."""

    status = 426
    default_code = "websocket_not_supported"


class LimitExceeded(GatewayError):
    """A limit of the client or its team has no room for the request; `details` name it.

    `code` is `budget_exceeded`, `rate_limit_exceeded` or `concurrency_exceeded`. `counts` is what the limit
    counts, as OpenAI names it: `requests` or `tokens`. `resets_at` is when it resets, in Unix seconds.
    """

    status = 429

    def __init__(
        self,
        message: str,
        *,
        code: str,
        counts: str,
        details: dict[str, Any],
        resets_at: int | None,
        retry_after: float,
    ) -> None:
        super().__init__(message, code=code, details=details, retry_after=retry_after)
        self.counts = counts
        self.resets_at = resets_at
        is_budget = code == "budget_exceeded"
        self.protocol_code = "insufficient_quota" if is_budget else "rate_limit_exceeded"


class ProviderNotAvailable(GatewayError):
    """A provider, key or model requested by name cannot be used; `details` say which and why."""

    status = 503
    default_code = "PROVIDER_NOT_AVAILABLE"

    @classmethod
    def unknown(cls, name: str, near: Sequence[str] = ()) -> ProviderNotAvailable:
        """Return the error for a name that the configuration does not have, with the nearest targets."""
        message = f"Requested provider {name} not found in provider registry"
        if not near:
            return cls(message, status=404, details={"provider": name})
        details = {"provider": name, "near": list(near)}
        return cls(f"{message}; near: {', '.join(near)}", status=404, details=details)

    @classmethod
    def disabled(cls, name: str) -> ProviderNotAvailable:
        """Return the error for a target on a list of disabled targets."""
        details = {"provider": name, "reason": "disabled"}
        return cls(f"Requested provider {name} is disabled", status=403, details=details)

    @classmethod
    def unhealthy(cls, name: str, retry_after: float | None = None) -> ProviderNotAvailable:
        """Return the error for a target in cooldown; it may be back in `retry_after` seconds."""
        message = f"Requested provider {name} is not available (health check failed)"
        details = {"provider": name, "reason": "unhealthy"}
        return cls(message, status=503, details=details, retry_after=retry_after)

    @classmethod
    def not_allowed(cls, *names: str, by_operator: bool = False) -> ProviderNotAvailable:
        """Return the error for an allow list that leaves no target in any route, with the way to clear it."""
        listed = ",".join(names)
        way_out = "`routecodex daemon set routing --clear`" if by_operator else "<**clear**>"
        message = f"No route has a target that the allow list permits ({listed}); {way_out} clears the list"
        return cls(message, status=403, details={"provider": listed, "reason": "not_allowed"})


class Overloaded(GatewayError):
    """The gateway itself cannot accept the request now."""

    status = 503
    default_code = "overloaded"


class ConfigError(GatewayError):
    """The configuration is at fault; the message names the place in it and the fix."""


class UpstreamError(GatewayError):
    """A provider failed or refused; `provider` is its name, `upstream_status` its HTTP status.

    `setting` is the key of the provider's table to check after a connection error. `provider_message` is the
    provider's own text where `message` has another one.
    """

    status = 502

    def __init__(
        self,
        message: str,
        *,
        provider: str | None = None,
        upstream_status: int | None = None,
        setting: str | None = None,
        provider_message: str = "",
        **fields: Any,
    ) -> None:
        super().__init__(message, **fields)
        self.provider = provider
        self.upstream_status = upstream_status
        self.setting = setting
        self.provider_message = provider_message

    def name_setting(self, provider: str, key: str) -> None:
        """Add provider, key and setting to the message of a connection error, once."""
        if self.setting is not None:
            place = f"providers.{provider}.{self.setting}"
            self.message = f"provider {provider!r}, key {key!r}: {self.message}; check {place}"
            self.setting = None


class UpstreamRejected(UpstreamError):
    """The provider rejects the request itself: passed on, not retried elsewhere."""

    status = 400


class UpstreamRefusedKey(UpstreamError):
    """The provider refused the configured key; never shown as if the client's own key were wrong."""

    status = 424
    default_code = "upstream_auth"
    never_retry = True


class UpstreamOutOfCredit(UpstreamError):
    """The account of the configured key has no credit left, and no other target can serve."""

    status = 424
    default_code = "upstream_quota"
    never_retry = True


class UpstreamUnknownModel(UpstreamError):
    """The provider does not know the configured model, or does not serve it with this key."""

    status = 404
    default_code = "upstream_model"
    protocol_code = "model_not_found"
    never_retry = True

    @property
    def kind(self) -> Kind:
        return "model_unknown"


class UpstreamLimited(UpstreamError):
    """The provider limits the rate or the quota of the key."""

    status = 429
    default_code = "rate_limit_exceeded"


class UpstreamOverloaded(UpstreamError):
    """The provider reports that it is overloaded; messages clients get 529, others 503."""

    status = 503
    default_code = "overloaded"


class UpstreamFailed(UpstreamError):
    """The provider failed: 5xx, no connection, a response that does not parse or is truncated."""

    default_code = "upstream_error"


class LocalFault(UpstreamError):
    """This machine, not the provider, prevented the attempt: no descriptor, memory, port or network.

    Another target may still answer. The health of the provider does not change.
    """

    status = 503
    default_code = "local_fault"


class UpstreamTimeout(UpstreamError):
    """The provider sent no bytes within the timeout."""

    status = 504
    default_code = "upstream_timeout"
