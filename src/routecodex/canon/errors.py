"""The error tree: the type says whose fault it is, the fields say what a client may be told.

    GatewayError
    ├── ClientError                the request is at fault
    │   ├── BadRequest             400  a field is wrong; `param` names it
    │   ├── Unauthorized           401  the client's own key is missing or unknown
    │   ├── NotFound               404  no such path, model or response
    │   ├── MethodNotAllowed       405
    │   ├── TooLarge               413  body, depth or message limits
    │   └── UpgradeRequired        426  WebSocket probes
    ├── ProviderNotAvailable       a target asked for by name is unknown 404, disabled or not allowed 403,
    │                              or unhealthy 503
    ├── Overloaded                 503  our own limits: concurrency, draining
    ├── ConfigError                     the configuration is at fault
    └── UpstreamError              the provider is at fault (or said the request is)
        ├── UpstreamRejected       4xx of the request itself, passed on
        ├── UpstreamRefusedKey     502  our key was refused
        ├── UpstreamLimited        429  with retry_after
        ├── UpstreamOverloaded     529/503
        ├── UpstreamFailed         502  5xx, connection, unparsable or truncated answer
        └── UpstreamTimeout        504  silent past its time-out

Every error carries `message` for people, `status` for HTTP, `kind` (one of `Kind`, from which each codec
derives its protocol's own type), optional `code`, `param`, `details`, `notices` (a header of their own) and
`routed`: the route, target and reason of what was tried, None when nothing was.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Self

__all__ = [
    "BadRequest",
    "ClientDisconnected",
    "ClientError",
    "ConfigError",
    "GatewayError",
    "Kind",
    "MethodNotAllowed",
    "NotFound",
    "Overloaded",
    "ProviderNotAvailable",
    "TooLarge",
    "Unauthorized",
    "UpgradeRequired",
    "UpstreamError",
    "UpstreamFailed",
    "UpstreamLimited",
    "UpstreamOverloaded",
    "UpstreamRefusedKey",
    "UpstreamRejected",
    "UpstreamTimeout",
]

Kind = Literal[
    "invalid_request",
    "authentication",
    "permission",
    "not_found",
    "too_large",
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
    429: "rate_limit",
    503: "overloaded",
    504: "timeout",
    529: "overloaded",
}


def kind_of_status(status: int) -> Kind:
    """The kind of error an HTTP status stands for."""
    known = _KIND_OF_STATUS.get(status)
    if known is not None:
        return known
    return "invalid_request" if 400 <= status < 500 else "api"


class GatewayError(Exception):
    """Anything this gateway tells a client has gone wrong."""

    status: int = 500
    default_code: ClassVar[str | None] = None
    notices: tuple[str, ...] = ()
    routed: tuple[str, str, str] | None = None

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
        """This error without where and from what it was raised, which would keep the request with it."""
        self.__traceback__ = self.__context__ = self.__cause__ = None
        return self


class ClientDisconnected(Exception):
    """The client left; nobody reads what is written any more. Nobody's fault, and no error to tell."""


class ClientError(GatewayError):
    """The request is at fault; sending it again unchanged will fail again."""

    status = 400


class BadRequest(ClientError):
    """A field of the request is missing, of the wrong type or not acceptable; `param` names it."""

    status = 400


class Unauthorized(ClientError):
    """The client's own key is missing or not one of ours."""

    status = 401
    default_code = "invalid_api_key"


class NotFound(ClientError):
    """There is no such path, model or stored response."""

    status = 404
    default_code = "not_found"


class MethodNotAllowed(ClientError):
    """The path exists, for another method."""

    status = 405
    default_code = "method_not_allowed"


class TooLarge(ClientError):
    """The request is past one of our limits."""

    status = 413
    default_code = "request_too_large"


class UpgradeRequired(ClientError):
    """The client tried a WebSocket; the same path works over plain HTTP."""

    status = 426
    default_code = "websocket_not_supported"


class ProviderNotAvailable(GatewayError):
    """A provider, key or model that was asked for by name cannot be used; `details` say which and why."""

    status = 503
    default_code = "PROVIDER_NOT_AVAILABLE"

    @classmethod
    def unknown(cls, name: str) -> ProviderNotAvailable:
        """Nothing in the configuration has this name."""
        message = f"Requested provider {name} not found in provider registry"
        return cls(message, status=404, details={"provider": name})

    @classmethod
    def disabled(cls, name: str) -> ProviderNotAvailable:
        """It is on a list of disabled targets."""
        details = {"provider": name, "reason": "disabled"}
        return cls(f"Requested provider {name} is disabled", status=403, details=details)

    @classmethod
    def unhealthy(cls, name: str, retry_after: float | None = None) -> ProviderNotAvailable:
        """It failed lately and is given a rest; `retry_after` seconds from now it may be back."""
        message = f"Requested provider {name} is not available (health check failed)"
        details = {"provider": name, "reason": "unhealthy"}
        return cls(message, status=503, details=details, retry_after=retry_after)

    @classmethod
    def not_allowed(cls, *names: str, by_operator: bool = False) -> ProviderNotAvailable:
        """The list of allowed providers leaves no target in any route; the way out is that of who set it."""
        listed = ",".join(names)
        way_out = "`routecodex daemon set routing --clear`" if by_operator else "<**clear**>"
        message = f"No route has a target that the allow list permits ({listed}); {way_out} clears the list"
        return cls(message, status=403, details={"provider": listed, "reason": "not_allowed"})


class Overloaded(GatewayError):
    """The gateway itself cannot take the request now."""

    status = 503
    default_code = "overloaded"


class ConfigError(GatewayError):
    """The configuration is at fault; the message names the place in it and the fix."""


class UpstreamError(GatewayError):
    """A provider failed or refused; `provider` says which, `upstream_status` what it answered."""

    status = 502

    def __init__(
        self,
        message: str,
        *,
        provider: str | None = None,
        upstream_status: int | None = None,
        **told: Any,
    ) -> None:
        super().__init__(message, **told)
        self.provider = provider
        self.upstream_status = upstream_status


class UpstreamRejected(UpstreamError):
    """The provider says the request itself is wrong: passed on, never tried elsewhere."""

    status = 400


class UpstreamRefusedKey(UpstreamError):
    """The provider refused our key; never shown as if the client's own key were wrong."""

    default_code = "upstream_auth"


class UpstreamLimited(UpstreamError):
    """The provider limits us now."""

    status = 429
    default_code = "rate_limit_exceeded"


class UpstreamOverloaded(UpstreamError):
    """The provider says it is overloaded; messages clients see 529, others 503."""

    status = 503
    default_code = "overloaded"


class UpstreamFailed(UpstreamError):
    """The provider broke: 5xx, no connection, an answer that does not parse or is cut off."""

    default_code = "upstream_error"


class UpstreamTimeout(UpstreamError):
    """The provider stayed silent past its time-out."""

    status = 504
    default_code = "upstream_timeout"
