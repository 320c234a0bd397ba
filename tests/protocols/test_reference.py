"""The tables of lost fields: their samples have every field, and cause every notice of the encoders."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from routecodex import protocols
from routecodex.canon.request import ProtocolName, Request
from routecodex.protocols.codec import EncodeOptions
from routecodex.protocols.codecs import CODECS
from routecodex.protocols.loss_samples import SAMPLES, SMALLEST
from routecodex.protocols.reference import BEGIN, END, notices_of, sample_request, tables, with_tables
from routecodex.wire import json
from tests.kit import source_tree

SOURCE = Path(protocols.__file__).parent
ENCODERS = [
    SOURCE / "tool_schemas.py",
    *(path for path in SOURCE.glob("*/*.py") if path.name != "rewrite.py"),
]
BY_PROVIDER = re.compile(r"(?:this|the) (?:upstream|provider|model) ")
"""Reasons that depend on the dialect of a provider, or on a model."""

NOT_BY_PROTOCOL = {
    "max_tokens leaves no space for it": "only with a model whose output limit is known",
    "chat rejects them": "only in requests of server tools: those of clients are rejected before",
    "its call is not in the conversation; sent as content": "as above",
    "temperature is set, and this model accepts only one of them": "only with a model that rejects both",
}
NAMES = [(source, name) for source, samples in SAMPLES.items() for name in samples]


def given() -> set[str]:
    """Return all notices that the samples cause."""
    pairs = [(source, name, target) for source, name in NAMES for target in CODECS if target != source]
    return {line for source, name, target in pairs for line in notices_of(source, name, target)}


def literal(node: ast.expr) -> str | None:
    """Return the text of an expression, with `*` for its variables; None if it is not a literal."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(literal(part) or "*" for part in node.values)
    return None


def reasons() -> Iterator[str]:
    """Yield the reason of every notice that the encoders give, where it is a literal."""
    for path in ENCODERS:
        for node in ast.walk(source_tree.read(path)):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("notices.dropped"):
                reason = literal(node.args[-1])
                if reason is not None:
                    yield reason


def test_the_samples_cause_every_notice_that_depends_on_the_protocols_alone() -> None:
    known = [reason for reason in set(reasons()) if not BY_PROVIDER.match(reason)]
    assert len(known) > 40
    lines = given()
    missing = [
        reason
        for reason in known
        if not any(
            re.fullmatch(f"dropped .*: {re.escape(reason).replace(re.escape('*'), '.*')}", line)
            for line in lines
        )
    ]
    assert sorted(missing) == sorted(NOT_BY_PROTOCOL)


def test_the_samples_use_every_field_of_a_request() -> None:
    requests = [sample_request(source, name) for source, name in NAMES]
    defaults = {field.name: field.default for field in msgspec.structs.fields(Request)}
    used = {
        name
        for request in requests
        for name, default in defaults.items()
        if getattr(request, name) != default
    }
    assert defaults.keys() - used == {"stream"}


SILENT = {
    ("chat", "`prompt_cache_key`", "messages"),
    ("responses", "`prompt_cache_key`", "messages"),
}
"""Samples that change nothing and cause no notice: hints."""


def test_a_field_that_changes_nothing_has_a_notice() -> None:
    pairs = {(source, name, target) for source, name in NAMES for target in CODECS if target != source}
    silent = {
        (source, name, target)
        for source, name, target in pairs
        if not notices_of(source, name, target)
        and encoded(sample_request(source, name), target) == encoded(smallest_request(source), target)
    }
    assert silent == SILENT


def smallest_request(source: ProtocolName) -> Request:
    codec, body = CODECS[source], json.encode(SMALLEST[source])
    wire = codec.validate(body, model="m", stream=False) if source == "gemini" else codec.validate(body)
    return codec.decode_request(wire)


def encoded(request: Request, target: str) -> bytes:
    return CODECS[target].encode_request(request, EncodeOptions(model="m", provider="p")).body


def test_a_row_names_what_each_protocol_loses() -> None:
    rows = tables().splitlines()
    assert "| Field | to chat | to responses | to gemini |" in rows
    assert "| `top_k` | chat has no such field | responses has no such field | |" in rows
    assert "| `n` | rejected with 400 | rejected with 400 | rejected with 400 |" in rows


def test_tables_replace_what_is_between_their_marks() -> None:
    page = f"before\n{BEGIN}\nold\n{END}\nafter\n"
    assert with_tables(page) == f"before\n{BEGIN}\n\n{tables()}\n\n{END}\nafter\n"
    assert with_tables(with_tables(page)) == with_tables(page)
    with pytest.raises(ValueError, match="no place"):
        with_tables("none")
