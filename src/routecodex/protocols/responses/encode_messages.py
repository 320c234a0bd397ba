"""Encodes canonical messages as Responses input items."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import cast

from msgspec import Struct

from routecodex.canon.parts import Json, Media, Opaque, Part, Reasoning, Refusal, Text, ToolCall, ToolResult
from routecodex.canon.request import Message, Request
from routecodex.protocols import sealed_signatures
from routecodex.protocols.codec import EncodeOptions
from routecodex.protocols.responses.content import DECLARATION, ITEM, PART, PartWriter
from routecodex.protocols.responses.schema import NAME

ID_LIMIT = 64
"""OpenAI rejects longer ids of calls, users and cache keys ("string too long")."""
NO_RESULT = "The tool gave no result."


class ItemWriter(Struct):
    """Appends the items of messages to `items`, in order."""

    request: Request
    options: EncodeOptions
    writer: PartWriter
    items: list[dict[str, Json]]
    custom_calls: frozenset[str]

    @property
    def _same(self) -> bool:
        return self.request.source == NAME

    def system(self) -> str | None:
        """Return the instructions; developer items that came first return to the front of the input."""
        texts: list[str] = []
        for text in self.request.system:
            if text.cache is not None:
                self.writer.notices.dropped("cache_control", "responses upstreams cache by prefix")
            if self._same and text.extras and DECLARATION in (text.extras.get(ITEM) or {}):
                self.items.append(text.extras[ITEM][DECLARATION])
            elif self._same and text.extras and ITEM in text.extras:
                self._developer_text(text, text.extras[ITEM])
            elif text.text:
                texts.append(text.text)
        return "\n\n".join(texts) or None

    def _developer_text(self, text: Text, head: dict[str, Json] | None) -> None:
        content = self.writer.write(text)
        if head is None and self.items:
            self.items[-1]["content"].append(content)
        else:
            self.items.append({"type": "message", "role": "developer", **(head or {}), "content": [content]})

    def messages(self) -> None:
        answered = _answered_ids(self.request.messages)
        for message in self.request.messages:
            if message.name:
                self.writer.notices.dropped("name", "a message has none in responses")
            match message.role:
                case "assistant":
                    self._assistant(message.parts)
                    self._close_calls(message.parts, answered)
                case "system":
                    self._incoming(message, "developer")
                case "user" | "tool":
                    self._incoming(message, "user")

    def _incoming(self, message: Message, role: str) -> None:
        """Append a message to the model: each tool result as an item, all other parts as one message."""
        content: list[dict[str, Json]] = []
        for part in message.parts:
            if isinstance(part, ToolResult):
                self.items.append(self._result(part))
            elif _is_item(part):
                self._opaque(part)
            elif self._same and isinstance(part, Text) and part.extras and ITEM in part.extras:
                # A message between Codex's agents.
                self.items.append(part.extras[ITEM])
            elif (value := self.writer.write(part)) is not None:
                content.append(value)
        if not content and (message.role == "tool" or message.parts):
            return
        extras = message.extras if self._same and message.extras else {}
        self.items.append({"type": "message", "role": role, **extras, "content": content})

    def _assistant(self, parts: Sequence[Part]) -> None:
        message: dict[str, Json] | None = None
        for part in parts:
            if isinstance(part, Text | Refusal | Media) or (isinstance(part, Opaque) and not _is_item(part)):
                message = self._content(part, message)
                continue
            message = None
            match part:
                case ToolCall():
                    self.items.append(self._call(part))
                case Reasoning():
                    self._reasoning(part)
                case Opaque():
                    self._opaque(part)
                case ToolResult():
                    self.items.append(self._result(part))

    def _content(self, part: Part, message: dict[str, Json] | None) -> dict[str, Json] | None:
        if isinstance(part, Text | Refusal) and not part.text and not self._same:
            return message
        content = self.writer.write(part, assistant=True)
        if content is None:
            return message
        head = part.extras.get(ITEM) if isinstance(part, Text) and part.extras and self._same else None
        if message is None or head is not None:
            message = {"type": "message", "role": "assistant", **(head or {}), "content": []}
            self.items.append(message)
        message["content"].append(content)
        return message

    def _call(self, call: ToolCall) -> dict[str, Json]:
        if call.extras and ITEM in call.extras and self._same:
            # A search for tools.
            return cast(dict[str, Json], call.extras[ITEM])
        if call.cache is not None:
            self.writer.drop_cache(call.cache)
        item: dict[str, Json] = {
            "type": "custom_tool_call" if call.custom else "function_call",
            "call_id": short_id(call.id, prefix="call_"),
            "name": call.name,
        }
        if call.namespace is not None:
            item["namespace"] = call.namespace
        if call.custom:
            item["input"] = call.arguments
        else:
            item["arguments"] = call.arguments if call.arguments.strip() or self._same else "{}"
        if call.extras and self._same:
            item |= call.extras
        return item

    def _result(self, result: ToolResult) -> dict[str, Json]:
        if result.extras and ITEM in result.extras and self._same:
            return cast(dict[str, Json], result.extras[ITEM])
        if result.cache is not None:
            self.writer.drop_cache(result.cache)
        if result.is_error:
            self.writer.notices.dropped("is_error", "a tool output is a plain text in responses")
        custom = result.custom or result.call_id in self.custom_calls
        item: dict[str, Json] = {
            "type": "custom_tool_call_output" if custom else "function_call_output",
            "call_id": short_id(result.call_id, prefix="call_"),
            "output": self._output(result),
        }
        if result.extras and self._same:
            item |= result.extras
        return item

    def _output(self, result: ToolResult) -> str | list[dict[str, Json]]:
        texts = [part for part in result.parts if isinstance(part, Text)]
        plain = all(not (text.extras and self._same) for text in texts)
        if len(texts) == len(result.parts) <= 1 and plain:
            return texts[0].text if texts else ""
        written = (self.writer.write(part) for part in result.parts)
        return [value for value in written if value is not None]

    def _close_calls(self, parts: Iterable[Part], answered: frozenset[str]) -> None:
        """Append a result for each call without one: OpenAI rejects a call that has no output.

        Chat and Gemini clients may leave calls of the history unanswered.
        """
        if self._same:
            return
        for part in parts:
            if isinstance(part, ToolCall) and part.id not in answered:
                self.items.append(self._result(ToolResult(part.id, (Text(NO_RESULT),), custom=part.custom)))
                self.writer.notices.add("added a tool output: a call of the history had none")

    def _reasoning(self, part: Reasoning) -> None:
        if not self._may_return(part):
            self.writer.notices.dropped("reasoning", "made by another provider")
            return
        extras = dict(part.extras or {}) if self._same else {}
        summary = extras.pop("summary", None)
        if summary is None:
            shown = part.text and not extras.get("content")
            summary = [{"type": "summary_text", "text": part.text}] if shown else []
        item: dict[str, Json] = {"type": "reasoning", "summary": summary, **extras}
        if part.id:
            item["id"] = part.id
        if part.signature is not None:
            item["encrypted_content"] = part.signature
        self.items.append(item)

    def _may_return(self, part: Reasoning) -> bool:
        if part.signature is None:
            return self._same and part.origin is None
        if part.redacted or not sealed_signatures.returns_to(
            self.options.provider, origin=part.origin, same_protocol=self._same
        ):
            return False
        # OpenAI rejects encrypted reasoning that another provider made (400 invalid_encrypted_content).
        return part.origin is not None or self.options.accepts_signature(part.signature)

    def _opaque(self, part: Part) -> None:
        if isinstance(part, Opaque) and part.protocol == NAME:
            self.items.append(part.value)
        elif isinstance(part, Opaque):
            self.writer.notices.dropped(f"a {part.protocol} part", "responses has no such item")


def _is_item(part: Part) -> bool:
    return isinstance(part, Opaque) and not (isinstance(part.value, dict) and PART in part.value)


def _answered_ids(messages: Iterable[Message]) -> frozenset[str]:
    return frozenset(
        part.call_id for message in messages for part in message.parts if isinstance(part, ToolResult)
    )


def custom_call_ids(messages: Iterable[Message]) -> frozenset[str]:
    """Return the ids of calls to custom tools; their results have an item type of their own."""
    parts = (part for message in messages for part in message.parts)
    return frozenset(part.id for part in parts if isinstance(part, ToolCall) and part.custom)


def short_id(value: str, *, prefix: str = "") -> str:
    """Return the value, or a stable hash of it if it is longer than OpenAI accepts."""
    if value and len(value) <= ID_LIMIT:
        return value
    digest = hashlib.sha256(value.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{prefix}{digest}"[:ID_LIMIT]
