"""The configuration file, from TOML text to one checked, immutable value.

load           `load`, `loads`: a file or text to a `Config`, or `InvalidConfig` with every problem; `examine`
               does not raise and includes warnings
model          `Config` and its tables `ServerConfig`, `StoreConfig`, `PoolConfig`, …
providers      `ProviderConfig`, `KeyConfig`, `ModelConfig`; `Preset`, the defaults of a well-known provider
server_tools   tables of the server tools
capture        `CaptureConfig`
limit_text     `parse_limit`: a limit as it is written, `$20/day`
console        `ConsoleConfig`
teams          `ClientConfig`, `TeamConfig`, `LimitConfig`, `AllowConfig`, `UsageConfig`
telemetry      `TelemetryConfig`, and the variables of OpenTelemetry that fill it in
redact         removes secrets from the text of a file, also from one that is not valid
effective      the values in force, and where each comes from
syntax         parses the text; a syntax error says what to write instead
repair         repairs first mistakes in provider tables, and reports them
shape          reads untyped tables into the model
presets        fills in presets, and resource and region of addresses
resolve        fills in keys and names
check          checks that the parts fit together; check_routes checks targets, routes and aliases,
               check_prices the prices of models, check_teams clients, teams and limits, check_console
               the console, check_capture the captures, check_store the store
exposure       finds keys in a file that other users can read
problems       `Problem`: place, message and fix
http_values    URLs and header fields that can be sent
values         `Secret`, a value that is never shown; bounds of durations
reference      writes docs/configuration.md and the JSON schema
"""

from __future__ import annotations

from routecodex.config.capture import CaptureConfig, CaptureMode
from routecodex.config.check import OPEN_ADDRESS, check, is_loopback, open_address
from routecodex.config.check_routes import split_target
from routecodex.config.check_teams import limit_problems, name_problem
from routecodex.config.console import ConsoleConfig
from routecodex.config.limit_text import LIMIT_FIX, LimitText, parse_limit
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
    StoreSecret,
)
from routecodex.config.problems import InvalidConfig, Problem
from routecodex.config.providers import (
    AuthStyle,
    KeyConfig,
    ModelConfig,
    Preset,
    PriceConfig,
    PriceGroups,
    PriceTierConfig,
    Protocol,
    ProviderConfig,
    TimeoutConfig,
    TlsConfig,
)
from routecodex.config.server_tools import ClockConfig, NtpConfig, ServerToolsConfig, StopMessageConfig
from routecodex.config.teams import (
    ANONYMOUS,
    TEAM_PREFIX,
    AllowConfig,
    ClientConfig,
    ClientKeySource,
    ConsoleRole,
    InstructionKind,
    LimitConfig,
    TeamConfig,
    UsageConfig,
    key_digest,
    limit_rows,
    parse_time,
    rate_limits,
)
from routecodex.config.telemetry import TelemetryConfig
from routecodex.config.values import Secret

__all__ = [
    "ANONYMOUS",
    "LIMIT_FIX",
    "OPEN_ADDRESS",
    "TEAM_PREFIX",
    "AllowConfig",
    "AuthStyle",
    "CaptureConfig",
    "CaptureMode",
    "ClassifierConfig",
    "ClientConfig",
    "ClientKeyConfig",
    "ClientKeySource",
    "ClockConfig",
    "Config",
    "ConsoleConfig",
    "ConsoleRole",
    "InstructionKind",
    "InvalidConfig",
    "KeyConfig",
    "LimitConfig",
    "LimitText",
    "LoggingConfig",
    "MessagesConfig",
    "ModelConfig",
    "NtpConfig",
    "PoolConfig",
    "Preset",
    "PriceConfig",
    "PriceGroups",
    "PriceTierConfig",
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
    "StoreSecret",
    "TeamConfig",
    "TelemetryConfig",
    "TimeoutConfig",
    "TlsConfig",
    "UsageConfig",
    "check",
    "examine",
    "find_path",
    "is_loopback",
    "key_digest",
    "limit_problems",
    "limit_rows",
    "load",
    "loads",
    "name_problem",
    "open_address",
    "parse_limit",
    "parse_time",
    "rate_limits",
    "split_target",
]
