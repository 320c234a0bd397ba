"""A valid configuration, changes to it, and the problems that the check reports."""

from __future__ import annotations

from routecodex.config import examine

BASE = """\
[providers.glm]
protocol = "chat"
base_url = "http://127.0.0.1:9001/v1"
auth = [{ alias = "primary", value = "a" }, { value = "b" }]
models = { "glm-4.7" = {}, "blind" = { vision = false } }
[routing]
default = ["glm.glm-4.7"]
"""

Row = tuple[str, str, str, str]


def problems_of(text: str) -> list[Row]:
    _, problems = examine(text, environ={})
    return [(one.severity, one.path, one.message, one.fix) for one in problems]


def provider(**fields: str) -> str:
    rows = {"protocol": '"chat"', "base_url": '"http://127.0.0.1:1/v1"', "models": "{ m = {} }", **fields}
    return BASE + "[providers.q]\n" + "".join(f"{key} = {value}\n" for key, value in rows.items())


def routed(default: str) -> str:
    return BASE.replace('["glm.glm-4.7"]', default)
