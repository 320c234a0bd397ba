"""Compared systems: how each is started in front of the mock, and its requests."""

from __future__ import annotations

import json
import os
import shutil
import sys
from dataclasses import dataclass, field
from pathlib import Path

from bench import peers
from bench.cells import Cell, Variant
from bench.ports import free_port
from bench.requests import PATHS, body, raw
from bench.setups import CALL_A_TOOL, PLAIN, SETUPS, write_sessions


@dataclass(frozen=True, slots=True)
class Beside:
    """A server that a system needs; it is ready when it accepts connections."""

    command: list[str]
    port: int


@dataclass(frozen=True, slots=True)
class Launch:
    """A command that serves on `port` once the path `ready` answers 200.

    `ready` None: once it accepts connections. `port` None: it prints `port=N` when it knows it. `beside` is a
    server that it needs, which is started before and ended after it.
    """

    command: list[str]
    ready: str | None
    port: int | None
    env: dict[str, str] = field(default_factory=dict)
    beside: Beside | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """Inputs of a start: a folder, a free port, the upstream and its address."""

    folder: Path
    port: int
    variant: Variant
    mock_port: int

    @property
    def url(self) -> str:
        """The mock's address without a path."""
        return f"http://127.0.0.1:{self.mock_port}"


class System:
    """One system under test; subclasses differ. A slow one gets `patience` times the seconds."""

    name: str
    title: str
    carries: frozenset[tuple[str, str]] = frozenset({("chat", "chat")})
    model: str | None = None
    prefix: str = ""
    patience: float = 1.0

    def supports(self, cell: Cell) -> bool:
        """Return whether this system supports the traffic; only our gateway has setups."""
        return cell.setup == PLAIN and (cell.client, cell.upstream) in self.carries

    def install(self) -> None:
        """Install the program, or raise `Unavailable`."""

    def launch(self, place: Place) -> Launch | None:
        """Return the command that starts it; None if there is nothing to start."""
        raise NotImplementedError

    def headers(self, place: Place) -> dict[str, str]:
        """Return the headers it needs besides the client's own."""
        return {}

    def request(self, cell: Cell, place: Place) -> bytes:
        """Return the raw request of a cell."""
        last_words = CALL_A_TOOL if cell.calls else SETUPS[cell.setup].last_words
        content = body(cell.client, cell.size, stream=cell.stream, model=self.model, last_words=last_words)
        return raw(self.prefix + PATHS[cell.client], content, self.headers(place))


def _write(place: Place, name: str, text: str) -> str:
    path = place.folder / name
    path.write_text(text)
    return str(path)


class Direct(System):
    """No gateway: the limit of load generator and mock. It converts nothing."""

    name = "direct"
    title = "direct (no gateway)"

    def supports(self, cell: Cell) -> bool:
        return cell.setup == PLAIN

    def launch(self, place: Place) -> Launch | None:
        return None


NGINX_CONFIG = """
daemon off;
worker_processes 1;
error_log stderr crit;
pid {folder}/nginx.pid;
events {{ worker_connections 4096; }}
http {{
    access_log off;
    client_max_body_size 64m;
    client_body_buffer_size 4m;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    keepalive_requests 1000000000;
    upstream mock {{
        server 127.0.0.1:{mock_port};
        keepalive 1024;
        keepalive_requests 1000000000;
    }}
    server {{
        listen 127.0.0.1:{port} backlog=4096;
        location = /ready {{ return 200; }}
        location / {{
            proxy_pass http://mock;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_buffering off;
        }}
    }}
}}
"""


class Nginx(System):
    """A reverse proxy that does not parse bodies: the lower bound. It converts nothing."""

    name = "nginx"
    title = "nginx (reverse proxy)"

    def supports(self, cell: Cell) -> bool:
        return cell.setup == PLAIN

    def install(self) -> None:
        peers.system_nginx()

    def launch(self, place: Place) -> Launch:
        text = NGINX_CONFIG.format(folder=place.folder, port=place.port, mock_port=place.mock_port)
        config = _write(place, "nginx.conf", text)
        command = [peers.system_nginx(), "-c", config, "-p", str(place.folder), "-e", "stderr"]
        return Launch(command, "/ready", place.port)


