"""Which modules are compiled: those that every request, or every event of a stream, passes through.

What mypyc cannot build as it is meant is kept in modules of its own, and runs from its source:

- classes with keywords, such as `class Plan(Struct, frozen=True)`, and asynchronous generators;
- coroutines that await something while they handle an exception, in `except` or `finally`: whatever runs
  meanwhile sees that exception as its own.

And where mypy takes for granted that a method has not changed an attribute that was looked at before it, so
does mypyc. `--warn-unreachable` finds these places: the build fails on them.
"""

from __future__ import annotations

MODULES = (
    "gateway.ask",
    "gateway.course",
    "gateway.courses",
    "gateway.exchange",
    "gateway.gateway",
    "gateway.heads",
    "gateway.health",
    "gateway.identity",
    "gateway.ids",
    "gateway.keep_alive",
    "gateway.lane",
    "gateway.orders",
    "gateway.scope",
    "gateway.sources",
    "gateway.toolbox",
    "gateway.tries",
    "protocols.chat.answers",
    "protocols.chat.calls",
    "protocols.chat.checking",
    "protocols.chat.chunks",
    "protocols.chat.content",
    "protocols.chat.conversation",
    "protocols.chat.decoder",
    "protocols.chat.ends",
    "protocols.chat.meter",
    "protocols.chat.outgoing",
    "protocols.chat.passing",
    "protocols.chat.reading",
    "protocols.chat.relay",
    "protocols.chat.usual",
    "protocols.chat.view",
    "protocols.codec",
    "protocols.controls",
    "protocols.cuts",
    "protocols.messages.blocks",
    "protocols.messages.decoder",
    "protocols.messages.encoder",
    "protocols.messages.envelope",
    "protocols.messages.incoming",
    "protocols.messages.reading",
    "protocols.person.tags",
    "protocols.repeats",
    "protocols.responses.answer_object",
    "protocols.responses.encoder",
    "protocols.responses.items",
    "protocols.runs",
    "protocols.splice",
    "protocols.translation",
    "providers.http.client",
    "providers.http.connection",
    "providers.http.pool",
    "providers.http.request",
    "providers.http.response",
    "providers.http.timeouts",
    "providers.upstream",
    "routing.plan",
    "routing.planned",
    "routing.tokens",
    "server.access",
    "server.access_log",
    "server.app",
    "server.call",
    "server.figures",
    "server.http.connection",
    "server.http.filling",
    "server.http.limits",
    "server.http.listener",
    "server.http.reader",
    "server.http.reply",
    "server.http.request",
    "server.http.serving",
    "server.metrics",
    "server.paths",
    "wire.json",
    "wire.outbox",
    "wire.room",
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
