"""No secret is written to a capture, whoever sent it and wherever it stands."""

from __future__ import annotations

import base64
from pathlib import Path
from urllib.parse import quote

import pytest

from routecodex.gateway.capture import CaptureBudget, RequestCapture
from routecodex.server.capture_document import document_of
from routecodex.server.capture_redaction import (
    CaptureRedactor,
    is_credential,
    redact_header,
    redact_target,
)
from tests.kit import answers, asking
from tests.kit.gateway import provider
from tests.kit.raw_client import call
from tests.kit.steps import Json, Sse
from tests.kit.upstream import Request, Upstream
from tests.server.captured import TOKEN, capture_of, capturing, config, files

CLIENT = "sk-client-0123456789"
PROVIDER = "sk-provider/9876+543=21"
OTHER = "sk-other-1111222233"
HEADER = "gateway-credential-xyz"
QUERY = "query-credential-abc"
COOKIE = "cookie-value-55555"
REMOTE = "mcp-server-password-1"
SECRETS = (CLIENT, PROVIDER, OTHER, HEADER, QUERY, COOKIE, REMOTE, TOKEN)


def spellings(secret: str) -> list[str]:
    return [
        secret,
        quote(secret, safe=""),
        secret.replace("/", "\\/"),
        base64.b64encode(secret.encode()).decode(),
    ]


def echo(request: Request) -> Json:
    """Answer as a debugging proxy does: with the headers and the body that came."""
    lines = "\n".join(f"{name}: {value}" for name, value in request.headers.items())
    text = f"{lines}\n{request.path}\n{request.body.decode()}"
    reply = answers.text("chat", text.replace("/", "\\/") + text, False)
    assert isinstance(reply, Json)
    return reply


async def test_no_file_holds_a_secret_of_client_provider_or_operator(tmp_path: Path) -> None:
    async with Upstream(echo) as up:
        rows = provider("up", "chat", up).replace("secret-up", PROVIDER)
        more = f'headers = {{ x-gateway-token = "{HEADER}" }}\n'
        more += f'query = {{ api-version = "1", sig_key = "{QUERY}" }}\n'
        rows = rows.replace("[providers.up.models.m]", f"{more}[providers.up.models.m]")
        other = provider("other", "chat", up).replace("secret-other", OTHER)
        keys = f'client_keys = [{{ name = "laptop", key = "{CLIENT}" }}]'
        async with capturing(tmp_path, config(rows, other, server=keys)) as running:
            body = asking.body("chat", f"my keys: {' '.join(SECRETS)}", stream=False, model="up.m")
            body["tools"] = [
                {"type": "function", "function": {"name": "f"}, "authorization": REMOTE},
            ]
            answer = await call(
                running.port,
                f"/v1/chat/completions?key={CLIENT}&access_token={COOKIE}&beta=true",
                body,
                headers={
                    "authorization": f"Bearer {CLIENT}",
                    "cookie": f"session={COOKIE}; theme=dark",
                    "x-api-key": CLIENT,
                    "x-remote-token": REMOTE,
                },
            )
            assert answer.status == 200, answer.body
            found = await capture_of(running, answer)
        assert HEADER in up.requests[0].headers["x-gateway-token"]
        assert quote(QUERY) in up.requests[0].path
    stored = b"".join(path.read_bytes() for path in files(tmp_path)).decode()
    assert stored
    assert [text for secret in SECRETS for text in spellings(secret) if text in stored] == []
    client, (attempt,) = found["client"], found["upstream"]
    assert client["headers"]["authorization"] == "Bearer ***"
    assert (client["headers"]["cookie"], client["headers"]["x-api-key"]) == ("***", "***")
    assert client["path"] == "/v1/chat/completions?key=***&access_token=***&beta=true"
    assert attempt["headers"]["authorization"] == "Bearer ***"
    assert attempt["headers"]["x-gateway-token"] == "***"
    assert attempt["path"] == "/v1/chat/completions?api-version=1&sig_key=***"
    assert "my keys: *** *** ***" in client["body"]


