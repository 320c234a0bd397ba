"""What grows in requests and answers of messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.kit.answers.model_answer import frame
from tests.kit.growing.shapes import PNG, SCHEMA, URL, Fields, Grow, GrowStream


class Requests:
    """Requests of messages whose lists grow."""

    @staticmethod
    def make(messages: list[Fields], **fields: Any) -> Fields:
        return {"model": "up.m", "max_tokens": 100, "messages": messages, **fields}

    @staticmethod
    def user(content: Any = "Hello") -> Fields:
        return {"role": "user", "content": content}

    @staticmethod
    def call(id: str) -> Fields:
        return {"type": "tool_use", "id": id, "name": "f", "input": {"a": "b"}}

    @staticmethod
    def result(id: str) -> Fields:
        return {"type": "tool_result", "tool_use_id": id, "content": "done"}

    @staticmethod
    def tool(name: str, schema: Fields = SCHEMA) -> Fields:
        return {"name": name, "description": "d", "input_schema": schema}

    @classmethod
    def turns(cls, n: int, id: str = "call_{}") -> Fields:
        messages = [cls.user()]
        for k in range(n):
            messages += [
                {"role": "assistant", "content": [cls.call(id.format(k))]},
                cls.user([cls.result(id.format(k))]),
            ]
        return cls.make(messages)

    @classmethod
    def table(cls) -> dict[str, Grow]:
        text = {"type": "text", "text": "word"}
        image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}}
        thought = {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"}
        citation = {
            "type": "web_search_result_location",
            "url": "https://a.example",
            "title": "t",
            "cited_text": "word",
            "encrypted_index": "e",
        }

        def document(content: list[Fields]) -> Fields:
            return {"type": "document", "title": "t", "source": {"type": "content", "content": content}}

        return {
            "messages": lambda n: cls.make(
                [cls.user(), {"role": "assistant", "content": "Hi"}] * n + [cls.user()]
            ),
            "messages of one role": lambda n: cls.make([cls.user()] * n),
            "late system messages": lambda n: cls.make(
                [cls.user(), *([{"role": "system", "content": "Be kind."}] * n), cls.user()]
            ),
            "system parts": lambda n: cls.make([cls.user()], system=[text] * n),
            "parts": lambda n: cls.make([cls.user([text] * n)]),
            "assistant parts": lambda n: cls.make(
                [cls.user(), {"role": "assistant", "content": [text] * n}, cls.user()]
            ),
            "images": lambda n: cls.make([cls.user([image] * n)]),
            "documents": lambda n: cls.make([cls.user([document([text])] * n)]),
            "document texts": lambda n: cls.make([cls.user([document([text] * n)])]),
            "document images": lambda n: cls.make([cls.user([document([text, image] * n)])]),
            "calls": lambda n: cls.make(
                [
                    cls.user(),
                    {"role": "assistant", "content": [cls.call(f"call_{k}") for k in range(n)]},
                    cls.user([cls.result(f"call_{k}") for k in range(n)]),
                ]
            ),
            "calls without results": lambda n: cls.make(
                [
                    cls.user(),
                    {"role": "assistant", "content": [cls.call(f"call_{k}") for k in range(n)]},
                    cls.user(),
                ]
            ),
            "results of one call": lambda n: cls.make(
                [
                    cls.user(),
                    {"role": "assistant", "content": [cls.call("call_0")]},
                    cls.user([cls.result("call_0")] * n),
                ]
            ),
            "tool turns": cls.turns,
            "tool turns with one id": lambda n: cls.turns(n, "call_0"),
            "result parts": lambda n: cls.make(
                [
                    cls.user(),
                    {"role": "assistant", "content": [cls.call("call_0")]},
                    cls.user([{**cls.result("call_0"), "content": [text] * n}]),
                ]
            ),
            "thinking blocks": lambda n: cls.make(
                [cls.user(), {"role": "assistant", "content": [thought] * n + [text]}, cls.user()]
            ),
            "redacted blocks": lambda n: cls.make(
                [
                    cls.user(),
                    {
                        "role": "assistant",
                        "content": [{"type": "redacted_thinking", "data": "x"}] * n + [text],
                    },
                    cls.user(),
                ]
            ),
            "reasoning turns": lambda n: cls.make(
                [cls.user(), {"role": "assistant", "content": [thought, text]}] * n + [cls.user()]
            ),
            "unknown blocks": lambda n: cls.make([cls.user([{"type": "x_new", "a": 1}] * n + [text])]),
            "cache marks": lambda n: cls.make(
                [cls.user([{**text, "cache_control": {"type": "ephemeral"}}] * n)]
            ),
            "tools": lambda n: cls.make([cls.user()], tools=[cls.tool(f"f{k}") for k in range(n)]),
            "stop sequences": lambda n: cls.make([cls.user()], stop_sequences=[f"s{k}" for k in range(n)]),
            "metadata": lambda n: cls.make([cls.user()], metadata={f"k{k}": "v" for k in range(n)}),
            "unknown fields": lambda n: cls.make([cls.user()], **{f"x_{k}": k for k in range(n)}),
            "annotations": lambda n: cls.make(
                [
                    cls.user(),
                    {"role": "assistant", "content": [{**text, "citations": [citation] * n}]},
                    cls.user(),
                ]
            ),
            "search results": lambda n: cls.make(
                [
                    cls.user(
                        [
                            {
                                "type": "search_result",
                                "title": "t",
                                "source": "https://a.example",
                                "content": [text] * n,
                            }
                        ]
                    )
                ]
            ),
        }


class Answers:
    """Answers of messages providers whose lists grow."""

    @staticmethod
    def event(kind: str, **fields: Any) -> bytes:
        return frame({"type": kind, **fields}, event=kind)

    @classmethod
    def start(cls, k: int, block: Fields) -> bytes:
        return cls.event("content_block_start", index=k, content_block=block)

    @classmethod
    def delta(cls, k: int, kind: str, **fields: Any) -> bytes:
        return cls.event("content_block_delta", index=k, delta={"type": kind, **fields})

    @classmethod
    def stop(cls, k: int) -> bytes:
        return cls.event("content_block_stop", index=k)

    @classmethod
    def stream(cls, frames: list[bytes], reason: str = "end_turn") -> list[bytes]:
        usage = {"input_tokens": 9, "output_tokens": 1}
        message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": []}
        return [
            cls.event("message_start", message={**message, "stop_reason": None, "usage": usage}),
            *frames,
            cls.event("message_delta", delta={"stop_reason": reason}, usage={"output_tokens": 9}),
            cls.event("message_stop"),
        ]

    @classmethod
    def call(cls, k: int) -> list[bytes]:
        block = {"type": "tool_use", "id": f"toolu_{k}", "name": "f", "input": {}}
        delta = cls.delta(k, "input_json_delta", partial_json='{"a":"b"}')
        return [cls.start(k, block), delta, cls.stop(k)]

    @classmethod
    def text(cls, k: int) -> list[bytes]:
        return [
            cls.start(k, {"type": "text", "text": ""}),
            cls.delta(k, "text_delta", text="word"),
            cls.stop(k),
        ]

    @classmethod
    def thought(cls, k: int) -> list[bytes]:
        return [
            cls.start(k, {"type": "thinking", "thinking": "", "signature": ""}),
            cls.delta(k, "thinking_delta", thinking="Hm."),
            cls.delta(k, "signature_delta", signature="c2ln"),
            cls.stop(k),
        ]

    @classmethod
    def cite(cls, k: int) -> bytes:
        citation = {
            "type": "web_search_result_location",
            "url": f"{URL}{k}",
            "title": "t",
            "cited_text": "w",
        }
        return cls.delta(0, "citations_delta", citation={**citation, "encrypted_index": "e"})

    @classmethod
    def streams(cls) -> dict[str, GrowStream]:
        text = cls.text(0)
        call = cls.call(0)
        thought = cls.thought(0)
        redacted = {"type": "redacted_thinking", "data": "c2ln"}
        opaque = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}

        def blocks(n: int, *makes: Callable[[int], list[bytes]]) -> list[bytes]:
            return [
                part for k in range(n) for at, make in enumerate(makes) for part in make(len(makes) * k + at)
            ]

        def interleaved(n: int) -> list[bytes]:
            calls = [cls.call(k) for k in range(n)]
            return [call[at] for at in range(3) for call in calls]

        return {
            "text deltas": lambda n: cls.stream([text[0], *[text[1]] * n, text[2]]),
            "text blocks": lambda n: cls.stream(blocks(n, cls.text)),
            "calls": lambda n: cls.stream(blocks(n, cls.call), "tool_use"),
            "interleaved calls": lambda n: cls.stream(interleaved(n), "tool_use"),
            "calls and texts": lambda n: cls.stream(blocks(n, cls.text, cls.call), "tool_use"),
            "thinking blocks": lambda n: cls.stream(blocks(n, cls.thought) + blocks(1, cls.text)),
            "thinking and texts": lambda n: cls.stream(blocks(n, cls.thought, cls.text)),
            "thinking and calls": lambda n: cls.stream(blocks(n, cls.thought, cls.call), "tool_use"),
            "redacted blocks": lambda n: cls.stream(
                blocks(n, lambda k: [cls.start(k, redacted), cls.stop(k)]) + cls.text(n)
            ),
            "opaque blocks": lambda n: cls.stream(
                blocks(n, lambda k: [cls.start(k, opaque), cls.stop(k)]) + cls.text(n)
            ),
            "argument deltas": lambda n: cls.stream(
                [
                    call[0],
                    cls.delta(0, "input_json_delta", partial_json='{"a":"'),
                    *[cls.delta(0, "input_json_delta", partial_json="word ")] * n,
                    cls.delta(0, "input_json_delta", partial_json='"}'),
                    call[2],
                ],
                "tool_use",
            ),
            "thinking deltas": lambda n: cls.stream(
                [thought[0], *[thought[1]] * n, *thought[2:], *cls.text(1)]
            ),
            "signature deltas": lambda n: cls.stream(
                [*thought[:2], *[thought[2]] * n, thought[3], *cls.text(1)]
            ),
            "citations": lambda n: cls.stream([*text[:2], *(cls.cite(k) for k in range(n)), text[2]]),
            "pings": lambda n: cls.stream([*[cls.event("ping")] * n, *text]),
            "message deltas": lambda n: cls.stream(
                [*text, *[cls.event("message_delta", delta={}, usage={"output_tokens": 9})] * n]
            ),
        }

    @classmethod
    def wholes(cls) -> dict[str, Grow]:
        def whole(content: list[Fields], reason: str = "end_turn") -> Fields:
            usage = {"input_tokens": 9, "output_tokens": 9}
            head = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m"}
            return {**head, "content": content, "stop_reason": reason, "stop_sequence": None, "usage": usage}

        text = {"type": "text", "text": "word"}
        citation = {"type": "web_search_result_location", "url": URL, "title": "t", "encrypted_index": "e"}

        def call(k: int) -> Fields:
            return {"type": "tool_use", "id": f"toolu_{k}", "name": "f", "input": {}}

        thought = {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"}
        return {
            "text blocks": lambda n: whole([text] * n),
            "calls": lambda n: whole([call(k) for k in range(n)], "tool_use"),
            "thinking blocks": lambda n: whole([thought] * n + [text]),
            "citations": lambda n: whole([{**text, "citations": [citation] * n}]),
        }
