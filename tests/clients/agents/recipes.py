"""The settings that docs/clients.md gives for each agent, with the address and models of a test."""

from __future__ import annotations

import re

from tests.clients.agents.scene import Scene
from tests.clients.gateway import ROOT

_BLOCK = re.compile(r"^```(?:\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_EXPORT = re.compile(r"^export (\w+)=(?:'([^']*)'|(\S+))", re.MULTILINE)
_MODELS = {"glm.glm-4.7": "up.main", "glm.glm-4.5-air": "up.small"}


def blocks(heading: str, scene: Scene) -> list[str]:
    """Return the code blocks below a heading of the page."""
    text = (ROOT / "docs" / "clients.md").read_text()
    section = text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    assert section, f"docs/clients.md has no heading {heading!r}"
    for known, here in {"http://127.0.0.1:5520": scene.url, **_MODELS}.items():
        section = section.replace(known, here)
    return _BLOCK.findall(section)


def variables(*texts: str) -> dict[str, str]:
    """Return the variables that shell commands export."""
    return {name: quoted or plain for text in texts for name, quoted, plain in _EXPORT.findall(text)}
