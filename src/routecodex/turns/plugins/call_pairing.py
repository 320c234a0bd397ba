"""Keeps every tool call paired with one result.

Providers reject a conversation in which a call has no result, a result has no call, or another message
separates them. A tool message carries the state of its call in `metadata["tool"]`: `{"name": …, "state": …}`,
where the state is waiting, running, done, failed, timed out, refused, denied or cancelled.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from routecodex.turns.message import Message

CANCELLED = "The tool call was cancelled."
MARK = "tool"
OPEN = frozenset({"waiting", "running"})


def calls_of(message: Message) -> list[dict[str, Any]]:
    """Return the tool calls of an assistant message."""
    if message.role != "assistant":
        return []
    return [call for call in message.tool_calls or () if isinstance(call, dict)]


def name_of(call: Mapping[str, Any]) -> str:
    function = call.get("function")
    name = function.get("name") if isinstance(function, Mapping) else None
    return name if isinstance(name, str) else ""


def identify(message: Message, messages: Sequence[Message]) -> None:
    """Give every call a type and a unique id, and drop calls that were cut off before their name.

    A message whose calls have a result already is not changed.
    """
    if message.role != "assistant" or message.tool_calls is None or _has_results(message, messages):
        return
    calls = [call for call in calls_of(message) if name_of(call)]
    message.tool_calls = calls or None
    taken = {call.get("id") for other in messages if other is not message for call in calls_of(other)}
    for call in calls:
        call.setdefault("type", "function")
        identity = call.get("id")
        if not isinstance(identity, str) or not identity or identity in taken:
            call["id"] = identity = _unused_id(taken)
        taken.add(identity)


def _has_results(message: Message, messages: Sequence[Message]) -> bool:
    at = next((at for at, one in enumerate(messages) if one is message), len(messages))
    identities = {call.get("id") for call in calls_of(message)}
    for follower in messages[at + 1 :]:
        if follower.role == "assistant":
            return False
        if follower.role == "tool" and follower.tool_call_id in identities:
            return True
    return False


def _unused_id(taken: Collection[Any]) -> str:
    number = len(taken) + 1
    while f"call_{number}" in taken:
        number += 1
    return f"call_{number}"


def result(call: Mapping[str, Any], content: Any, *, state: str) -> Message:
    """Build the tool message of a call."""
    mark = {"name": name_of(call), "state": state}
    return Message("tool", content, tool_call_id=call.get("id"), metadata={MARK: mark})


def set_state(message: Message, state: str) -> None:
    """Store the state of the call in its message."""
    message.metadata[MARK] = {**message.metadata.get(MARK, {}), "state": state}


def is_open(message: Message) -> bool:
    """Return whether a tool message still has no result."""
    mark = message.metadata.get(MARK)
    return message.role == "tool" and isinstance(mark, Mapping) and mark.get("state") in OPEN


def settle(message: Message, content: Any, *, state: str) -> None:
    """Set the result of a tool message; partial output of a failed tool stays, followed by the reason."""
    set_state(message, state)
    if state == "done":
        message.content = content
    else:
        message.content = f"{message.content}\n\n[{content}]" if message.content else content


def missing(messages: Sequence[Message], *, among: Collection[int]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the calls without a result and the position for it, of answers whose `id()` is in `among`."""
    results = Counter(message.tool_call_id for message in messages if message.role == "tool")
    for at, message in enumerate(messages):
        for call in calls_of(message):
            if results[call.get("id")] > 0:
                results[call.get("id")] -= 1
            elif id(message) in among:
                yield _after_results(messages, at), call


def _after_results(messages: Sequence[Message], at: int) -> int:
    """Return the position after the results that follow an answer."""
    end = at + 1
    while end < len(messages) and messages[end].role == "tool":
        end += 1
    return end


def complete(messages: list[Message], text: str, *, among: Iterable[Message]) -> list[Message]:
    """Cancel open results among these messages and add missing ones, with this text; return the new ones."""
    chosen = list(among)
    for message in chosen:
        if is_open(message):
            settle(message, text, state="cancelled")
    gaps = list(missing(messages, among={id(message) for message in chosen}))
    added = [result(call, text, state="cancelled") for _, call in gaps]
    for (place, _), message in reversed(list(zip(gaps, added, strict=True))):
        messages.insert(place, message)
    return added


def paired_messages(messages: Iterable[dict[str, Any]], *, fill: str | None) -> list[dict[str, Any]]:
    """Return chat-shaped messages with every result directly after its answer, in the order of the calls.

    A result without a call is dropped. A call without a result gets the text of `fill`, if there is one.
    """
    ordered = list(messages)
    results: dict[Any, deque[dict[str, Any]]] = defaultdict(deque)
    for message in ordered:
        if message.get("role") == "tool":
            results[message.get("tool_call_id")].append(message)
    paired: list[dict[str, Any]] = []
    for message in ordered:
        if message.get("role") == "tool":
            continue
        paired.append(message)
        for call in message.get("tool_calls") or ():
            if not isinstance(call, dict):
                continue
            _repair_arguments(call)
            found = results.get(call.get("id"))
            if found:
                paired.append(found.popleft())
            elif fill is not None:
                paired.append({"role": "tool", "content": fill, "tool_call_id": call.get("id")})
    return paired


def _repair_arguments(call: dict[str, Any]) -> None:
    """Replace invalid arguments by `{}`, because some providers reject them; the result quotes them."""
    function = call.get("function")
    if not isinstance(function, dict):
        return
    try:
        arguments = msgspec.json.decode(function.get("arguments") or "{}")
    except (msgspec.DecodeError, TypeError, UnicodeEncodeError):
        arguments = None
    if not isinstance(arguments, dict) or not function.get("arguments"):
        function["arguments"] = "{}"


def without_calls(messages: Iterable[dict[str, Any]], identities: Collection[Any]) -> list[dict[str, Any]]:
    """Return chat-shaped messages without these calls' answers and results."""

    def is_left_out(message: Mapping[str, Any]) -> bool:
        if message.get("role") == "tool":
            return message.get("tool_call_id") in identities
        calls = message.get("tool_calls") or ()
        return bool(calls) and all(call.get("id") in identities for call in calls)

    return [message for message in messages if not is_left_out(message)]
