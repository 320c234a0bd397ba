"""Gemini CLI, one prompt per run, with the gateway as Google."""

from __future__ import annotations

from typing import Any

import msgspec

from tests.clients.agents.programs import Ended, command, environment, run
from tests.clients.agents.scene import Scene

# A base URL makes it infer the sign-in method `gateway`, which it then refuses without a terminal (exit 41).
_SETTINGS = {
    "security": {"auth": {"selectedType": "gemini-api-key"}},
    "privacy": {"usageStatisticsEnabled": False},
}


async def gemini_cli(scene: Scene, prompt: str, *flags: str, **settings: Any) -> Ended:
    """Run a prompt; `settings` are further keys of its settings file."""
    env = environment(scene.home, GOOGLE_GEMINI_BASE_URL=scene.url, GEMINI_API_KEY="any")
    folder = scene.home / ".gemini"
    folder.mkdir(exist_ok=True)
    (folder / "settings.json").write_bytes(msgspec.json.encode(_SETTINGS | settings))
    argv = [*command("gemini"), "--skip-trust", "--approval-mode", "yolo", *flags, "-p", prompt]
    return await run(argv, env=env, cwd=scene.work)
