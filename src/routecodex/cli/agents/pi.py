"""pi: an extension of ours that registers the gateway as a provider.

`PI_CODING_AGENT_DIR` is not used: it moves login and sessions. The extension is the same for every run:
address, headers and models are in a variable, so that two runs at once do not overwrite each other's file.
"""

from __future__ import annotations

from typing import Any

import msgspec

from routecodex.cli.agents.addresses import SESSION_HEADER, base_url, chosen_session, fits_header
from routecodex.cli.agents.agent import (
    KEY_VARIABLE,
    Agent,
    LaunchPlan,
    LaunchRequest,
    ModelFacts,
    PlannedFile,
)

PROVIDER_VARIABLE = "ROUTECODEX_PI_PROVIDER"
_EXTENSION = f"""\
// Written by `routecodex run pi`: registers the gateway as a provider of pi.
export default function (pi: any) {{
  const provider = JSON.parse(process.env.{PROVIDER_VARIABLE} ?? "null");
  const key = process.env.{KEY_VARIABLE} ?? "";
  if (provider) {{
    // pi 0.73 takes the name of a variable or the key itself, later versions a template with `$`.
    provider.apiKey = /^[\\w.+=-]+$/.test(key) ? key : "${KEY_VARIABLE}";
    pi.registerProvider("routecodex", provider);
  }}
}}
"""
_FREE = {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0}


def _plan(request: LaunchRequest) -> LaunchPlan:
    file = request.folder / "routecodex.ts"
    session = chosen_session(request)
    by_header = fits_header(session)
    provider = {
        "baseUrl": f"{base_url(request, None if by_header else session)}/v1",
        "api": "openai-completions",
        "headers": {SESSION_HEADER: session} if by_header else {},
        "models": [_row(model) for model in request.models],
    }
    return LaunchPlan(
        flags=("-e", str(file), "--provider", "routecodex", "--model", request.model or ""),
        env={KEY_VARIABLE: request.key, PROVIDER_VARIABLE: msgspec.json.encode(provider).decode()},
        files=(PlannedFile(path=file, content=_EXTENSION),),
    )


def _row(model: ModelFacts) -> dict[str, Any]:
    return {
        "id": model.id,
        "name": model.id,
        "reasoning": model.reasoning,
        "input": model.modalities,
        "cost": _FREE,
        "contextWindow": model.context_limit,
        "maxTokens": model.output_limit,
    }


PI = Agent(
    name="pi",
    title="pi",
    executables=("pi",),
    package="@earendil-works/pi-coding-agent",
    install="npm install -g @earendil-works/pi-coding-agent",
    tested="0.73.1",
    other_packages=("@mariozechner/pi-coding-agent",),
    plan=_plan,
)
