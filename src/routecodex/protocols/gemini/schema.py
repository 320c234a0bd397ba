"""Types of generateContent requests, answers and stream chunks.

Unknown fields pass; known fields have their types checked. Google's API accepts a single object in place of
a list (`contents`, `parts`, `tools`), and so do these types. Field names are camelCase; bodies in snake_case
are converted first (field_names).
"""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Raw, Struct
from msgspec.json import Decoder

from routecodex.protocols.usage import Tokens
from routecodex.wire.json import ABSENT

Count = Annotated[int, Meta(ge=0)]
Fields = dict[str, Raw]


class WireStruct(Struct, rename="camel", gc=False):
    """An object of the protocol."""


class Blob(WireStruct):
    mime_type: str | None = None
    data: str | None = None
    display_name: str | None = None


class FileData(WireStruct):
    mime_type: str | None = None
    file_uri: str | None = None
    display_name: str | None = None


class WireFunctionCall(WireStruct):
    name: str | None = None
    id: str | None = None
    args: Fields | None = None


class FunctionResponse(WireStruct):
    name: str | None = None
    id: str | None = None
    response: Fields | None = None
    parts: list[WirePart] | None = None


class WirePart(WireStruct):
    text: str | None = None
    thought: bool | None = None
    thought_signature: str | None = None
    inline_data: Blob | None = None
    file_data: FileData | None = None
    function_call: WireFunctionCall | None = None
    function_response: FunctionResponse | None = None
    executable_code: Fields | None = None
    code_execution_result: Fields | None = None
    video_metadata: Fields | None = None


class WireMessage(WireStruct):
    role: str | None = None
    parts: list[WirePart] | WirePart | None = None


class FunctionDeclaration(WireStruct):
    name: str
    description: str | None = None
    parameters: Fields | None = None
    parameters_json_schema: Raw = ABSENT


class WireTool(WireStruct):
    function_declarations: list[FunctionDeclaration] | FunctionDeclaration | None = None
    google_search: Raw = ABSENT
    google_search_retrieval: Raw = ABSENT
    enterprise_web_search: Raw = ABSENT


class FunctionCallingConfig(WireStruct):
    mode: str | None = None
    allowed_function_names: list[str] | None = None


class ToolConfig(WireStruct):
    function_calling_config: FunctionCallingConfig | None = None


class WireThinking(WireStruct):
    thinking_budget: Annotated[int, Meta(ge=-1)] | None = None
    include_thoughts: bool | None = None
    thinking_level: str | None = None


class GenerationConfig(WireStruct):
    max_output_tokens: Count | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: float | None = None
    stop_sequences: list[str] | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    candidate_count: Count | None = None
    response_mime_type: str | None = None
    response_schema: Fields | None = None
    response_json_schema: Raw = ABSENT
    response_logprobs: bool | None = None
    logprobs: Count | None = None
    thinking_config: WireThinking | None = None
    response_modalities: list[str] | None = None
    media_resolution: str | None = None


class RequestBody(WireStruct):
    """The request body; `model` is not part of Google's, but some clients send it."""

    contents: list[WireMessage] | WireMessage
    system_instruction: str | WireMessage | list[WirePart] | None = None
    tools: list[WireTool] | WireTool | None = None
    tool_config: ToolConfig | None = None
    generation_config: GenerationConfig | None = None
    safety_settings: list[Fields] | None = None
    cached_content: str | None = None
    labels: Fields | None = None
    metadata: Any = None
    service_tier: str | None = None
    model: str | None = None


class CountRequestBody(WireStruct):
    """The body of a countTokens request: contents, or a whole generateContent request."""

    generate_content_request: Raw = ABSENT
    contents: Raw = ABSENT


class RequestView(Struct):
    """A validated request.

    `snake`: its field names are in snake_case. `counted`: it stood inside a countTokens request.
    """

    body: RequestBody
    snake: bool = False
    counted: bool = False


body_decoder = Decoder(RequestBody)
count_decoder = Decoder(CountRequestBody)


def contents_of(body: RequestBody) -> list[WireMessage]:
    """Return the contents as a list."""
    return body.contents if isinstance(body.contents, list) else [body.contents]


def parts_of(content: WireMessage) -> list[WirePart]:
    """Return the parts as a list."""
    if content.parts is None:
        return []
    return content.parts if isinstance(content.parts, list) else [content.parts]


def tools_of(body: RequestBody) -> list[WireTool]:
    """Return the tools as a list."""
    return body.tools if isinstance(body.tools, list) else [body.tools] if body.tools else []


def functions_of(tool: WireTool) -> list[FunctionDeclaration]:
    """Return the declared functions of a tool as a list."""
    functions = tool.function_declarations or []
    return functions if isinstance(functions, list) else [functions]


class CalledFunction(WireStruct):
    """A call of an answer, or with `partial_args` one piece of it (see partial_arguments)."""

    name: str | None = None
    id: str | None = None
    args: Raw = ABSENT
    partial_args: Any = None
    will_continue: Any = None


class ExecutableCode(WireStruct):
    language: str | None = None
    code: str | None = None


class CodeResult(WireStruct):
    outcome: str | None = None
    output: str | None = None


class WireAnswerPart(WireStruct):
    text: str | None = None
    thought: bool | None = None
    thought_signature: str | None = None
    function_call: CalledFunction | None = None
    inline_data: Blob | None = None
    file_data: FileData | None = None
    executable_code: ExecutableCode | None = None
    code_execution_result: CodeResult | None = None
    tool_call: Any = None
    tool_response: Any = None

    @property
    def is_known(self) -> bool:
        """Whether canon has a part for it; otherwise the part is Opaque, with its signature."""
        if self.text is not None or self.function_call is not None:
            return True
        return self.thought_signature is not None and not any(getattr(self, name) for name in _OPAQUE)


_OPAQUE = (
    "inline_data",
    "file_data",
    "executable_code",
    "code_execution_result",
    "tool_call",
    "tool_response",
)


class WireAnswerContent(WireStruct):
    parts: list[WireAnswerPart] | None = None


class Candidate(WireStruct):
    content: WireAnswerContent | None = None
    finish_reason: str | None = None
    index: int | None = None
    finish_message: Any = None
    grounding_metadata: Any = None
    citation_metadata: Any = None
    url_context_metadata: Any = None
    logprobs_result: Any = None

    @property
    def parts(self) -> list[WireAnswerPart]:
        return (self.content.parts if self.content else None) or []


class WireUsage(WireStruct):
    prompt_token_count: Tokens | None = None
    candidates_token_count: Tokens | None = None
    thoughts_token_count: Tokens | None = None
    cached_content_token_count: Tokens | None = None
    tool_use_prompt_token_count: Tokens | None = None
    total_token_count: Tokens | None = None


class PromptFeedback(WireStruct):
    block_reason: str | None = None


class StreamChunk(WireStruct):
    """A GenerateContentResponse: a whole answer, or one chunk of a stream."""

    candidates: list[Candidate] | None = None
    usage_metadata: WireUsage | None = None
    model_version: str | None = None
    response_id: str | None = None
    prompt_feedback: PromptFeedback | None = None
    error: Any = None

    @property
    def candidate(self) -> Candidate | None:
        """The candidate with index 0 or without an index: the answer."""
        for candidate in self.candidates or ():
            if not candidate.index:
                return candidate
        return None

    @property
    def block_reason(self) -> str | None:
        return self.prompt_feedback.block_reason if self.prompt_feedback else None
