"""Presets of well-known providers: address, authentication, models and deviations from the protocol.

A row's `dialect` lists only deviations from the protocol as OpenAI, Anthropic or Google publish it. The
comment above a row names the document, where one is known, or the behaviour of that provider. Prices are left
out, because they change often and differ by contract; a configuration can set them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from routecodex.config.providers import ModelConfig, Preset


def _model(
    context: int, output: int | None = None, *, vision: bool = False, reasoning: bool = True
) -> ModelConfig:
    return ModelConfig(context_tokens=context, max_output_tokens=output, vision=vision, reasoning=reasoning)


def _chat(about: str, base_url: str, env: str, models: dict[str, ModelConfig], **dialect: Any) -> Preset:
    """Return the preset of a host of chat completions that takes the key as a bearer token."""
    return Preset(
        about=about,
        protocol="chat",
        base_url=base_url,
        env=env,
        auth_style="bearer",
        models=models,
        dialect=dialect,
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

# Both APIs of OpenAI reject tool schemas with anyOf, oneOf or allOf at the root, and so does Anthropic.
_OPENAI_CHAT: dict[str, Any] = {
    "max_tokens_field": "max_completion_tokens",
    "system_role": "developer",
    "composed_schemas": False,
}

_VENDORS: dict[str, Preset] = {
    # OpenAI API reference, "Create chat completion": max_tokens is deprecated and not accepted by reasoning
    # models, which also take `developer` for `system`; max_completion_tokens works for all. Newer reasoning
    # models reject tools on chat unless reasoning is off: they are listed under openai-responses.
    "openai": _chat(
        "OpenAI, chat completions",
        "https://api.openai.com/v1",
        "OPENAI_API_KEY",
        {
            "gpt-5": _model(400_000, 128_000, vision=True),
            "gpt-5-mini": _model(400_000, 128_000, vision=True),
            "gpt-4.1": _model(1_047_576, 32_768, vision=True, reasoning=False),
            "gpt-4o": _model(128_000, 16_384, vision=True, reasoning=False),
        },
        **_OPENAI_CHAT,
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
        dialect={"composed_schemas": False},
    ),
    # Anthropic docs, "Extended thinking": thinking blocks need their signature, and with a thinking budget an
    # assistant turn with tool_use must begin with one. Compatible endpoints of others check neither.
    "anthropic": Preset(
        about="Anthropic",
        protocol="messages",
        base_url="https://api.anthropic.com",
        env="ANTHROPIC_API_KEY",
        auth_style="x-api-key",
        models=_CLAUDE,
        dialect={"unsigned_thoughts": False, "unthought_turns": False, "composed_schemas": False},
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
    ),
    # Z.ai docs, "Deep Thinking": switched by the object `thinking`, the text is in reasoning_content. GLM-5.2
    # and later also take a reasoning_effort, which earlier models ignore (docs.z.ai, "Core parameters").
    # GLM-5.3 always thinks, and rejects other efforts than low, high and max (charmbracelet/catwalk #603).
    # The chat API accepts only "auto" for tool_choice, and no json_schema for response_format.
    "glm": _chat(
        "Z.ai (Zhipu GLM), chat",
        "https://api.z.ai/api/paas/v4",
        "ZAI_API_KEY",
        _GLM,
        max_tokens_field="max_tokens",
        reasoning_field="thinking_and_effort",
        reasoning_models={
            "glm-4*": "thinking",
            "glm-5": "thinking",
            "glm-5-*": "thinking",
            "glm-5.[01]*": "thinking",
            "glm-5.[3-9]*": "three_efforts",
        },
        reasoning_history="reasoning_content",
        unsupported=["frequency_penalty", "presence_penalty", "logit_bias", "logprobs", "top_logprobs"],
        parallel_tool_calls=False,
        response_format="json_object",
        tool_choice="auto_only",
        strict_tools=False,
        n=False,
    ),
    # Z.ai's messages endpoint takes images only as base64 and does not run a web search.
    "glm-anthropic": Preset(
        about="Z.ai (Zhipu GLM), Anthropic-compatible",
        protocol="messages",
        base_url="https://api.z.ai/api/anthropic",
        env="ZAI_API_KEY",
        auth_style="x-api-key",
        models={name: _GLM[name] for name in ("glm-5.2", "glm-5.1", "glm-4.7", "glm-4.5-air")},
        dialect={"image_urls": False, "web_search": False},
    ),
    # DeepSeek API docs, "Thinking Mode": switched by `thinking`, on by default, with a reasoning_effort. With
    # tools reasoning_content must be sent back, or the request fails with HTTP 400. While thinking it rejects
    # every tool_choice but auto and none.
    "deepseek": _chat(
        "DeepSeek",
        "https://api.deepseek.com/v1",
        "DEEPSEEK_API_KEY",
        {
            "deepseek-v4-pro": _model(1_000_000, 384_000),
            "deepseek-v4-flash": _model(1_000_000, 384_000),
        },
        max_tokens_field="max_tokens",
        reasoning_field="thinking_and_effort",
        reasoning_history="reasoning_content",
        parallel_tool_calls=False,
        response_format="json_object",
        image_urls=False,
        tool_choice="auto_only",
        strict_tools=False,
        n=False,
    ),
    # DashScope's OpenAI-compatible mode switches thinking by `enable_thinking`; tool_choice is auto, none or
    # one function, but not "required".
    "qwen": _chat(
        "Alibaba Qwen (DashScope, international)",
        "https://dashscope-intl.aliyuncs.com/compatible-mode/v1",
        "DASHSCOPE_API_KEY",
        {
            "qwen3.7-max": _model(1_000_000, 65_536),
            "qwen3.7-plus": _model(1_000_000, 65_536, vision=True),
            "qwen3-coder-plus": _model(1_048_576, 65_536, reasoning=False),
            "qwen-plus": _model(1_000_000, 32_768),
        },
        max_tokens_field="max_tokens",
        reasoning_field="enable_thinking",
        response_format="json_object",
        tool_choice="no_required",
        strict_tools=False,
        n=False,
    ),
    # Kimi API docs, models overview: kimi-k2.5 fixes temperature, top_p, n and the penalties, and rejects
    # other values. Images are base64 or uploaded files; tool_choice "required" is not supported.
    "kimi": _chat(
        "Moonshot AI (Kimi)",
        "https://api.moonshot.ai/v1",
        "MOONSHOT_API_KEY",
        {
            "kimi-k2.7-code": _model(262_144, 262_144, vision=True),
            "kimi-k2.6": _model(262_144, 262_144, vision=True),
            "kimi-k2.5": _model(262_144, 262_144, vision=True),
            "kimi-k2-thinking": _model(262_144, 262_144),
        },
        reasoning_field="thinking",
        reasoning_history="reasoning_content",
        unsupported=["temperature", "top_p", "presence_penalty", "frequency_penalty", "logit_bias"],
        response_format="json_object",
        image_urls=False,
        tool_choice="auto_only",
        strict_tools=False,
        n=False,
    ),
    # MiniMax API docs, "Compatible Anthropic API": thinking blocks are sent back between tool calls. The chat
    # endpoint separates reasoning only with a field of its own.
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
    # Mistral rejects every unknown field (HTTP 422, extra_forbidden), max_completion_tokens and
    # stream_options included, and always sends usage with the last chunk.
    "mistral": _chat(
        "Mistral",
        "https://api.mistral.ai/v1",
        "MISTRAL_API_KEY",
        {
            "mistral-medium-2604": _model(262_144, 262_144, vision=True),
            "mistral-large-2512": _model(262_144, 262_144, vision=True, reasoning=False),
            "mistral-small-2603": _model(256_000, 256_000, vision=True),
            "codestral-latest": _model(256_000, 4_096, reasoning=False),
        },
        max_tokens_field="max_tokens",
        stream_usage=False,
        unsupported=[
            *("logit_bias", "logprobs", "prompt_cache_key", "seed", "service_tier", "store"),
            *("top_logprobs", "user", "verbosity"),
        ],
    ),
    # xAI API reference: chat completions is deprecated in favour of responses.
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
    # Groq docs, "OpenAI Compatibility": logprobs, logit_bias and top_logprobs give HTTP 400, n must be 1.
    "groq": _chat(
        "Groq",
        "https://api.groq.com/openai/v1",
        "GROQ_API_KEY",
        {
            "openai/gpt-oss-120b": _model(131_072, 65_536),
            "openai/gpt-oss-20b": _model(131_072, 65_536),
            "llama-3.3-70b-versatile": _model(131_072, 32_768, reasoning=False),
        },
        reasoning_history="reasoning",
        unsupported=["logit_bias", "logprobs", "metadata", "store", "top_logprobs"],
        strict_tools=False,
        n=False,
    ),
    "together": _chat(
        "Together AI",
        "https://api.together.ai/v1",
        "TOGETHER_API_KEY",
        {
            "moonshotai/Kimi-K2.6": _model(262_144, 131_000, vision=True),
            "zai-org/GLM-5.1": _model(202_752, 131_072),
            "deepseek-ai/DeepSeek-V4-Pro": _model(512_000, 384_000),
            "openai/gpt-oss-120b": _model(131_072, 131_072),
        },
        max_tokens_field="max_tokens",
        reasoning_history="reasoning",
        strict_tools=False,
    ),
    # Fireworks docs, "Reasoning": the text is in `reasoning_content`.
    "fireworks": _chat(
        "Fireworks AI",
        "https://api.fireworks.ai/inference/v1",
        "FIREWORKS_API_KEY",
        {
            "accounts/fireworks/models/kimi-k2p6": _model(262_000, 262_000, vision=True),
            "accounts/fireworks/models/glm-5p1": _model(202_800, 131_072),
            "accounts/fireworks/models/deepseek-v4-pro": _model(1_000_000, 384_000),
            "accounts/fireworks/models/gpt-oss-120b": _model(131_072, 32_768),
        },
        max_tokens_field="max_tokens",
        reasoning_history="reasoning_content",
        strict_tools=False,
    ),
    # OpenRouter docs, "Reasoning Tokens": settings in the object `reasoning`, history in `reasoning_details`.
    # Its web search runs for any model.
    "openrouter": _chat(
        "OpenRouter",
        "https://openrouter.ai/api/v1",
        "OPENROUTER_API_KEY",
        {
            "anthropic/claude-sonnet-4.6": _model(1_000_000, 128_000, vision=True),
            "openai/gpt-5.2": _model(400_000, 128_000, vision=True),
            "google/gemini-2.5-pro": _model(1_048_576, 65_536, vision=True),
            "z-ai/glm-4.7": _model(202_752, 131_072),
            "moonshotai/kimi-k2.6": _model(262_144, 262_144, vision=True),
        },
        max_tokens_field="max_tokens",
        reasoning_field="reasoning",
        reasoning_history="reasoning_details",
        n=False,
        web_search=True,
    ),
    # Azure's v1 API needs no api-version; models are the names of your deployments.
    "azure": Preset(
        about="Azure OpenAI: `https://RESOURCE.openai.azure.com/openai/v1`",
        protocol="chat",
        base_url=None,
        env="AZURE_OPENAI_API_KEY",
        auth_style="api-key",
        dialect=_OPENAI_CHAT,
    ),
}

_LOCAL: dict[str, Preset] = {
    # Ollama docs, "OpenAI compatibility": tool_choice, logit_bias, user, n and image URLs are not supported.
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
    # LM Studio accepts tool_choice as a string, not a named tool, and rejects response_format "json_object"
    # (docs, "Structured Output": by JSON schema).
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
    # vLLM applies the model's chat template, and many raise an error unless the only system message is first.
    # Its reasoning parsers use the field `reasoning`.
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

PRESETS: Mapping[str, Preset] = {**_VENDORS, **_HOSTS, **_LOCAL}
