"""The choice of a proxy, and requests through one."""

from __future__ import annotations

import asyncio

import pytest

from routecodex.canon.errors import ConfigError, UpstreamFailed
from routecodex.providers.http import HttpClient, Origin, Proxy, origin_of
from routecodex.providers.http.origin import context_for
from tests.providers.http.authority import Authority
from tests.providers.http.scripted_server import Peer, Script, answering, fetch, plain, post, serving

P = "http://proxy.test:3128"
Q = "http://other.test:3129"


def chosen(url: str, environ: dict[str, str]) -> str | None:
    proxy = origin_of(url, environ=environ).proxy
    return None if proxy is None else f"http://{proxy.host}:{proxy.port}"


@pytest.mark.parametrize(
    ("url", "environ", "expected"),
    [
        ("http://api.test", {}, None),
        ("http://api.test", {"HTTP_PROXY": P}, P),
        ("https://api.test", {"HTTP_PROXY": P}, None),
        ("https://api.test", {"HTTPS_PROXY": P, "ALL_PROXY": Q}, P),
        ("https://api.test", {"ALL_PROXY": P}, P),
        ("https://api.test", {"https_proxy": Q, "HTTPS_PROXY": P}, Q),
        ("https://api.test", {"https_proxy": "", "HTTPS_PROXY": P}, None),
        ("http://api.test", {"HTTP_PROXY": P, "REQUEST_METHOD": "GET"}, None),
        ("http://api.test", {"http_proxy": P, "REQUEST_METHOD": "GET"}, P),
        ("http://api.test", {"http_proxy": "proxy.test:3128"}, P),
        ("http://127.0.0.1:80", {"http_proxy": P}, None),
        ("http://localhost:80", {"http_proxy": P}, None),
        ("http://[::1]:80", {"http_proxy": P}, None),
        ("http://api.test", {"http_proxy": P, "no_proxy": "*"}, None),
        ("http://api.test", {"http_proxy": P, "NO_PROXY": "api.test"}, None),
        ("http://api.test", {"http_proxy": P, "no_proxy": "x.test", "NO_PROXY": "api.test"}, P),
        ("http://a.api.test", {"http_proxy": P, "no_proxy": "x, .API.test"}, None),
        ("http://a.api.test", {"http_proxy": P, "no_proxy": "*.api.test"}, None),
        ("http://a.api.test", {"http_proxy": P, "no_proxy": "api.test"}, None),
        ("http://myapi.test", {"http_proxy": P, "no_proxy": "api.test"}, P),
        ("http://api.test:81", {"http_proxy": P, "no_proxy": "api.test:81"}, None),
        ("http://api.test:82", {"http_proxy": P, "no_proxy": "api.test:81"}, P),
        ("http://10.1.2.3", {"http_proxy": P, "no_proxy": "10.0.0.0/8"}, None),
        ("http://10.1.2.3", {"http_proxy": P, "no_proxy": "10.1.2.3:80"}, None),
        ("http://11.1.2.3", {"http_proxy": P, "no_proxy": "10.0.0.0/8,api.test"}, P),
        ("http://[fd00::1]", {"http_proxy": P, "no_proxy": "fd00::/8"}, None),
        ("http://[fd00::1]:81", {"http_proxy": P, "no_proxy": "[fd00::1]:81"}, None),
        ("http://[fd00::1]:82", {"http_proxy": P, "no_proxy": "[fd00::1]:81"}, P),
    ],
)
def test_environment_decides_the_proxy(url: str, environ: dict[str, str], expected: str | None) -> None:
    assert chosen(url, environ) == expected


def test_userinfo_becomes_basic_credentials_that_are_not_shown() -> None:
    proxy = origin_of("http://api.test", environ={"http_proxy": "http://me:p%40ss@proxy.test"}).proxy
    assert proxy == Proxy("http", "proxy.test", 80, None, b"Basic bWU6cEBzcw==")
    assert repr(proxy) == "Proxy(http://proxy.test:80)"


@pytest.mark.parametrize("value", ["socks5://me:s3cret@proxy.test", "http://", "http://me:s3cret@x:y"])
def test_unusable_proxy_is_a_config_error_naming_the_variable(value: str) -> None:
    with pytest.raises(ConfigError, match="ALL_PROXY") as caught:
        origin_of("http://api.test", environ={"ALL_PROXY": value})
    assert "s3cret" not in caught.value.message


