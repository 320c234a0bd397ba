"""The picture of a terminal session."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

from tests.pictures.terminal import draw, record


def test_a_picture_shows_the_commands_and_what_they_print(tmp_path: Path) -> None:
    rows = record(["routecodex config check missing.toml", "echo '<b> & more'"], tmp_path)
    assert rows[0] == ("command", "routecodex config check missing.toml")
    assert rows[-3:] == [("command", "echo '<b> & more'"), ("output", "<b> & more"), ("output", "")]
    root = ElementTree.fromstring(draw(rows))
    texts = ["".join(element.itertext()) for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert texts[0] == "$ routecodex config check missing.toml"
    assert texts[-1] == "<b> & more"
    assert any("missing.toml" in text for text in texts[1:-2])
