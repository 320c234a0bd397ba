"""opencode, one prompt per run, with the gateway as its provider."""

from __future__ import annotations

from typing import Any

import msgspec

from tests.clients.agents.programs import Ended, command, environment, run
from tests.clients.agents.scene import Scene

PROVIDERS = {
    "chat": "@ai-sdk/openai-compatible",
    "responses": "@ai-sdk/openai",
    "messages": "@ai-sdk/anthropic",
}
"""opencode's packages by the protocol that they speak."""


def configuration(scene: Scene, *, speaks: str, context: int) -> dict[str, Any]:
    """Return opencode's configuration, as docs/clients.md shows it."""
    model = {"name": "RouteCodex", "tool_call": True, "limit": {"context": context, "output": 8000}}
    options = {"baseURL": f"{scene.url}/v1", "apiKey": "any"}
    row = {"npm": PROVIDERS[speaks], "name": "RouteCodex", "options": options, "models": {"any": model}}
    return {"provider": {"routecodex": row}, "model": "routecodex/any", "small_model": "routecodex/any"}


async def opencode(
    scene: Scene, prompt: str, *flags: str, speaks: str = "chat", context: int = 200_000
) -> Ended:
    """Run a prompt."""
    content = msgspec.json.encode(configuration(scene, speaks=speaks, context=context)).decode()
    env = environment(
        scene.home,
        OPENCODE_CONFIG_CONTENT=content,
        OPENCODE_DISABLE_AUTOUPDATE="1",
        OPENCODE_DISABLE_MODELS_FETCH="1",
    )
    return await run([*command("opencode"), "run", *flags, prompt], env=env, cwd=scene.work)
