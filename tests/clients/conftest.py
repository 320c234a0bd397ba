"""One set of upstreams and one gateway per setting for the whole run; each test starts without requests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.clients.gateway import Gateway, Gateways, Upstreams
from tests.clients.python.sdks import Sdks


@pytest.fixture(scope="session")
def upstreams() -> Iterator[Upstreams]:
    with Upstreams() as upstreams:
        yield upstreams


@pytest.fixture(scope="session")
def running(upstreams: Upstreams, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateways]:
    with Gateways(upstreams, tmp_path_factory.mktemp("gateways")) as gateways:
        yield gateways


@pytest.fixture
def gateways(running: Gateways, upstreams: Upstreams) -> Iterator[Gateways]:
    upstreams.reset()
    yield running
    upstreams.reset()


@pytest.fixture
def gateway(gateways: Gateways) -> Gateway:
    return gateways.get()


@pytest.fixture(scope="session")
def sdks() -> Iterator[Sdks]:
    with Sdks() as sdks:
        yield sdks