async def test_a_refused_key_that_a_provider_quotes_is_removed(tmp_path: Path) -> None:
    def refuse(_: Request) -> Json:
        return answers.error("chat", 401, f"Incorrect API key provided: {PROVIDER}")

    async with Upstream(refuse) as up:
        text = config(provider("up", "chat", up).replace("secret-up", PROVIDER), capture='mode = "errors"')
        async with capturing(tmp_path, text) as running:
            body = asking.body("chat", stream=False, model="up.m")
            found = await capture_of(running, await call(running.port, "/v1/chat/completions", body))
    assert "Incorrect API key provided: ***" in found["upstream"][0]["frames"][0]["data"]
    assert PROVIDER not in "".join(path.read_text() for path in files(tmp_path))


async def test_a_secret_that_comes_in_two_pieces_is_removed(tmp_path: Path) -> None:
    frame = b'data: {"choices":[{"index":0,"delta":{"content":"%b"}}]}\n\n' % PROVIDER.encode()
    end = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
    async with Upstream(lambda _: Sse([frame, end], chunks=7)) as up:
        text = config(provider("up", "chat", up).replace("secret-up", PROVIDER))
        async with capturing(tmp_path, text) as running:
            body = asking.body("chat", stream=True, model="up.m")
            found = await capture_of(running, await call(running.port, "/v1/chat/completions", body))
    assert '"content":"***"' in found["upstream"][0]["frames"][0]["data"]
    assert '"content":"***"' in found["client"]["response"]
    assert PROVIDER not in "".join(path.read_text() for path in files(tmp_path))


@pytest.mark.parametrize("before", range(740, 776))
def test_a_secret_that_is_cut_in_two_leaves_no_part(before: int) -> None:
    capture = RequestCapture(
        "req_" + "0" * 24,
        method="POST",
        path=b"/",
        headers={},
        body=b"a" * before + PROVIDER.encode() + b"b" * 2000 + PROVIDER.encode() + b"c" * (before - 520),
        client_name="",
        owner="",
        max_body=1024,
        budget=CaptureBudget(1 << 20),
        secrets=(PROVIDER,),
    )
    body = document_of(capture)["client"]["body"]
    assert PROVIDER[:8] not in body
    assert PROVIDER[-8:] not in body
    assert "bytes were not captured" in body


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("authorization", "Bearer abc", "Bearer ***"),
        ("Authorization", "abc", "***"),
        ("proxy-authorization", "Basic YTpi", "Basic ***"),
        ("x-goog-api-key", "abc", "***"),
        ("api-key", "abc", "***"),
        ("set-cookie", "a=b", "***"),
        ("x-routecodex-csrf", "abc", "***"),
        ("x-auth-token", "Bearer abc", "***"),
        ("x-session-id", "s-1", "s-1"),
        ("idempotency-key", "i-1", "i-1"),
        ("user-agent", "claude-code/2.1", "claude-code/2.1"),
        ("anthropic-beta", "tools", "tools"),
    ],
)
def test_headers_are_known_by_their_names(name: str, value: str, shown: str) -> None:
    assert redact_header(name, value) == shown


def test_a_query_keeps_what_is_not_a_credential() -> None:
    assert redact_target("/v1?a=1&API_KEY=x&b&key=&%6bey=y") == "/v1?a=1&API_KEY=***&b&key=***&%6bey=***"
    assert redact_target("/v1/models/key=x") == "/v1/models/key=x"
    assert is_credential("client_secret")


def test_fields_of_credentials_are_emptied_and_texts_about_them_are_not() -> None:
    redactor = CaptureRedactor(())
    body = b'{"api_key" : "a\\"b", "Authorization":"x", "text": "the api_key: \\"c\\"", "api_key": null}'
    assert redactor.body(body) == (
        b'{"api_key" : "***", "Authorization":"***", "text": "the api_key: \\"c\\"", "api_key": null}'
    )


def test_short_values_are_not_taken_for_secrets() -> None:
    assert CaptureRedactor(["k", "abc12"]).body(b"keep k and abc12") == b"keep k and abc12"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (b'"api_key":"x", ' * 40_000, b'"api_key":"***", ' * 40_000),
        (b'"api_key":"' + b"\\" * 400_000, b'"api_key":"***"'),
        (b'"api_key":' + b" " * 400_000, b'"api_key":' + b" " * 400_000),
        (b'{"api_key":"the start of a key that was cut', b'{"api_key":"***"'),
    ],
)
def test_hostile_texts_are_read_to_their_end(text: bytes, shown: bytes) -> None:
    assert CaptureRedactor([PROVIDER]).body(text) == shown
