"""Models of well-known providers, with their sizes.

Their prices are in `accounting/prices.json`, which has its own sources and dates.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain

from routecodex.config.providers import ModelConfig, Protocol

Models = Mapping[str, ModelConfig]


def _model(
    context: int, output: int | None = None, *, vision: bool = False, reasoning: bool = True
) -> ModelConfig:
    return ModelConfig(context_tokens=context, max_output_tokens=output, vision=vision, reasoning=reasoning)


_GLM = {
    "glm-5.2": _model(1_000_000, 131_072),
    "glm-5.1": _model(200_000, 131_072),
    "glm-4.7": _model(204_800, 131_072),
    "glm-4.6v": _model(128_000, 32_768, vision=True),
    "glm-4.5-air": _model(131_072, 98_304),
}
_GLM_MESSAGES = {name: _GLM[name] for name in ("glm-5.2", "glm-5.1", "glm-4.7", "glm-4.5-air")}

_KIMI = {
    "kimi-k2.7-code": _model(262_144, 262_144, vision=True),
    "kimi-k2.6": _model(262_144, 262_144, vision=True),
    "kimi-k2.5": _model(262_144, 262_144, vision=True),
    "kimi-k2-thinking": _model(262_144, 262_144),
}

_QWEN = {
    "qwen3.7-max": _model(1_000_000, 65_536),
    "qwen3.7-plus": _model(1_000_000, 65_536, vision=True),
    "qwen3-coder-plus": _model(1_048_576, 65_536, reasoning=False),
    "qwen-plus": _model(1_000_000, 32_768),
}

_MINIMAX = {
    "MiniMax-M3": _model(1_000_000, 128_000, vision=True),
    "MiniMax-M2.7": _model(204_800, 131_072),
    "MiniMax-M2.5": _model(204_800, 131_072),
}

_MODELS: Mapping[str, Models] = {
    "openai": {
        "gpt-5": _model(400_000, 128_000, vision=True),
        "gpt-5-mini": _model(400_000, 128_000, vision=True),
        "gpt-4.1": _model(1_047_576, 32_768, vision=True, reasoning=False),
        "gpt-4o": _model(128_000, 16_384, vision=True, reasoning=False),
    },
    "anthropic": {
        "claude-opus-4-8": _model(1_000_000, 128_000, vision=True),
        "claude-sonnet-5": _model(1_000_000, 128_000, vision=True),
        "claude-sonnet-4-6": _model(1_000_000, 64_000, vision=True),
        "claude-sonnet-4-5": _model(200_000, 64_000, vision=True),
        "claude-haiku-4-5": _model(200_000, 64_000, vision=True),
    },
    "gemini": {
        "gemini-3.5-flash": _model(1_048_576, 65_536, vision=True),
        "gemini-3.1-pro-preview": _model(1_048_576, 65_536, vision=True),
        "gemini-2.5-pro": _model(1_048_576, 65_536, vision=True),
        "gemini-2.5-flash": _model(1_048_576, 65_536, vision=True),
        "gemini-2.5-flash-lite": _model(1_048_576, 65_536, vision=True),
    },
    "zhipu": _GLM,
    "zhipu-coding": _GLM,
    "zai": _GLM,
    "zai-coding": _GLM,
    "deepseek": {
        "deepseek-v4-pro": _model(1_000_000, 384_000),
        "deepseek-v4-flash": _model(1_000_000, 384_000),
    },
    "dashscope": _QWEN,
    "dashscope-cn": _QWEN,
    "moonshot": _KIMI,
    "moonshot-cn": _KIMI,
    "minimax": _MINIMAX,
    "minimax-cn": _MINIMAX,
    "mistral": {
        "mistral-medium-2604": _model(262_144, 262_144, vision=True),
        "mistral-large-2512": _model(262_144, 262_144, vision=True, reasoning=False),
        "mistral-small-2603": _model(256_000, 256_000, vision=True),
        "codestral-latest": _model(256_000, 4_096, reasoning=False),
    },
    "xai": {
        "grok-4.3": _model(1_000_000, vision=True),
        "grok-build-0.1": _model(256_000, vision=True),
    },
    "groq": {
        "openai/gpt-oss-120b": _model(131_072, 65_536),
        "openai/gpt-oss-20b": _model(131_072, 65_536),
        "llama-3.3-70b-versatile": _model(131_072, 32_768, reasoning=False),
    },
    "together": {
        "moonshotai/Kimi-K2.6": _model(262_144, 131_000, vision=True),
        "zai-org/GLM-5.1": _model(202_752, 131_072),
        "deepseek-ai/DeepSeek-V4-Pro": _model(512_000, 384_000),
        "openai/gpt-oss-120b": _model(131_072, 131_072),
    },
    "fireworks": {
        "accounts/fireworks/models/kimi-k2p6": _model(262_000, 262_000, vision=True),
        "accounts/fireworks/models/glm-5p1": _model(202_800, 131_072),
        "accounts/fireworks/models/deepseek-v4-pro": _model(1_000_000, 384_000),
        "accounts/fireworks/models/gpt-oss-120b": _model(131_072, 32_768),
    },
    "openrouter": {
        "anthropic/claude-sonnet-4.6": _model(1_000_000, 128_000, vision=True),
        "openai/gpt-5.2": _model(400_000, 128_000, vision=True),
        "google/gemini-2.5-pro": _model(1_048_576, 65_536, vision=True),
        "z-ai/glm-4.7": _model(202_752, 131_072),
        "moonshotai/kimi-k2.6": _model(262_144, 262_144, vision=True),
    },
}

_BY_PROTOCOL: Mapping[tuple[str, Protocol], Models] = {
    # Newer reasoning models reject tools on chat unless reasoning is off.
    ("openai", "responses"): {
        "gpt-5.6": _model(1_050_000, 128_000, vision=True),
        "gpt-5.5": _model(1_050_000, 128_000, vision=True),
        "gpt-5.4": _model(1_050_000, 128_000, vision=True),
        "gpt-5.4-mini": _model(400_000, 128_000, vision=True),
        "gpt-5.3-codex": _model(400_000, 128_000, vision=True),
        "gpt-4.1": _model(1_047_576, 32_768, vision=True, reasoning=False),
    },
    ("zhipu", "messages"): _GLM_MESSAGES,
    ("zhipu-coding", "messages"): _GLM_MESSAGES,
    ("zai", "messages"): _GLM_MESSAGES,
    ("zai-coding", "messages"): _GLM_MESSAGES,
}
"""Models of protocols that have others than the rest of the provider."""


def models_of(preset: str, protocol: Protocol) -> Models:
    """Return the models of a provider at the address of one protocol."""
    return _BY_PROTOCOL.get((preset, protocol)) or _MODELS.get(preset, {})


def all_models() -> Iterator[tuple[str, ModelConfig]]:
    """Yield the models of all providers with their names; a name may occur more than once."""
    return (row for models in chain(_MODELS.values(), _BY_PROTOCOL.values()) for row in models.items())
