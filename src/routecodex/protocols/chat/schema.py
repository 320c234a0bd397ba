"""Types of chat requests, stream chunks and whole completions.

Known fields are typed, unknown fields are accepted. Fields are declared in the order in which OpenAI sends
them, because msgspec finds a field fastest at its expected place. `gc=False` is safe where no value can refer
back to its container.
"""

from __future__ import annotations

from typing import Any

from msgspec import Raw, Struct

from routecodex.protocols.usage import BilledUsage, Tokens
from routecodex.wire.json import ABSENT

ROLES = ("system", "developer", "user", "assistant", "tool", "function")


class ImageUrl(Struct, gc=False):
    url: str
    detail: str | None = None


class InputAudio(Struct, gc=False):
    data: str
    format: str | None = None


class FileRef(Struct, gc=False):
    file_data: str | None = None
    file_id: str | None = None
    filename: str | None = None


class WirePart(Struct, gc=False):
    """A content part; Mistral's API has `image_url` as a string too, vLLM and DashScope have `video_url`."""

    type: str
    text: str | None = None
    refusal: str | None = None
    image_url: ImageUrl | str | None = None
    video_url: ImageUrl | str | None = None
    input_audio: InputAudio | None = None
    file: FileRef | None = None


class WireFunctionCall(Struct, gc=False):
    """A call of a function; clients written for Ollama's own API send its arguments as an object."""

    name: str
    arguments: str | dict[str, Any] = ""


class WireCustomCall(Struct, gc=False):
    name: str
    input: str = ""


class WireToolCall(Struct, gc=False):
    id: str | None = None
    type: str = "function"
    function: WireFunctionCall | None = None
    custom: WireCustomCall | None = None


class WireMessage(Struct, gc=False):
    """A message; `reasoning_content` is DeepSeek's, `function_call` OpenAI's before `tool_calls`."""

    role: str
    content: Raw = ABSENT
    name: str | None = None
    tool_calls: list[WireToolCall] | None = None
    tool_call_id: str | None = None
    function_call: WireFunctionCall | None = None
    refusal: str | None = None
    reasoning_content: str | None = None


class FunctionSpec(Struct):
    name: str
    description: str | None = None
    parameters: dict[str, Raw] | None = None
    strict: bool | None = None


class CustomSpec(Struct):
    name: str
    description: str | None = None
    format: dict[str, Raw] | None = None


class WireTool(Struct):
    """A declared tool; Mistral's SDK leaves out the type of a function."""

    type: str = "function"
    function: FunctionSpec | None = None
    custom: CustomSpec | None = None


class NamedTool(Struct, gc=False):
    name: str | None = None


class AllowedTool(Struct):
    type: str | None = None
    name: str | None = None
    function: NamedTool | None = None
    custom: NamedTool | None = None


class AllowedTools(Struct):
    mode: str | None = None
    tools: list[AllowedTool] | None = None


class WireToolChoice(Struct):
    type: str | None = None
    name: str | None = None
    function: NamedTool | None = None
    custom: NamedTool | None = None
    allowed_tools: AllowedTools | None = None
    mode: str | None = None
    tools: list[AllowedTool] | None = None


class StreamOptions(Struct):
    include_usage: bool | None = None


class JsonSchema(Struct):
    name: str | None = None
    schema: dict[str, Raw] | None = None
    strict: bool | None = None
    description: str | None = None


class ResponseFormat(Struct):
    type: str
    json_schema: JsonSchema | None = None


class TextPart(Struct):
    """A part of a message of which only a text is read."""

    type: str = ""
    text: Raw = ABSENT


class RequestBody(Struct):
    model: str
    messages: list[WireMessage]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stop: str | list[str] | None = None
    seed: int | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    n: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[WireTool] | None = None
    tool_choice: str | WireToolChoice | None = None
    functions: list[FunctionSpec] | None = None
    function_call: str | NamedTool | None = None
    web_search_options: Raw = ABSENT
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None
    reasoning_effort: str | None = None
    verbosity: str | None = None
    metadata: dict[str, Any] | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    service_tier: str | None = None


class FunctionDelta(Struct, gc=False):
    name: str | None = None
    arguments: str | None = None


class CustomDelta(Struct, gc=False):
    name: str | None = None
    input: str | None = None


