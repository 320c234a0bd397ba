"""A chat request bound for a chat upstream: the bytes it came as, but for what must change."""

from __future__ import annotations

from typing import Final

from routecodex.canon.errors import BadRequest
from routecodex.protocols.chat.fitting import fit_dialect
from routecodex.protocols.chat.schema import RequestBody
from routecodex.protocols.chat.view import RequestView
from routecodex.protocols.codec import EncodedRequest, EncodeOptions, WireRequest
from routecodex.protocols.dialect import Dialect
from routecodex.protocols.splice import replace_model
from routecodex.wire import scan

_PLAIN: Final = Dialect()
_DEVELOPER: Final = b'"developer"'
_SYSTEM: Final = b'"system"'
_STRICT: Final = b'"strict"'


def rewrite(inbound: WireRequest, aim: EncodeOptions) -> EncodedRequest:
    """The request for this upstream; untouched fields stay byte for byte."""
    view: RequestView = inbound.wire
    dialect, wire = aim.dialect, view.fields
    if wire.n is not None and wire.n > 1 and not dialect.n:
        raise BadRequest("n: this upstream gives one answer at a time", param="n", code="unsupported_value")
    outline = inbound.keys() if inbound.outline else b""
    # An upstream of which nothing is known is sent what the client wrote.
    if dialect != _PLAIN and (
        _sets_too_much(wire, dialect) or _says_it_otherwise(outline or inbound.body, dialect)
    ):
        return fit_dialect(inbound, aim)
    return EncodedRequest(replace_model(inbound.body, aim.model, named=wire.model, outline=outline))


def _sets_too_much(wire: RequestBody, dialect: Dialect) -> bool:
    """Whether a setting may have to go, or to be said in other words."""
    limit = dialect.max_tokens_field
    return bool(
        dialect.unsupported
        or (limit == "max_tokens" and wire.max_completion_tokens is not None)
        or (limit == "max_completion_tokens" and wire.max_tokens is not None)
        or (wire.stream_options is not None and not dialect.stream_usage)
        or (wire.tool_choice is not None and dialect.tool_choice != "full")
        or (wire.parallel_tool_calls is not None and not dialect.parallel_tool_calls)
        or (wire.response_format is not None and dialect.response_format != "json_schema")
        or (wire.reasoning_effort is not None and dialect.reasoning_field != "reasoning_effort")
    )


def _says_it_otherwise(body: bytes, dialect: Dialect) -> bool:
    """Whether messages or tools may have to change; words that stand elsewhere cost only time."""
    return bool(
        (dialect.system_role == "system" and scan.holds(body, _DEVELOPER))
        or (dialect.merge_system and body.count(_SYSTEM) > 1)
        or (not dialect.strict_tools and scan.holds(body, _STRICT))
    )
