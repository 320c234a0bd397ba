"""Names of span attributes, in one place: all of `gen_ai.*` is still in development and may change.

Sources: open-telemetry/semantic-conventions-genai, docs/gen-ai/gen-ai-spans.md (it left
open-telemetry/semantic-conventions in May 2026); open-telemetry/semantic-conventions,
docs/http/http-spans.md; Arize-ai/openinference, spec/semantic_conventions.md.
"""

from __future__ import annotations

from collections.abc import Mapping

METHOD = "http.request.method"
ROUTE = "http.route"
STATUS = "http.response.status_code"
PATH = "url.path"
ERROR = "error.type"
ADDRESS = "server.address"
PORT = "server.port"
SESSION = "session.id"
USER = "user.id"

CONVERSATION = "gen_ai.conversation.id"
OPERATION = "gen_ai.operation.name"
PROVIDER = "gen_ai.provider.name"
REQUEST_MODEL = "gen_ai.request.model"
REQUEST_STREAM = "gen_ai.request.stream"
REQUEST_MAX_TOKENS = "gen_ai.request.max_tokens"
REQUEST_TEMPERATURE = "gen_ai.request.temperature"
REQUEST_TOP_P = "gen_ai.request.top_p"
RESPONSE_MODEL = "gen_ai.response.model"
RESPONSE_ID = "gen_ai.response.id"
RESPONSE_FINISH = "gen_ai.response.finish_reasons"
RESPONSE_FIRST_CHUNK = "gen_ai.response.time_to_first_chunk"
INPUT_TOKENS = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
CACHE_READ_TOKENS = "gen_ai.usage.cache_read.input_tokens"
CACHE_WRITE_TOKENS = "gen_ai.usage.cache_creation.input_tokens"
REASONING_TOKENS = "gen_ai.usage.reasoning.output_tokens"
TOOL_NAME = "gen_ai.tool.name"
TOOL_CALL = "gen_ai.tool.call.id"
TOOL_TYPE = "gen_ai.tool.type"
INPUT_MESSAGES = "gen_ai.input.messages"
OUTPUT_MESSAGES = "gen_ai.output.messages"
SYSTEM_INSTRUCTIONS = "gen_ai.system_instructions"

OUR_ROUTE = "routecodex.route"
OUR_TARGET = "routecodex.target"
OUR_REASON = "routecodex.reason"
OUR_ROUNDS = "routecodex.rounds"
OUR_COST = "routecodex.cost"
OUR_ROUND = "routecodex.round"
OUR_KEY = "routecodex.key"

SERVICE_NAME = "service.name"
SERVICE_VERSION = "service.version"
SERVICE_INSTANCE = "service.instance.id"

OI_KIND = "openinference.span.kind"
OI_MODEL = "llm.model_name"
OI_PROVIDER = "llm.provider"
OI_PARAMETERS = "llm.invocation_parameters"
OI_INPUT_TOKENS = "llm.token_count.prompt"
OI_OUTPUT_TOKENS = "llm.token_count.completion"
OI_TOTAL_TOKENS = "llm.token_count.total"
OI_CACHE_READ_TOKENS = "llm.token_count.prompt_details.cache_read"
OI_CACHE_WRITE_TOKENS = "llm.token_count.prompt_details.cache_write"
OI_REASONING_TOKENS = "llm.token_count.completion_details.reasoning"
OI_EMBEDDING_MODEL = "embedding.model_name"
OI_TOOL_NAME = "tool.name"
OI_TOOL_CALL = "tool_call.id"
OI_INPUT = "input.value"
OI_INPUT_TYPE = "input.mime_type"
OI_OUTPUT = "output.value"
OI_OUTPUT_TYPE = "output.mime_type"
OI_INPUT_MESSAGE = "llm.input_messages"
OI_OUTPUT_MESSAGE = "llm.output_messages"

WELL_KNOWN_PROVIDERS: Mapping[str, str] = {
    "openai": "openai",
    "openai-responses": "openai",
    "anthropic": "anthropic",
    "gemini": "gcp.gemini",
    "deepseek": "deepseek",
    "mistral": "mistral_ai",
    "xai": "x_ai",
    "cohere": "cohere",
    "perplexity": "perplexity",
    "groq": "groq",
    "azure": "azure.ai.openai",
    "bedrock": "aws.bedrock",
    "bedrock-mantle": "aws.bedrock",
}
"""Value of `gen_ai.provider.name` by preset; other providers have the name of their table."""