async def test_plain_http_goes_in_absolute_form(client: HttpClient) -> None:
    async with serving(answering(plain(b"by proxy"))) as proxy:
        environ = {"http_proxy": f"http://me:pw@127.0.0.1:{proxy.port}"}
        origin = origin_of("http://api.test:8000/v1", environ=environ)
        assert await fetch(client, origin) == b"by proxy"
        assert await fetch(client, origin) == b"by proxy"
    assert proxy.connections == 1
    assert proxy.requests[0] == (
        b"POST http://api.test:8000/v1/x HTTP/1.1\r\nproxy-authorization: Basic bWU6cHc=\r\n"
        b"host: api.test:8000\r\naccept-encoding: identity\r\ncontent-length: 2\r\n\r\n{}"
    )


def tunnel_to(port: int) -> Script:
    """A proxy that connects every CONNECT to one local port."""

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
        writer.close()

    async def script(peer: Peer) -> None:
        await peer.request()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        await peer.send(b"HTTP/1.1 200 Connection established\r\nvia: test\r\n\r\n")
        try:
            await asyncio.gather(pump(peer.reader, writer), pump(reader, peer.writer))
        finally:
            writer.transport.abort()

    return script


async def test_https_goes_through_a_tunnel(client: HttpClient, authority: Authority) -> None:
    async with (
        serving(answering(plain(b"secret")), tls=authority.server("api.test")) as server,
        serving(tunnel_to(server.port)) as proxy,
    ):
        environ = {"https_proxy": f"http://me:pw@127.0.0.1:{proxy.port}"}
        origin = origin_of("https://api.test", tls=authority.options, environ=environ)
        assert [await fetch(client, origin) for _ in range(2)] == [b"secret", b"secret"]
        await client.close()
    assert proxy.requests == [
        b"CONNECT api.test:443 HTTP/1.1\r\nhost: api.test:443\r\nproxy-authorization: Basic bWU6cHc=\r\n\r\n"
    ]
    assert server.requests[0].startswith(b"POST /v1/x HTTP/1.1\r\nhost: api.test\r\naccept-encoding")
    assert (server.connections, len(server.requests)) == (1, 2)


async def test_tunnel_can_lead_through_a_proxy_that_is_itself_behind_tls(
    client: HttpClient, authority: Authority
) -> None:
    trusted = context_for(authority.options)
    async with (
        serving(answering(plain(b"twice wrapped")), tls=authority.server("api.test")) as server,
        serving(tunnel_to(server.port), tls=authority.server("127.0.0.1")) as proxy,
    ):
        by_tls = Proxy("https", "127.0.0.1", proxy.port, trusted)
        origin = Origin("https", "api.test", 443, trusted, by_tls, b"api.test")
        assert await fetch(client, origin) == b"twice wrapped"
        await client.close()


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"HTTP/1.1 407 Auth\r\ncontent-length: 0\r\n\r\n", "refused to connect to api.test:443: HTTP 407"),
        (b"HTTP/1.1 200 OK\r\n\r\nhello", "sent bytes of its own"),
        (b"220 smtp\r\n\r\n", "did not answer CONNECT in HTTP"),
        (b"x" * 20_000, "endless head"),
    ],
)
async def test_proxy_that_refuses_is_named(client: HttpClient, answer: bytes, message: str) -> None:
    async with serving(answering(answer)) as proxy:
        origin = origin_of("https://api.test", environ={"https_proxy": f"http://127.0.0.1:{proxy.port}"})
        with pytest.raises(UpstreamFailed, match=message) as caught:
            await post(client, origin)
        assert f"proxy 127.0.0.1:{proxy.port}" in caught.value.message
        await proxy.until_finished(1)


async def test_proxy_that_hangs_up_is_named(client: HttpClient) -> None:
    async def hangs_up(peer: Peer) -> None:
        await peer.request()

    async with serving(hangs_up) as proxy:
        origin = origin_of("https://api.test", environ={"https_proxy": f"http://127.0.0.1:{proxy.port}"})
        with pytest.raises(UpstreamFailed, match=f"proxy 127.0.0.1:{proxy.port} closed the connection"):
            await post(client, origin)
