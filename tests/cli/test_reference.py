"""docs/cli.md equals the help of the commands."""

from __future__ import annotations

from pathlib import Path

from routecodex.cli import COMMANDS
from routecodex.cli.reference import page, write

DOCS = Path(__file__).parents[2] / "docs"


def test_the_committed_page_is_what_is_generated(tmp_path: Path) -> None:
    write(tmp_path)
    fresh = (tmp_path / "cli.md").read_text("utf-8")
    assert (DOCS / "cli.md").read_text("utf-8") == fresh, "run: make docs"


def test_every_command_has_its_section() -> None:
    text = page()
    for name in COMMANDS:
        assert f"\n## routecodex {name}\n" in text
    assert "\n## routecodex daemon set routing\n" in text