OURS_CONFIG = """
[providers.mock]
protocol = "{protocol}"
base_url = "{url}"
auth = [{{ value = "k" }}]
models = {{ "gpt-mock" = {{ price = {{ input = 1, output = 2 }} }} }}

[routing]
default = ["mock.gpt-mock"]

# The benchmark stays on the loopback interface.
[server_tools.clock]
ntp = {{ enabled = false }}
{settings}"""
# A pause of the machine is not an outage of Redis, after which writes are refused.
STORE_CONFIG = '[store]\nurl = "redis://127.0.0.1:{port}/0"\ntimeout_ms = 5000\n'
BASE_PATHS = {"chat": "/v1", "responses": "/v1", "messages": "", "gemini": ""}


def redis_beside(folder: Path, port: int) -> Beside:
    """Return a Redis that keeps its data on disk, with the default of one write to disk per second."""
    data = folder / "redis"
    data.mkdir()
    server = [peers.system_redis(), "--port", str(port), "--bind", "127.0.0.1", "--dir", str(data)]
    return Beside([*server, "--save", "", "--appendonly", "yes"], port)


class Ours(System):
    """The gateway of this project with default settings and those of the cell."""

    name = "ours"
    title = "RouteCodex"

    def __init__(self, *, workers: int = 1, pure: bool = False, redis: int | None = None) -> None:
        """Run from the sources with `pure`, even if the hot path is compiled.

        `redis` is the port of a Redis that several nodes share.
        """
        self.workers = workers
        self._redis = redis
        self._env = {"ROUTECODEX_PURE": "1"} if pure else {}
        if workers > 1:
            self.name = f"ours-{workers}"

    def supports(self, cell: Cell) -> bool:
        return True

    def launch(self, place: Place) -> Launch:
        protocol, setup = place.variant.protocol, SETUPS[place.variant.setup]
        beside = redis_beside(place.folder, free_port()) if setup.redis and self._redis is None else None
        redis_port = self._redis if beside is None else beside.port
        settings = setup.settings + ("" if redis_port is None else STORE_CONFIG.format(port=redis_port))
        text = OURS_CONFIG.format(protocol=protocol, url=place.url + BASE_PATHS[protocol], settings=settings)
        write_sessions(setup, place.folder / "sessions")
        config = _write(place, "config.toml", text)
        command = [sys.executable, "-m", "routecodex", "serve", "--config", config, "--port", str(place.port)]
        if self.workers > 1:
            command += ["--workers", str(self.workers)]
        homes = {"ROUTECODEX_USER_DIR": "user", "ROUTECODEX_SESSION_DIR": "sessions"}
        env = {name: str(place.folder / part) for name, part in homes.items()}
        return Launch(command, "/health/ready", place.port, env | self._env, beside)

    def headers(self, place: Place) -> dict[str, str]:
        return SETUPS[place.variant.setup].headers


LITELLM_CONFIG = """
model_list:
  - model_name: "*"
    litellm_params:
      model: {model}
      api_base: {base}
      api_key: k
general_settings:
  master_key: sk-bench-0000000000000000
litellm_settings:
  use_chat_completions_url_for_anthropic_messages: true
"""
LITELLM_UPSTREAMS = {"chat": ("openai/gpt-mock", "/v1"), "messages": ("anthropic/claude-mock", "")}


class LiteLLM(System):
    """LiteLLM's proxy, without a database, in its production mode."""

    name = "litellm"
    title = "LiteLLM"
    carries = frozenset({("chat", "chat"), ("messages", "chat"), ("responses", "messages")})
    requirement = "litellm[proxy]==1.106.2"
    patience = 3.0

    def install(self) -> None:
        peers.python_package(self.name, self.requirement)

    def launch(self, place: Place) -> Launch:
        program = peers.python_package(self.name, self.requirement) / "bin" / "litellm"
        model, path = LITELLM_UPSTREAMS[place.variant.protocol]
        config = _write(place, "litellm.yaml", LITELLM_CONFIG.format(model=model, base=place.url + path))
        command = [str(program), "--config", config, "--host", "127.0.0.1", "--port", str(place.port)]
        env = {
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "LITELLM_MODE": "PRODUCTION",
            "LITELLM_LOG": "ERROR",
            "LITELLM_TELEMETRY": "False",
        }
        return Launch(
            [*command, "--num_workers", "1", "--telemetry", "False"], "/health/liveliness", place.port, env
        )


