"""The documentation is what the code says."""

from __future__ import annotations

from pathlib import Path

import jsonschema_rs
import msgspec
import pytest

from routecodex.config.reference import example, page, schema, write
from routecodex.protocols.dialect import Dialect
from routecodex.providers.catalog import PRESETS

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("name", ["configuration.md", "config.schema.json"])
def test_the_committed_file_is_what_is_generated(name: str, tmp_path: Path) -> None:
    write(tmp_path)
    fresh = (tmp_path / name).read_text(encoding="utf-8")
    assert (DOCS / name).read_text(encoding="utf-8") == fresh, "run: python -m routecodex.config.reference"


def test_the_schema_accepts_the_example_and_refuses_unknown_keys() -> None:
    validator = jsonschema_rs.validator_for(msgspec.json.decode(schema()))
    tree = msgspec.toml.decode(example())
    assert validator.is_valid(tree)
    assert validator.is_valid({"providers": {"openai": {}}})
    assert not validator.is_valid({**tree, "sevrer": {}})
    assert not validator.is_valid({"server": {"port": 70000}})


def test_every_key_and_every_dialect_key_has_a_meaning() -> None:
    rows = [line for line in page(PRESETS, Dialect).splitlines() if line.startswith("| `")]
    assert len(rows) > 100
    assert [row for row in rows if row.rstrip(" |").endswith("|") or row.endswith("|  |")] == []
