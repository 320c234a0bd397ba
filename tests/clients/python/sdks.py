"""The official Python SDKs, one client per gateway and key because creating one is slower than a request."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import anthropic
import openai
from google import genai
from google.genai import types

TIMEOUT = 20.0


def _openai(url: str, key: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0, timeout=TIMEOUT)


def _anthropic(url: str, key: str) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=url, api_key=key, max_retries=0, timeout=TIMEOUT)


def _google(url: str, key: str) -> genai.Client:
    options = types.HttpOptions(base_url=url, timeout=int(TIMEOUT * 1000))
    return genai.Client(api_key=key, http_options=options)


_FACTORIES: dict[type[Any], Callable[[str, str], Any]] = {
    openai.OpenAI: _openai,
    anthropic.Anthropic: _anthropic,
    genai.Client: _google,
}


class Sdks:
    """SDK clients, cached until the end of the run."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._clients: dict[tuple[type[Any], str, str], Any] = {}

    def __enter__(self) -> Sdks:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _get(self, kind: type[Any], url: str, key: str) -> Any:
        client = self._clients.get((kind, url, key))
        if client is None:
            client = self._clients[kind, url, key] = self._stack.enter_context(_FACTORIES[kind](url, key))
        return client

    def openai(self, url: str, key: str = "any") -> openai.OpenAI:
        client: openai.OpenAI = self._get(openai.OpenAI, url, key)
        return client

    def anthropic(self, url: str, key: str = "any") -> anthropic.Anthropic:
        client: anthropic.Anthropic = self._get(anthropic.Anthropic, url, key)
        return client

    def google(self, url: str, key: str = "any") -> genai.Client:
        client: genai.Client = self._get(genai.Client, url, key)
        return client
