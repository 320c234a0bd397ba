"""What grows in requests and answers of responses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.kit.answers.model_answer import frame
from tests.kit.growing.shapes import PNG, SCHEMA, URL, Fields, Grow, GrowStream, compose


class Requests:
    """Requests of responses whose lists grow."""

    @staticmethod
    def make(items: list[Fields], **fields: Any) -> Fields:
        return {"model": "up.m", "input": items, "store": False, **fields}

    @staticmethod
    def user(content: Any = "Hello") -> Fields:
        return {"type": "message", "role": "user", "content": content}

    @staticmethod
    def call(id: str) -> Fields:
        return {"type": "function_call", "call_id": id, "name": "f", "arguments": '{"a":"b"}'}

    @staticmethod
    def result(id: str) -> Fields:
        return {"type": "function_call_output", "call_id": id, "output": "done"}

    @staticmethod
    def tool(name: str, schema: Fields = SCHEMA) -> Fields:
        return {"type": "function", "name": name, "description": "d", "parameters": schema}

    @classmethod
    def turns(cls, n: int, id: str = "call_{}") -> Fields:
        pairs = [item for k in range(n) for item in (cls.call(id.format(k)), cls.result(id.format(k)))]
        return cls.make([cls.user(), *pairs])

    @classmethod
    def table(cls) -> dict[str, Grow]:
        text = {"type": "input_text", "text": "word"}
        said = {"type": "output_text", "text": "word", "annotations": []}
        image = {"type": "input_image", "image_url": f"data:image/png;base64,{PNG}"}
        answer = {"type": "message", "role": "assistant", "content": [said]}
        thought = {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [{"type": "summary_text", "text": "Hm."}],
            "encrypted_content": "c2ln",
        }
        citation = {
            "type": "url_citation",
            "url": "https://a.example",
            "title": "t",
            "start_index": 0,
            "end_index": 4,
        }
        return {
            "messages": lambda n: cls.make([cls.user(), answer] * n + [cls.user()]),
            "messages of one role": lambda n: cls.make([cls.user()] * n),
            "system messages": lambda n: cls.make(
                [{"type": "message", "role": "developer", "content": "Be kind."}] * n + [cls.user()]
            ),
            "late system messages": lambda n: cls.make(
                [cls.user(), *([{"type": "message", "role": "developer", "content": "x"}] * n), cls.user()]
            ),
            "parts": lambda n: cls.make([cls.user([text] * n)]),
            "assistant parts": lambda n: cls.make(
                [cls.user(), {**answer, "content": [said] * n}, cls.user()]
            ),
            "images": lambda n: cls.make([cls.user([image] * n)]),
            "calls": lambda n: cls.make(
                [
                    cls.user(),
                    *(cls.call(f"call_{k}") for k in range(n)),
                    *(cls.result(f"call_{k}") for k in range(n)),
                ]
            ),
            "calls without results": lambda n: cls.make(
                [cls.user(), *(cls.call(f"call_{k}") for k in range(n)), cls.user()]
            ),
            "tool turns": cls.turns,
            "tool turns with one id": lambda n: cls.turns(n, "call_0"),
            "result parts": lambda n: cls.make(
                [cls.user(), cls.call("call_0"), {**cls.result("call_0"), "output": [text] * n}]
            ),
            "reasoning turns": lambda n: cls.make([cls.user(), thought, answer] * n + [cls.user()]),
            "reasoning items": lambda n: cls.make([cls.user(), *([thought] * n), answer, cls.user()]),
            "summary parts": lambda n: cls.make(
                [cls.user(), {**thought, "summary": thought["summary"] * n}, answer, cls.user()]
            ),
            "tools": lambda n: cls.make([cls.user()], tools=[cls.tool(f"f{k}") for k in range(n)]),
            "tools in a namespace": lambda n: cls.make(
                [cls.user()],
                tools=[{"type": "namespace", "name": "ns", "tools": [cls.tool(f"f{k}") for k in range(n)]}],
            ),
            "namespaces": lambda n: cls.make(
                [cls.user()],
                tools=[{"type": "namespace", "name": f"ns{k}", "tools": [cls.tool("f")]} for k in range(n)],
            ),
            "additional tools": lambda n: cls.make(
                [{"type": "additional_tools", "tools": [cls.tool(f"f{k}")]} for k in range(n)] + [cls.user()]
            ),
            "custom tools": lambda n: cls.make(
                [cls.user()], tools=[{"type": "custom", "name": f"c{k}"} for k in range(n)]
            ),
            "allowed tools": lambda n: cls.make(
                [cls.user()],
                tools=[cls.tool(f"f{k}") for k in range(n)],
                tool_choice={
                    "type": "allowed_tools",
                    "mode": "auto",
                    "tools": [{"type": "function", "name": f"f{k}"} for k in range(n)],
                },
            ),
            "metadata": lambda n: cls.make([cls.user()], metadata={f"k{k}": "v" for k in range(n)}),
            "unknown fields": lambda n: cls.make([cls.user()], **{f"x_{k}": k for k in range(n)}),
            "include": lambda n: cls.make([cls.user()], include=["reasoning.encrypted_content"] * n),
            "annotations": lambda n: cls.make(
                [cls.user(), {**answer, "content": [{**said, "annotations": [citation] * n}]}, cls.user()]
            ),
        }


class Answers:
    """Answers of responses providers whose lists grow."""

    @staticmethod
    def events(events: list[Fields]) -> list[bytes]:
        numbered = ({**event, "sequence_number": k} for k, event in enumerate(events))
        return [frame(event, event=event["type"]) for event in numbered]

    @staticmethod
    def whole(output: list[Fields], status: str = "completed") -> Fields:
        usage = {"input_tokens": 9, "output_tokens": 9, "total_tokens": 18}
        head = {"id": "resp_1", "object": "response", "created_at": 1, "model": "m", "status": status}
        return {**head, "output": output, "error": None, "incomplete_details": None, "usage": usage}

    @classmethod
    def stream(cls, events: list[Fields], output: list[Fields]) -> list[bytes]:
        created = {"type": "response.created", "response": cls.whole([], "in_progress")}
        return cls.events([created, *events, {"type": "response.completed", "response": cls.whole(output)}])

    @staticmethod
    def call(k: int) -> Fields:
        item = {"type": "function_call", "id": f"fc_{k}", "call_id": f"call_{k}", "name": "f"}
        return {**item, "arguments": '{"a":"b"}', "status": "completed"}

    @staticmethod
    def thought(k: int, summaries: int = 1) -> Fields:
        summary = [{"type": "summary_text", "text": "Hm."}] * summaries
        return {"type": "reasoning", "id": f"rs_{k}", "summary": summary, "encrypted_content": "c2ln"}

    @staticmethod
    def message(k: int, parts: int = 1, annotations: int = 0) -> Fields:
        cited = [
            {"type": "url_citation", "url": f"{URL}{a}", "title": "t", "start_index": 0, "end_index": 4}
            for a in range(annotations)
        ]
        part = {"type": "output_text", "text": "word", "annotations": cited}
        return {
            "type": "message",
            "id": f"msg_{k}",
            "role": "assistant",
            "status": "completed",
            "content": [part] * parts,
        }

    @classmethod
    def item(cls, k: int, item: Fields, *, deltas: int = 1) -> list[Fields]:
        """Return the events of one item, with so many deltas for each of its texts."""
        at = {"item_id": item["id"], "output_index": k}
        empty: dict[str, Fields] = {
            "function_call": {"arguments": ""},
            "message": {"content": []},
            "reasoning": {"summary": []},
        }
        added = {**item, **empty.get(item["type"], {})}
        events: list[Fields] = [{"type": "response.output_item.added", "output_index": k, "item": added}]
        if item["type"] == "function_call":
            kind = "response.function_call_arguments"
            events += [{"type": f"{kind}.delta", **at, "delta": '{"a":"'}]
            events += [{"type": f"{kind}.delta", **at, "delta": "b"}] * deltas
            arguments = '{"a":"%s"}' % ("b" * deltas)
            events += [{"type": f"{kind}.delta", **at, "delta": '"}'}]
            events += [{"type": f"{kind}.done", **at, "arguments": arguments}]
            item = {**item, "arguments": arguments}
        for number, part in enumerate(item.get("content") or ()):
            place = {**at, "content_index": number}
            kind = "response.output_text"
            events += [{"type": "response.content_part.added", **place, "part": {**part, "text": ""}}]
            events += [{"type": f"{kind}.delta", **place, "delta": "word"}] * deltas
            events += [
                {"type": f"{kind}.annotation.added", **place, "annotation_index": a, "annotation": annotation}
                for a, annotation in enumerate(part["annotations"])
            ]
            whole = {**part, "text": "word" * deltas}
            events += [{"type": f"{kind}.done", **place, "text": whole["text"]}]
            events += [{"type": "response.content_part.done", **place, "part": whole}]
        for number, part in enumerate(item.get("summary") or ()):
            place, kind = {**at, "summary_index": number}, "response.reasoning_summary"
            events += [{"type": f"{kind}_part.added", **place, "part": {**part, "text": ""}}]
            events += [{"type": f"{kind}_text.delta", **place, "delta": "Hm."}] * deltas
            events += [{"type": f"{kind}_text.done", **place, "text": "Hm." * deltas}]
            events += [{"type": f"{kind}_part.done", **place, "part": part}]
        return [*events, {"type": "response.output_item.done", "output_index": k, "item": item}]

    @classmethod
    def items(cls, items: list[Fields], *, deltas: int = 1) -> list[bytes]:
        events = [event for k, item in enumerate(items) for event in cls.item(k, item, deltas=deltas)]
        return cls.stream(events, items)

    @classmethod
    def interleaved(cls, items: list[Fields]) -> list[bytes]:
        rows = [cls.item(k, item) for k, item in enumerate(items)]
        return cls.stream([row[at] for at in range(len(rows[0])) for row in rows], items)

    @classmethod
    def growing(cls) -> dict[str, Callable[[int], list[Fields]]]:
        return {
            "calls": lambda n: [cls.call(k) for k in range(n)],
            "messages": lambda n: [cls.message(k) for k in range(n)],
            "parts": lambda n: [cls.message(0, parts=n)],
            "annotations": lambda n: [cls.message(0, annotations=n)],
            "thinking blocks": lambda n: [*map(cls.thought, range(n)), cls.message(n)],
            "thinking and calls": lambda n: [
                item for k in range(n) for item in (cls.thought(2 * k), cls.call(2 * k + 1))
            ],
            "calls and texts": lambda n: [
                item for k in range(n) for item in (cls.message(2 * k), cls.call(2 * k + 1))
            ],
            "summary parts": lambda n: [cls.thought(0, n), cls.message(1)],
            "opaque items": lambda n: [
                *({"type": "web_search_call", "id": f"ws_{k}", "status": "completed"} for k in range(n)),
                cls.message(n),
            ],
        }

    @classmethod
    def streams(cls) -> dict[str, GrowStream]:
        grown: dict[str, GrowStream] = {
            kind: compose(cls.items, make) for kind, make in cls.growing().items()
        }
        return grown | {
            "text deltas": lambda n: cls.items([cls.message(0)], deltas=n),
            "argument deltas": lambda n: cls.items([cls.call(0)], deltas=n),
            "thinking deltas": lambda n: cls.items([cls.thought(0), cls.message(1)], deltas=n),
            "interleaved calls": lambda n: cls.interleaved([cls.call(k) for k in range(n)]),
            "interleaved messages": lambda n: cls.interleaved([cls.message(k) for k in range(n)]),
            "items only at the end": lambda n: cls.stream([], [cls.call(k) for k in range(n)]),
        }

    @classmethod
    def wholes(cls) -> dict[str, Grow]:
        return {kind: compose(cls.whole, make) for kind, make in cls.growing().items()}
