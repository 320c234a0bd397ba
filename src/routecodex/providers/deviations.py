"""Deviations of well-known providers from the protocols as OpenAI, Anthropic and Google publish them.

The comment above a row names the document, where one is known, or the behaviour of that provider; rows
without one follow the words and sources in presets.json.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from routecodex.config.providers import AuthStyle, Protocol

Settings = Mapping[str, Any]

# OpenAI API reference, "Create chat completion": max_tokens is deprecated and not accepted by reasoning
# models, which also take `developer` for `system`; max_completion_tokens works for all. Both APIs of OpenAI
# reject tool schemas with anyOf, oneOf or allOf at the root, and so does Anthropic.
_OPENAI_CHAT: Settings = {
    "max_tokens_field": "max_completion_tokens",
    "system_role": "developer",
    "composed_schemas": False,
}
_OPENAI_RESPONSES: Settings = {"composed_schemas": False}

# Anthropic docs, "Extended thinking": thinking blocks need their signature, and with a thinking budget an
# assistant turn with tool_use must begin with one. Compatible endpoints of others check neither.
_ANTHROPIC: Settings = {"unsigned_thoughts": False, "unthought_turns": False, "composed_schemas": False}

# Messages endpoints of others do not run Anthropic's web search; these also take images only as base64.
_OTHER_MESSAGES: Settings = {"web_search": False}
_INLINE_IMAGES: Settings = {"image_urls": False, "web_search": False}

# Other hosts of chat completions document the older field, and the role `system`.
_OTHER_CHAT: Settings = {"max_tokens_field": "max_tokens"}
# The API references of xAI, Cerebras, Xiaomi and Bedrock name the newer one.
_NEWER_LIMIT: Settings = {"max_tokens_field": "max_completion_tokens"}

# Z.ai docs, "Deep Thinking": switched by the object `thinking`, the text is in reasoning_content. GLM-5.2
# and later also take a reasoning_effort, which earlier models ignore (docs.z.ai, "Core parameters").
# GLM-5.3 always thinks, and rejects other efforts than low, high and max (charmbracelet/catwalk #603).
# The chat API accepts only "auto" for tool_choice, and no json_schema for response_format.
_GLM: Settings = {
    "max_tokens_field": "max_tokens",
    "reasoning_field": "thinking_and_effort",
    "reasoning_models": {
        "glm-4*": "thinking",
        "glm-5": "thinking",
        "glm-5-*": "thinking",
        "glm-5.[01]*": "thinking",
        "glm-5.[3-9]*": "three_efforts",
    },
    "reasoning_history": "reasoning_content",
    "unsupported": ["frequency_penalty", "presence_penalty", "logit_bias", "logprobs", "top_logprobs"],
    "parallel_tool_calls": False,
    "response_format": "json_object",
    "tool_choice": "auto_only",
    "strict_tools": False,
    "n": False,
}

# DashScope's OpenAI-compatible mode switches thinking by `enable_thinking`; tool_choice is auto, none or
# one function, but not "required".
_QWEN: Settings = {
    "max_tokens_field": "max_tokens",
    "reasoning_field": "enable_thinking",
    "response_format": "json_object",
    "tool_choice": "no_required",
    "strict_tools": False,
    "n": False,
}

# Kimi API docs, models overview: kimi-k2.5 fixes temperature, top_p, n and the penalties, and rejects
# other values. Images are base64 or uploaded files; tool_choice "required" is not supported.
_KIMI: Settings = {
    "reasoning_field": "thinking",
    "reasoning_history": "reasoning_content",
    "unsupported": ["temperature", "top_p", "presence_penalty", "frequency_penalty", "logit_bias"],
    "response_format": "json_object",
    "image_urls": False,
    "tool_choice": "auto_only",
    "strict_tools": False,
    "n": False,
}

# Ollama docs, "OpenAI compatibility": tool_choice, logit_bias, user, n and image URLs are not supported.
_OLLAMA: Settings = {
    "max_tokens_field": "max_tokens",
    "reasoning_history": "reasoning",
    "unsupported": ["logit_bias", "user"],
    "parallel_tool_calls": False,
    "image_urls": False,
    "tool_choice": "auto_only",
    "strict_tools": False,
    "n": False,
}

# SiliconFlow API reference, "Create chat completion": `enable_thinking` and `thinking_budget`.
_SILICONFLOW: Settings = {**_OTHER_CHAT, "reasoning_field": "enable_thinking"}

DIALECTS: Mapping[tuple[str, Protocol], Settings] = {
    ("openai", "chat"): _OPENAI_CHAT,
    ("openai", "responses"): _OPENAI_RESPONSES,
    ("anthropic", "messages"): _ANTHROPIC,
    # DeepSeek API docs, "Thinking Mode": switched by `thinking`, on by default, with a reasoning_effort. With
    # tools reasoning_content must be sent back, or the request fails with HTTP 400. While thinking it rejects
    # every tool_choice but auto and none.
    ("deepseek", "chat"): {
        "max_tokens_field": "max_tokens",
        "reasoning_field": "thinking_and_effort",
        "reasoning_history": "reasoning_content",
        "parallel_tool_calls": False,
        "response_format": "json_object",
        "image_urls": False,
        "tool_choice": "auto_only",
        "strict_tools": False,
        "n": False,
    },
    # Mistral rejects every unknown field (HTTP 422, extra_forbidden), max_completion_tokens and
    # stream_options included, and always sends usage with the last chunk.
    ("mistral", "chat"): {
        "max_tokens_field": "max_tokens",
        "stream_usage": False,
        "unsupported": [
            *("logit_bias", "logprobs", "prompt_cache_key", "seed", "service_tier", "store"),
            *("top_logprobs", "user", "verbosity"),
        ],
    },
    ("zhipu", "chat"): _GLM,
    ("zhipu", "messages"): _INLINE_IMAGES,
    ("zhipu-coding", "chat"): _GLM,
    ("zhipu-coding", "messages"): _INLINE_IMAGES,
    ("zai", "chat"): _GLM,
    ("zai", "messages"): _INLINE_IMAGES,
    ("zai-coding", "chat"): _GLM,
    ("zai-coding", "messages"): _INLINE_IMAGES,
    ("moonshot-cn", "chat"): _KIMI,
    ("moonshot-cn", "messages"): _INLINE_IMAGES,
    ("moonshot", "chat"): _KIMI,
    ("moonshot", "messages"): _INLINE_IMAGES,
    ("dashscope-cn", "chat"): _QWEN,
    ("dashscope", "chat"): _QWEN,
    ("qwen-token-cn", "chat"): _QWEN,
    ("qwen-token", "chat"): _QWEN,
    # MiniMax API docs, "Compatible Anthropic API": thinking blocks are sent back between tool calls. The chat
    # endpoint separates reasoning only with a field of its own.
    ("minimax-cn", "messages"): _INLINE_IMAGES,
    ("minimax", "messages"): _INLINE_IMAGES,
    ("siliconflow-cn", "chat"): _SILICONFLOW,
    ("siliconflow", "chat"): _SILICONFLOW,
    # Tencent Cloud docs, product 1823, "Coding plan": switched by the object `thinking`.
    ("tencent-coding", "chat"): {**_OTHER_CHAT, "reasoning_field": "thinking"},
    ("xai", "chat"): _NEWER_LIMIT,
    # platform.xiaomimimo.com, "OpenAI API Compatibility": switched by the object `thinking`.
    ("xiaomi", "chat"): {**_NEWER_LIMIT, "reasoning_field": "thinking"},
    ("xiaomi-token-cn", "chat"): {**_NEWER_LIMIT, "reasoning_field": "thinking"},
    ("cerebras", "chat"): _NEWER_LIMIT,
    ("bedrock", "chat"): _NEWER_LIMIT,
    ("bedrock-mantle", "chat"): _NEWER_LIMIT,
    # OpenRouter docs, "Reasoning Tokens": settings in the object `reasoning`, history in `reasoning_details`.
    # Its web search runs for any model.
    ("openrouter", "chat"): {
        "max_tokens_field": "max_tokens",
        "reasoning_field": "reasoning",
        "reasoning_history": "reasoning_details",
        "n": False,
        "web_search": True,
    },
    # Groq docs, "OpenAI Compatibility": logprobs, logit_bias and top_logprobs give HTTP 400, n must be 1.
    ("groq", "chat"): {
        "reasoning_history": "reasoning",
        "unsupported": ["logit_bias", "logprobs", "metadata", "store", "top_logprobs"],
        "strict_tools": False,
        "n": False,
    },
    ("together", "chat"): {
        "max_tokens_field": "max_tokens",
        "reasoning_history": "reasoning",
        "strict_tools": False,
    },
    # Fireworks docs, "Reasoning": the text is in `reasoning_content`.
    ("fireworks", "chat"): {
        "max_tokens_field": "max_tokens",
        "reasoning_history": "reasoning_content",
        "strict_tools": False,
    },
    # NVIDIA NIM: each model has a switch of its own (`chat_template_kwargs`, `/no_think`).
    ("nvidia", "chat"): {**_OTHER_CHAT, "reasoning_field": "none"},
    ("azure", "chat"): _OPENAI_CHAT,
    ("azure", "responses"): _OPENAI_RESPONSES,
    ("azure", "messages"): _ANTHROPIC,
    ("bedrock-mantle", "messages"): {**_ANTHROPIC, "web_search": False},
    ("ollama", "chat"): _OLLAMA,
    ("ollama", "responses"): {"web_search": False},
    ("ollama-cloud", "chat"): _OLLAMA,
    # LM Studio accepts tool_choice as a string, not a named tool, and rejects response_format "json_object"
    # (docs, "Structured Output": by JSON schema).
    ("lmstudio", "chat"): {
        "max_tokens_field": "max_tokens",
        "reasoning_field": "none",
        "parallel_tool_calls": False,
        "image_urls": False,
        "tool_choice": "auto_only",
        "strict_tools": False,
        "n": False,
        "merge_system": True,
    },
    ("lmstudio", "responses"): {"web_search": False},
    # vLLM applies the model's chat template, and many raise an error unless the only system message is first.
    # Its reasoning parsers use the field `reasoning`.
    ("vllm", "chat"): {"reasoning_history": "reasoning", "strict_tools": False, "merge_system": True},
    ("vllm", "responses"): {"web_search": False},
    # llama.cpp, tools/server/README.md: it applies the model's chat template too.
    ("llamacpp", "chat"): {**_OTHER_CHAT, "merge_system": True},
}

_OTHERS: Mapping[Protocol, Settings] = {"chat": _OTHER_CHAT, "messages": _OTHER_MESSAGES}
"""Deviations of providers without a row."""

AUTH_STYLES: Mapping[tuple[str, Protocol], AuthStyle] = {
    # Google docs, "OpenAI compatibility".
    ("gemini", "chat"): "bearer",
    # As in earlier versions: Z.ai and MiniMax take the key in this header too, not only as a bearer token.
    ("zai", "messages"): "x-api-key",
    ("minimax", "messages"): "x-api-key",
    # Tencent Cloud docs, product 1729, "Anthropic-compatible API".
    ("hunyuan", "messages"): "x-api-key",
    # Claude docs, "Claude in Microsoft Foundry".
    ("azure", "messages"): "x-api-key",
}
"""Header of the key at addresses that differ from the rest of the provider."""


def dialect_of(preset: str, protocol: Protocol) -> Settings:
    """Return the deviations of a provider at the address of one protocol."""
    return DIALECTS.get((preset, protocol)) or _OTHERS.get(protocol, {})
