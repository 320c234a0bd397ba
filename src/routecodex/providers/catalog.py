"""Well-known providers as rows of data: where they are, how they are asked, and where they deviate.

A row's `dialect` names only deviations from the protocol as its maker publishes it. Prices are left out: they
change too often, and differ by contract; a configuration can give them.
"""

from __future__ import annotations

from collections.abc import Mapping

from routecodex.config.providers import ModelConfig, Preset

__all__ = ["PRESETS"]


def _model(
    context: int,
    output: int | None = None,
    *,
    vision: bool = False,
    tools: bool = True,
    reasoning: bool = True,
) -> ModelConfig:
    return ModelConfig(
        context_tokens=context, max_output_tokens=output, vision=vision, tools=tools, reasoning=reasoning
    )


_GLM = {
    "glm-5.2": _model(1_000_000, 131_072),
    "glm-5.1": _model(200_000, 131_072),
    "glm-4.7": _model(204_800, 131_072),
    "glm-4.6v": _model(128_000, 32_768, vision=True),
    "glm-4.5-air": _model(131_072, 98_304),
}

_CLAUDE = {
    "claude-opus-4-8": _model(1_000_000, 128_000, vision=True),
    "claude-sonnet-5": _model(1_000_000, 128_000, vision=True),
    "claude-sonnet-4-6": _model(1_000_000, 64_000, vision=True),
    "claude-sonnet-4-5": _model(200_000, 64_000, vision=True),
    "claude-haiku-4-5": _model(200_000, 64_000, vision=True),
}

