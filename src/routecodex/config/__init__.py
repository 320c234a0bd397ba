"""The configuration file, from TOML text to one checked, immutable value.

- `load`, `loads`: a file or text to a `Config`, or `InvalidConfig` with every problem at once
- `examine`: the same without raising, warnings included
- `check`: whether the parts of a `Config` fit together
- `Config` and its tables `Server`, `Store`, `Provider`, `Key`, `Model`, `Pool`, …: what the file says
- `Preset`: a well-known provider, the defaults of a row
- `Secret`: a value that is never shown
- `Problem`: one thing that is wrong, where, and how to mend it
"""

from __future__ import annotations

from routecodex.config.addresses import is_loopback
from routecodex.config.check import check, split_target
from routecodex.config.load import examine, find_path, load, loads
from routecodex.config.model import Config
from routecodex.config.problems import InvalidConfig, Problem
from routecodex.config.providers import AuthStyle, Key, Model, Preset, Price, Protocol, Provider, Timeout, Tls
from routecodex.config.routing import Classifier, Pool, RoutingOptions
from routecodex.config.secret import Secret
from routecodex.config.server import ClientKey, Logging, MessagesOptions, Protocols, Server, Store
from routecodex.config.server_tools import Clock, Ntp, ServerTools, StopMessage

__all__ = [
    "AuthStyle",
    "Classifier",
    "ClientKey",
    "Clock",
    "Config",
    "InvalidConfig",
    "Key",
    "Logging",
    "MessagesOptions",
    "Model",
    "Ntp",
    "Pool",
    "Preset",
    "Price",
    "Problem",
    "Protocol",
    "Protocols",
    "Provider",
    "RoutingOptions",
    "Secret",
    "Server",
    "ServerTools",
    "StopMessage",
    "Store",
    "Timeout",
    "Tls",
    "check",
    "examine",
    "find_path",
    "is_loopback",
    "load",
    "loads",
    "split_target",
]
