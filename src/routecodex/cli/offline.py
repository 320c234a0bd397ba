"""A gateway that is built only to be asked: nothing is sent, kept or remembered."""

from __future__ import annotations

import time
from typing import Any

import msgspec

from routecodex.cli.admin_client import user_dir
from routecodex.config import Config
from routecodex.gateway.ask import ClientRequest
from routecodex.gateway.gateway import Gateway
from routecodex.gateway.ids import fresh_id
from routecodex.protocols.codec import WireRequest
from routecodex.protocols.codecs import CODECS
from routecodex.stores.memory import MemoryStore
from routecodex.wire import json


async def explained(config: Config, question: dict[str, Any]) -> dict[str, Any]:
    """What `/admin/explain` of a fresh server with this configuration would answer."""
    gateway = Gateway(config, store=MemoryStore(), user_dir=user_dir())
    try:
        await gateway.open()
        ask = ClientRequest(
            id=f"req_{fresh_id()}",
            codec=CODECS[question["protocol"]],
            inbound=_inbound(question),
            headers=question["headers"],
            arrived=time.monotonic(),
            created=int(time.time()),
        )
        told: dict[str, Any] = msgspec.to_builtins(await gateway.explain(ask))
        return told
    finally:
        await gateway.close()


def _inbound(question: dict[str, Any]) -> WireRequest:
    codec, body = CODECS[question["protocol"]], json.encode(question["body"])
    if question["protocol"] != "gemini":
        return codec.read(body)
    model = question["path"].rpartition("/models/")[2].rpartition(":")[0]
    return codec.read(body, model=model, stream=False)
