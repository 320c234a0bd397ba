"""Samples of requests in each protocol: every field that another protocol may lack, one per sample.

`reference` encodes them for all other protocols, to list the lost fields. A test checks that the samples
cause every notice that does not depend on the provider.
"""

from __future__ import annotations

from routecodex.canon.parts import Json
from routecodex.canon.request import ProtocolName

Fields = dict[str, Json]

_SCHEMA: Fields = {"type": "object", "properties": {"city": {"type": "string"}}}
_CHOICE: Fields = {**_SCHEMA, "anyOf": [{"required": ["city"]}, {"required": ["place"]}]}
_STOPS = ["a", "b", "c", "d", "e", "f"]
_LONG = "x" * 600
_CACHE = {"cache_control": {"type": "ephemeral"}}


def _chat_user(*parts: Fields, **fields: Json) -> Fields:
    return {"messages": [{"role": "user", "content": list(parts) or "Hi", **fields}]}


def _chat_answer(**fields: Json) -> Fields:
    answer = {"role": "assistant", "content": "Hello", **fields}
    return {"messages": [{"role": "user", "content": "Hi"}, answer, {"role": "user", "content": "Go on"}]}


def _chat_tool(**fields: Json) -> Fields:
    return {"type": "function", "function": {"name": "weather", "parameters": _SCHEMA, **fields}}


