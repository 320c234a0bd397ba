"""What grows in requests and answers of chat."""

from __future__ import annotations

from typing import Any

from tests.kit.answers.model_answer import frame
from tests.kit.growing.shapes import CUSTOM_TOOL, PNG, SCHEMA, URL, Fields, Grow, GrowStream


class Requests:
    """Requests of chat whose lists grow."""

    @staticmethod
    def make(messages: list[Fields], **fields: Any) -> Fields:
        return {"model": "up.m", "messages": messages, **fields}

    @staticmethod
    def user(content: Any = "Hello") -> Fields:
        return {"role": "user", "content": content}

    @staticmethod
    def call(id: str, name: str = "f") -> Fields:
        return {"id": id, "type": "function", "function": {"name": name, "arguments": '{"a":"b"}'}}

    @staticmethod
    def result(id: str) -> Fields:
        return {"role": "tool", "tool_call_id": id, "content": "done"}

    @staticmethod
    def tool(name: str, schema: Fields = SCHEMA) -> Fields:
        return {"type": "function", "function": {"name": name, "description": "d", "parameters": schema}}

    @classmethod
    def turns(cls, n: int, id: str = "call_{}") -> Fields:
        messages = [cls.user()]
        for k in range(n):
            messages += [
                {"role": "assistant", "content": None, "tool_calls": [cls.call(id.format(k))]},
                cls.result(id.format(k)),
            ]
        return cls.make(messages)

    @classmethod
    def calls(cls, n: int, *, answered: bool = True) -> Fields:
        calls = [cls.call(f"call_{k}") for k in range(n)]
        results = [cls.result(f"call_{k}") for k in range(n)] if answered else []
        messages = [cls.user(), {"role": "assistant", "content": None, "tool_calls": calls}, *results]
        return cls.make([*messages, cls.user("Go on")])

    @classmethod
    def table(cls) -> dict[str, Grow]:
        image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}}
        text = {"type": "text", "text": "word"}
        return {
            "messages": lambda n: cls.make(
                [cls.user(), {"role": "assistant", "content": "Hi"}] * n + [cls.user()]
            ),
            "messages of one role": lambda n: cls.make([cls.user()] * n),
            "answers in a row": lambda n: cls.make(
                [cls.user(), *[{"role": "assistant", "content": "Hi"}] * n]
            ),
            "system messages": lambda n: cls.make(
                [{"role": "system", "content": "Be kind."}] * n + [cls.user()]
            ),
            "late system messages": lambda n: cls.make(
                [cls.user(), *([{"role": "system", "content": "Be kind."}] * n), cls.user()]
            ),
            "parts": lambda n: cls.make([cls.user([text] * n)]),
            "assistant parts": lambda n: cls.make(
                [cls.user(), {"role": "assistant", "content": [text] * n}, cls.user()]
            ),
            "images": lambda n: cls.make([cls.user([image] * n)]),
            "calls": cls.calls,
            "calls without results": lambda n: cls.calls(n, answered=False),
            "tool turns": cls.turns,
            "tool turns with one id": lambda n: cls.turns(n, "call_0"),
            "result parts": lambda n: cls.make(
                [
                    cls.user(),
                    {"role": "assistant", "content": None, "tool_calls": [cls.call("call_0")]},
                    {"role": "tool", "tool_call_id": "call_0", "content": [text] * n},
                ]
            ),
            "reasoning turns": lambda n: cls.make(
                [cls.user(), {"role": "assistant", "content": "Hi", "reasoning_content": "Hm."}] * n
                + [cls.user()]
            ),
            "tools": lambda n: cls.make([cls.user()], tools=[cls.tool(f"f{k}") for k in range(n)]),
            "stop sequences": lambda n: cls.make([cls.user()], stop=[f"s{k}" for k in range(n)]),
            "metadata": lambda n: cls.make([cls.user()], metadata={f"k{k}": "v" for k in range(n)}),
            "unknown fields": lambda n: cls.make([cls.user()], **{f"x_{k}": k for k in range(n)}),
            "logit bias": lambda n: cls.make([cls.user()], logit_bias={str(k): 1 for k in range(n)}),
            "allowed tools": lambda n: cls.make(
                [cls.user()],
                tools=[cls.tool(f"f{k}") for k in range(n)],
                tool_choice={
                    "type": "allowed_tools",
                    "allowed_tools": {
                        "mode": "auto",
                        "tools": [{"type": "function", "function": {"name": f"f{k}"}} for k in range(n)],
                    },
                },
            ),
            "custom tools": lambda n: cls.make(
                [cls.user()], tools=[{"type": "custom", "custom": {"name": f"c{k}"}} for k in range(n)]
            ),
            "annotations": lambda n: cls.make(
                [
                    cls.user(),
                    {
                        "role": "assistant",
                        "content": "word",
                        "annotations": [
                            {
                                "type": "url_citation",
                                "url_citation": {
                                    "url": f"https://a.example/{k}",
                                    "title": "t",
                                    "start_index": 0,
                                    "end_index": 4,
                                },
                            }
                            for k in range(n)
                        ],
                    },
                    cls.user(),
                ]
            ),
        }


