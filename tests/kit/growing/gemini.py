"""What grows in requests and answers of gemini."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.kit.answers.model_answer import dump
from tests.kit.growing.shapes import PNG, SCHEMA, URL, Fields, Grow, GrowStream, compose


class Requests:
    """Requests of gemini whose lists grow."""

    @staticmethod
    def make(contents: list[Fields], **fields: Any) -> Fields:
        return {"contents": contents, **fields}

    @staticmethod
    def user(parts: Any = None) -> Fields:
        return {"role": "user", "parts": parts or [{"text": "Hello"}]}

    @staticmethod
    def model(parts: Any = None) -> Fields:
        return {"role": "model", "parts": parts or [{"text": "Hi"}]}

    @staticmethod
    def call(id: str | None = None, name: str = "f") -> Fields:
        return {"functionCall": {"name": name, "args": {"a": "b"}, **({"id": id} if id else {})}}

    @staticmethod
    def result(id: str | None = None, name: str = "f") -> Fields:
        return {
            "functionResponse": {"name": name, "response": {"result": "done"}, **({"id": id} if id else {})}
        }

    @staticmethod
    def tool(name: str, schema: Fields = SCHEMA) -> Fields:
        return {"functionDeclarations": [{"name": name, "description": "d", "parametersJsonSchema": schema}]}

    @classmethod
    def pairs(cls, calls: list[Fields], results: list[Fields]) -> Fields:
        return cls.make([cls.user(), cls.model(calls), cls.user(results)])

    @classmethod
    def turns(cls, n: int, id: str = "call_{}") -> Fields:
        contents = [cls.user()]
        for k in range(n):
            contents += [cls.model([cls.call(id.format(k))]), cls.user([cls.result(id.format(k))])]
        return cls.make(contents)

    @classmethod
    def table(cls) -> dict[str, Grow]:
        text = {"text": "word"}
        image = {"inlineData": {"mimeType": "image/png", "data": PNG}}
        thought = {"text": "Hm.", "thought": True, "thoughtSignature": "c2ln"}
        return {
            "messages": lambda n: cls.make([cls.user(), cls.model()] * n + [cls.user()]),
            "messages of one role": lambda n: cls.make([cls.user()] * n),
            "system parts": lambda n: cls.make([cls.user()], systemInstruction={"parts": [text] * n}),
            "parts": lambda n: cls.make([cls.user([text] * n)]),
            "assistant parts": lambda n: cls.make([cls.user(), cls.model([text] * n), cls.user()]),
            "images": lambda n: cls.make([cls.user([image] * n)]),
            "calls": lambda n: cls.pairs(
                [cls.call(f"call_{k}") for k in range(n)], [cls.result(f"call_{k}") for k in range(n)]
            ),
            "calls without ids": lambda n: cls.pairs([cls.call()] * n, [cls.result()] * n),
            "calls by name": lambda n: cls.pairs(
                [cls.call(name=f"f{k}") for k in range(n)],
                [cls.result(name=f"f{n - 1 - k}") for k in range(n)],
            ),
            "calls without results": lambda n: cls.make(
                [cls.user(), cls.model([cls.call(f"call_{k}") for k in range(n)]), cls.user()]
            ),
            "tool turns": cls.turns,
            "tool turns with one id": lambda n: cls.turns(n, "call_0"),
            "tool turns without ids": lambda n: cls.turns(n, ""),
            "turns with unanswered calls": lambda n: cls.make(
                [cls.user(), cls.model([cls.call()])] * n + [cls.user()]
            ),
            "late results": lambda n: cls.make(
                [cls.user()]
                + [cls.model([cls.call(name=f"f{k}")]) for k in range(n)]
                + [cls.user([cls.result(name=f"f{k}") for k in range(n)])]
            ),
            "result parts": lambda n: cls.pairs(
                [cls.call("call_0")],
                [{"functionResponse": {**cls.result("call_0")["functionResponse"], "parts": [image] * n}}],
            ),
            "thinking blocks": lambda n: cls.make(
                [cls.user(), cls.model([thought] * n + [text]), cls.user()]
            ),
            "unsigned thoughts": lambda n: cls.make(
                [cls.user(), cls.model([{"text": "Hm.", "thought": True}] * n + [text]), cls.user()]
            ),
            "reasoning turns": lambda n: cls.make(
                [cls.user(), cls.model([thought, text])] * n + [cls.user()]
            ),
            "tools": lambda n: cls.make([cls.user()], tools=[cls.tool(f"f{k}") for k in range(n)]),
            "declarations of one tool": lambda n: cls.make(
                [cls.user()],
                tools=[
                    {"functionDeclarations": [cls.tool(f"f{k}")["functionDeclarations"][0] for k in range(n)]}
                ],
            ),
            "allowed tools": lambda n: cls.make(
                [cls.user()],
                tools=[cls.tool(f"f{k}") for k in range(n)],
                toolConfig={
                    "functionCallingConfig": {
                        "mode": "ANY",
                        "allowedFunctionNames": [f"f{k}" for k in range(n)],
                    }
                },
            ),
            "stop sequences": lambda n: cls.make(
                [cls.user()], generationConfig={"stopSequences": [f"s{k}" for k in range(n)]}
            ),
            "metadata": lambda n: cls.make([cls.user()], labels={f"k{k}": "v" for k in range(n)}),
            "unknown fields": lambda n: cls.make([cls.user()], **{f"x{k}": k for k in range(n)}),
            "settings": lambda n: cls.make(
                [cls.user()],
                generationConfig={f"x{k}": k for k in range(n)},
                safetySettings=[{"category": "c"}] * n,
            ),
        }


class Answers:
    """Answers of gemini providers whose lists grow."""

    @staticmethod
    def whole(parts: list[Fields], reason: str | None = "STOP", **more: Any) -> Fields:
        candidate = {"index": 0, "content": {"role": "model", "parts": parts}, **more}
        if reason is not None:
            candidate["finishReason"] = reason
        usage = {"promptTokenCount": 9, "candidatesTokenCount": 9, "totalTokenCount": 18}
        return {"candidates": [candidate], "usageMetadata": usage, "modelVersion": "m", "responseId": "r"}

    @classmethod
    def frame(cls, parts: list[Fields], reason: str | None = None, **more: Any) -> bytes:
        return b"data: " + dump(cls.whole(parts, reason, **more)) + b"\r\n\r\n"

    @classmethod
    def stream(cls, parts: list[list[Fields]], **more: Any) -> list[bytes]:
        return [*map(cls.frame, parts), cls.frame([{"text": ""}], "STOP", **more)]

    @staticmethod
    def call(k: int, **more: Any) -> Fields:
        return {"functionCall": {"name": "f", "args": {"a": "b"}, "id": f"call_{k}"}, **more}

    @classmethod
    def one_by_one(cls, parts: list[Fields]) -> list[bytes]:
        return cls.stream([[part] for part in parts])

    @staticmethod
    def grounding(n: int) -> Fields:
        chunks = [{"web": {"uri": f"{URL}{k}", "title": "t"}} for k in range(n)]
        segment = {"startIndex": 0, "endIndex": 4, "text": "word"}
        supports = [{"segment": segment, "groundingChunkIndices": [k]} for k in range(n)]
        return {"groundingMetadata": {"groundingChunks": chunks, "groundingSupports": supports}}

    @staticmethod
    def partial(n: int) -> list[Fields]:
        """Return the parts of a call whose arguments are streamed, with `n` pieces of one text."""
        first = {"functionCall": {"name": "f", "id": "call_0", "willContinue": True}}
        piece = {"jsonPath": "$.a", "stringValue": "word", "willContinue": True}
        more = {"functionCall": {"partialArgs": [piece], "willContinue": True}}
        return [first, *[more] * n, {"functionCall": {"willContinue": False}}]

    @classmethod
    def growing(cls) -> dict[str, Callable[[int], list[Fields]]]:
        text, thought = {"text": "word"}, {"text": "Hm.", "thought": True}
        image = {"inlineData": {"mimeType": "image/png", "data": "iVBORw0KGgo="}}
        return {
            "texts": lambda n: [text] * n,
            "thoughts": lambda n: [thought] * n + [text],
            "signed thoughts": lambda n: [{**thought, "thoughtSignature": "c2ln"}] * n + [text],
            "thoughts and texts": lambda n: [thought, text] * n,
            "calls": lambda n: [cls.call(k) for k in range(n)],
            "calls without ids": lambda n: [{"functionCall": {"name": "f", "args": {}}}] * n,
            "signed calls": lambda n: [cls.call(k, thoughtSignature="c2ln") for k in range(n)],
            "calls and texts": lambda n: [part for k in range(n) for part in (text, cls.call(k))],
            "images": lambda n: [image] * n + [text],
            "opaque parts": lambda n: [{"executableCode": {"code": "1"}}] * n + [text],
        }

    @classmethod
    def streams(cls) -> dict[str, GrowStream]:
        grown: dict[str, GrowStream] = {
            kind: compose(cls.one_by_one, make) for kind, make in cls.growing().items()
        }
        return grown | {
            "parts of one frame": lambda n: cls.stream([[{"text": "word"}, cls.call(0)] * n]),
            "grounding": lambda n: cls.stream([[{"text": "word"}]], **cls.grounding(n)),
            "grounding in every frame": lambda n: [
                *(cls.frame([{"text": "word"}], **cls.grounding(1)) for _ in range(n)),
                *cls.stream([]),
            ],
            "partial arguments": lambda n: cls.stream([[part] for part in cls.partial(n)]),
        }

    @classmethod
    def wholes(cls) -> dict[str, Grow]:
        grown: dict[str, Grow] = {kind: compose(cls.whole, make) for kind, make in cls.growing().items()}
        return grown | {"grounding": lambda n: cls.whole([{"text": "word"}], **cls.grounding(n))}
