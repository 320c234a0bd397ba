"""Drafts of a configuration: providers, the routes they allow, and the commented text.

ProviderDraft   a provider that is to be added
draft_preset    a provider of the catalog; draft_server: a server on this machine; draft_demo: the demo
propose_routes  the routes of some providers
config_text     the text of a new file (config_edit adds to an existing one)
propose_config  the text that `routecodex init --yes` writes
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from msgspec import Struct, field

from routecodex.cli.found_providers import (
    LOCAL_SERVERS,
    FoundKey,
    FoundServer,
    LocalServer,
    find_keys,
    find_servers,
)
from routecodex.config.model import ClassifierConfig
from routecodex.config.problems import quoted
from routecodex.config.providers import ModelConfig
from routecodex.providers.catalog import PRESETS, row_of
from routecodex.providers.recommended_models import ROUTES, recommended_models

HAIKU = "claude-*haiku*"
"""Names of Claude Code's small model."""
HAIKU_ROUTE = "route:background"
LONG_CONTEXT = ClassifierConfig().longcontext_tokens
_MOST_LOCAL_MODELS = 12
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+\Z")
_NOT_FOR_CHAT = re.compile(r"embed|rerank|whisper|tts|bge-|minilm", re.IGNORECASE)
"""Names of models that do not chat: Ollama and LM Studio list them with the others."""

ROUTE_COMMENTS: Mapping[str, str] = {
    "default": "Requests that fit no other route.",
    "thinking": "Requests that ask the model to think.",
    "background": "Small requests that agents send besides: titles, summaries.",
    "vision": "Requests with images.",
    "longcontext": f"Requests of {LONG_CONTEXT} tokens or more.",
}
PROVIDER_COMMENT = "A preset has the address and the protocol of a provider: `routecodex config presets`."
ROUTING_COMMENT = "Targets are tried in order: when one fails, the next one answers."
HAIKU_COMMENT = "Names that clients may send. Claude Code uses its haiku model for small requests."
_HEAD = """\
# The configuration of RouteCodex, written by `routecodex init`.
# Check it after changes with `routecodex config check`; the server reads a changed file with
# `routecodex daemon reload`.
"""


class ProviderDraft(Struct, frozen=True, kw_only=True):
    """A provider that is to be added: where its key is, its models, and its model for each route."""

    name: str
    about: str
    preset: str | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    """Further keys of its table: `protocol`, `base_url`, `resource`, `region`."""
    env: str | None = None
    key_file: str | None = None
    models: Mapping[str, ModelConfig]
    """Its models, with what is known of each."""
    preset_models: frozenset[str] = frozenset()
    """Models that the preset knows: their sizes need not be written."""
    by_route: Mapping[str, str]
    sees_images: frozenset[str] = frozenset()
    """Models that are known to accept images; of others it may be unknown."""

    @property
    def default(self) -> str:
        """The model that answers most requests."""
        return self.by_route["default"]

    def target(self, route: str) -> str:
        """Return its target of a route."""
        return f"{self.name}.{self.by_route.get(route, self.default)}"

    def model(self, route: str) -> ModelConfig:
        """Return its model of a route."""
        return self.models[self.by_route.get(route, self.default)]


def draft_preset(
    preset: str, *, env: str | None = None, key_file: str | None = None, models: Sequence[str] = ()
) -> ProviderDraft | None:
    """Return a provider of the catalog; None if its model is not known and `models` has none.

    The first of `models` replaces the recommended model; a small model for the background stays.
    """
    defaults, row = PRESETS[preset], row_of(preset)
    recommended = recommended_models(row.preset if row else preset, defaults.protocol)
    known = {**(recommended.models if recommended else {}), **defaults.models}
    by_route = dict(recommended.by_route) if recommended else {}
    if models:
        by_route = _with_model(by_route, models[0], known)
    if not by_route:
        return None
    named = dict.fromkeys((*by_route.values(), *models))
    return ProviderDraft(
        name=preset,
        about=defaults.about,
        preset=preset,
        env=env,
        key_file=key_file,
        models={model: known.get(model, ModelConfig()) for model in named},
        preset_models=frozenset(defaults.models),
        by_route=by_route,
        sees_images=frozenset(model for model in named if model in known and known[model].vision),
    )


def _with_model(by_route: Mapping[str, str], model: str, known: Mapping[str, ModelConfig]) -> dict[str, str]:
    """Return the models by route for a person's own choice of the main model."""
    if by_route.get("default") == model:
        return dict(by_route)
    chosen = {"default": model}
    if "background" in by_route:
        chosen["background"] = by_route["background"]
    sees = next((name for route in ROUTES if (name := by_route.get(route)) and known[name].vision), None)
    if model in known and not known[model].vision and sees:
        chosen["vision"] = sees
    return chosen


def draft_server(found: FoundServer, models: Sequence[str] = ()) -> ProviderDraft | None:
    """Return a provider for a server on this machine; None if it has no model that chats."""
    listed = [name for name in found.models if not _NOT_FOR_CHAT.search(name)][:_MOST_LOCAL_MODELS]
    named = list(dict.fromkeys((*models, *listed)))
    if not named:
        return None
    defaults = PRESETS[found.server.preset]
    other = {} if found.server.url == defaults.base_url else {"base_url": found.server.url}
    return ProviderDraft(
        name=found.server.preset,
        about=defaults.about,
        preset=found.server.preset,
        settings=other,
        models={name: ModelConfig(context_tokens=found.models.get(name)) for name in named},
        by_route={"default": named[0]},
    )