class Answers:
    """Answers of chat providers whose lists grow."""

    @staticmethod
    def chunk(delta: Fields, reason: str | None = None, **more: Any) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": reason}
        head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
        return frame({**head, "choices": [choice], **more})

    @classmethod
    def stream(cls, deltas: list[Fields], reason: str = "stop") -> list[bytes]:
        first = {"role": "assistant", "content": ""}
        usage = {"prompt_tokens": 9, "completion_tokens": 9, "total_tokens": 18}
        frames = [cls.chunk(delta) for delta in [first, *deltas]]
        return [*frames, cls.chunk({}, reason, usage=usage), b"data: [DONE]\n\n"]

    @staticmethod
    def call(k: int, arguments: str = '{"a":"b"}', name: str = "f") -> Fields:
        function = {"name": name, "arguments": arguments}
        return {"tool_calls": [{"index": k, "id": f"call_{k}", "type": "function", "function": function}]}

    @staticmethod
    def arguments(k: int | None, text: str) -> Fields:
        index = {} if k is None else {"index": k}
        return {"tool_calls": [{**index, "function": {"arguments": text}}]}

    @classmethod
    def streams(cls) -> dict[str, GrowStream]:
        def calls(n: int) -> list[Fields]:
            return [cls.call(k) for k in range(n)]

        def one_index(n: int) -> list[Fields]:
            return [{"tool_calls": [{**call["tool_calls"][0], "index": 0}]} for call in calls(n)]

        def custom(n: int) -> list[Fields]:
            body = {"name": "f", "input": "x"}
            entry = {"type": "custom", "custom": body}
            return [{"tool_calls": [{**entry, "index": k, "id": f"call_{k}"}]} for k in range(n)]

        def unnumbered(n: int) -> list[Fields]:
            entries = [dict(call["tool_calls"][0]) for call in calls(n)]
            return [{"tool_calls": [{**entry, "index": None}]} for entry in entries]

        def interleaved(n: int) -> list[Fields]:
            opened = [cls.call(k, '{"a":') for k in range(n)]
            return opened + [cls.arguments(k, '"b"}') for k in range(n)]

        def annotation(k: int) -> Fields:
            citation = {"url": f"{URL}{k}", "title": "t", "start_index": 0, "end_index": 4}
            return {"type": "url_citation", "url_citation": citation}

        image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
        return {
            "text deltas": lambda n: cls.stream([{"content": "word "}] * n),
            "blank deltas": lambda n: cls.stream([{"content": "a\n"}, *[{"content": "\n"}] * n]),
            "reasoning deltas": lambda n: cls.stream([{"reasoning_content": "Hm."}] * n + [{"content": "a"}]),
            "reasoning and texts": lambda n: cls.stream(
                [{"reasoning_content": "Hm."}, {"content": "word"}] * n
            ),
            "reasoning details": lambda n: cls.stream(
                [
                    {
                        "reasoning_details": [
                            {"type": "reasoning.text", "text": "Hm.", "index": k} for k in range(n)
                        ]
                    },
                    {"content": "a"},
                ]
            ),
            "calls": lambda n: cls.stream(calls(n), "tool_calls"),
            "calls in one chunk": lambda n: cls.stream(
                [{"tool_calls": [call["tool_calls"][0] for call in calls(n)]}], "tool_calls"
            ),
            "calls with one index": lambda n: cls.stream(one_index(n), "tool_calls"),
            "calls without index": lambda n: cls.stream(unnumbered(n), "tool_calls"),
            "interleaved calls": lambda n: cls.stream(interleaved(n), "tool_calls"),
            "custom calls": lambda n: cls.stream(custom(n), "tool_calls"),
            "calls and texts": lambda n: cls.stream(
                [delta for k in range(n) for delta in ({"content": "word"}, cls.call(k))], "tool_calls"
            ),
            "argument deltas": lambda n: cls.stream(
                [cls.call(0, '{"a":"'), *[cls.arguments(0, "word ")] * n, cls.arguments(0, '"}')],
                "tool_calls",
            ),
            "input deltas": lambda n: cls.stream(
                [cls.call(0, '{"input":"', name=CUSTOM_TOOL), *[cls.arguments(0, "word ")] * n], "length"
            ),
            "foreign input deltas": lambda n: cls.stream(
                [cls.call(0, '{"text":"', name=CUSTOM_TOOL), *[cls.arguments(0, "word ")] * n], "length"
            ),
            "blank input deltas": lambda n: cls.stream(
                [cls.call(0, "{", name=CUSTOM_TOOL), *[cls.arguments(0, "    ")] * n], "length"
            ),
            "argument deltas and calls": lambda n: cls.stream(
                [
                    cls.call(0, '{"a":['),
                    *(delta for k in range(1, n) for delta in (cls.arguments(0, "{},"), cls.call(k))),
                ],
                "tool_calls",
            ),
            "argument deltas without index": lambda n: cls.stream(
                [cls.call(0, '{"a":"'), *[cls.arguments(None, "word ")] * n, cls.arguments(None, '"}')],
                "tool_calls",
            ),
            "annotations": lambda n: cls.stream(
                [{"content": "word"}, *({"annotations": [annotation(k)]} for k in range(n))]
            ),
            "annotations and texts": lambda n: cls.stream(
                [{"content": "word", "annotations": [annotation(k)]} for k in range(n)]
            ),
            "annotations of one chunk": lambda n: cls.stream(
                [{"content": "word", "annotations": [annotation(k) for k in range(n)]}]
            ),
            "sources": lambda n: [
                cls.chunk({"content": "word [1]"}, citations=[f"{URL}{k}" for k in range(n)]),
                *cls.stream([{"content": "".join(f"[{k}]" for k in range(n))}]),
            ],
            "images": lambda n: cls.stream([{"content": "word", "images": [image] * n}]),
            "usages": lambda n: [
                *[cls.chunk({"content": "a"}, usage={"prompt_tokens": 9, "completion_tokens": 9})] * n,
                *cls.stream([{"content": "a"}]),
            ],
            "choices": lambda n: [
                frame({"id": "a", "choices": [{"index": k, "delta": {"content": "a"}} for k in range(n)]}),
                *cls.stream([{"content": "a"}]),
            ],
        }

    @classmethod
    def whole(cls, message: Fields, reason: str = "stop") -> Fields:
        choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": reason}
        usage = {"prompt_tokens": 9, "completion_tokens": 9, "total_tokens": 18}
        head = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "m"}
        return {**head, "choices": [choice], "usage": usage}

    @classmethod
    def wholes(cls) -> dict[str, Grow]:
        def annotation(k: int) -> Fields:
            citation = {"url": f"{URL}{k}", "title": "t", "start_index": 0, "end_index": 4}
            return {"type": "url_citation", "url_citation": citation}

        return {
            "calls": lambda n: cls.whole(
                {"content": None, "tool_calls": [cls.call(k)["tool_calls"][0] for k in range(n)]},
                "tool_calls",
            ),
            "annotations": lambda n: cls.whole(
                {"content": "word", "annotations": [annotation(k) for k in range(n)]}
            ),
            "content parts": lambda n: cls.whole({"content": [{"type": "text", "text": "word"}] * n}),
        }
