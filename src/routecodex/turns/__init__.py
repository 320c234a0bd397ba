"""Turns: from a user message to the complete answer, with plugins around every request.

conversation     `Conversation`: a message list, a model, one turn at a time
message          `Message`: one chat message; merging of deltas and usage
engine           `Engine`, `TurnRun`: the lifecycle of a turn, independent of any protocol
turn             `Turn`: the context of a hook; `Host`: the interface the engine needs
hooks            `Plugin`: the hooks; any object with some of these methods is a plugin
append_queue     `AppendQueue`: appends messages in order; `ParallelWork`: tasks that fail together
chat_host        `ChatHost`, `Sender`: a host with chat-shaped requests and chunks
http_sender      `HttpSender`: a sender over HTTP in any of the four protocols
retrying_sender  `RetryingSender`: repeats requests that failed before their answer began
structured_output  `output_type`: the schema of an answer, its check and its correction
json_types       JSON schemas and values of Python types, pydantic models included
blocking         `send_sync`: a private event loop
preserved_parts  parts of an answer that chat cannot express, restored in the next request
stream           `TurnStream`: the events of a running turn
events           `TextAdded`, `ToolCallAdded`, `TurnEnded`, …
errors           `TurnError`: `ConversationBusy`, `TooManyRequests`, `TurnOver`, …
plugins          `ToolPlugin`, `LengthContinuation`, `ThinkingState`, `MaxUsage`, `Persist`, `McpTools`
scripted         `ScriptedSender`: a scripted model for tests
"""

from __future__ import annotations

from routecodex.turns.chat_host import ChatTurn, Sender
from routecodex.turns.conversation import Conversation
from routecodex.turns.engine import Engine, TurnRun
from routecodex.turns.errors import (
    ConversationBusy,
    ConversationClosed,
    NotInThisHook,
    OutputInvalid,
    RequestFailed,
    TooManyRequests,
    TurnAborted,
    TurnError,
    TurnOver,
)
from routecodex.turns.events import (
    ArgumentsAdded,
    MessageAppended,
    ReasoningAdded,
    RefusalAdded,
    StateChanged,
    TextAdded,
    ToolCallAdded,
    ToolEnded,
    ToolOutputAdded,
    TurnEnded,
    TurnEvent,
)
from routecodex.turns.hooks import Plugin
from routecodex.turns.message import Message
from routecodex.turns.plugins.function_tools import BadArguments, Tool, tool
from routecodex.turns.plugins.length_continuation import LengthContinuation
from routecodex.turns.plugins.max_usage import MaxUsage, Price, UsageLimitReached
from routecodex.turns.plugins.mcp_tools import McpFailed, McpTools
from routecodex.turns.plugins.persist import Persist
from routecodex.turns.plugins.thinking_state import ThinkingState
from routecodex.turns.plugins.tool_job import Allow, Decision, Decisions, Deny, Edit, ToolCall
from routecodex.turns.plugins.tool_plugin import ToolPlugin
from routecodex.turns.retrying_sender import RetryingSender
from routecodex.turns.scripted import Call, ScriptedSender
from routecodex.turns.stream import TurnStream
from routecodex.turns.turn import Host, RequestState, Turn

__all__ = [
    "Allow",
    "ArgumentsAdded",
    "BadArguments",
    "Call",
    "ChatTurn",
    "Conversation",
    "ConversationBusy",
    "ConversationClosed",
    "Decision",
    "Decisions",
    "Deny",
    "Edit",
    "Engine",
    "Host",
    "LengthContinuation",
    "MaxUsage",
    "McpFailed",
    "McpTools",
    "Message",
    "MessageAppended",
    "NotInThisHook",
    "OutputInvalid",
    "Persist",
    "Plugin",
    "Price",
    "ReasoningAdded",
    "RefusalAdded",
    "RequestFailed",
    "RequestState",
    "RetryingSender",
    "ScriptedSender",
    "Sender",
    "StateChanged",
    "TextAdded",
    "ThinkingState",
    "TooManyRequests",
    "Tool",
    "ToolCall",
    "ToolCallAdded",
    "ToolEnded",
    "ToolOutputAdded",
    "ToolPlugin",
    "Turn",
    "TurnAborted",
    "TurnEnded",
    "TurnError",
    "TurnEvent",
    "TurnOver",
    "TurnRun",
    "TurnStream",
    "UsageLimitReached",
    "tool",
]