# Portkey listens on every interface and has no setting for it.
LOOPBACK_SCRIPT = """
const net = require("node:net");
const listen = net.Server.prototype.listen;
net.Server.prototype.listen = function (port, ...rest) {
  const place = typeof port === "number" ? [port, "127.0.0.1", rest.at(-1)] : [port, ...rest];
  return listen.apply(this, place);
};
"""


class Portkey(System):
    """Portkey's open gateway."""

    name = "portkey"
    title = "Portkey"
    # Its streams fail with a newer @hono/node-server, whose answers it cannot add headers to.
    packages = ("@portkey-ai/gateway@1.15.2", "@hono/node-server@1.11.0")

    def install(self) -> None:
        peers.node_packages(self.name, *self.packages)

    def launch(self, place: Place) -> Launch:
        modules = peers.node_packages(self.name, *self.packages)
        script = modules / "@portkey-ai" / "gateway" / "build" / "start-server.js"
        loopback = _write(place, "loopback.cjs", LOOPBACK_SCRIPT)
        command = [shutil.which("node") or "node", "--require", loopback, str(script)]
        env = {"TRUSTED_CUSTOM_HOSTS": "127.0.0.1,localhost", "NODE_ENV": "production"}
        return Launch([*command, "--headless", f"--port={place.port}"], "/", place.port, env)

    def headers(self, place: Place) -> dict[str, str]:
        return {"x-portkey-provider": "openai", "x-portkey-custom-host": f"{place.url}/v1"}


class ClaudeCodeRouter(System):
    """claude-code-router, which takes the messages protocol only."""

    name = "ccr"
    title = "claude-code-router"
    carries = frozenset({("messages", "chat")})
    package = "@musistudio/claude-code-router@2.0.0"

    def install(self) -> None:
        peers.node_packages(self.name, self.package)

    def launch(self, place: Place) -> Launch:
        modules = peers.node_packages(self.name, self.package)
        script = modules / "@musistudio" / "claude-code-router" / "dist" / "cli.js"
        settings = place.folder / ".claude-code-router"
        settings.mkdir(exist_ok=True)
        provider = {
            "name": "mock",
            "api_base_url": f"{place.url}/v1/chat/completions",
            "api_key": "k",
            "models": ["gpt-mock"],
        }
        config = {
            "LOG": False,
            "PORT": place.port,
            "NON_INTERACTIVE_MODE": True,
            "Providers": [provider],
            "Router": {"default": "mock,gpt-mock"},
        }
        (settings / "config.json").write_text(json.dumps(config))
        env = {"HOME": str(place.folder), "TMPDIR": str(place.folder), "SERVICE_PORT": str(place.port)}
        return Launch([shutil.which("node") or "node", str(script), "start"], "/", place.port, env)


TENSORZERO_CONFIG = """
[gateway]
observability.enabled = false

[models.mock]
routing = ["mock"]

[models.mock.providers.mock]
type = "openai"
model_name = "gpt-mock"
api_base = "{url}/v1/"
api_key_location = "none"
"""
TENSORZERO_SCRIPT = """
import sys, threading, urllib.parse
from tensorzero import _start_http_gateway
gateway = _start_http_gateway(
    config_file=sys.argv[1], clickhouse_url=None, postgres_url=None, valkey_url=None, async_setup=False
)
print("port=%d" % urllib.parse.urlsplit(gateway.base_url).port, flush=True)
threading.Event().wait()
"""


class TensorZero(System):
    """TensorZero's gateway as its Python wheel embeds it, without observability."""

    name = "tensorzero"
    title = "TensorZero"
    requirement = "tensorzero==2026.6.0"
    model = "tensorzero::model_name::mock"
    prefix = "/openai"

    def install(self) -> None:
        peers.python_package(self.name, self.requirement)

    def launch(self, place: Place) -> Launch:
        python = peers.python_package(self.name, self.requirement) / "bin" / "python"
        config = _write(place, "tensorzero.toml", TENSORZERO_CONFIG.format(url=place.url))
        return Launch([str(python), "-c", TENSORZERO_SCRIPT, config], None, None)


SYSTEMS: dict[str, System] = {
    system.name: system
    for system in (
        Ours(),
        Direct(),
        Nginx(),
        TensorZero(),
        Portkey(),
        ClaudeCodeRouter(),
        LiteLLM(),
    )
}
QUICK = ("ours", "direct", "nginx")


def environment(extra: dict[str, str]) -> dict[str, str]:
    """Return the environment of a system: this one without proxies, since all traffic is on loopback."""
    kept = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    return kept | extra
