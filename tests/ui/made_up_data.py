"""Made-up data of a gateway in the shapes of the admin API, with hostile texts among them."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import Any

HOSTILE = "<img src=x onerror=alert(1)>"
RTL = "שלום\u202e gnol"
LONG = "model-" + "x" * 180

Json = dict[str, Any]

_TARGETS = (
    ("claude.primary.claude-sonnet-4-5", "claude-opus-4-8", "coding"),
    ("glm.primary.glm-4.7", "claude-haiku-4-5", "background"),
    ("openai.key1.gpt-5", "gpt-5", "thinking"),
    ("claude.primary.claude-sonnet-4-5", "gemini-3-pro", "search"),
    ("glm.primary.glm-4.7", "glm.glm-4.7", "direct"),
)
_CLIENTS = ("laptop-ann", "ci-runner", "laptop-bo", "desk-chen", "reports")
_SESSIONS = (
    "7f3c02d4-58c1-4d0e-9a1f-2b6a7c4e91ab",
    "ses_22dc81f0bffeEm9MMgmvxdj4f3",
    "conv_0b17a2",
    "b4107be1-0f0d",
)


def iso(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def request_row(number: int, at: datetime, *, active: bool = False) -> Json:
    """Return a row of `/admin/requests`; every number gives the same row."""
    chance = random.Random(number)
    target, model, route = _TARGETS[number % len(_TARGETS)]
    row: Json = {
        "time": iso(at),
        "request": f"req_{number:016x}",
        "protocol": ("messages", "responses", "chat", "gemini")[number % 4],
        "model": LONG if number % 97 == 5 else model,
        "stream": True,
        "client": HOSTILE if number % 41 == 7 else _CLIENTS[number % len(_CLIENTS)],
        "team": "core",
        "session": _SESSIONS[number % len(_SESSIONS)],
        "role": "subagent" if number % 9 == 3 else "main",
        "agent": "Explore" if number % 9 == 3 else "",
        "route": route,
        "target": target,
        "reason": f"class {route}: the last assistant turn wrote files",
        "attempts": 1,
        "rounds": 1,
    }
    if active:
        return row | {"status": None, "first_byte": 0.64, "input_tokens": 84210}
    status = 429 if number % 23 == 9 else 502 if number % 31 == 19 else 403 if number % 47 == 11 else 200
    row |= {
        "status": status,
        "seconds": round(chance.uniform(0.8, 9.5), 3),
        "finish": "stop" if number % 3 else "tool_calls",
    }
    if status == 200:
        sent, got = chance.randint(900, 90_000), chance.randint(60, 2400)
        row |= {
            "first_byte": round(chance.uniform(0.25, 0.98), 3),
            "input_tokens": sent,
            "output_tokens": got,
            "cache_read_tokens": int(sent * 0.8),
            "cost": None if number % 29 == 3 else round(sent * 2.2e-7 + got * 3e-6, 6),
            "cost_kind": "reported",
        }
    else:
        row |= {
            "error": f"provider 'claude' answered HTTP {status}: {HOSTILE}",
            "code": "upstream",
            "finish": "",
        }
    return row


def plan() -> Json:
    """Return a plan as `/admin/explain` gives it."""
    return {
        "route": "direct",
        "reason": "sticky glm.glm-4.7, set in the chat; overrides the coding pool",
        "class": {"route": "coding", "reason": "the last assistant turn wrote files (apply_patch)"},
        "role": "main",
        "model": "claude-opus-4-8",
        "tokens": 83920,
        "session": _SESSIONS[0],
        "steps": [
            {
                "target": "glm.primary.glm-4.7",
                "reason": "session affinity, prompt cache warm (82 k tokens)",
                "route": "direct",
            },
            {"target": "openai.key1.gpt-5", "reason": "backup pool of coding", "route": "coding"},
        ],
        "removed": [{"target": "glm.backup.glm-4.7", "reason": "key refused: HTTP 401, invalid api key"}],
        "cooling": [
            {
                "target": "claude.backup.claude-sonnet-4-5",
                "until": 0,
                "seconds": 40.2,
                "reason": "after HTTP 429",
            }
        ],
        "clears_sticky": False,
        "notices": [],
    }


def request_detail(row: Json) -> Json:
    """Return the detail of a row: plan, calls, usage, notices."""
    end = (row.get("seconds") or 2.1) * 1000
    calls: list[Json] = [
        {
            "n": 1,
            "kind": "attempt",
            "target": "claude.backup.claude-sonnet-4-5",
            "status": 429,
            "error": f"HTTP 429: slow down {HOSTILE}",
            "start_ms": 12,
            "first_byte_ms": None,
            "end_ms": 190,
            "input_tokens": None,
            "output_tokens": None,
            "cost": None,
        },
        {
            "n": 2,
            "kind": "round",
            "target": row["target"],
            "status": 200,
            "error": None,
            "start_ms": 190,
            "first_byte_ms": 820,
            "end_ms": end * 0.6,
            "input_tokens": 83920,
            "output_tokens": 700,
            "cost": 0.011,
        },
        {
            "n": 3,
            "kind": "round",
            "target": row["target"],
            "status": 200,
            "error": None,
            "start_ms": end * 0.64,
            "first_byte_ms": end * 0.7,
            "end_ms": end,
            "input_tokens": 84800,
            "output_tokens": 504,
            "cost": 0.0077,
        },
    ]
    usage = [
        {"part": "input", "tokens": 1744, "price": 0.6, "cost": 0.0010},
        {"part": "cache_read", "tokens": 82176, "price": 0.11, "cost": 0.0090},
        {"part": "cache_write", "tokens": 0, "price": None, "cost": 0.0},
        {"part": "output", "tokens": 1204, "price": 2.2, "cost": 0.0026},
        {"part": "reasoning", "tokens": 2760, "price": 2.2, "cost": 0.0061},
    ]
    notices = ["messages → chat: context_management has no counterpart and was left out"]
    return row | {
        "attempts": 2,
        "rounds": 2,
        "plan": plan(),
        "calls": calls,
        "usage": usage,
        "notices": notices,
        "captured": True,
    }


def providers(now: datetime) -> list[Json]:
    """Return the rows of `/admin/providers`."""

    def key(name: str, state: str, requests: int, errors: int, **more: Any) -> Json:
        known = {
            "name": name,
            "state": state,
            "until": None,
            "reason": "",
            "error": "",
            "status": None,
            "disabled_by": None,
        }
        return (
            known
            | {
                "requests": requests,
                "errors": errors,
                "first_byte_p50": 0.61,
                "cost": requests * 0.0017,
                "quota": [],
            }
            | more
        )

    def quota(kind: str, left: float) -> Json:
        return {
            "kind": kind,
            "limit": 1000,
            "remaining": int(1000 * left),
            "resets_at": iso(now + timedelta(minutes=12)),
        }

    cooling = {"until": iso(now + timedelta(seconds=41)), "status": 429, "reason": "after HTTP 429"}
    refused = {
        "error": "HTTP 401: invalid api key; check GLM_API_KEY",
        "status": 401,
        "first_byte_p50": None,
        "cost": None,
    }
    return [
        {
            "name": "claude",
            "protocol": "messages",
            "models": ["claude-sonnet-4-5", "claude-opus-4-8"],
            "keys": [
                key(
                    "claude.primary", "ok", 18204, 18, quota=[quota("requests", 0.71), quota("tokens", 0.83)]
                ),
                key("claude.backup", "cooling", 2911, 66, quota=[quota("requests", 0.04)], **cooling),
            ],
        },
        {
            "name": "glm",
            "protocol": "chat",
            "models": ["glm-4.7"],
            "keys": [
                key("glm.primary", "ok", 9477, 38, quota=[quota("tokens", 0.52)]),
                key("glm.backup", "out", 0, 0, **refused),
            ],
        },
        {
            "name": "openai",
            "protocol": "responses",
            "models": ["gpt-5"],
            "keys": [key("openai.key1", "ok", 6020, 12, quota=[quota("tokens", 0.88)])],
        },
        {
            "name": "local",
            "protocol": "chat",
            "models": ["qwen3-coder"],
            "keys": [key("local.key1", "disabled", 312, 0, disabled_by="operator", cost=0)],
        },
    ]


def sessions(now: datetime) -> list[Json]:
    """Return the rows of `/admin/sessions`."""

    def row(name: str, client: str, seconds: int, requests: int, cost: float | None, **more: Any) -> Json:
        known: Json = {
            "id": name,
            "client": client,
            "force": None,
            "sticky": None,
            "allow": [],
            "disable": [],
            "stop_message": None,
            "tasks": [],
        }
        return (
            known
            | {
                "requests": requests,
                "cost": cost,
                "last_at": iso(now - timedelta(seconds=seconds)),
                "cache_hit_rate": 0.84,
            }
            | more
        )

    def stop(used: int) -> Json:
        text = "Carry out the pending tasks now; run the tests before you stop."
        return {"text": text, "max_repeats": 10, "used": used, "updated_at": None, "last_used_at": None}

    def task(name: str, minutes: int, text: str) -> Json:
        return {"taskId": name, "dueAt": iso(now + timedelta(minutes=minutes)), "task": text}

    return [
        row(
            _SESSIONS[0],
            "laptop-ann",
            2,
            148,
            2.84,
            sticky="glm.glm-4.7",
            stop_message=stop(4),
            tasks=[task("task_1", 13, "check the nightly build and report")],
        ),
        row(_SESSIONS[1], "ci-runner", 3, 61, 1.12, stop_message=stop(9)),
        row(_SESSIONS[2], "laptop-bo", 8, 40, 0.77, disable=["claude.backup"], allow=["claude", "glm"]),
        row(
            _SESSIONS[3],
            "laptop-ann",
            24,
            203,
            9.31,
            sticky="claude.primary.claude-sonnet-4-5",
            tasks=[task("task_2", 200, "review")],
        ),
        row("ses_9e0fa7", "desk-chen", 31, 12, 0.06, disable=["local"]),
        row(f"tag 42 {HOSTILE}", RTL, 3900, 3, None, sticky="glm.primary.glm-4.7"),
    ]


def turns(now: datetime) -> list[Json]:
    """Return the turns of a session, with sub-agents, server tools and a failure."""
    start = now - timedelta(minutes=30)

    def turn(
        n: int,
        at: float,
        minutes: float,
        agent: str = "",
        rounds: int = 1,
        tools: tuple[str, ...] = (),
        status: int = 200,
    ) -> Json:
        begin = start + timedelta(minutes=at)
        role = "subagent" if agent else "main"
        return {
            "request": f"req_{n:016x}",
            "agent": agent,
            "role": role,
            "start": iso(begin),
            "end": iso(begin + timedelta(minutes=minutes)),
            "rounds": rounds,
            "tools": [*tools],
            "status": status,
        }

    return [
        turn(1, 0.4, 2.8, rounds=5),
        turn(2, 4.1, 5.5, rounds=9, tools=("web_search",)),
        turn(3, 5, 3.2, "Explore", 6),
        turn(4, 12, 1.1, rounds=2, status=502),
        turn(5, 15.4, 6.3, rounds=8, tools=("clock", "web_search")),
        turn(6, 16.2, 2.8, "Explore", 4),
        turn(7, 24.5, 5.1, rounds=6, tools=("clock",)),
        turn(8, 25.2, 2.8, "Plan", 3),
    ]


def clients(now: datetime) -> list[Json]:
    """Return the rows of `/admin/clients`."""

    def limit(text: str, owner: str, most: float, used: float, unit: str = "usd") -> Json:
        return {
            "limit": text,
            "owner": owner,
            "unit": unit,
            "max": most,
            "used": used,
            "reserved": 0,
            "remaining": most - used,
            "resets_at": iso(now + timedelta(hours=7)),
            "mode": "enforce",
            "models": None,
        }

    def row(name: str, source: str, limits: list[Json], **more: Any) -> Json:
        keys = [{"prefix": "rcx-4f2a", "created_at": iso(now - timedelta(days=12)), "expires_at": None}]
        known: Json = {
            "name": name,
            "team": "core",
            "source": source,
            "keys": keys,
            "created_at": iso(now - timedelta(days=12)),
            "expires_at": None,
        }
        known |= {
            "last_used_at": iso(now - timedelta(seconds=4)),
            "blocked": False,
            "allow": {"providers": ["*"], "models": ["*"], "routes": ["*"]},
        }
        return (
            known
            | {
                "instructions": "all",
                "role": "",
                "mcp": ["*"],
                "concurrent": 8,
                "in_flight": 2,
                "limits": limits,
            }
            | more
        )

    team = limit("$200/month", "team:core", 200, 81.4)
    return [
        row("laptop-ann", "store", [limit("$20/day", "client:laptop-ann", 20, 17.2), team], role="operator"),
        row("ci-runner", "file", [limit("60 requests/60s", "client:ci-runner", 60, 12, "requests"), team]),
        row("laptop-bo", "store", [team], blocked=True),
        row(HOSTILE[:10], "store", [], team=""),
    ]