_CHAT: dict[str, Fields] = {
    "`temperature` above 1": {"temperature": 1.5},
    "`top_p` beside `temperature`": {"temperature": 0.5, "top_p": 0.5},
    "`temperature` with reasoning": {"temperature": 0.5, "reasoning_effort": "low"},
    "`top_k`": {"top_k": 5},
    "`top_k` with reasoning": {"top_k": 5, "reasoning_effort": "low"},
    "`top_p` with reasoning": {"top_p": 0.5, "reasoning_effort": "low"},
    "`stop`, more than four": {"stop": _STOPS},
    "`stop`, blank": {"stop": ["\n"]},
    "`seed`": {"seed": 1},
    "`frequency_penalty`": {"frequency_penalty": 0.5},
    "`presence_penalty`": {"presence_penalty": 0.5},
    "`n`": {"n": 2},
    "`logprobs`": {"logprobs": True},
    "`top_logprobs`": {"logprobs": True, "top_logprobs": 2},
    "`logit_bias`": {"logit_bias": {"1": 1}},
    "`prediction`": {"prediction": {"type": "content", "content": "x"}},
    "`modalities`, `audio`": {"modalities": ["text", "audio"], "audio": {"voice": "alloy", "format": "wav"}},
    "`web_search_options`": {"web_search_options": {}},
    "`moderation`, and other unknown fields": {"moderation": {"model": "x"}},
    "`verbosity`": {"verbosity": "low"},
    "`reasoning_effort` with few `max_tokens`": {"reasoning_effort": "high", "max_completion_tokens": 100},
    "`enable_thinking: false`": {"enable_thinking": False},
    "`response_format`": {
        "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": _SCHEMA}}
    },
    "`metadata`": {"metadata": {"key": "value"}},
    "`metadata`, long": {"metadata": {"key": _LONG}},
    "`user`": {"user": "u"},
    "`user`, long": {"user": _LONG},
    "`safety_identifier`": {"safety_identifier": "u"},
    "`prompt_cache_key`": {"prompt_cache_key": "k"},
    "`prompt_cache_retention`": {"prompt_cache_retention": "24h"},
    "`service_tier: flex`": {"service_tier": "flex"},
    "`service_tier: on_demand`": {"service_tier": "on_demand"},
    "`parallel_tool_calls: false`": {"tools": [_chat_tool()], "parallel_tool_calls": False},
    "`strict` of a tool": {"tools": [_chat_tool(strict=True)]},
    "`anyOf` at the root of a tool schema": {"tools": [_chat_tool(parameters=_CHOICE)]},
    "other fields of a tool": {"tools": [_chat_tool(defer=True)]},
    "custom tool": {"tools": [{"type": "custom", "custom": {"name": "patch"}}]},
    "hosted tool": {"tools": [{"type": "web_search", "name": "web_search"}]},
    "`tool_choice` of a hosted tool": {
        "tools": [{"type": "code_interpreter"}, _chat_tool()],
        "tool_choice": {"type": "function", "function": {"name": "code_interpreter"}},
    },
    "`tool_choice: required` without other tools": {
        "tools": [{"type": "code_interpreter"}],
        "tool_choice": "required",
    },
    "`tool_choice` with `allowed_tools`": {
        "tools": [_chat_tool(), _chat_tool(name="news"), _chat_tool(name="mail")],
        "tool_choice": {
            "type": "allowed_tools",
            "allowed_tools": {
                "mode": "auto",
                "tools": [
                    {"type": "function", "function": {"name": "weather"}},
                    {"type": "function", "function": {"name": "news"}},
                ],
            },
        },
    },
    "`reasoning_effort` with `tool_choice: required`": {
        "tools": [_chat_tool()],
        "tool_choice": "required",
        "reasoning_effort": "low",
    },
    "`name` of a message": _chat_user(name="Ann"),
    "`cache_control`": _chat_user({"type": "text", "text": "Hi", **_CACHE}),
    "image, by URL": _chat_user({"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}),
    "image, a type other than PNG, JPEG, GIF and WebP": _chat_user(
        {"type": "image_url", "image_url": {"url": "data:image/tiff;base64,AAAA"}}
    ),
    "file, PDF": _chat_user(
        {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,AAAA"}}
    ),
    "file, other types": _chat_user(
        {"type": "file", "file": {"filename": "a.zip", "file_data": "data:application/zip;base64,AAAA"}}
    ),
    "file, by id": _chat_user({"type": "file", "file": {"file_id": "file-1"}}),
    "audio": _chat_user({"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}),
    "video": _chat_user({"type": "video_url", "video_url": {"url": "https://example.com/a.mp4"}}),
    "other content parts": _chat_user({"type": "text", "text": "Hi"}, {"type": "sticker", "sticker": {}}),
    "reasoning in the history": _chat_answer(reasoning_content="Hm."),
    "audio of an answer in the history": _chat_answer(audio={"id": "audio_1"}),
    "refusal in the history": _chat_answer(content=None, refusal="No."),
}


def _item(*items: Fields) -> Fields:
    return {"input": [{"role": "user", "content": "Hi"}, *items, {"role": "user", "content": "Go on"}]}


def _input(*parts: Fields) -> Fields:
    return {"input": [{"role": "user", "content": list(parts)}]}


_WEATHER: Fields = {"type": "function", "name": "weather", "parameters": _SCHEMA}

_RESPONSES: dict[str, Fields] = {
    "`temperature` above 1": {"temperature": 1.5},
    "`top_p` beside `temperature`": {"temperature": 0.5, "top_p": 0.5},
    "`top_logprobs`": {"top_logprobs": 2, "include": ["message.output_text.logprobs"]},
    "`text.verbosity`": {"text": {"verbosity": "low"}},
    "`text.format`": {"text": {"format": {"type": "json_schema", "name": "a", "schema": _SCHEMA}}},
    "`reasoning`": {"reasoning": {"effort": "low", "summary": "auto"}},
    "`reasoning.effort: none`": {"reasoning": {"effort": "none"}},
    "`max_tool_calls`": {"max_tool_calls": 3},
    "`truncation`": {"truncation": "auto"},
    "`context_management`, and other unknown fields": {"context_management": [{"type": "compaction"}]},
    "`conversation`": {"conversation": "conv_1"},
    "`prompt`": {"prompt": {"id": "pmpt_1"}},
    "`metadata`": {"metadata": {"key": "value"}},
    "`user`": {"user": "u"},
    "`safety_identifier`": {"safety_identifier": "u"},
    "`prompt_cache_key`": {"prompt_cache_key": "k"},
    "`service_tier: flex`": {"service_tier": "flex"},
    "`service_tier: scale`": {"service_tier": "scale"},
    "`parallel_tool_calls: false`": {"tools": [_WEATHER], "parallel_tool_calls": False},
    "`strict` of a tool": {"tools": [{**_WEATHER, "strict": True}]},
    "`anyOf` at the root of a tool schema": {"tools": [{**_WEATHER, "parameters": _CHOICE}]},
    "custom tool": {"tools": [{"type": "custom", "name": "patch"}]},
    "`namespace` of tools": {"tools": [{"type": "namespace", "name": "city", "tools": [_WEATHER]}]},
    "web search": {"tools": [{"type": "web_search"}]},
    "other hosted tools": {"tools": [{"type": "code_interpreter", "container": {"type": "auto"}}]},
    "`tool_choice` of a hosted tool": {
        "tools": [{"type": "code_interpreter", "container": {"type": "auto"}}, _WEATHER],
        "tool_choice": {"type": "code_interpreter"},
    },
    "`tool_choice` with `allowed_tools`": {
        "tools": [_WEATHER, {**_WEATHER, "name": "news"}, {**_WEATHER, "name": "mail"}],
        "tool_choice": {
            "type": "allowed_tools",
            "mode": "auto",
            "tools": [{"type": "function", "name": "weather"}, {"type": "function", "name": "news"}],
        },
    },
    "image, by URL": _input({"type": "input_image", "image_url": "https://example.com/a.png"}),
    "image, by id": _input({"type": "input_image", "file_id": "file-1"}),
    "file, PDF": _input(
        {"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,AAAA"}
    ),
    "file, by URL": _input({"type": "input_file", "file_url": "https://example.com/a.pdf"}),
    "file, by id": _input({"type": "input_file", "file_id": "file-1"}),
    "audio": _input({"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}),
    "reasoning in the history": _item(
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "xyz"}
    ),
    "items of hosted tools in the history": _item(
        {"type": "web_search_call", "id": "ws_1", "status": "completed"}
    ),
}


def _blocks(*blocks: Fields) -> Fields:
    return {"messages": [{"role": "user", "content": list(blocks)}]}


def _turn(*blocks: Fields) -> Fields:
    question = {"role": "user", "content": "Hi"}
    answer = {"role": "assistant", "content": list(blocks)}
    return {"messages": [question, answer, {"role": "user", "content": "Go on"}]}


def _result(**fields: Json) -> Fields:
    call = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "rain", **fields}
    asked = {"role": "user", "content": "Hi"}
    return {
        "messages": [asked, {"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
    }


_TOOL: Fields = {"name": "weather", "input_schema": _SCHEMA}
_PDF: Fields = {"type": "base64", "media_type": "application/pdf", "data": "AAAA"}

_MESSAGES: dict[str, Fields] = {
    "`top_k`": {"top_k": 5},
    "`stop_sequences`, more than four": {"stop_sequences": _STOPS},
    "`thinking` with `budget_tokens`": {"thinking": {"type": "enabled", "budget_tokens": 2048}},
    "`thinking: disabled`": {"thinking": {"type": "disabled"}},
    "`output_config.format`": {"output_config": {"format": {"type": "json_schema", "schema": _SCHEMA}}},
    "`metadata.user_id`": {"metadata": {"user_id": "u"}},
    "`service_tier: standard_only`": {"service_tier": "standard_only"},
    "`context_management`": {"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}},
    "`mcp_servers`": {"mcp_servers": [{"type": "url", "name": "a", "url": "https://example.com"}]},
    "`container`": {"container": "container_1"},
    "`inference_geo`, and other unknown fields": {"inference_geo": "eu"},
    "`cache_control`": {"system": [{"type": "text", "text": "Be brief.", **_CACHE}]},
    "`cache_control` of a message": _blocks({"type": "text", "text": "Hi", **_CACHE}),
    "`cache_control` of a tool": {"tools": [{**_TOOL, **_CACHE}]},
    "`cache_control` of a tool result": _result(**_CACHE),
    "`disable_parallel_tool_use`": {
        "tools": [_TOOL],
        "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
    },
    "`strict` of a tool": {"tools": [{**_TOOL, "strict": True}]},
    "`anyOf` at the root of a tool schema": {"tools": [{**_TOOL, "input_schema": _CHOICE}]},
    "`defer_loading` of a tool": {"tools": [{**_TOOL, "defer_loading": True}]},
    "`input_examples` of a tool": {"tools": [{**_TOOL, "input_examples": [{"city": "Rome"}]}]},
    "web search": {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
    "other hosted tools": {"tools": [{"type": "code_execution_20250825", "name": "code_execution"}]},
    "`tool_choice` of a hosted tool": {
        "tools": [{"type": "code_execution_20250825", "name": "code_execution"}, _TOOL],
        "tool_choice": {"type": "tool", "name": "code_execution"},
    },
    "`tool_choice: any` without other tools": {
        "tools": [{"type": "code_execution_20250825", "name": "code_execution"}],
        "tool_choice": {"type": "any"},
    },
    "image, by URL": _blocks(
        {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}}
    ),
    "image, by id": _blocks({"type": "image", "source": {"type": "file", "file_id": "file_1"}}),
    "image with `cache_control`": _blocks(
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}, **_CACHE}
    ),
    "document, PDF": _blocks({"type": "document", "source": _PDF}),
    "document, by URL": _blocks(
        {"type": "document", "source": {"type": "url", "url": "https://example.com/a.pdf"}}
    ),
    "document, by id": _blocks({"type": "document", "source": {"type": "file", "file_id": "file_1"}}),
    "`citations` of a document": _blocks(
        {"type": "document", "source": _PDF, "citations": {"enabled": True}}
    ),
    "`context` of a document": _blocks({"type": "document", "source": _PDF, "context": "c"}),
    "`is_error` of a tool result": _result(is_error=True),
    "other blocks in a tool result": _result(content=[{"type": "tool_reference", "tool_name": "weather"}]),
    "signed thinking in the history": _turn(
        {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"}, {"type": "text", "text": "Hello"}
    ),
    "redacted thinking in the history": _turn(
        {"type": "redacted_thinking", "data": "xyz"}, {"type": "text", "text": "Hello"}
    ),
    "blocks of hosted tools in the history": _turn(
        {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "x"}},
        {"type": "text", "text": "Hello"},
    ),
    "other blocks": _blocks(
        {"type": "text", "text": "Hi"}, {"type": "container_upload", "file_id": "file_1"}
    ),
}


def _config(**fields: Json) -> Fields:
    return {"generationConfig": fields}


def _parts(*parts: Fields) -> Fields:
    return {"contents": [{"role": "user", "parts": list(parts)}]}


def _answer(*parts: Fields) -> Fields:
    question = {"role": "user", "parts": [{"text": "Hi"}]}
    return {
        "contents": [
            question,
            {"role": "model", "parts": [*parts, {"text": "Hello"}]},
            {"role": "user", "parts": [{"text": "Go on"}]},
        ]
    }


def _function(**fields: Json) -> Fields:
    return {"functionDeclarations": [{"name": "weather", "parametersJsonSchema": _SCHEMA, **fields}]}


_GEMINI: dict[str, Fields] = {
    "`temperature` above 1": _config(temperature=1.5),
    "`topP` beside `temperature`": _config(temperature=0.5, topP=0.5),
    "`topK`": _config(topK=5),
    "`stopSequences`, more than four": _config(stopSequences=_STOPS[:5]),
    "`seed`": _config(seed=1),
    "`frequencyPenalty`": _config(frequencyPenalty=0.5),
    "`presencePenalty`": _config(presencePenalty=0.5),
    "`candidateCount`": _config(candidateCount=2),
    "`responseLogprobs`": _config(responseLogprobs=True),
    "`logprobs`": _config(responseLogprobs=True, logprobs=2),
    "`responseJsonSchema`": _config(responseMimeType="application/json", responseJsonSchema=_SCHEMA),
    "`thinkingConfig`": _config(thinkingConfig={"thinkingBudget": 2048, "includeThoughts": True}),
    "`thinkingConfig.thinkingBudget: 0`": _config(thinkingConfig={"thinkingBudget": 0}),
    "`responseModalities`": _config(responseModalities=["TEXT"]),
    "`speechConfig`": _config(speechConfig={}),
    "`mediaResolution`": _config(mediaResolution="MEDIA_RESOLUTION_LOW"),
    "`safetySettings`": {"safetySettings": []},
    "`cachedContent`": {"cachedContent": "cachedContents/1"},
    "`labels`, and other unknown fields": {"labels": {"a": "b"}},
    "`serviceTier: priority`": {"serviceTier": "priority"},
    "`anyOf` at the root of a tool schema": {"tools": [_function(parametersJsonSchema=_CHOICE)]},
    "`behavior` of a tool": {"tools": [_function(behavior="BLOCKING")]},
    "`response` of a tool": {"tools": [_function(response={"type": "OBJECT"})]},
    "web search": {"tools": [{"googleSearch": {}}]},
    "other hosted tools": {"tools": [{"codeExecution": {}}]},
    "`retrievalConfig`": {"toolConfig": {"retrievalConfig": {"languageCode": "en"}}},
    "`functionCallingConfig: ANY` without functions": {
        "tools": [{"codeExecution": {}}],
        "toolConfig": {"functionCallingConfig": {"mode": "ANY"}},
    },
    "`allowedFunctionNames`": {
        "tools": [
            {"functionDeclarations": [{"name": "weather"}, {"name": "news"}, {"name": "mail"}]},
        ],
        "toolConfig": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["weather", "news"]}},
    },
    "image": _parts({"inlineData": {"mimeType": "image/png", "data": "AAAA"}}),
    "image, other types": _parts({"inlineData": {"mimeType": "image/heic", "data": "AAAA"}}),
    "file, PDF": _parts({"inlineData": {"mimeType": "application/pdf", "data": "AAAA"}}),
    "file, by URI": _parts(
        {"fileData": {"mimeType": "application/pdf", "fileUri": "https://example.com/a.pdf"}}
    ),
    "audio": _parts({"inlineData": {"mimeType": "audio/wav", "data": "AAAA"}}),
    "audio, by URI": _parts({"fileData": {"mimeType": "audio/wav", "fileUri": "https://example.com/a.wav"}}),
    "video": _parts({"inlineData": {"mimeType": "video/mp4", "data": "AAAA"}}),
    "`videoMetadata`": _parts(
        {"inlineData": {"mimeType": "video/mp4", "data": "AAAA"}, "videoMetadata": {"fps": 1}}
    ),
    "thoughts in the history": _answer({"text": "Hm.", "thought": True, "thoughtSignature": "c2ln"}),
    "image of an answer in the history": _answer({"inlineData": {"mimeType": "image/png", "data": "AAAA"}}),
    "executed code in the history": _answer({"executableCode": {"language": "PYTHON", "code": "1"}}),
}

SAMPLES: dict[ProtocolName, dict[str, Fields]] = {
    "chat": _CHAT,
    "responses": _RESPONSES,
    "messages": _MESSAGES,
    "gemini": _GEMINI,
}
"""Fields of a request by their name in the table."""

SMALLEST: dict[ProtocolName, Fields] = {
    "chat": {"model": "m", "messages": [{"role": "user", "content": "Hi"}]},
    "responses": {"model": "m", "input": "Hi"},
    "messages": {"model": "m", "max_tokens": 9000, "messages": [{"role": "user", "content": "Hi"}]},
    "gemini": {"contents": [{"role": "user", "parts": [{"text": "Hi"}]}]},
}
"""The request that the fields of a sample are added to."""
