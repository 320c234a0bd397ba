"""Writes the tables of lost fields in docs/protocols.md: `python -m routecodex.protocols.reference`.

Each sample of loss_samples.py is read by its own codec and encoded for the other three; the cells are the
notices of the encoders. The upstream has no preset, so that only the protocols differ.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from routecodex.canon.errors import BadRequest
from routecodex.canon.request import ProtocolName, Request
from routecodex.protocols.codec import EncodeOptions
from routecodex.protocols.codecs import CODECS
from routecodex.protocols.loss_samples import SAMPLES, SMALLEST
from routecodex.wire import json

BEGIN = "<!-- generated: lost fields -->"
END = "<!-- end of generated -->"
_OPTIONS = EncodeOptions(model="m", provider="p")
_REJECTED = "rejected with 400"


def sample_request(source: ProtocolName, name: str) -> Request:
    """Decode a sample as the gateway decodes a client's request."""
    codec = CODECS[source]
    body = json.encode({**SMALLEST[source], **SAMPLES[source][name]})
    wire = codec.validate(body, model="m", stream=False) if source == "gemini" else codec.validate(body)
    return codec.decode_request(wire)


def notices_of(source: ProtocolName, name: str, target: str) -> tuple[str, ...]:
    """Return the notices of the encoder for a sample; one line if it rejects the request."""
    request = sample_request(source, name)
    try:
        return CODECS[target].encode_request(request, _OPTIONS).notices
    except BadRequest:
        return (_REJECTED,)


def tables() -> str:
    """Return one table per client protocol: a row per sample, a column per provider protocol."""
    return "\n\n".join(f"### From {source}\n\n{_table(source)}" for source in SAMPLES)


def _table(source: ProtocolName) -> str:
    targets = [target for target in CODECS if target != source]
    head = ["Field", *(f"to {target}" for target in targets)]
    rows = [head, *_rows(source, targets)]
    lines = ["|" + "".join(f" {cell} |" if cell else " |" for cell in row) for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(head), *lines[1:]])


def _rows(source: ProtocolName, targets: list[str]) -> Iterator[list[str]]:
    for name in SAMPLES[source]:
        cells = [_cell(name, notices_of(source, name, target)) for target in targets]
        if any(cells):
            yield [name, *cells]


def _cell(name: str, notices: tuple[str, ...]) -> str:
    return "; ".join(dict.fromkeys(_reason(name, line) for line in notices))


def _reason(name: str, line: str) -> str:
    """Return the notice, without its field where the name of the row says the same."""
    field, colon, reason = line.removeprefix("dropped ").partition(": ")
    word = field.removeprefix("part of ").split()[0].rpartition(".")[2]
    return reason if colon and word in name else f"{field}{colon}{reason}"


def with_tables(page: str) -> str:
    """Return the page with the current tables between its marks."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page has no place for the tables: {BEGIN} … {END}")
    return f"{before}{BEGIN}\n\n{tables()}\n\n{END}{after}"


def write(directory: Path) -> None:
    """Write the tables into protocols.md of the directory."""
    page = directory / "protocols.md"
    page.write_text(with_tables(page.read_text("utf-8")), encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else Path("docs"))
