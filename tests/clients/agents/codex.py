"""Codex, one prompt per run."""

from __future__ import annotations

import msgspec

from tests.clients.agents.programs import Ended, command, environment, run
from tests.clients.agents.scene import Scene
from tests.kit.answers import Call

NEWER = "gpt-5.6-sol"
"""A name for which Codex declares its tools in an `additional_tools` item."""
_SCRIPT = 'const read = await tools.exec_command({cmd: "cat a.txt"}); text(JSON.stringify(read));'
READ = Call("exec", {"input": _SCRIPT})
"""A call of the tool that newer models have for everything: it runs JavaScript."""


async def codex(scene: Scene, prompt: str, *flags: str, model: str = NEWER, **settings: str) -> Ended:
    """Run a prompt with the gateway as model provider; `settings` are further keys of its configuration."""
    provider = (
        f'{{name="RouteCodex",base_url="{scene.url}/v1",env_key="ROUTECODEX_KEY",wire_api="responses"}}'
    )
    options = {
        "model": msgspec.json.encode(model).decode(),
        "model_provider": '"routecodex"',
        "model_providers.routecodex": provider,
        **settings,
    }
    overrides = [part for name, value in options.items() for part in ("-c", f"{name}={value}")]
    # Codex's own sandbox needs rights that a container may lack.
    free = ("--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "--json")
    argv = [*command("codex"), "exec", *free, *overrides, *flags, prompt]
    return await run(argv, env=environment(scene.home, ROUTECODEX_KEY="any"), cwd=scene.work)


def answers_of(ended: Ended) -> list[str]:
    """Return the texts of the assistant in a run, in order."""
    assert ended.code == 0, ended
    events = [msgspec.json.decode(line) for line in ended.out.splitlines() if line.startswith("{")]
    items = [event["item"] for event in events if event["type"] == "item.completed"]
    return [item["text"] for item in items if item["type"] == "agent_message"]
