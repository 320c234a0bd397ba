from __future__ import annotations

import socket
from pathlib import Path

from routecodex.cli.checks.providers import check_providers
from routecodex.cli.checks.result import CheckResult
from tests.cli.checks.agent_model import configured
from tests.kit.upstream import Upstream
from tests.providers.http.authority import Authority
from tests.providers.http.scripted_server import Peer, answering, plain, serving

FAR = "https://far.invalid/v1"


def provider(base_url: str, more: str = "", *, models: str = "[providers.up.models.m]") -> str:
    return (
        f'[routing]\ndefault = ["up.m"]\n[providers.up]\nprotocol = "chat"\nbase_url = "{base_url}"\n'
        f'auth = [{{ alias = "primary", value = "secret-up" }}]\n{more}\n{models}\n'
    )


async def reach(text: str, *, offline: bool = False, **environ: str) -> CheckResult:
    (result,) = [one async for one in check_providers(configured(text), environ, offline=offline)]
    assert result.id == "provider.up"
    return result


async def test_a_provider_that_listens_is_ok() -> None:
    async with Upstream() as upstream:
        result = await reach(provider(f"{upstream.url}/v1"))
    assert (result.status, result.message) == (
        "ok",
        f"127.0.0.1:{upstream.port} can be reached over TCP without TLS",
    )


async def test_a_provider_on_this_machine_is_checked_offline_too() -> None:
    async with Upstream() as upstream:
        assert (await reach(provider(f"{upstream.url}/v1"), offline=True)).status == "ok"


async def test_a_provider_elsewhere_is_skipped_offline() -> None:
    result = await reach(provider(FAR), offline=True)
    assert (result.status, result.message) == ("skip", "up is not on this machine, and --offline is set")


async def test_a_server_that_is_not_started_fails() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"http://127.0.0.1:{taken.getsockname()[1]}/v1"
    result = await reach(provider(address))
    assert result.status == "fail"
    assert result.fix.startswith(f"start the server at {address}")


async def test_a_host_that_does_not_exist_fails() -> None:
    result = await reach(provider(FAR))
    assert result.status == "fail"
    assert "far.invalid:443" in result.message
    assert result.fix


async def test_certificates_are_checked(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    async with serving(answering(plain()), tls=authority.server("127.0.0.1")) as server:
        address = f"https://127.0.0.1:{server.port}/v1"
        unknown = await reach(provider(address))
        trusted = await reach(provider(address, f'tls = {{ ca_file = "{authority.options.ca_file}" }}'))
        unchecked = await reach(provider(address, "tls = { verify = false }"))
    assert [one.status for one in (unknown, trusted, unchecked)] == ["fail", "ok", "warn"]
    assert "tls.ca_file" in unknown.fix
    assert "can be reached over TLS" in trusted.message
    assert "tls.verify" in unchecked.fix


async def test_a_port_without_tls_behind_https_fails() -> None:
    async def speaks_plain(peer: Peer) -> None:
        await peer.reader.readexactly(1)
        await peer.send(plain(status=b"400 Bad Request"))
        await peer.gone()

    async with serving(speaks_plain) as server:
        result = await reach(provider(f"https://127.0.0.1:{server.port}/v1"))
    assert result.status == "fail"
    assert "may not speak TLS" in result.fix


async def test_a_proxy_that_refuses_is_named() -> None:
    async def refuses(peer: Peer) -> None:
        await peer.reader.readuntil(b"\r\n\r\n")
        await peer.send(b"HTTP/1.1 403 Forbidden\r\n\r\n")
        await peer.gone()

    async with serving(refuses) as proxy:
        result = await reach(provider(FAR), https_proxy=f"http://127.0.0.1:{proxy.port}")
    assert result.status == "fail"
    assert "refused to connect to far.invalid:443: HTTP 403" in result.message


async def test_a_plain_provider_behind_a_proxy_is_reached_through_it() -> None:
    async with Upstream() as proxy:
        text = provider("http://far.invalid/v1")
        result = await reach(text, http_proxy=f"http://127.0.0.1:{proxy.port}")
    assert result.status == "ok"
    assert f"through the proxy 127.0.0.1:{proxy.port}" in result.message