class WireToolCallDelta(Struct, gc=False):
    index: int | None = None
    id: str | None = None
    type: str | None = None
    function: FunctionDelta | None = None
    custom: CustomDelta | None = None

    @property
    def is_custom(self) -> bool:
        """Whether a custom tool is called; Snowflake sends an empty `custom` beside every function."""
        custom = self.custom
        return custom is not None and (self.function is None or bool(custom.name or custom.input))

    @property
    def name(self) -> str | None:
        """Return the tool's name; only the first delta of a call has it."""
        tool = self.custom if self.is_custom else self.function
        return tool.name if tool is not None else None

    @property
    def text(self) -> str | None:
        """Return the arguments of a function or the input of a custom tool in this delta."""
        if self.custom is not None and self.is_custom:
            return self.custom.input
        return self.function.arguments if self.function is not None else None


class WireDelta(Struct, gc=False):
    """A delta of a chunk, or the message of a whole completion.

    Beyond OpenAI's fields: `reasoning_content` (DeepSeek, Z.ai, Qwen), `reasoning` (OpenRouter, Groq, vLLM),
    `reasoning_details` (OpenRouter, Snowflake) and `images` (OpenRouter).
    """

    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[WireToolCallDelta] | None = None
    function_call: FunctionDelta | None = None
    annotations: list[Any] | None = None
    audio: Raw = ABSENT
    images: Raw = ABSENT
    reasoning_details: Raw = ABSENT

    @property
    def legacy_call(self) -> FunctionDelta | None:
        """Return `function_call`, OpenAI's field before `tool_calls`; Snowflake sends an empty one always."""
        call = self.function_call
        return call if call is not None and (call.name or call.arguments) else None


class WireAudioDelta(Struct, gc=False):
    transcript: str | None = None


class Logprobs(Struct, gc=False):
    content: list[Any] | None = None


class WireChoice(Struct, gc=False):
    index: int = 0
    delta: WireDelta | None = None
    message: WireDelta | None = None
    logprobs: Logprobs | None = None
    finish_reason: str | None = None


class CachedDetails(Struct, gc=False):
    """Cache counts of the prompt; `cache_creation_input_tokens` is DashScope's, for explicit caches."""

    cached_tokens: Tokens | None = None
    cache_write_tokens: Tokens | None = None
    cache_creation_input_tokens: Tokens | None = None


class ReasoningDetails(Struct, gc=False):
    reasoning_tokens: Tokens | None = None


class WireUsage(BilledUsage, gc=False):
    """Token counts.

    DeepSeek counts cached tokens in `prompt_cache_hit_tokens`, Kimi in `cached_tokens`, Mistral in
    `num_cached_tokens` or `prompt_token_details`.
    """

    prompt_tokens: Tokens | None = None
    completion_tokens: Tokens | None = None
    total_tokens: Tokens | None = None
    prompt_tokens_details: CachedDetails | None = None
    completion_tokens_details: ReasoningDetails | None = None
    prompt_cache_hit_tokens: Tokens | None = None
    cached_tokens: Tokens | None = None
    num_cached_tokens: Tokens | None = None
    prompt_token_details: CachedDetails | None = None


class GroqField(Struct, gc=False):
    """Groq's own field of a chunk; the last one has the usage, whether it was requested or not."""

    usage: WireUsage | None = None


class StreamChunk(Struct, gc=False):
    """A chunk of a stream, or a whole completion."""

    id: str | None = None
    object: str | None = None
    created: int | None = None
    model: str | None = None
    service_tier: str | None = None
    system_fingerprint: str | None = None
    choices: list[WireChoice] | None = None
    usage: WireUsage | None = None
    error: Raw = ABSENT
    citations: Raw = ABSENT
    """Perplexity: the pages that the answer refers to by number; every chunk repeats them."""
    search_results: Raw = ABSENT
    x_groq: GroqField | None = None

    @property
    def counts(self) -> WireUsage | None:
        """Return the usage of the chunk, wherever it is."""
        if self.usage is None and self.x_groq is not None:
            return self.x_groq.usage
        return self.usage


class UsageField(Struct, gc=False):
    """The usage of a chunk as raw JSON."""

    usage: Raw = ABSENT
