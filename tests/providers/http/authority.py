"""A certificate authority that only the tests trust."""

from __future__ import annotations

import ssl
from pathlib import Path

import trustme

from routecodex.providers.http import TlsOptions


class Authority:
    """Issues server certificates; `options` make a client trust them."""

    def __init__(self, folder: Path) -> None:
        self._ca = trustme.CA()
        path = folder / "ca.pem"
        self._ca.cert_pem.write_to_path(str(path))
        self.options = TlsOptions(ca_file=str(path))

    def server(self, *names: str) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._ca.issue_cert(*names).configure_cert(context)
        return context

    def client_files(self, folder: Path) -> tuple[str, str]:
        """Write certificate and key of a client to files."""
        issued = self._ca.issue_cert("client.test")
        key, chain = folder / "client.key", folder / "client.pem"
        issued.private_key_pem.write_to_path(str(key))
        chain.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
        return str(chain), str(key)

    def trust(self, context: ssl.SSLContext) -> None:
        self._ca.configure_trust(context)
