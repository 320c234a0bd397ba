"""Checks the console's settings: other machines reach it by TLS only, unless the file says otherwise."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from urllib.parse import SplitResult

from routecodex.config.model import Config
from routecodex.config.problems import ConfigPath, Problem, quoted, warning

_URL: ConfigPath = ("console", "public_url")
_DEFAULT_PORTS = {"http": 80, "https": 443}


def check_console(config: Config, split: Callable[[str], SplitResult | None]) -> Iterator[Problem]:
    """Check `[console]`; `split` returns the parts of a URL, or None if the text is not one."""
    console = config.console
    if console.public_url:
        yield from _public_url(split(console.public_url))
    if console.remote and not console.is_secure and not console.insecure_http:
        message = "would let tokens and logins cross the network in clear text"
        fix = (
            'put a TLS proxy in front and set public_url = "https://…", or accept the risk with '
            "insecure_http = true"
        )
        yield Problem(("console", "remote"), message, fix)
    elif console.insecure_http and not console.remote:
        fix = "remove it, or set remote = true"
        yield warning(("console", "insecure_http"), "has no effect without remote = true", fix)


def _public_url(parts: SplitResult | None) -> Iterator[Problem]:
    if parts is None:
        yield Problem(_URL, "is not a URL", 'write "https://" and the host')
        return
    origin = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
    if parts.path not in ("", "/") or parts.query or parts.fragment or "@" in parts.netloc:
        yield Problem(_URL, "has more than scheme, host and port", f"write {quoted(origin)}")
    elif parts.port == _DEFAULT_PORTS[parts.scheme]:
        message = "has the default port, which browsers leave out"
        yield Problem(_URL, message, f"write {quoted(origin.rpartition(':')[0])}")
