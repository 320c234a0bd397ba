from __future__ import annotations

import ssl
from pathlib import Path

import msgspec
import pytest

from routecodex.canon.errors import ConfigError, UpstreamFailed
from routecodex.providers.http import HttpClient, TlsOptions, origin_of
from tests.providers.http.authority import Authority
from tests.providers.http.scripted_server import (
    Peer,
    answering,
    chunked,
    closing_after,
    fetch,
    plain,
    post,
    serving,
)


async def test_trusted_certificate_works_and_connection_is_reused(
    client: HttpClient, authority: Authority
) -> None:
    async with serving(answering(plain(b"safe")), tls=authority.server("127.0.0.1", "localhost")) as server:
        for host in ("127.0.0.1", "localhost"):
            origin = origin_of(f"https://{host}:{server.port}", tls=authority.options, environ={})
            assert [await fetch(client, origin) for _ in range(2)] == [b"safe", b"safe"]
        assert server.connections == 2


async def test_untrusted_certificate_is_refused_clearly(client: HttpClient, authority: Authority) -> None:
    async with serving(answering(plain()), tls=authority.server("127.0.0.1")) as server:
        with pytest.raises(UpstreamFailed, match=r"127\.0\.0\.1:\d+ .* certificate is not trusted"):
            await post(client, server.origin("https"))
        assert server.requests == []


async def test_certificate_of_another_host_is_refused(client: HttpClient, authority: Authority) -> None:
    async with serving(answering(plain()), tls=authority.server("other.test")) as server:
        origin = origin_of(f"https://127.0.0.1:{server.port}", tls=authority.options, environ={})
        with pytest.raises(UpstreamFailed, match="certificate is not trusted"):
            await post(client, origin)


async def test_verification_can_be_switched_off(client: HttpClient, authority: Authority) -> None:
    async with serving(answering(plain(b"lax")), tls=authority.server("other.test")) as server:
        origin = origin_of(f"https://127.0.0.1:{server.port}", tls=TlsOptions(verify=False), environ={})
        assert await fetch(client, origin) == b"lax"


async def test_plain_server_behind_an_https_url_is_an_upstream_failure(client: HttpClient) -> None:
    async def speaks_plain(peer: Peer) -> None:
        await peer.reader.readexactly(1)
        await peer.send(plain(status=b"400 Bad Request"))
        await peer.gone()

    async with serving(speaks_plain) as server:
        with pytest.raises(UpstreamFailed, match="TLS handshake failed"):
            await post(client, server.origin("https"))


async def test_client_certificate_is_shown(client: HttpClient, authority: Authority, tmp_path: Path) -> None:
    context = authority.server("127.0.0.1")
    context.verify_mode = ssl.CERT_REQUIRED
    authority.trust(context)
    cert_file, key_file = authority.client_files(tmp_path)
    options = msgspec.structs.replace(authority.options, cert_file=cert_file, key_file=key_file)
    async with serving(answering(plain(b"known")), tls=context) as server:
        origin = origin_of(f"https://127.0.0.1:{server.port}", tls=options, environ={})
        assert await fetch(client, origin) == b"known"


async def test_large_bodies_both_ways_under_tls(client: HttpClient, authority: Authority) -> None:
    body = b"x" * 3_000_000
    answer = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + chunked(*[b"y" * 50_000] * 60)
    async with serving(answering(answer), tls=authority.server("127.0.0.1")) as server:
        origin = origin_of(f"https://127.0.0.1:{server.port}", tls=authority.options, environ={})
        for _ in range(2):
            response = await post(client, origin, body=body)
            assert await response.read(4_000_000) == b"y" * 3_000_000
        assert server.requests[0].endswith(body)
        assert server.connections == 1


async def test_truncated_body_under_tls_fails(client: HttpClient, authority: Authority) -> None:
    cut = closing_after(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhello")
    async with serving(cut, tls=authority.server("127.0.0.1")) as server:
        origin = origin_of(f"https://127.0.0.1:{server.port}", tls=authority.options, environ={})
        response = await post(client, origin)
        assert await response.chunk() == b"hello"
        with pytest.raises(UpstreamFailed, match="in the middle of its answer"):
            await response.chunk()


async def test_body_until_close_under_tls_is_whole(client: HttpClient, authority: Authority) -> None:
    script = closing_after(b"HTTP/1.1 200 OK\r\n\r\nall of it")
    async with serving(script, tls=authority.server("127.0.0.1")) as server:
        origin = origin_of(f"https://127.0.0.1:{server.port}", tls=authority.options, environ={})
        assert await fetch(client, origin) == b"all of it"


async def test_close_under_tls_aborts_at_once(client: HttpClient, authority: Authority) -> None:
    partly = b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhello"
    async with serving(answering(partly), tls=authority.server("127.0.0.1")) as server:
        origin = origin_of(f"https://127.0.0.1:{server.port}", tls=authority.options, environ={})
        (await post(client, origin)).close()
        await server.until_finished(1)


@pytest.mark.parametrize("options", [{"ca_file": "/nowhere/ca.pem"}, {"cert_file": "/nowhere/cert.pem"}])
def test_missing_file_is_a_config_error_naming_it(options: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="/nowhere/"):
        origin_of("https://example.test", tls=TlsOptions(**options), environ={})  # type: ignore[arg-type]  # files only


def test_file_without_certificates_is_a_config_error(tmp_path: Path) -> None:
    path = tmp_path / "ca.pem"
    path.write_text("nothing")
    with pytest.raises(ConfigError, match=r"ca\.pem"):
        origin_of("https://example.test", tls=TlsOptions(ca_file=str(path)), environ={})
