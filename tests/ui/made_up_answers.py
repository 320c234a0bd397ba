"""Made-up answers of whole admin calls: series, usage, routes, captures, streams of the playground."""

from __future__ import annotations

import json
import math
from datetime import datetime, timedelta
from typing import Any

from tests.ui.made_up_data import HOSTILE, iso, plan

Json = dict[str, Any]

_SHARES = {
    "provider": {"claude": 0.55, "openai": 0.2, "glm": 0.25},
    "client": {"laptop-ann": 0.6, "ci-runner": 0.4},
    "model": {"claude-opus-4-8": 0.7, "gpt-5": 0.3},
}


def series(since: datetime, until: datetime, step: float, by: str, *, live: int) -> Json:
    """Return `/admin/series`: waves with a burst of errors; `live` requests more in the last point."""
    names = _SHARES.get(by, {"": 1.0})
    rows = [
        {"name": name, "points": _points(since, until, step, share, live)} for name, share in names.items()
    ]
    return {"since": iso(since), "until": iso(until), "step": step, "series": rows}


def _points(since: datetime, until: datetime, step: float, share: float, live: int) -> list[Json]:
    count = max(1, round((until - since).total_seconds() / step))
    found = []
    for n in range(count):
        wave = 1 + 0.25 * math.sin(n / 7 + share * 9) + 0.08 * math.sin(n * 2.3)
        requests = round(10.2 * step * share * wave) + (live if n == count - 1 else 0)
        errors = round(requests * (0.06 if n % 60 in (34, 35, 36) else 0.003))
        sent = requests * 38_000
        point: Json = {"t": iso(since + timedelta(seconds=n * step)), "requests": requests, "errors": errors}
        point |= {
            "input_tokens": sent,
            "output_tokens": requests * 900,
            "cache_read_tokens": round(sent * (0.79 + 0.02 * wave)),
        }
        found.append(
            point
            | {
                "cost": requests * 0.0013,
                "first_byte_p50": 0.56 + 0.08 * wave,
                "first_byte_p95": 1.1 + 0.4 * wave,
            }
        )
    return found


def usage(by: str) -> Json:
    """Return `/admin/usage?by=client` or `?by=model`."""
    counts: dict[str, dict[str, tuple[int, float | None]]] = {
        "client": {
            "laptop-ann": (21408, 31.2),
            "ci-runner": (8115, 9.9),
            "laptop-bo": (4902, 4.3),
            "desk-chen": (2187, 2.1),
            HOSTILE: (312, None),
        },
        "model": {
            "claude-opus-4-8": (19408, 29.2),
            "gpt-5": (8115, 9.9),
            "gemini-3-pro": (4902, 4.3),
            "qwen3-coder": (2187, 2.1),
            "claude-haiku-4-5": (2000, 2.0),
            "glm.glm-4.7": (312, None),
        },
    }
    rows = [
        {by: name, "requests": requests, "errors": 0, "input_tokens": 1, "output_tokens": 1, "cost": cost}
        for name, (requests, cost) in counts[by].items()
    ]
    return {"since": "", "until": "", "by": [by], "rows": rows, "total": {}}


def groups(rows: list[Json]) -> list[Json]:
    """Return requests summed by session and client."""
    found: dict[tuple[str, str], Json] = {}
    for row in rows:
        key = (row["session"], row["client"])
        one = found.setdefault(
            key,
            {
                "session": key[0],
                "client": key[1],
                "requests": 0,
                "errors": 0,
                "input_tokens": 0,
                "output_tokens": 0,
                "cost": 0.0,
                "first": row["time"],
            },
        )
        one["requests"] += 1
        one["errors"] += (row["status"] or 0) >= 400
        one["input_tokens"] += row.get("input_tokens") or 0
        one["output_tokens"] += row.get("output_tokens") or 0
        one["cost"] += row.get("cost") or 0
        one["last"] = row["time"]
    return list(found.values())


def teams(clients: list[Json]) -> Json:
    core = [one["name"] for one in clients if one["team"] == "core"]
    limits: list[Json] = next((one["limits"][-1:] for one in clients if one["limits"]), [])
    return {
        "teams": [
            {"name": "core", "members": core, "limits": limits, "allow": {"providers": ["glm", "claude"]}}
        ]
    }


CONFIG = """[server]
port = 5520

[providers.claude]
preset = "anthropic"
auth = [{ alias = "primary", env = "ANTHROPIC_API_KEY" }, { alias = "backup", env = "ANTHROPIC_BACKUP" }]

[providers.glm]
preset = "glm"
timeout = "fast"

[routes]
coding = ["claude", "glm"]
"""


