"""[providers.*]: upstreams with their keys and models, and presets with their defaults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from msgspec import Meta, Struct, field

from routecodex.config.values import DAY_MS, Secret

Protocol = Literal["chat", "responses", "messages", "gemini", "demo"]
AuthStyle = Literal["bearer", "x-api-key", "x-goog-api-key", "api-key", "none"]
Count = Annotated[int, Meta(ge=1)]
_AZURE = (".openai.azure.com", ".cognitiveservices.azure.com", ".services.ai.azure.com", ".openai.azure.us")
Amount = Annotated[float, Meta(ge=0, le=100_000)]
"""USD per million tokens. The dearest model known costs 600; more than 0.1 USD per token is a mistake."""

DISCOVERED = "*"
"""The model that stands for all names that a provider lists; `models = "discover"` is short for it alone."""


class KeyConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One credential of a provider; after loading it has an alias and its value."""

    alias: Annotated[
        str, Meta(description="Name of the key in targets and instructions; `key1`, `key2`, … when absent.")
    ] = ""
    value: Annotated[Secret | None, Meta(description="The key itself, best as `${NAME}`.")] = None
    env: Annotated[str | None, Meta(description="Environment variable that holds the key.")] = None
    file: Annotated[
        str | None,
        Meta(description="File that holds the key; relative to the configuration file, `~` allowed."),
    ] = None
    rpm: Annotated[
        Count | None, Meta(description="Requests in 60 seconds that the provider allows; then it is skipped.")
    ] = None
    tpm: Annotated[
        Count | None, Meta(description="Tokens in 60 seconds that the provider allows; then it is skipped.")
    ] = None
    concurrent: Annotated[
        Count | None, Meta(description="Requests at the same time that the provider allows.")
    ] = None

    @property
    def secret(self) -> Secret:
        """The credential; empty for an upstream that needs none."""
        return self.value or Secret("")


class TimeoutConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Timeouts of an upstream."""

    connect_ms: Annotated[
        int, Meta(description="Longest time to connect, TLS included.", ge=1, le=DAY_MS)
    ] = 5000
    first_byte_ms: Annotated[
        int,
        Meta(description="Longest time from the request to the first byte of the response.", ge=1, le=DAY_MS),
    ] = 120_000
    idle_ms: Annotated[int, Meta(description="Longest silence inside a response.", ge=1, le=DAY_MS)] = 120_000


class TlsConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Verification of an upstream's certificate."""

    verify: Annotated[bool, Meta(description="Check the certificate; `false` only for tests.")] = True
    ca_file: Annotated[
        str | None, Meta(description="PEM file of further trusted authorities, such as a company's own.")
    ] = None


class PriceTierConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Prices of a request whose whole input, cached parts included, is above a size."""

    above: Annotated[
        Count,
        Meta(
            description="Tokens of input above which these prices hold for the whole request.",
            extra={"fix": "set the size, as in above = 200000"},
        ),
    ]
    input: Annotated[Amount | None, Meta(description="As in `price`; that of `price` when absent.")] = None
    output: Annotated[Amount | None, Meta(description="As in `price`; that of `price` when absent.")] = None
    cache_read: Annotated[
        Amount | None, Meta(description="As in `price`; the tier's `input` when absent.")
    ] = None
    cache_write: Annotated[
        Amount | None, Meta(description="As in `price`; the tier's `input` when absent.")
    ] = None
    cache_write_1h: Annotated[
        Amount | None, Meta(description="As in `price`; 1.6 × the tier's `cache_write` when absent.")
    ] = None
    reasoning: Annotated[
        Amount | None, Meta(description="As in `price`; at least the tier's `output` when absent.")
    ] = None


class PriceConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Price of a model in USD per million tokens; `price = "free"` for flat-rate plans and local models."""

    input: Annotated[Amount | None, Meta(description="Input tokens; 0 when absent.")] = None
    output: Annotated[
        Amount | None, Meta(description="Output tokens, reasoning included; 0 when absent.")
    ] = None
    cache_read: Annotated[
        Amount | None, Meta(description="Input tokens read from a cache; as `input` when absent.")
    ] = None
    cache_write: Annotated[
        Amount | None,
        Meta(description="Input tokens written to a cache for 5 minutes; as `input` when absent."),
    ] = None
    cache_write_1h: Annotated[
        Amount | None,
        Meta(
            description="Input tokens written to a cache for an hour; 1.6 × `cache_write` when absent.",
        ),
    ] = None
    reasoning: Annotated[
        Amount | None, Meta(description="Reasoning tokens, where they are billed apart from other output.")
    ] = None
    tiers: Annotated[
        tuple[PriceTierConfig, ...],
        Meta(description="Prices of requests above a size; every token of such a request has them."),
    ] = ()


class PriceGroups(Struct, frozen=True):
    """Places of the prices of a provider: names of groups in a price file, in order.

    `flat_rate`: its use costs nothing beyond a fee, or it runs on this machine.
    """

    names: tuple[str, ...]
    flat_rate: bool = False


class ModelConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One model of a provider."""

    id: Annotated[
        str, Meta(description="The upstream's own name for it; the name in this file when absent.")
    ] = ""
    context_tokens: Annotated[
        Count | None,
        Meta(description="Context size; larger requests go to other targets. Unknown when absent."),
    ] = None
    max_output_tokens: Annotated[Count | None, Meta(description="Longest answer.")] = None
    vision: Annotated[bool, Meta(description="It accepts images.")] = True
    tools: Annotated[bool, Meta(description="It calls tools.")] = True
    reasoning: Annotated[bool, Meta(description="It can be asked to think.")] = True
    price: Annotated[
        PriceConfig | Literal["free"] | None,
        Meta(
            description="Its price, before any other source. When absent, the provider's own figure in its "
            "answers counts, then `prices.json` in the user dir, then the price file of the package. Without "
            "any price the cost is unknown."
        ),
    ] = None


class ProviderConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An upstream: protocol, address, keys and models."""

    preset: Annotated[
        str | None,
        Meta(
            description="Row of the catalog with the defaults of this table. A provider that is "
            "named like a preset and has neither `protocol` nor `base_url` uses that preset."
        ),
    ] = None
    protocol: Annotated[
        Protocol,
        Meta(
            description="Its protocol; `demo` is the built-in scripted provider. Required without a preset; "
            "with one it chooses among the preset's addresses.",
            extra={
                "fix": 'set protocol = "chat", "responses", "messages" or "gemini", or name a preset',
                "stand_in": "demo",
            },
        ),
    ]
    base_url: Annotated[
        str,
        Meta(
            description="Its base URL, as for the official SDK: chat and responses end in `/v1`; messages "
            "does not; gemini is without `/v1beta`. Required without a preset. `{resource}` and `{region}` "
            "in it stand for the keys of that name."
        ),
    ] = ""
    resource: Annotated[
        str | None,
        Meta(description="Fills `{resource}` of the base URL; when absent, `$AZURE_RESOURCE_NAME`."),
    ] = None
    region: Annotated[
        str | None,
        Meta(
            description="Fills `{region}` of the base URL; when absent, `$AWS_REGION` or "
            "`$AWS_DEFAULT_REGION`."
        ),
    ] = None
    auth: Annotated[
        tuple[KeyConfig, ...],
        Meta(description="Its keys, in order. Each has one of `value`, `env` and `file`."),
    ] = ()
    auth_style: Annotated[
        AuthStyle | None,
        Meta(
            description="Header that carries the key; by protocol when absent: `bearer` for chat and "
            "responses, `x-api-key` for messages, `x-goog-api-key` for gemini."
        ),
    ] = None
    timeout: Annotated[TimeoutConfig, Meta(description="Timeouts.")] = TimeoutConfig()
    models: Annotated[
        dict[str, ModelConfig],
        Meta(
            description='Its models by name; added to those of the preset. `"discover"`, or a model `"*"` '
            "beside named ones: the names are those that the provider lists, and every other name works too."
        ),
    ] = field(default_factory=dict)
    headers: Annotated[dict[str, str], Meta(description="Headers to add to every request.")] = field(
        default_factory=dict
    )
    query: Annotated[
        dict[str, str], Meta(description="Query parameters to add to every request, such as `api-version`.")
    ] = field(default_factory=dict)
    tls: Annotated[TlsConfig, Meta(description="Verification of its certificate.")] = TlsConfig()
    dialect: Annotated[
        dict[str, Any], Meta(description="Deviations from its protocol; added to the preset's.")
    ] = field(default_factory=dict)

    billing_header: Annotated[
        Literal["auto", "keep", "strip"],
        Meta(
            description="The line `x-anthropic-billing-header:` that Claude Code puts before its system "
            "text. `auto`: only Anthropic gets it (preset `anthropic`, or the host `api.anthropic.com`)."
        ),
    ] = "auto"
    codex_items: Annotated[
        Literal["auto", "native", "plain"],
        Meta(
            description="Codex's own tools and items for a `responses` provider (others always get plain "
            "functions). `native`: as they came; `plain`: as functions and messages. `auto`: native for "
            "OpenAI and Azure; others get them without OpenAI's internals, and plain once they reject them."
        ),
    ] = "auto"
    pace: Annotated[
        float,
        Meta(description="Only for `demo`: delay of its output; 1 is realistic, 0 is none.", ge=0),
    ] = 1.0

    @property
    def discovers(self) -> bool:
        """Whether the provider itself names its models."""
        return DISCOVERED in self.models

    @property
    def named_models(self) -> dict[str, ModelConfig]:
        """The models that the file or the preset names."""
        return {name: model for name, model in self.models.items() if name != DISCOVERED}

    @property
    def keeps_billing_header(self) -> bool:
        """Whether Claude Code's billing header is sent to it."""
        if self.billing_header != "auto":
            return self.billing_header == "keep"
        return self.preset == "anthropic" or urlsplit(self.base_url).hostname == "api.anthropic.com"

    @property
    def is_openai(self) -> bool:
        """Whether it is OpenAI's own API, or OpenAI's models on Azure."""
        host = urlsplit(self.base_url).hostname or ""
        return host == "api.openai.com" or host.endswith(_AZURE)

    @property
    def codex_form(self) -> Literal["native", "kept", "plain"]:
        """The form in which it gets Codex's own tools and items at first."""
        if self.codex_items != "auto":
            return self.codex_items
        return "native" if self.is_openai else "kept"

    @property
    def keys(self) -> tuple[KeyConfig, ...]:
        """Its keys, at least one: an upstream without keys has an empty one."""
        return self.auth or (KeyConfig(alias="key1"),)


class Preset(Struct, frozen=True, kw_only=True):
    """Defaults of a well-known provider by one protocol, and those by its other protocols.

    `env` has the variables of its key in order: the first that is set counts.
    """

    about: str
    protocol: Protocol
    base_url: str
    env: tuple[str, ...]
    auth_style: AuthStyle
    models: Mapping[str, ModelConfig] = field(default_factory=dict)
    dialect: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    lists_models: bool = True
    """Whether the provider has an endpoint that lists its models."""
    others: tuple[Preset, ...] = ()

    @property
    def by_protocol(self) -> dict[str, Preset]:
        """The defaults by each protocol that it has, the first by default."""
        return {one.protocol: one for one in (self, *self.others)}
