"""Lists of models as providers send them: one page after the other, in the way of each protocol.

chat, responses  GET /models: `data` with `id`; without pages at OpenAI
messages         GET /v1/models: `data` with `id`; the next page follows `last_id` while `has_more`
gemini           GET /v1beta/models: `models` with `name` as `models/NAME`; the next page has a token

Decoding is tolerant: servers that call themselves compatible send a bare array (Together), `models` instead
of `data` (Cohere, Ollama), `null` for an empty list (Ollama), or plain strings. Names that nobody could use
are left out.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import urlencode

from msgspec import Struct

from routecodex.canon.errors import UpstreamError, UpstreamFailed, UpstreamRefusedKey, UpstreamTimeout
from routecodex.canon.model_names import is_model_name
from routecodex.providers.upstream import Upstream
from routecodex.wire import json

MOST_MODELS = 20_000
_MOST_PAGES = 200
_PAGE_BYTES = 32 * 1024 * 1024
_SECONDS = 60.0
_PATHS = {"chat": "/models", "responses": "/models", "messages": "/v1/models", "gemini": "/v1beta/models"}
_PAGE_SIZES = {"messages": {"limit": "1000"}, "gemini": {"pageSize": "1000"}}
_AFTER = {"chat": "after", "responses": "after", "messages": "after_id", "gemini": "pageToken"}
_NAMES = ("id", "model", "name")
_CONTEXTS = (
    *("context_length", "context_window", "max_context_length"),  # OpenRouter and Together, Groq, Mistral
    *("max_model_len", "inputTokenLimit", "max_input_tokens"),  # vLLM, Gemini, Anthropic
)
_OUTPUTS = ("max_completion_tokens", "outputTokenLimit")  # Groq and OpenRouter, Gemini
_LARGEST_SIZE = 2**40
_HTML_PAGE = re.compile(rb"\s*<(?:!doctype|html)", re.IGNORECASE)
_NOT_THERE = frozenset({404, 405, 501})


class ListedModel(Struct, frozen=True, omit_defaults=True, array_like=True):
    """One model of a provider's list, with the sizes that the list states."""

    name: str
    context_tokens: int | None = None
    max_output_tokens: int | None = None


class ListingPage(Struct, frozen=True):
    """One page of a list; `after` is where the next one begins, None at the end."""

    models: tuple[ListedModel, ...]
    after: str | None = None


def decode_page(protocol: str, body: bytes) -> ListingPage:
    """Decode one page; ValueError says why it is not a list of models."""
    if _HTML_PAGE.match(body):
        raise ValueError("it is a page of HTML")
    try:
        page = json.decode_lossy(body)
    except ValueError as exc:
        raise ValueError(f"it is not JSON: {exc}") from exc
    rows = _rows(page)
    models = tuple(_listed(rows))
    if rows and not models:
        raise ValueError("no entry of it has the name of a model")
    return ListingPage(models, _after(protocol, page, rows) if isinstance(page, dict) else None)


def _rows(page: Any) -> list[Any]:
    if isinstance(page, list):
        return page
    fields = page if isinstance(page, dict) else {}
    found = [fields[name] for name in ("data", "models") if name in fields]
    rows = next((value for value in found if isinstance(value, list)), None)
    if rows is None and (not found or any(value is not None for value in found)):
        raise ValueError("it has neither `data` nor `models`")
    return rows or []


def _listed(rows: list[Any]) -> Iterator[ListedModel]:
    for row in rows:
        fields = row if isinstance(row, dict) else {"id": row}
        name = next((fields[key] for key in _NAMES if isinstance(fields.get(key), str)), "")
        name = name.removeprefix("models/")
        if is_model_name(name):
            yield ListedModel(name, _size(fields, _CONTEXTS), _size(fields, _OUTPUTS))


def _size(fields: dict[str, Any], names: tuple[str, ...]) -> int | None:
    nested = fields.get("top_provider")  # OpenRouter: the limits of the host that it would choose
    tables = (nested, fields) if isinstance(nested, dict) else (fields,)
    sizes = (table.get(name) for table in tables for name in names)
    return next((size for size in sizes if type(size) is int and 0 < size < _LARGEST_SIZE), None)


def _after(protocol: str, page: dict[str, Any], rows: list[Any]) -> str | None:
    if protocol == "gemini":
        token = page.get("nextPageToken")
        return token if isinstance(token, str) and token else None
    if page.get("has_more") is not True or not rows:
        return None
    last = page.get("last_id") or (rows[-1].get("id") if isinstance(rows[-1], dict) else None)
    return last if isinstance(last, str) else None


async def list_models(
    upstreams: Sequence[Upstream], keys: Sequence[str], *, seconds: float = _SECONDS
) -> tuple[ListedModel, ...]:
    """Return the models that a provider lists; UpstreamError if it cannot or does not want to.

    `upstreams` are its addresses: one without a list is passed over, because some have it at the address of
    another protocol only. A key that is refused is passed over too.
    """
    error: UpstreamError | None = None
    for upstream in upstreams:
        for key in keys:
            try:
                async with asyncio.timeout(seconds):
                    return await _all_pages(upstream, key)
            except UpstreamRefusedKey as exc:
                error = exc
                continue
            except TimeoutError:
                error = UpstreamTimeout(f"provider {upstream.name!r} sent no list within {seconds:g} s")
                break
            except UpstreamError as exc:
                error = exc
                break
        if not _lacks_list(error):
            break
    assert error is not None
    raise error.detached()


def _lacks_list(error: UpstreamError | None) -> bool:
    """Return whether the address has no list: it is not there, or something else is."""
    return isinstance(error, NotAListing) or (error is not None and error.upstream_status in _NOT_THERE)


class NotAListing(UpstreamFailed):
    """A response that is not a list of models."""


async def _all_pages(upstream: Upstream, key: str) -> tuple[ListedModel, ...]:
    protocol = upstream.codec.name
    models: dict[str, ListedModel] = {}
    after: str | None = None
    for _ in range(_MOST_PAGES):
        query = dict(_PAGE_SIZES.get(protocol, {}))
        if after is not None:
            query[_AFTER[protocol]] = after
        path = _PATHS[protocol] + (f"?{urlencode(query)}" if query else "")
        body = await upstream.get(path, key=key, limit=_PAGE_BYTES)
        try:
            page = decode_page(protocol, body)
        except ValueError as exc:
            raise NotAListing(
                f"provider {upstream.name!r} did not send a list of models: {exc}", provider=upstream.name
            ) from exc
        before = len(models)
        for model in page.models:
            models.setdefault(model.name, model)
        # A server that ignores the parameters of pages sends the first one again and again.
        if page.after is None or len(models) == before or len(models) >= MOST_MODELS:
            break
        after = page.after
    return tuple(models.values())[:MOST_MODELS]