def config() -> Json:
    """Return `/admin/config`, with an error and a warning."""
    problems = [
        {
            "severity": "error",
            "path": "providers.glm.timeout",
            "line": 10,
            "message": "is not a number",
            "fix": "write timeout = 60",
        },
        {
            "severity": "warning",
            "path": "routes.coding",
            "line": 13,
            "message": f"names {HOSTILE}",
            "fix": "",
        },
    ]
    effective = [
        {"key": "server.port", "value": 5520, "source": "file", "line": 2},
        {"key": "server.host", "value": "127.0.0.1", "source": "default", "line": None},
        {
            "key": "providers.claude.base_url",
            "value": "https://api.anthropic.com",
            "source": "preset",
            "line": None,
        },
        {"key": "logging.level", "value": "info", "source": "env", "line": None},
    ]
    return {
        "path": "config.toml",
        "text": CONFIG,
        "effective": effective,
        "problems": problems,
        "changed": True,
        "changes": [{"key": "server.port", "running": 5520, "file": 5521}],
    }


def routes() -> Json:
    """Return `/admin/routes`."""

    def target(name: str, weight: int, share: float, state: str = "ok") -> Json:
        return {"target": name, "weight": weight, "share": share, "state": state}

    sonnet = target("claude.primary.claude-sonnet-4-5", 3, 0.71)
    backup = target("claude.backup.claude-sonnet-4-5", 1, 0.0, "cooling")
    glm = target("glm.primary.glm-4.7", 1, 0.29)
    gpt = target("openai.key1.gpt-5", 1, 1.0)
    return {
        "routes": [
            {
                "name": "coding",
                "pools": [
                    {"id": "coding-1", "mode": "weighted", "backup": False, "targets": [sonnet, backup, glm]},
                    {"id": "coding-2", "mode": "priority", "backup": True, "targets": [gpt | {"share": 0.0}]},
                ],
            },
            {
                "name": "thinking",
                "pools": [{"id": "thinking-1", "mode": "round_robin", "backup": False, "targets": [gpt]}],
            },
            {
                "name": "default",
                "pools": [
                    {
                        "id": "default-1",
                        "mode": "weighted",
                        "backup": False,
                        "targets": [
                            glm | {"share": 1.0},
                            target("local.key1.qwen3-coder", 1, 0.0, "disabled"),
                        ],
                    }
                ],
            },
        ],
        "classifier": [
            {"route": "thinking", "rule": "the request asks for reasoning"},
            {"route": "coding", "rule": "the last assistant turn wrote files"},
        ],
        "models": [{"pattern": "claude-haiku-*", "to": "glm.glm-4.7"}],
    }


def capture() -> Json:
    """Return a captured request that went to another protocol."""
    asked = {
        "model": "claude-opus-4-8",
        "max_tokens": 1024,
        "stream": True,
        "messages": [{"role": "user", "content": f"Say hello {HOSTILE}"}],
    }
    sent = {
        "model": "glm-4.7",
        "stream": True,
        "messages": [{"role": "user", "content": f"Say hello {HOSTILE}"}],
    }
    frames = [
        {"ms": 388.0 + 41 * n, "data": json.dumps({"choices": [{"delta": {"content": word}}]})}
        for n, word in enumerate(("Hel", "lo", " there", HOSTILE))
    ]
    client = {
        "method": "POST",
        "path": "/v1/messages",
        "headers": {"authorization": "[redacted]", "content-type": "application/json"},
        "body": json.dumps(asked),
        "response": "event: message_start\ndata: {}\n\n",
    }
    return {
        "client": client,
        "upstream": [
            {
                "target": "glm.primary.glm-4.7",
                "headers": {"authorization": "[redacted]"},
                "body": json.dumps(sent),
                "status": 200,
                "frames": frames,
            }
        ],
    }


def play_frames(protocol: str) -> list[str]:
    """Return the frames of a short streamed answer."""
    words = ("Hello ", "from ", HOSTILE)

    def event(name: str, content: Json) -> str:
        return f"event: {name}\ndata: {json.dumps(content)}\n\n"

    def line(content: Json) -> str:
        return f"data: {json.dumps(content)}\n\n"

    if protocol == "messages":
        start = event(
            "content_block_start",
            {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        )
        deltas = [
            event(
                "content_block_delta",
                {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": word}},
            )
            for word in words
        ]
        return [start, *deltas, event("message_stop", {"type": "message_stop"})]
    if protocol == "responses":
        deltas = [
            event("response.output_text.delta", {"type": "response.output_text.delta", "delta": word})
            for word in words
        ]
        return [*deltas, event("response.completed", {"type": "response.completed", "response": {}})]
    if protocol == "gemini":
        return [
            line({"candidates": [{"content": {"role": "model", "parts": [{"text": word}]}}]})
            for word in words
        ]
    return [
        *(line({"choices": [{"index": 0, "delta": {"content": word}}]}) for word in words),
        "data: [DONE]\n\n",
    ]


def write_answer(name: str, body: Json) -> Json:
    """Return the answer of a write that changes nothing else."""
    known: dict[str, Json] = {
        "providers/test": {
            "ok": "backup" not in body.get("target", ""),
            "status": 200,
            "first_byte_ms": 388,
            "total_ms": 702,
            "error": None,
        },
        "explain": plan(),
        "reload": {"reloaded": False, "problems": config()["problems"]},
        "config/check": {"problems": config()["problems"] if "fast" in body.get("text", "") else []},
    }
    return known.get(name, {"done": True})
