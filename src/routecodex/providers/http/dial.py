"""Opens connections: TCP, proxy tunnel and TLS within one time limit, with errors translated."""

from __future__ import annotations

import asyncio
import socket
import ssl

from routecodex.canon.errors import GatewayError, UpstreamFailed, UpstreamTimeout
from routecodex.providers.http.connection import UpstreamConnection
from routecodex.providers.http.local_faults import local_fault
from routecodex.providers.http.origin import Origin, Proxy

_TUNNEL_HEAD_LIMIT = 16 * 1024


async def dial(connection: UpstreamConnection, *, seconds: float) -> None:
    """Connect a new connection to its origin; raise an `UpstreamError` that says whose fault a failure is."""
    origin = connection.origin
    peer = connection.peer
    if origin.proxy is not None:
        peer += f" (through proxy {origin.proxy.host}:{origin.proxy.port})"
    try:
        async with asyncio.timeout(seconds):
            await _open(connection, origin)
    except TimeoutError as exc:
        message = f"{peer} could not be connected to within {seconds:g} s"
        raise UpstreamTimeout(message, setting="base_url") from exc
    except OSError as exc:
        fault = local_fault(exc, f"{peer} could not be connected to")
        if fault is not None:
            raise fault from exc
        setting = "tls" if isinstance(exc, ssl.SSLCertVerificationError) else "base_url"
        message = f"{peer} could not be connected to: {_reason(exc)}"
        raise UpstreamFailed(message, setting=setting) from exc


async def _open(connection: UpstreamConnection, origin: Origin) -> None:
    proxy = origin.proxy
    if proxy is not None and origin.tls is not None:
        await _open_tunnel(connection, proxy, origin.tls)
        return
    loop = asyncio.get_running_loop()
    peer: Origin | Proxy = proxy or origin
    transport, _ = await loop.create_connection(lambda: connection, peer.host, peer.port, ssl=peer.tls)
    _enable_keep_alive(transport)


async def _open_tunnel(connection: UpstreamConnection, proxy: Proxy, tls: ssl.SSLContext) -> None:
    loop = asyncio.get_running_loop()
    tunnel = _Tunnel(f"{proxy.host}:{proxy.port}", connection.peer)
    raw, _ = await loop.create_connection(lambda: tunnel, proxy.host, proxy.port, ssl=proxy.tls)
    try:
        _enable_keep_alive(raw)
        raw.write(_connect_request(connection.peer, proxy))
        await tunnel.established
        secured = await loop.start_tls(raw, connection, tls, server_hostname=connection.origin.host)
        if secured is None:
            raise ConnectionResetError("the proxy closed the tunnel")
    except BaseException:
        raw.abort()
        raise
    connection.connection_made(secured)


def _connect_request(authority: str, proxy: Proxy) -> bytes:
    name = authority.encode()
    head = b"CONNECT %b HTTP/1.1\r\nhost: %b\r\n" % (name, name)
    if proxy.authorization is not None:
        head += b"proxy-authorization: %b\r\n" % proxy.authorization
    return head + b"\r\n"


def _enable_keep_alive(transport: asyncio.BaseTransport) -> None:
    # The kernel's probes tell a silent stream from a dead one. Transports of tests may lack a real socket.
    sock = transport.get_extra_info("socket")
    if sock is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


def _reason(exc: OSError) -> str:
    if isinstance(exc, ssl.SSLCertVerificationError):
        return f"its TLS certificate is not trusted: {exc.verify_message}"
    if isinstance(exc, ssl.SSLError):
        return f"the TLS handshake failed: {exc.reason or exc}"
    return exc.strerror or str(exc) or type(exc).__name__


class _Tunnel(asyncio.Protocol):
    """Reads a proxy's answer to CONNECT."""

    def __init__(self, proxy: str, peer: str) -> None:
        self.established: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._proxy = proxy
        self._peer = peer
        self._head = b""

    def data_received(self, data: bytes) -> None:
        self._head += data
        end = self._head.find(b"\r\n\r\n")
        if end >= 0:
            self._on_head(self._head[:end], rest=self._head[end + 4 :])
        elif len(self._head) > _TUNNEL_HEAD_LIMIT:
            self._settle(UpstreamFailed(f"proxy {self._proxy} answered CONNECT with an endless head"))

    def connection_lost(self, exc: Exception | None) -> None:
        self._settle(UpstreamFailed(f"proxy {self._proxy} closed the connection to {self._peer}"))
        if not self.established.cancelled():
            self.established.exception()  # retrieved here, because the waiter may have been cancelled

    def _on_head(self, head: bytes, *, rest: bytes) -> None:
        version, _, status = head.partition(b"\r\n")[0].partition(b" ")
        code = status[:3]
        if not version.startswith(b"HTTP/1.") or not code.isdigit():
            self._settle(UpstreamFailed(f"proxy {self._proxy} did not answer CONNECT in HTTP/1.1"))
        elif not code.startswith(b"2"):
            self._settle(
                UpstreamFailed(
                    f"proxy {self._proxy} refused to connect to {self._peer}: HTTP {code.decode()}"
                )
            )
        elif rest:
            self._settle(UpstreamFailed(f"proxy {self._proxy} sent bytes of its own into the tunnel"))
        else:
            self._settle(None)

    def _settle(self, error: GatewayError | None) -> None:
        if self.established.done():
            return
        if error is None:
            self.established.set_result(None)
        else:
            self.established.set_exception(error)
