"""Requests that the demo sends to itself, so that the console has something to show.

Three clients send one request at a time, about one a second each, over all protocols, in sessions, with some
errors. It ends with the demo.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPException
from itertools import cycle
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from routecodex.config import ClientConfig, Config, TeamConfig, key_digest
from routecodex.wire import json

CLIENTS: Final = {"laptop": "core", "ci": "core", "notebook": ""}
"""Clients of the traffic, each with its team."""

_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.7, 1.4
_TIMEOUT = 30.0


class TrafficRequest(Struct, frozen=True, kw_only=True):
    """One request of the script."""

    protocol: str
    text: str
    model: str = "auto"
    stream: bool = True


SCRIPT: Final = (
    TrafficRequest(
        protocol="messages", text="Refactor the parser. demo:slow 1 demo:long 120", model="claude-sonnet"
    ),
    TrafficRequest(protocol="chat", text="What does this function do?"),
    TrafficRequest(protocol="responses", text="Plan the migration. demo:think demo:long 80", model="gpt-5"),
    TrafficRequest(protocol="gemini", text="Describe the layout. demo:long 60", model="gemini-pro"),
    TrafficRequest(protocol="chat", text="Give me one word.", stream=False),
    TrafficRequest(protocol="messages", text="Summarise the thread.", model="claude-haiku", stream=False),
    TrafficRequest(protocol="chat", text="demo:error 429", model="demo.demo-coder"),
    TrafficRequest(
        protocol="responses", text="Write a test for it. demo:slow 2 demo:long 200", model="gpt-5"
    ),
    TrafficRequest(protocol="messages", text="Explain the error. demo:long 40", model="claude-sonnet"),
    TrafficRequest(protocol="chat", text="demo:error 400", model="spare.spare-small", stream=False),
    TrafficRequest(protocol="gemini", text="Translate this sentence.", model="gemini-pro", stream=False),
    TrafficRequest(protocol="chat", text="demo:cutoff"),
)


def with_clients(config: Config) -> Config:
    """Return the configuration with the clients of the traffic; requests without a key stay allowed."""
    clients = {name: ClientConfig(key_sha256=_digest(name), team=team) for name, team in CLIENTS.items()}
    return replace(config, clients={**clients, "anonymous": ClientConfig()}, teams={"core": TeamConfig()})


def start_traffic(host: str, port: int) -> None:
    """Start to send requests, until the process ends or the gateway stops answering."""
    for number, client in enumerate(CLIENTS):
        sender = threading.Thread(
            target=_send_all, args=(host, port, client, number), name=f"traffic-{client}", daemon=True
        )
        sender.start()


def request_of(one: TrafficRequest) -> tuple[str, dict[str, Any]]:
    """Return path and body of a request."""
    if one.protocol == "gemini":
        verb = "streamGenerateContent?alt=sse" if one.stream else "generateContent"
        return f"/v1beta/models/{one.model}:{verb}", {
            "contents": [{"role": "user", "parts": [{"text": one.text}]}]
        }
    body: dict[str, Any] = {"model": one.model, "stream": one.stream}
    if one.protocol == "responses":
        return "/v1/responses", {**body, "input": one.text}
    body["messages"] = [{"role": "user", "content": one.text}]
    if one.protocol == "messages":
        return "/v1/messages", {**body, "max_tokens": 2000}
    return "/v1/chat/completions", body


def _send_all(host: str, port: int, client: str, number: int) -> None:
    wait = threading.Event()
    pauses = random.Random(number)  # noqa: S311  # the rhythm of a demo
    for count, one in enumerate(_script(number)):
        # A conversation has some turns, then another one begins.
        session = f"{client}-{count // 5 % 4 + 1}"
        if not _send(host, port, one, key=_key(client), session=session):
            return
        wait.wait(pauses.uniform(_SHORTEST_PAUSE, _LONGEST_PAUSE))


def _script(number: int) -> Iterator[TrafficRequest]:
    """Yield the requests of a client without end; each begins at another place of the script."""
    at = number * 4 % len(SCRIPT)
    return cycle((*SCRIPT[at:], *SCRIPT[:at]))


def _send(host: str, port: int, one: TrafficRequest, *, key: str, session: str) -> bool:
    """Send a request and read its answer; return whether there still is a gateway."""
    path, body = request_of(one)
    headers = {"content-type": "application/json", "authorization": f"Bearer {key}", "x-session-id": session}
    connection = HTTPConnection(host, port, timeout=_TIMEOUT)
    try:
        connection.request("POST", path, json.encode(body), headers)
        connection.getresponse().read()
    except (HTTPException, TimeoutError):
        # An answer that was cut off is part of the script.
        return True
    except OSError:
        return False
    finally:
        connection.close()
    return True


def _key(client: str) -> str:
    return f"demo-{client}"


def _digest(client: str) -> str:
    return key_digest(_key(client))
