"""[console]: the web page at `/ui/`, who may reach it, and how long a login lasts."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from routecodex.config.values import YEAR_HOURS


class ConsoleConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The console at `/ui/`."""

    enabled: Annotated[
        bool,
        Meta(description="Serve the console; `false`: `/ui` is 404, and its logins are not accepted."),
    ] = True
    remote: Annotated[
        bool,
        Meta(
            description="Answer `/ui` and `/admin` to other machines too; needs an `https` `public_url`, or "
            "`insecure_http`."
        ),
    ] = False
    public_url: Annotated[
        str,
        Meta(description="Address at which browsers reach the TLS proxy in front: `https://host`."),
    ] = ""
    insecure_http: Annotated[
        bool,
        Meta(description="Allow `remote` without TLS: tokens and logins cross the network in clear text."),
    ] = False
    session_hours: Annotated[
        float, Meta(description="Hours after which a login ends.", gt=0, le=YEAR_HOURS)
    ] = 12
    detail_days: Annotated[
        int, Meta(description="Days that plans and timings of requests are kept.", ge=0, le=36_500)
    ] = 3

    @property
    def origin(self) -> str:
        """Origin of `public_url` as browsers send it; empty without one."""
        return self.public_url.rstrip("/").lower()

    @property
    def is_secure(self) -> bool:
        """Whether browsers reach the console by TLS."""
        return self.origin.startswith("https://")
