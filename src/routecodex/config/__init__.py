"""The configuration file, from TOML text to one checked, immutable value.

- `load`, `loads`: a file or text to a `Config`, or `InvalidConfig` with every problem at once
- `examine`: the same without raising, warnings included
- `check`: whether the parts of a `Config` fit together
- `Config` and its tables `ServerConfig`, `Store`, `Provider`, `Key`, `Model`, `Pool`, …: what the file says
- `Preset`: a well-known provider, the defaults of a row
- `Secret`: a value that is never shown
- `Problem`: one thing that is wrong, where, and how to mend it
"""

from __future__ import annotations

from routecodex.config.check import check, is_loopback
from routecodex.config.check_routes import split_target
from routecodex.config.load import examine, find_path, load, loads
from routecodex.config.model import (
    ClassifierConfig,
    ClientKeyConfig,
    Config,
    LoggingConfig,
    MessagesConfig,
    PoolConfig,
    ProtocolsConfig,
    RoutingOptionsConfig,
    ServerConfig,
    StoreConfig,
)
from routecodex.config.problems import InvalidConfig, Problem
from routecodex.config.providers import (
    AuthStyle,
    KeyConfig,
    ModelConfig,
    Preset,
    PriceConfig,
    Protocol,
    ProviderConfig,
    TimeoutConfig,
    TlsConfig,
)
from routecodex.config.server_tools import ClockConfig, NtpConfig, ServerToolsConfig, StopMessageConfig
from routecodex.config.values import Secret

__all__ = [
    "AuthStyle",
    "ClassifierConfig",
    "ClientKeyConfig",
    "ClockConfig",
    "Config",
    "InvalidConfig",
    "KeyConfig",
    "LoggingConfig",
    "MessagesConfig",
    "ModelConfig",
    "NtpConfig",
    "PoolConfig",
    "Preset",
    "PriceConfig",
    "Problem",
    "Protocol",
    "ProtocolsConfig",
    "ProviderConfig",
    "RoutingOptionsConfig",
    "Secret",
    "ServerConfig",
    "ServerToolsConfig",
    "StopMessageConfig",
    "StoreConfig",
    "TimeoutConfig",
    "TlsConfig",
    "check",
    "examine",
    "find_path",
    "is_loopback",
    "load",
    "loads",
    "split_target",
]
