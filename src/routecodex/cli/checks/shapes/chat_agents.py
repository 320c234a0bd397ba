"""Requests of the agents that speak chat completions through `routecodex run`.

opencode 1.18.33, Qwen Code 0.24.4, pi 0.73.1 and aider 0.86.2 as recorded; Crush 0.96 by its source. They
differ in fields, headers and the form of messages, which are the rows below.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from msgspec import Struct

from routecodex.cli.checks.shapes.shape import (
    FILE,
    FILE_CONTENT,
    READ_PROMPT,
    TEXT_PROMPT,
    AgentShapes,
    AssistantTurn,
    RequestShape,
    ShapeBuilder,
    ShapeInput,
    ShapeName,
)
from routecodex.wire import json

_USAGE = {"stream": True, "stream_options": {"include_usage": True}}
_CALL_ID = "call_doctor"


class ChatForm(Struct, frozen=True, kw_only=True):
    """The form of one agent's requests.

    `fields` are those besides model, messages and tools; `tool_fields` come only with tools. `parts`: user
    texts are lists of parts; `result_parts`: tool results too. `session`: the header with the session, or
    the path. `whole`: shapes that do not stream.
    """

    headers: dict[str, str]
    fields: dict[str, Any]
    manual: str
    compaction: tuple[str, str]
    compaction_fields: dict[str, Any] | None = None
    title: tuple[str, str] | None = None
    tools: list[dict[str, Any]] = []
    tool: str = ""
    argument: str = ""
    tool_fields: dict[str, Any] = {}
    system: Literal["system", "developer"] = "system"
    parts: bool = False
    result_parts: bool = False
    reminder: str = ""
    session: tuple[str, ...] = ()


def _tool(name: str, description: str, required: tuple[str, ...], /, **more: Any) -> dict[str, Any]:
    strict = more.pop("strict", None)
    schema = more.pop("schema", {})
    parameters = {**schema, "type": "object", "properties": more, "required": list(required)}
    function: dict[str, Any] = {"name": name, "description": description, "parameters": parameters}
    if strict is not None:
        function["strict"] = strict
    return {"type": "function", "function": function}


def _property(kind: str, description: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "description": description, **more}


def _sdk(language: str, version: str, **more: str) -> dict[str, str]:
    return {
        "accept": "application/json",
        "x-stainless-arch": "x64",
        "x-stainless-lang": language,
        "x-stainless-os": "Linux",
        "x-stainless-package-version": version,
        "x-stainless-retry-count": "0",
        **more,
    }


_NODE = {
    "x-stainless-runtime": "node",
    "x-stainless-runtime-version": "v24.19.0",
    "accept-language": "*",
    "sec-fetch-mode": "cors",
}
_DRAFT = {"$schema": "https://json-schema.org/draft/2020-12/schema"}

OPENCODE = ChatForm(
    headers={
        "user-agent": "opencode/1.18.33 ai-sdk/provider-utils/4.0.23 runtime/bun/1.3.14",
        "accept": "*/*",
    },
    session=("x-session-affinity", "x-session-id"),
    fields={"max_tokens": 8000, **_USAGE},
    manual="You are opencode, an interactive CLI tool that helps users with software engineering tasks.",
    tools=[
        _tool(
            "bash",
            "Run a command.",
            ("command",),
            schema=_DRAFT,
            command=_property("string", "The command"),
            timeout={
                "minimum": -9007199254740991,
                "exclusiveMinimum": 0,
                "type": "integer",
                "maximum": 9007199254740991,
                "description": "Timeout in milliseconds",
            },
        ),
        _tool("read", "Read a file.", ("filePath",), schema=_DRAFT, filePath=_property("string", "The file")),
    ],
    tool="read",
    argument="filePath",
    tool_fields={"tool_choice": "auto"},
    title=(
        "You are a title generator. You output ONLY a thread title. Nothing else.",
        "Generate a title for this conversation:\n",
    ),
    compaction=(
        "You are a context summarization agent. Only output the structured summary.",
        "Here is the conversation so far:\n\n<conversation>\n{conversation}\n</conversation>\n\n"
        "Create a new anchored summary from the conversation history.",
    ),
)
QWEN = ChatForm(
    headers={"user-agent": "QwenCode/0.24.4 (linux; x64)", **_sdk("js", "5.11.0", **_NODE)},
    fields={"max_tokens": 32000, **_USAGE},
    manual="You are Qwen Code, a CLI agent that specializes in software engineering tasks.",
    tools=[
        _tool(
            "agent",
            "Start another agent.",
            ("description", "prompt"),
            description=_property("string", "The task in a few words"),
            prompt=_property("string", "The task"),
            fork_turns={
                "oneOf": [
                    {"type": "string", "enum": ["all"]},
                    {"type": "string", "pattern": "^[1-9][0-9]*$"},
                ],
                "description": "Turns to hand over",
            },
            run_in_background=_property("boolean", "Go on without waiting", default=True),
        ),
        _tool("read_file", "Read a file.", ("file_path",), file_path=_property("string", "The file")),
    ],
    tool="read_file",
    argument="file_path",
    parts=True,
    result_parts=True,
    reminder="<system-reminder>\nThis is the Qwen Code. The folder is /home/user/notes.\n</system-reminder>",
    compaction=(
        "You are the component that summarizes a conversation so that it can go on in less space.",
        "{conversation}\n\nWrite the <state_snapshot> now.",
    ),
)
PI = ChatForm(
    headers={"user-agent": "OpenAI/JS 6.26.0", **_sdk("js", "6.26.0", **_NODE)},
    session=("x-session-id",),
    fields={**_USAGE, "store": False, "max_completion_tokens": 8000, "reasoning_effort": "medium"},
    manual="You are an expert coding assistant operating inside pi, a coding agent harness.",
    tools=[
        _tool(
            "read",
            "Read a file.",
            ("path",),
            strict=False,
            path=_property("string", "The file"),
            offset=_property("number", "The first line"),
        ),
        _tool(
            "edit",
            "Replace texts in a file.",
            ("path", "edits"),
            strict=False,
            schema={"additionalProperties": False},
            path=_property("string", "The file"),
            edits=_property(
                "array",
                "The replacements",
                items={
                    "type": "object",
                    "required": ["oldText", "newText"],
                    "properties": {"oldText": {"type": "string"}, "newText": {"type": "string"}},
                    "additionalProperties": False,
                },
            ),
        ),
    ],
    tool="read",
    argument="path",
    system="developer",
    parts=True,
    compaction=(
        "You are a context summarization assistant. Do not continue the conversation; only summarize it.",
        "<conversation>\n{conversation}\n</conversation>\n\nCreate a structured summary.",
    ),
)
AIDER = ChatForm(
    headers={
        "user-agent": "OpenAI/Python 2.20.0",
        **_sdk(
            "python",
            "2.20.0",
            **{
                "x-stainless-runtime": "CPython",
                "x-stainless-runtime-version": "3.11.7",
                "x-stainless-async": "false",
                "x-stainless-raw-response": "true",
                "x-stainless-read-timeout": "600.0",
            },
        ),
    },
    fields={"stream": True, "temperature": 0},
    manual="Act as an expert software developer.\nTake requests for changes to the supplied code.",
    compaction=(
        "*Briefly* summarize this partial conversation about programming.\nOlder parts need less detail.",
        "{conversation}",
    ),
    # Its summaries are not streamed and have no other field than the temperature.
    compaction_fields={"temperature": 0},
)
CRUSH = ChatForm(
    headers={"user-agent": "Charm-Crush/0.96.1", **_sdk("go", "2.0.0")},
    fields={"max_tokens": 8000, **_USAGE},
    manual="You are Crush, a powerful AI assistant that runs in the CLI.",
    tools=[
        _tool(
            "view",
            "Read a file.",
            ("file_path",),
            file_path=_property("string", "The file"),
            offset=_property("integer", "The first line"),
        ),
        _tool("bash", "Run a command.", ("command",), command=_property("string", "The command")),
    ],
    tool="view",
    argument="file_path",
    tool_fields={"tool_choice": "auto"},
    title=(
        "You will generate a short title based on the first message a user begins a conversation with.",
        "Generate a concise title for the following content:\n\n",
    ),
    compaction=(
        "You are summarizing a conversation to preserve context for continuing work later.",
        "{conversation}\n\nProvide a detailed summary of our conversation above.",
    ),
)


def _request(
    form: ChatForm,
    shape: ShapeInput,
    messages: list[dict[str, Any]],
    *,
    tools: bool = False,
    fields: dict[str, Any] | None = None,
) -> RequestShape:
    prefix = "" if form.session else f"/s/{shape.session}"
    body = {"model": shape.model, "messages": messages, **(form.fields if fields is None else fields)}
    if tools and form.tools:
        body |= {"tools": form.tools, **form.tool_fields}
    names = dict.fromkeys(form.session, shape.session)
    authorization = {"authorization": f"Bearer {shape.key}", "content-type": "application/json"}
    return RequestShape(
        path=f"{prefix}/v1/chat/completions",
        headers={**authorization, **form.headers, **names},
        body=body,
        stream=bool(body.get("stream")),
    )


def _system(form: ChatForm, text: str) -> dict[str, Any]:
    return {"role": form.system, "content": text}


def _user(form: ChatForm, *texts: str) -> dict[str, Any]:
    if not form.parts:
        return {"role": "user", "content": "\n".join(filter(None, texts))}
    return {"role": "user", "content": [{"type": "text", "text": text} for text in texts if text]}


def _opening(form: ChatForm, prompt: str) -> list[dict[str, Any]]:
    return [_system(form, form.manual), _user(form, form.reminder, prompt)]


def _prompt(form: ChatForm) -> str:
    return READ_PROMPT.format(tool=form.tool)


def _text(form: ChatForm, shape: ShapeInput) -> RequestShape:
    return _request(form, shape, _opening(form, TEXT_PROMPT), tools=True)


def _tool_call(form: ChatForm, shape: ShapeInput) -> RequestShape:
    return _request(form, shape, _opening(form, _prompt(form)), tools=True)


def _tool_result(form: ChatForm, shape: ShapeInput) -> RequestShape:
    turn = shape.turn or _recorded(form)
    content: Any = [{"type": "text", "text": FILE_CONTENT}] if form.result_parts else FILE_CONTENT
    result = {"role": "tool", "tool_call_id": turn.call_id, "content": content}
    return _request(form, shape, [*_opening(form, _prompt(form)), *turn.items, result], tools=True)


def _title(form: ChatForm, shape: ShapeInput) -> RequestShape:
    assert form.title is not None, "the shape is only listed for agents that have titles"
    system, prompt = form.title
    return _request(
        form, shape, [_system(form, system), _user(form, prompt), _user(form, f"Read {FILE}, please.")]
    )


def _compaction(form: ChatForm, shape: ShapeInput) -> RequestShape:
    system, prompt = form.compaction
    conversation = f"# USER\nWhat is in {FILE}?\n# ASSISTANT\n{FILE_CONTENT}"
    messages = [_system(form, system), _user(form, prompt.format(conversation=conversation))]
    return _request(form, shape, messages, fields=form.compaction_fields)


def _recorded(form: ChatForm) -> AssistantTurn:
    """Return a turn that calls the tool, without reasoning."""
    arguments = json.encode({form.argument: FILE}).decode()
    call = {
        "id": _CALL_ID,
        "type": "function",
        "function": {"name": form.tool, "arguments": arguments},
    }
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    return AssistantTurn([message], _CALL_ID, form.tool)


_FormBuilder = Callable[[ChatForm, ShapeInput], RequestShape]


def shapes_of(form: ChatForm) -> AgentShapes:
    """Return the shapes of an agent: tools and titles only if it has them."""
    with_tools: dict[ShapeName, _FormBuilder] = {"tool_call": _tool_call, "tool_result": _tool_result}
    builders: dict[ShapeName, _FormBuilder] = {
        "text": _text,
        **(with_tools if form.tools else {}),
        **({"title": _title} if form.title else {}),
        "compaction": _compaction,
    }
    return AgentShapes(
        protocol="chat",
        shapes={name: _bound(form, builder) for name, builder in builders.items()},
        tool=form.tool,
        argument=form.argument,
        recorded=(lambda: _recorded(form)) if form.tools else None,
    )


def _bound(form: ChatForm, builder: _FormBuilder) -> ShapeBuilder:
    return lambda shape: builder(form, shape)