_MAKERS: dict[str, Preset] = {
    # Newer reasoning models refuse tools on chat unless reasoning is off: they stand under openai-responses.
    # Reasoning models refuse max_tokens, and all others take max_completion_tokens too.
    "openai": Preset(
        about="OpenAI, chat completions",
        protocol="chat",
        base_url="https://api.openai.com/v1",
        env="OPENAI_API_KEY",
        auth_style="bearer",
        models={
            "gpt-5": _model(400_000, 128_000, vision=True),
            "gpt-5-mini": _model(400_000, 128_000, vision=True),
            "gpt-4.1": _model(1_047_576, 32_768, vision=True, reasoning=False),
            "gpt-4o": _model(128_000, 16_384, vision=True, reasoning=False),
        },
        dialect={"max_tokens_field": "max_completion_tokens", "system_role": "developer"},
    ),
    "openai-responses": Preset(
        about="OpenAI, responses",
        protocol="responses",
        base_url="https://api.openai.com/v1",
        env="OPENAI_API_KEY",
        auth_style="bearer",
        models={
            "gpt-5.6": _model(1_050_000, 128_000, vision=True),
            "gpt-5.5": _model(1_050_000, 128_000, vision=True),
            "gpt-5.4": _model(1_050_000, 128_000, vision=True),
            "gpt-5.4-mini": _model(400_000, 128_000, vision=True),
            "gpt-5.3-codex": _model(400_000, 128_000, vision=True),
            "gpt-4.1": _model(1_047_576, 32_768, vision=True, reasoning=False),
        },
    ),
    "anthropic": Preset(
        about="Anthropic",
        protocol="messages",
        base_url="https://api.anthropic.com",
        env="ANTHROPIC_API_KEY",
        auth_style="x-api-key",
        models=_CLAUDE,
        dialect={"unsigned_thoughts": False, "unthought_turns": False},
    ),
    "gemini": Preset(
        about="Google Gemini API",
        protocol="gemini",
        base_url="https://generativelanguage.googleapis.com",
        env="GEMINI_API_KEY",
        auth_style="x-goog-api-key",
        models={
            "gemini-3.5-flash": _model(1_048_576, 65_536, vision=True),
            "gemini-3.1-pro-preview": _model(1_048_576, 65_536, vision=True),
            "gemini-2.5-pro": _model(1_048_576, 65_536, vision=True),
            "gemini-2.5-flash": _model(1_048_576, 65_536, vision=True),
            "gemini-2.5-flash-lite": _model(1_048_576, 65_536, vision=True),
        },
        dialect={"image_urls": False},
    ),
    "glm": Preset(
        about="Z.ai (Zhipu GLM), chat",
        protocol="chat",
        base_url="https://api.z.ai/api/paas/v4",
        env="ZAI_API_KEY",
        auth_style="bearer",
        models=_GLM,
        dialect={
            "max_tokens_field": "max_tokens",
            "reasoning_field": "thinking",
            "reasoning_history": "reasoning_content",
            "unsupported": [
                "frequency_penalty",
                "presence_penalty",
                "logit_bias",
                "logprobs",
                "top_logprobs",
            ],
            "parallel_tool_calls": False,
            "response_format": "json_object",
            "tool_choice": "auto_only",
            "strict_tools": False,
            "n": False,
        },
    ),
    "glm-anthropic": Preset(
        about="Z.ai (Zhipu GLM), Anthropic-compatible",
        protocol="messages",
        base_url="https://api.z.ai/api/anthropic",
        env="ZAI_API_KEY",
        auth_style="x-api-key",
        models={name: _GLM[name] for name in ("glm-5.2", "glm-5.1", "glm-4.7", "glm-4.5-air")},
        dialect={"image_urls": False, "web_search": False},
    ),
    # Thinking is on by default, refuses any tool_choice but auto and none, and its text must come back.
    "deepseek": Preset(
        about="DeepSeek",
        protocol="chat",
        base_url="https://api.deepseek.com/v1",
        env="DEEPSEEK_API_KEY",
        auth_style="bearer",
        models={
            "deepseek-v4-pro": _model(1_000_000, 384_000),
            "deepseek-v4-flash": _model(1_000_000, 384_000),
        },
        dialect={
            "max_tokens_field": "max_tokens",
            "reasoning_field": "thinking",
            "reasoning_history": "reasoning_content",
            "parallel_tool_calls": False,
            "response_format": "json_object",
            "image_urls": False,
            "tool_choice": "auto_only",
            "strict_tools": False,
            "n": False,
        },
    ),
    "qwen": Preset(
        about="Alibaba Qwen (DashScope, international)",
        protocol="chat",
        base_url="https://dashscope-intl.aliyuncs.com/compatible-mode/v1",
        env="DASHSCOPE_API_KEY",
        auth_style="bearer",
        models={
            "qwen3.7-max": _model(1_000_000, 65_536),
            "qwen3.7-plus": _model(1_000_000, 65_536, vision=True),
            "qwen3-coder-plus": _model(1_048_576, 65_536, reasoning=False),
            "qwen-plus": _model(1_000_000, 32_768),
        },
        dialect={
            "max_tokens_field": "max_tokens",
            "reasoning_field": "enable_thinking",
            "response_format": "json_object",
            "tool_choice": "no_required",
            "strict_tools": False,
            "n": False,
        },
    ),
    # Sampling is fixed by the model, and other values are refused; images only as data.
    "kimi": Preset(
        about="Moonshot AI (Kimi)",
        protocol="chat",
        base_url="https://api.moonshot.ai/v1",
        env="MOONSHOT_API_KEY",
        auth_style="bearer",
        models={
            "kimi-k2.7-code": _model(262_144, 262_144, vision=True),
            "kimi-k2.6": _model(262_144, 262_144, vision=True),
            "kimi-k2.5": _model(262_144, 262_144, vision=True),
            "kimi-k2-thinking": _model(262_144, 262_144),
        },
        dialect={
            "reasoning_field": "thinking",
            "reasoning_history": "reasoning_content",
            "unsupported": ["temperature", "top_p", "presence_penalty", "frequency_penalty", "logit_bias"],
            "response_format": "json_object",
            "image_urls": False,
            "tool_choice": "auto_only",
            "strict_tools": False,
            "n": False,
        },
    ),
    # Its Anthropic-compatible side is the one that keeps thinking between tool calls.
    "minimax": Preset(
        about="MiniMax, Anthropic-compatible",
        protocol="messages",
        base_url="https://api.minimax.io/anthropic",
        env="MINIMAX_API_KEY",
        auth_style="x-api-key",
        models={
            "MiniMax-M3": _model(1_000_000, 128_000, vision=True),
            "MiniMax-M2.7": _model(204_800, 131_072),
            "MiniMax-M2.5": _model(204_800, 131_072),
        },
        dialect={"image_urls": False, "web_search": False},
    ),
    # Refuses every field it does not know, max_completion_tokens included; sends usage unasked.
    "mistral": Preset(
        about="Mistral",
        protocol="chat",
        base_url="https://api.mistral.ai/v1",
        env="MISTRAL_API_KEY",
        auth_style="bearer",
        models={
            "mistral-medium-2604": _model(262_144, 262_144, vision=True),
            "mistral-large-2512": _model(262_144, 262_144, vision=True, reasoning=False),
            "mistral-small-2603": _model(256_000, 256_000, vision=True),
            "codestral-latest": _model(256_000, 4_096, reasoning=False),
        },
        dialect={
            "max_tokens_field": "max_tokens",
            "stream_usage": False,
            "unsupported": [
                "logit_bias",
                "logprobs",
                "prompt_cache_key",
                "seed",
                "service_tier",
                "store",
                "top_logprobs",
                "user",
                "verbosity",
            ],
        },
    ),
    # xAI has deprecated chat completions in favour of responses.
    "xai": Preset(
        about="xAI (Grok), responses",
        protocol="responses",
        base_url="https://api.x.ai/v1",
        env="XAI_API_KEY",
        auth_style="bearer",
        models={
            "grok-4.3": _model(1_000_000, vision=True),
            "grok-build-0.1": _model(256_000, vision=True),
        },
    ),
}

