"""Web pages in a real Chromium, against a real gateway: foreign pages reach nothing, allowed ones stream."""

from __future__ import annotations

import msgspec
import pytest

from tests.kit import answers, asking
from tests.kit.browser import Page, run_in_page
from tests.kit.gateway import one_target, serving
from tests.kit.upstream import Upstream

PROTOCOLS = ("chat", "responses", "messages", "gemini")
PATHS = {protocol: asking.path(protocol, stream=False) for protocol in PROTOCOLS}

ATTACKS = """
const gateway = "{gateway}";
const bodies = {bodies};
const settled = async (promise) => {{
  try {{ const answer = await promise; return answer.type === "opaque" ? "opaque" : answer.status; }}
  catch (error) {{ return error.name; }}
}};
const submit = (path, body, enctype) => new Promise((resolve) => {{
  const frame = document.createElement("iframe");
  frame.name = "frame" + Math.random();
  document.body.append(frame);
  const form = document.createElement("form");
  Object.assign(form, {{action: gateway + path, method: "POST", enctype, target: frame.name}});
  const field = document.createElement("input");
  field.name = body.slice(0, -1) + ',"x":"';
  field.value = '"}}';
  form.append(field);
  document.body.append(form);
  frame.addEventListener("load", () => resolve("sent"), {{once: true}});
  form.submit();
}});
const found = {{}};
for (const [path, body] of Object.entries(bodies)) {{
  found[path] = [
    await settled(fetch(gateway + path, {{method: "POST", mode: "no-cors", body}})),
    await settled(fetch(gateway + path, {{method: "POST", mode: "no-cors", body: new Blob([body])}})),
    await settled(fetch(gateway + path, {{method: "POST", body}})),
    await settled(fetch(gateway + path, {{
      method: "POST", headers: {{"content-type": "application/json", authorization: "Bearer x"}}, body,
    }})),
    navigator.sendBeacon(gateway + path, body),
    await submit(path, body, "text/plain"),
    await submit(path, body, "application/x-www-form-urlencoded"),
  ];
}}
found.models = await settled(fetch(gateway + "/v1/models"));
return found;
"""
BLOCKED = ["opaque", "opaque", "TypeError", "TypeError", True, "sent", "sent"]


def literal(value: object) -> str:
    """Return the value as a literal of JavaScript."""
    return msgspec.json.encode(value).decode()


def sent(protocol: str, *, stream: bool = False) -> str:
    text = '<**stopMessage:"go on",100000**> hi' if not stream else "hi"
    return literal(asking.body(protocol, text, stream=stream))


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
async def test_no_page_of_another_origin_causes_a_call(host: str) -> None:
    """`127.0.0.1` with another port is the same site, but another origin."""
    async with Upstream(lambda _: answers.text("chat", "hi", False)) as up:
        async with serving(one_target("chat", up)) as gateway:
            bodies = literal({PATHS[protocol]: sent(protocol) for protocol in PROTOCOLS})
            script = ATTACKS.format(gateway=gateway.url, bodies=bodies)
            found = await run_in_page(script, host=host)
        assert up.requests == []
    assert found == {**dict.fromkeys(PATHS.values(), BLOCKED), "models": "TypeError"}


STREAM = """
const answer = await fetch("{gateway}/v1/chat/completions", {{
  method: "POST",
  headers: {{"content-type": "application/json", authorization: "Bearer k", "x-stainless-os": "Linux"}},
  body: {body},
}});
const text = [];
const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
for (let piece; !(piece = await reader.read()).done;) text.push(piece.value);
const refused = await fetch("{gateway}/v1/chat/completions", {{
  method: "POST", headers: {{"content-type": "application/json"}}, body: {body},
}});
return {{
  status: answer.status,
  target: answer.headers.get("x-routecodex-target"),
  id: answer.headers.get("x-request-id").slice(0, 4),
  ends: text.join("").trimEnd().endsWith("[DONE]"),
  refused: [refused.status, (await refused.json()).code],
}};
"""


async def test_an_allowed_page_streams_and_reads_headers_and_errors() -> None:
    async with (
        Upstream(lambda _: answers.text("chat", "hi", True)) as up,
        Page("localhost").served() as page,
    ):
        keys = f'client_keys = [{{ name = "page", key = "k" }}]\nallowed_origins = ["{page.origin}"]'
        async with serving(one_target("chat", up, server=keys)) as gateway:
            body = literal(sent("chat", stream=True))
            found = await page.run(STREAM.format(gateway=gateway.url, body=body))
        assert len(up.requests) == 1
    assert found == {
        "status": 200,
        "target": "up.primary.m",
        "id": "req_",
        "ends": True,
        "refused": [401, "invalid_api_key"],
    }