def draft_demo() -> ProviderDraft:
    """Return the built-in demo provider."""
    return ProviderDraft(
        name="demo",
        about="Built-in demo: a scripted model, without a key and without a network",
        settings={"protocol": "demo"},
        models={
            "demo-1": ModelConfig(context_tokens=200_000, vision=False),
            "demo-thinking": ModelConfig(context_tokens=200_000, vision=False),
            "demo-small": ModelConfig(context_tokens=200_000, vision=False),
            "demo-vision": ModelConfig(context_tokens=200_000),
        },
        by_route={
            "default": "demo-1",
            "thinking": "demo-thinking",
            "background": "demo-small",
            "vision": "demo-vision",
        },
        sees_images=frozenset({"demo-vision"}),
    )


def propose_routes(providers: Sequence[ProviderDraft]) -> dict[str, list[str]]:
    """Return the targets of each route, `default` first; other routes only where their targets differ."""
    # A provider without tools cannot serve an agent: it comes last.
    ordered = sorted(providers, key=lambda one: not one.model("default").tools)
    routes = {route: [one.target(route) for one in ordered if _fits(one, route)] for route in ROUTES}
    default = routes["default"]
    return {
        route: targets
        for route, targets in routes.items()
        if route == "default" or (targets and targets != default)
    }


def _fits(provider: ProviderDraft, route: str) -> bool:
    """Whether the provider's model of a route can do what the route is for."""
    if route == "vision":
        return provider.by_route.get(route, provider.default) in provider.sees_images
    if route == "longcontext":
        return (provider.model(route).context_tokens or 0) >= LONG_CONTEXT
    return True


def config_text(providers: Sequence[ProviderDraft]) -> str:
    """Return the text of a new configuration file."""
    routes = propose_routes(providers)
    presets = any(one.preset for one in providers)
    parts = [_HEAD + (f"# {PROVIDER_COMMENT}\n" if presets else "")]
    parts += [provider_text(one) for one in providers]
    parts.append(f"# {ROUTING_COMMENT}\n[routing]\n")
    parts[-1] += "".join(f"# {ROUTE_COMMENTS[name]}\n{route_line(name, to)}" for name, to in routes.items())
    if "background" in routes:
        parts.append(f"# {HAIKU_COMMENT}\n[models]\n{quoted(HAIKU)} = {quoted(HAIKU_ROUTE)}\n")
    return "\n".join(parts)


def provider_text(provider: ProviderDraft) -> str:
    """Return the table of one provider."""
    lines = [f"# {provider.about}", f"[providers.{provider.name}]"]
    if provider.preset is not None:
        lines.append(f"preset = {quoted(provider.preset)}")
    lines += [f"{name} = {quoted(value)}" for name, value in provider.settings.items()]
    lines += _auth_lines(provider)
    lines += [f"\n[providers.{provider.name}.models]"]
    lines += [f"{_key(name)} = {_model_text(provider, name)}" for name in provider.models]
    return "\n".join(lines) + "\n"


def _auth_lines(provider: ProviderDraft) -> list[str]:
    if provider.env is not None:
        return [f"auth = [{{ env = {quoted(provider.env)} }}]"]
    if provider.key_file is not None:
        return [f"auth = [{{ file = {quoted(provider.key_file)} }}]"]
    return []


def model_fields(provider: ProviderDraft, name: str) -> dict[str, int | bool]:
    """Return the settings of a model that its preset does not have."""
    if name in provider.preset_models:
        return {}
    model = provider.models[name]
    fields: dict[str, int | bool] = {}
    if model.context_tokens is not None:
        fields["context_tokens"] = model.context_tokens
    if model.max_output_tokens is not None:
        fields["max_output_tokens"] = model.max_output_tokens
    flags = {"vision": model.vision, "tools": model.tools, "reasoning": model.reasoning}
    return fields | {flag: value for flag, value in flags.items() if not value}


def _model_text(provider: ProviderDraft, name: str) -> str:
    fields = model_fields(provider, name)
    inner = ", ".join(f"{key} = {str(value).lower()}" for key, value in fields.items())
    return f"{{ {inner} }}" if inner else "{}"


def _key(name: str) -> str:
    return name if _BARE_KEY.match(name) else quoted(name)


def route_line(route: str, targets: Sequence[str]) -> str:
    """Return the line of a route."""
    return f"{route} = [{', '.join(map(quoted, targets))}]\n"


def draft_key(found: FoundKey, models: Sequence[str] = ()) -> ProviderDraft | None:
    """Return the provider that a key is for: of several presets the first one."""
    return draft_preset(found.rows[0].preset, env=found.variable, models=models)


def propose_config(environ: Mapping[str, str], servers: Sequence[LocalServer] = LOCAL_SERVERS) -> str | None:
    """Return the configuration for the keys of this environment and the model servers of this machine.

    None if there is nothing to use. The keys are not tested.
    """
    keys = [draft_key(found) for found in find_keys(environ) if not found.is_general]
    local = [draft_server(found) for found in find_servers(servers)]
    providers = [one for one in (*keys, *local) if one is not None]
    return config_text(providers) if providers else None
