"""Compiled modules: those that every request, or every event of a stream, passes through.

mypyc cannot build some code correctly; it stays in modules that run from source:

- classes with keywords, such as `class Plan(Struct, frozen=True)`, and asynchronous generators;
- coroutines that await in `except` or `finally`: other code that runs meanwhile sees the handled exception.

mypyc also trusts mypy's narrowing of an attribute across method calls that may change it. The build fails at
these places, by `--warn-unreachable`.
"""

from __future__ import annotations

MODULES = (
    "accounting.cost",
    "canon.notices",
    "gateway.answer.answer_stream",
    "gateway.answer.attempt",
    "gateway.answer.failover",
    "gateway.answer.keep_alive",
    "gateway.answer.prepared_target",
    "gateway.answer.writer",
    "gateway.call_record",
    "gateway.context.identity",
    "gateway.context.routing_context",
    "gateway.gateway",
    "gateway.internal.tool_set",
    "gateway.request",
    "gateway.services",
    "gateway.state.key_health",
    "gateway.state.operator_state",
    "protocols.chat.chunks",
    "protocols.chat.decode_stream",
    "protocols.chat.encode_messages",
    "protocols.chat.encode_request",
    "protocols.chat.encode_stream",
    "protocols.chat.known_frames",
    "protocols.chat.relay",
    "protocols.chat.rewrite",
    "protocols.chat.validate",
    "protocols.chat.whole",
    "protocols.codec",
    "protocols.control_fields",
    "protocols.gemini.decode_stream",
    "protocols.gemini.encode_stream",
    "protocols.gemini.framing",
    "protocols.gemini.relay",
    "protocols.large_body",
    "protocols.messages.content",
    "protocols.messages.decode_request",
    "protocols.messages.decode_stream",
    "protocols.messages.encode_stream",
    "protocols.messages.relay",
    "protocols.messages.validate",
    "protocols.relay",
    "protocols.responses.decode_stream",
    "protocols.responses.encode_calls",
    "protocols.responses.encode_items",
    "protocols.responses.encode_stream",
    "protocols.responses.relay",
    "protocols.text_batches",
    "protocols.translation",
    "providers.http.client",
    "providers.http.connection",
    "providers.http.response",
    "providers.upstream",
    "routing.request_role",
    "routing.route_plan",
    "routing.router",
    "routing.tokens",
    "server.access",
    "server.access_log",
    "server.app",
    "server.http.connection",
    "server.http.listener",
    "server.http.reader",
    "server.http.reply",
    "server.http.request",
    "server.http.request_loop",
    "server.log_numbers",
    "server.metrics",
    "server.origins",
    "server.paths",
    "server.usage_metrics",
    "stores.cell",
    "wire.buffers",
    "wire.json",
    "wire.sse",
)

IN_C = {
    "protocols.chat.fast_validate": "fast_validate.c",
    "wire.outline": "outline.c",
    "wire.plain_heads": "plain_heads.c",
    "wire.scan": "scan.c",
}
"""Modules that C replaces in a build, and their files: mypyc does not speed up code that visits every byte or
reads fields of structs. From the sources `wire.scan` does the same in Python; the others return None, so that
their callers take the general path."""
