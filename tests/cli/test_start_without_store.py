"""How long a gateway takes to start and to stop while its Redis or the resolver of names does not answer."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.process import running
from tests.kit.redis_server import RedisServer

SLOW_RESOLVER = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <netdb.h>
#include <string.h>
#include <unistd.h>

typedef struct addrinfo info;
typedef int resolver(const char *, const char *, const info *, info **);

int getaddrinfo(const char *node, const char *service, const info *hints, info **found) {
  if (node && !strcmp(node, "slow.test")) {
    sleep(30);
    return EAI_AGAIN;
  }
  return ((resolver *)dlsym(RTLD_NEXT, "getaddrinfo"))(node, service, hints, found);
}
"""


def written(folder: Path, url: str) -> Path:
    """Write the configuration of a node that other machines can reach: it needs clients, from the store."""
    file = folder / "gateway.toml"
    file.write_text(
        '[server]\nport = 0\nhost = "0.0.0.0"\ndrain_seconds = 1\n'
        f'[store]\nurl = "{url}"\ntimeout_ms = 5000\n[logging]\nformat = "human"\n'
        '[providers.demo]\nprotocol = "demo"\n[providers.demo.models.m]\n[routing]\ndefault = ["demo.m"]\n'
    )
    return file


async def seconds_of(folder: Path, file: Path, **environ: str) -> tuple[float, float]:
    """Return the seconds that a node takes to start and to stop."""
    began = time.monotonic()
    async with running(folder, "serve", "--config", str(file), environ=environ) as command:
        await command.port()
        ready = time.monotonic()
        command.signal()
        assert await command.ended() == 0, command.text
        return ready - began, time.monotonic() - ready


def seconds_of_the_imports() -> float:
    """Return how long a process takes on this machine that does nothing."""
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", "import routecodex.cli.serve, routecodex.server.serve"], check=True)
    return time.monotonic() - began


async def test_a_redis_that_does_not_answer_delays_a_start_by_less_than_four_seconds(tmp_path: Path) -> None:
    server = RedisServer(tmp_path / "redis")
    try:
        with server.frozen():
            start, _ = await seconds_of(tmp_path, written(tmp_path, server.url))
    finally:
        server.kill()
    assert start - seconds_of_the_imports() < 4


@pytest.mark.skipif(sys.platform != "linux" or not shutil.which("cc"), reason="needs Linux and a C compiler")
async def test_a_resolver_that_does_not_answer_delays_neither_start_nor_stop(tmp_path: Path) -> None:
    source, library = tmp_path / "resolver.c", tmp_path / "resolver.so"
    source.write_text(SLOW_RESOLVER)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    file = written(tmp_path, "redis://slow.test:6379")
    start, stop = await seconds_of(tmp_path, file, LD_PRELOAD=str(library))
    assert start - seconds_of_the_imports() < 4
    assert stop < 8