_HOSTS: dict[str, Preset] = {
    "groq": Preset(
        about="Groq",
        protocol="chat",
        base_url="https://api.groq.com/openai/v1",
        env="GROQ_API_KEY",
        auth_style="bearer",
        models={
            "openai/gpt-oss-120b": _model(131_072, 65_536),
            "openai/gpt-oss-20b": _model(131_072, 65_536),
            "llama-3.3-70b-versatile": _model(131_072, 32_768, reasoning=False),
        },
        dialect={
            "reasoning_history": "reasoning",
            "unsupported": ["logit_bias", "logprobs", "metadata", "store", "top_logprobs"],
            "strict_tools": False,
            "n": False,
        },
    ),
    "together": Preset(
        about="Together AI",
        protocol="chat",
        base_url="https://api.together.ai/v1",
        env="TOGETHER_API_KEY",
        auth_style="bearer",
        models={
            "moonshotai/Kimi-K2.6": _model(262_144, 131_000, vision=True),
            "zai-org/GLM-5.1": _model(202_752, 131_072),
            "deepseek-ai/DeepSeek-V4-Pro": _model(512_000, 384_000),
            "openai/gpt-oss-120b": _model(131_072, 131_072),
        },
        dialect={
            "max_tokens_field": "max_tokens",
            "reasoning_history": "reasoning",
            "strict_tools": False,
        },
    ),
    "fireworks": Preset(
        about="Fireworks AI",
        protocol="chat",
        base_url="https://api.fireworks.ai/inference/v1",
        env="FIREWORKS_API_KEY",
        auth_style="bearer",
        models={
            "accounts/fireworks/models/kimi-k2p6": _model(262_000, 262_000, vision=True),
            "accounts/fireworks/models/glm-5p1": _model(202_800, 131_072),
            "accounts/fireworks/models/deepseek-v4-pro": _model(1_000_000, 384_000),
            "accounts/fireworks/models/gpt-oss-120b": _model(131_072, 32_768),
        },
        dialect={
            "max_tokens_field": "max_tokens",
            "reasoning_history": "reasoning_content",
            "strict_tools": False,
        },
    ),
    "openrouter": Preset(
        about="OpenRouter",
        protocol="chat",
        base_url="https://openrouter.ai/api/v1",
        env="OPENROUTER_API_KEY",
        auth_style="bearer",
        models={
            "anthropic/claude-sonnet-4.6": _model(1_000_000, 128_000, vision=True),
            "openai/gpt-5.2": _model(400_000, 128_000, vision=True),
            "google/gemini-2.5-pro": _model(1_048_576, 65_536, vision=True),
            "z-ai/glm-4.7": _model(202_752, 131_072),
            "moonshotai/kimi-k2.6": _model(262_144, 262_144, vision=True),
        },
        dialect={
            "max_tokens_field": "max_tokens",
            "reasoning_field": "reasoning",
            "reasoning_history": "reasoning_details",
            "n": False,
            "web_search": True,
        },
    ),
    # The v1 API needs no api-version; models are the names of your deployments.
    "azure": Preset(
        about="Azure OpenAI: `https://RESOURCE.openai.azure.com/openai/v1`",
        protocol="chat",
        base_url=None,
        env="AZURE_OPENAI_API_KEY",
        auth_style="api-key",
        dialect={"max_tokens_field": "max_completion_tokens", "system_role": "developer"},
    ),
}

_LOCAL: dict[str, Preset] = {
    "ollama": Preset(
        about="Ollama on this machine",
        protocol="chat",
        base_url="http://127.0.0.1:11434/v1",
        env=None,
        auth_style="none",
        dialect={
            "max_tokens_field": "max_tokens",
            "reasoning_history": "reasoning",
            "unsupported": ["logit_bias", "user"],
            "parallel_tool_calls": False,
            "image_urls": False,
            "tool_choice": "auto_only",
            "strict_tools": False,
            "n": False,
        },
    ),
    # Knows tool_choice as a word only, never a named tool; json_object is refused.
    "lmstudio": Preset(
        about="LM Studio on this machine",
        protocol="chat",
        base_url="http://127.0.0.1:1234/v1",
        env=None,
        auth_style="none",
        dialect={
            "max_tokens_field": "max_tokens",
            "reasoning_field": "none",
            "parallel_tool_calls": False,
            "image_urls": False,
            "tool_choice": "auto_only",
            "strict_tools": False,
            "n": False,
            "merge_system": True,
        },
    ),
    # Chat templates often insist on one system message, first.
    "vllm": Preset(
        about="vLLM on this machine",
        protocol="chat",
        base_url="http://127.0.0.1:8000/v1",
        env=None,
        auth_style="none",
        dialect={
            "reasoning_history": "reasoning",
            "strict_tools": False,
            "merge_system": True,
        },
    ),
}

PRESETS: Mapping[str, Preset] = {**_MAKERS, **_HOSTS, **_LOCAL}
