"""Checks the keys of providers with one tiny request each, sent as the gateway would send it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping

from msgspec import Struct
from msgspec.structs import replace

from routecodex.canon.errors import (
    GatewayError,
    LocalFault,
    UpstreamFailed,
    UpstreamRefusedKey,
    UpstreamTimeout,
)
from routecodex.canon.parts import Text
from routecodex.canon.request import Message, Request
from routecodex.canon.response import fold
from routecodex.config import Config, TimeoutConfig
from routecodex.gateway.answer.event_stream import response_batches
from routecodex.gateway.answer.prepared_target import PreparedTarget
from routecodex.gateway.build import registry, upstreams
from routecodex.gateway.state.signature_owners import SignatureOwners
from routecodex.providers.http import HttpClient
from routecodex.routing.registry import Target

_SECONDS = 20.0
_TIMEOUTS = TimeoutConfig(connect_ms=5000, first_byte_ms=20_000, idle_ms=20_000)
_PROMPT = "Reply with OK."
_MAX_TOKENS = 16
"""The least that OpenAI's Responses API accepts as `max_output_tokens`."""


class KeyCheck(Struct, frozen=True, kw_only=True):
    """The result of one request: the time it took, and the error if there was no answer."""

    target: Target
    seconds: float
    error: GatewayError | None = None

    @property
    def is_refused(self) -> bool:
        """Whether the provider refused the key, which will not pass by itself."""
        return isinstance(self.error, UpstreamRefusedKey)

    @property
    def is_unreachable(self) -> bool:
        """Whether no provider was reached that could judge the key."""
        return isinstance(self.error, UpstreamTimeout | LocalFault) or (
            isinstance(self.error, UpstreamFailed) and self.error.upstream_status is None
        )


def check_keys(config: Config, models: Mapping[str, str], *, environ: Mapping[str, str]) -> list[KeyCheck]:
    """Send one request per key of the providers in `models`, all at the same time, each to that model."""
    return asyncio.run(try_keys(config, models, environ=environ))


async def try_keys(
    config: Config, models: Mapping[str, str], *, environ: Mapping[str, str]
) -> list[KeyCheck]:
    """Do the same inside a running event loop."""
    rows = {name: replace(config.providers[name], timeout=_TIMEOUTS) for name in models}
    targets = [Target(name, key.alias, models[name]) for name, row in rows.items() for key in row.keys]
    client = HttpClient()

    def prepare(target: Target) -> PreparedTarget:
        alone = replace(config, providers={target.provider: rows[target.provider]})
        upstream = upstreams(alone, client, environ)[target.provider]
        return PreparedTarget(target, upstream, registry(alone).model(target), SignatureOwners())

    try:
        return list(await asyncio.gather(*(_check(target, prepare) for target in targets)))
    finally:
        await client.close()


async def _check(target: Target, prepare: Callable[[Target], PreparedTarget]) -> KeyCheck:
    started = time.monotonic()
    error: GatewayError | None = None
    try:
        async with asyncio.timeout(_SECONDS):
            await _ask(prepare(target))
    except TimeoutError:
        error = UpstreamTimeout(f"no answer within {_SECONDS:g} s")
    except GatewayError as exc:
        error = exc.detached()
    return KeyCheck(target=target, seconds=time.monotonic() - started, error=error)


async def _ask(prepared: PreparedTarget) -> None:
    """Read the whole answer; an answer without text is one, since thinking may use up the few tokens."""
    text = Message("user", (Text(_PROMPT),))
    request = Request(model="", source=prepared.codec.name, messages=(text,), max_tokens=_MAX_TOKENS)
    encoded = prepared.codec.encode_request(request, prepared.options)
    response = await prepared.send(encoded.body, stream=False, headers=None)
    fold([event async for batch in response_batches(response, prepared) for event in batch])
