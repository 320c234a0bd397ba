"""Turns: what happens between "somebody said something" and "the answer is complete".

Conversation    a message list, a model to speak with, one turn at a time
Message         what one side said; mutable, with whatever fields arrived
Plugin          hooks around the requests of a turn; any object with some of its methods is one
Turn            what hooks are given
TurnStream      a turn followed live, as events (`TextAdded`, `ToolCallAdded`, `TurnEnded`, …)
ToolPlugin      runs the tools a model calls; `tool` makes one of a function, `McpTools` has a server's
plugins         also `LengthContinuation`, `ThinkingState`, `MaxUsage`, `Persist`
ScriptedSender  a model that follows a script, for tests
Engine, Host    the life of a turn without any conversation: bring your own requests, messages and chunks
TurnError       what a turn refuses: `ConversationBusy`, `TooManyRequests`, `TurnOver`, …
"""

from __future__ import annotations

from routecodex.turns.chat_host import ChatTurn, Sender
from routecodex.turns.conversation import Conversation
from routecodex.turns.engine import Engine, TurnRun
from routecodex.turns.errors import (
    ConversationBusy,
    ConversationClosed,
    NotInThisHook,
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
    "Persist",
    "Plugin",
    "Price",
    "ReasoningAdded",
    "RefusalAdded",
    "RequestFailed",
    "RequestState",
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
