"""Turns: what happens between "somebody said something" and "the answer is complete".

Conversation    a message list, a model to speak with, one turn at a time
Message         what one side said; mutable, with whatever fields arrived
Plugin          hooks around the requests of a turn; any object with some of its methods is one
Turn            what hooks are given
TurnStream      a turn followed live, as events (`TextAdded`, `ToolCallAdded`, `TurnEnded`, …)
ScriptedSender  a model that follows a script, for tests
Engine, Host    the life of a turn without any conversation: bring your own requests, messages and chunks
TurnError       what a turn refuses: `ConversationBusy`, `TooManyRequests`, `TurnOver`, …
"""

from __future__ import annotations

from routecodex.turns.chat import ChatTurn, Sender
from routecodex.turns.conversation import Conversation
from routecodex.turns.engine import Engine, TurnRun
from routecodex.turns.errors import (
    ConversationBusy,
    ConversationClosed,
    NotInThisHook,
    TooManyRequests,
    TurnAborted,
    TurnError,
    TurnOver,
)
from routecodex.turns.events import (
    ArgumentsAdded,
    MessageAppended,
    ReasoningAdded,
    StateChanged,
    TextAdded,
    ToolCallAdded,
    TurnEnded,
    TurnEvent,
)
from routecodex.turns.hooks import Plugin
from routecodex.turns.host import Host
from routecodex.turns.message import Message
from routecodex.turns.scripted import Call, ScriptedSender
from routecodex.turns.stream import TurnStream
from routecodex.turns.turn import RequestState, Turn

__all__ = [
    "ArgumentsAdded",
    "Call",
    "ChatTurn",
    "Conversation",
    "ConversationBusy",
    "ConversationClosed",
    "Engine",
    "Host",
    "Message",
    "MessageAppended",
    "NotInThisHook",
    "Plugin",
    "ReasoningAdded",
    "RequestState",
    "ScriptedSender",
    "Sender",
    "StateChanged",
    "TextAdded",
    "TooManyRequests",
    "ToolCallAdded",
    "Turn",
    "TurnAborted",
    "TurnEnded",
    "TurnError",
    "TurnEvent",
    "TurnOver",
    "TurnRun",
    "TurnStream",
]
