"""Judges the answer to a shape, and says in plain words what to change."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

from routecodex.canon.request import ProtocolName
from routecodex.cli.checks.gateway_in_use import ServedReply
from routecodex.cli.checks.served_answer import (
    ServedAnswer,
    ServedError,
    read_answer,
    read_error,
    stream_error,
)
from routecodex.cli.checks.shapes.shape import AgentShapes, RequestShape, ShapeName
from routecodex.config.providers import ProviderConfig
from routecodex.protocols import grammar
from routecodex.protocols.grammar import GrammarViolation
from routecodex.wire import json

_TOOLS = re.compile(r"\btools?\b|function[ _-]?call", re.IGNORECASE)
_STRUCTURED = re.compile(
    r"response_format|json_schema|structured|output_config|responseSchema", re.IGNORECASE
)


class Verdict(Struct, frozen=True):
    """The judgement of one answer; `blocks`: the other shapes of the target would fail in the same way."""

    status: Literal["ok", "warn", "fail"]
    message: str
    fix: str = ""
    answer: ServedAnswer | None = None
    blocks: bool = False


class TargetFacts(Struct, frozen=True, kw_only=True):
    """The target of a shape: names, and where its keys come from."""

    provider: str
    model: str
    config: ProviderConfig
    keys: str

    def is_named_by(self, target: str) -> bool:
        """Whether a target `provider.key.model` is this one, with any key."""
        return target.startswith(f"{self.provider}.") and target.endswith(f".{self.model}")

    @property
    def table(self) -> str:
        """The table of the model in the configuration."""
        return f'[providers.{self.provider}.models."{self.model}"]'


def judge(
    name: ShapeName, shape: RequestShape, reply: ServedReply, *, agent: AgentShapes, target: TargetFacts
) -> Verdict:
    """Judge the reply to a shape."""
    if reply.status != 200:
        return judge_error(_error_of(reply), target)
    served_by = reply.headers.get("x-routecodex-target", "")
    if served_by and not target.is_named_by(served_by):
        message = f"the running gateway sent the request to {served_by} instead"
        return Verdict("warn", message, "`routecodex daemon status routing` shows what an operator has set")
    if name == "count_tokens":
        return _judge_count(reply.body)
    broken = stream_error(reply.body) if shape.stream else None
    if broken is not None or reply.broken:
        return Verdict("fail", f"the answer broke off: {broken or reply.broken}", _another_model(target))
    try:
        check_grammar(agent.protocol, shape, reply.body)
        answer = read_answer(agent.protocol, reply.body, stream=shape.stream)
    except GrammarViolation as exc:
        return Verdict("fail", f"the answer breaks the {agent.protocol} protocol: {exc}", _broken_fix(target))
    return _judge_answer(name, answer, agent=agent, target=target)


def check_grammar(protocol: ProtocolName, shape: RequestShape, body: bytes) -> None:
    """Check the served bytes by the grammar of the protocol; raise GrammarViolation."""
    if not shape.stream:
        grammar.check_json(protocol, body)
    elif protocol == "chat":
        usage = bool((shape.body.get("stream_options") or {}).get("include_usage"))
        grammar.check_chat(body, include_usage=usage)
    else:
        grammar.check_stream(protocol, body)


def _error_of(reply: ServedReply) -> ServedError:
    if reply.status == 0:
        return ServedError(status=0, code="", message=reply.broken)
    return read_error(reply.status, reply.body)


def _another_model(target: TargetFacts) -> str:
    return f"try again; if it stays so, take another model than {target.provider}.{target.model}"


def _broken_fix(target: TargetFacts) -> str:
    return (
        f"try another protocol of the provider (protocol under [providers.{target.provider}]) or another "
        "model, and report this as a bug of RouteCodex"
    )


def _judge_count(body: bytes) -> Verdict:
    try:
        value = json.decode(body)
    except ValueError:
        value = None
    fields: Mapping[str, object] = value if isinstance(value, dict) else {}
    count = fields.get("input_tokens", fields.get("totalTokens"))
    if isinstance(count, int) and count > 0:
        return Verdict("ok", f"{count} tokens")
    fix = "report this as a bug of RouteCodex"
    return Verdict("fail", f"the count is not a positive number: {body[:120].decode(errors='replace')}", fix)


def _judge_answer(
    name: ShapeName, answer: ServedAnswer, *, agent: AgentShapes, target: TargetFacts
) -> Verdict:
    if answer.end == "refused":
        message = "the model or a content filter refused a harmless request"
        return Verdict("warn", message, _another_model(target), answer)
    if answer.end == "length":
        return _judge_length(answer, agent=agent, target=target)
    if not answer.text.strip() and not answer.calls:
        message = "the answer is empty: it has neither text nor a tool call"
        fix = f"set server_tools.empty_reply_continue.enabled = true, or {_another_model(target)}"
        return Verdict("fail", message, fix, answer)
    if name == "tool_call":
        return _judge_call(answer, agent=agent, target=target)
    if answer.calls and name in ("title", "compaction"):
        message = f"the model called the tool {answer.calls[0].name!r} instead of writing text"
        route = "compaction" if name == "compaction" else "background"
        return Verdict("fail", message, f"give the route `{route}` under [routing] another model", answer)
    if name == "title" and agent.protocol == "messages":
        return _judge_title(answer, target)
    return Verdict("ok", _shown(answer), answer=answer)


def _judge_length(answer: ServedAnswer, *, agent: AgentShapes, target: TargetFacts) -> Verdict:
    message = "a length limit cut the answer off"
    if not answer.text.strip() and not answer.calls:
        message = (
            "a length limit ended the answer before it had any text; the model may have used it to think"
        )
    fix = f"raise max_output_tokens under {target.table}"
    fails = agent.length_fails or not answer.text.strip()
    return Verdict("fail" if fails else "warn", message, fix, answer)


def _judge_call(answer: ServedAnswer, *, agent: AgentShapes, target: TargetFacts) -> Verdict:
    if not answer.calls:
        message = f"the model wrote text instead of calling the tool {agent.tool!r} as it was told"
        fix = (
            f"take a model that calls tools; if {target.model!r} does, check how its server parses "
            "tool calls (vLLM: --enable-auto-tool-choice --tool-call-parser; llama.cpp: --jinja)"
        )
        return Verdict("fail", message, fix, answer)
    call = answer.calls[0]
    if call.name != agent.tool:
        message = f"the model called {call.name!r} instead of {agent.tool!r}"
        return Verdict("warn", message, _another_model(target), answer)
    if call.arguments is None or agent.argument not in call.arguments:
        message = f"the call of {agent.tool!r} lacks the argument {agent.argument!r}"
        return Verdict(
            "fail", message, f"take a model that follows tool schemas; {target.model!r} does not", answer
        )
    return Verdict("ok", f"called {call.name} with {json.encode(call.arguments).decode()}", answer=answer)


def _judge_title(answer: ServedAnswer, target: TargetFacts) -> Verdict:
    try:
        value = json.decode(answer.text)
    except ValueError:
        value = None
    if isinstance(value, dict) and isinstance(value.get("title"), str):
        return Verdict("ok", f"title {value['title']!r}", answer=answer)
    message = f"the answer is not the JSON that was asked for: {_short(answer.text)!r}; sessions get no title"
    return Verdict("warn", message, "give the route `background` under [routing] another model", answer)


def _shown(answer: ServedAnswer) -> str:
    if answer.text.strip():
        return f"answered {_short(answer.text)!r}"
    return f"called {answer.calls[0].name}"


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 60 else f"{line[:59]}…"


def judge_error(error: ServedError, target: TargetFacts) -> Verdict:
    """Judge an error of the gateway or the provider."""
    fix, blocks = _error_fix(error, target)
    status = f"HTTP {error.status}: " if error.status else ""
    return Verdict("fail", f"{status}{error.message}", fix, blocks=blocks)


def _error_fix(error: ServedError, target: TargetFacts) -> tuple[str, bool]:
    name, table = target.provider, f"[providers.{target.provider}]"
    known: dict[str, tuple[str, bool]] = {
        "upstream_auth": (
            f"check the key in {target.keys}; `routecodex doctor --keys` tries every key",
            True,
        ),
        "upstream_quota": (f"add credit to the account of {name!r}, or use another key", True),
        "upstream_model": (
            f"correct the model's name: {target.table} may set id, the provider's own name for it",
            True,
        ),
        "rate_limit_exceeded": (f"wait, or add a second key under {table}", True),
        "upstream_timeout": (
            f"raise timeout.first_byte_ms and idle_ms under {table}, or check the provider's status",
            True,
        ),
        "overloaded": ("try again later, or add another target to the route", True),
        "local_fault": ("check the network and the file limit (`ulimit -n`) of this machine", True),
        **dict.fromkeys(
            ("invalid_api_key", "key_expired", "key_revoked", "key_blocked"),
            ("set ROUTECODEX_KEY to a valid client key of the running gateway", True),
        ),
        "not_allowed": ("set ROUTECODEX_KEY to a client key that may use this model", True),
        "PROVIDER_NOT_AVAILABLE": (
            "see `routecodex daemon status` for why it is out, or try again later",
            True,
        ),
    }
    if error.status == 0:
        return "the gateway did not answer; see `routecodex logs`", True
    if error.code in known:
        return known[error.code]
    if error.status in (400, 422):
        return _rejection_fix(error, target), False
    if error.status == 404:
        return f"check base_url and protocol under {table}: the path may belong to another protocol", True
    return f"check base_url under {table} and the provider's status", True


def _rejection_fix(error: ServedError, target: TargetFacts) -> str:
    table = f"[providers.{target.provider}]"
    if _STRUCTURED.search(error.message):
        return f'set dialect = {{ unsupported = ["response_format"] }} under {table}'
    if _TOOLS.search(error.message):
        return (
            f"this model or server does not accept tools, which the agent needs: take another model, or set "
            f"tools = false under {target.table} so that routes pass it over"
        )
    unsupported = f"name the rejected field in dialect.unsupported under {table}"
    return f"{unsupported}, or try another protocol of the provider"
