"""The files of `deploy/`: what must hold whoever runs them, read without running them."""

from __future__ import annotations

import plistlib
import re
from pathlib import Path
from typing import Any

import pytest

from routecodex.cli.service_units import (
    INVALID_CONFIG,
    RESTART_SECONDS,
    STOP_MARGIN_SECONDS,
    ServiceUnit,
    launchd_agent,
    systemd_unit,
)
from routecodex.config import Config, ServerConfig, loads
from routecodex.protocols.dialect import Dialect
from routecodex.providers.catalog import PRESETS
from tests.deploy import chart, checks

DEPLOY = checks.DEPLOY
DRAIN = ServerConfig().drain_seconds
SECRETS = {"ROUTECODEX_KEY": "k" * 20, "ROUTECODEX_ADMIN_TOKEN": "t" * 20, "OPENAI_API_KEY": "o" * 20}
PINNED = re.compile(r"[\w./-]+:\d+\.\d+\.\d+[\w.-]*\Z")


def text(name: str) -> str:
    return (DEPLOY / name).read_text("utf-8")


def instructions(name: str) -> list[tuple[str, str]]:
    """Return the instructions of the Containerfile with their arguments, continued lines joined."""
    joined = re.sub(r"^#.*\n", "", text(name), flags=re.MULTILINE).replace("\\\n", " ")
    pairs = (line.split(maxsplit=1) for line in joined.splitlines() if line.strip())
    return [(word, re.sub(r"\s+", " ", rest)) for word, rest in pairs]


def loaded(config: str) -> Config:
    """Load a configuration with the variables that it names."""
    return loads(config, environ=SECRETS, presets=PRESETS, dialect_type=Dialect)


def test_the_image_runs_the_gateway_as_a_numbered_user_and_process_1() -> None:
    final = instructions("Containerfile")[-13:]
    found = dict(final)
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", found["USER"])
    assert found["ENTRYPOINT"] == '["python3", "-m", "routecodex"]'
    assert found["CMD"].startswith("[")
    assert found["STOPSIGNAL"] == "SIGTERM"
    assert found["HEALTHCHECK"].startswith("--interval=10s --timeout=3s")
    assert found["VOLUME"] == '["/data"]'
    assert "ROUTECODEX_USER_DIR=/data" in found["ENV"]


def test_the_last_stage_of_the_image_runs_nothing_and_its_base_is_pinned() -> None:
    rows = instructions("Containerfile")
    base = dict(rows)["ARG"].removeprefix("BASE=")
    assert PINNED.match(base)
    last = max(index for index, (word, _) in enumerate(rows) if word == "FROM")
    assert [rest for word, rest in rows if word == "FROM"] == ["${BASE} AS install", "${BASE}"]
    assert "RUN" not in [word for word, _ in rows[last:]]


def compose() -> dict[str, Any]:
    found: dict[str, Any] = chart.read_yaml(text("compose.yaml"))
    return found


def test_compose_runs_three_gateways_one_valkey_and_nginx() -> None:
    services = compose()["services"]
    assert sorted(services) == ["gateway-1", "gateway-2", "gateway-3", "nginx", "valkey"]
    volumes = [volume for one in services.values() for volume in one["volumes"]]
    named = [volume.partition(":")[0] for volume in volumes if not volume.startswith(".")]
    assert sorted(named) == sorted(compose()["volumes"])
    ids = [services[f"gateway-{number}"]["environment"]["ROUTECODEX_SERVER_ID"] for number in (1, 2, 3)]
    assert ids == ["gateway-1", "gateway-2", "gateway-3"]
    files = {volume for one in services.values() for volume in one["volumes"] if volume.startswith(".")}
    assert files == {
        "./config.toml:/etc/routecodex/config.toml:ro",
        "./nginx.conf:/etc/nginx/nginx.conf:ro",
    }


def mounts_of(service: Any) -> dict[str, str]:
    """Return where a service of compose mounts its files and volumes."""
    return dict(volume.split(":")[:2] for volume in service["volumes"])


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_gateway_of_compose_finds_its_configuration_and_keeps_its_state(number: int) -> None:
    service = compose()["services"][f"gateway-{number}"]
    mounts, environ = mounts_of(service), service["environment"]
    assert environ["ROUTECODEX_CONFIG_PATH"] == mounts["./config.toml"]
    image = dict(instructions("Containerfile"))
    assert f"ROUTECODEX_USER_DIR={mounts[f'gateway-{number}']}" in image["ENV"].split()


def test_nginx_is_reached_at_the_port_where_it_listens_and_may_write_where_it_writes() -> None:
    service = compose()["services"]["nginx"]
    (published,) = service["ports"]
    listens = re.search(r"^\s*listen (\d+);", text("nginx.conf"), re.MULTILINE)
    assert listens is not None
    assert published == f"${{ROUTECODEX_PORT:-5520}}:{listens[1]}"
    paths = re.findall(r"^\s*(?:pid|\w+_temp_path) (\S+);", text("nginx.conf"), re.MULTILINE)
    assert len(paths) == 6
    assert {str(Path(path).parent) for path in paths} == set(service["tmpfs"])


@pytest.mark.parametrize("name", compose()["services"])
def test_every_service_of_compose_meets_the_others_and_starts_again(name: str) -> None:
    service = compose()["services"][name]
    assert service["networks"] == ["inside"]
    assert "inside" in compose()["networks"]
    assert service["restart"] == "unless-stopped"


@pytest.mark.parametrize("name", compose()["services"])
def test_every_service_of_compose_is_pinned_and_confined(name: str) -> None:
    service = compose()["services"][name]
    image = re.sub(r"\$\{\w+:-(.*)\}", r"\1", service["image"])
    assert PINNED.match(image), image
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    if not name.startswith("gateway"):
        assert not service["user"].startswith("0")


@pytest.mark.parametrize("name", compose()["services"])
def test_every_service_of_compose_has_time_to_stop(name: str) -> None:
    """Docker kills a container 10 s after its signal unless told otherwise."""
    service = compose()["services"][name]
    drain = loaded(text("config.toml")).server.drain_seconds
    least = 10 if name == "valkey" else drain
    assert int(service["stop_grace_period"].removesuffix("s")) > least


def test_services_of_compose_start_after_those_that_they_need() -> None:
    services = compose()["services"]
    ready = {"condition": "service_healthy"}
    gateways = ("gateway-1", "gateway-2", "gateway-3")
    assert services["nginx"]["depends_on"] == dict.fromkeys(gateways, ready)
    assert [services[name]["depends_on"] for name in gateways] == [{"valkey": ready}] * 3


def test_valkey_keeps_every_key_on_disk() -> None:
    assert mounts_of(compose()["services"]["valkey"]) == {"valkey": "/data"}
    command = compose()["services"]["valkey"]["command"]
    options = dict(zip(command[1::2], command[2::2], strict=True))
    assert (options["--appendonly"], options["--maxmemory-policy"]) == ("yes", "noeviction")


def test_the_configuration_of_compose_loads() -> None:
    config = loaded(text("config.toml"))
    assert config.server.drain_seconds < 45
    assert config.store.url == "redis://valkey:6379/0"
    variables = set(re.findall(r"\$\{(\w+)\}|env = \"(\w+)\"", text("config.toml")))
    names = {name for pair in variables for name in pair if name}
    assert names <= compose()["services"]["gateway-1"]["environment"].keys()


@pytest.mark.parametrize(
    "directive",
    [
        "proxy_buffering off",
        "proxy_request_buffering off",
        "proxy_next_upstream error timeout",
        "proxy_http_version 1.1",
        "client_max_body_size 0",
        "large_client_header_buffers 8 64k",
        # By default both are 60 s: too long for a gateway that is gone, too short for a whole answer.
        "proxy_connect_timeout 2s",
        "proxy_read_timeout 3600s",
        "proxy_set_header Connection $connection_header",
        "keepalive 64",
    ],
)
def test_nginx_passes_streams_on(directive: str) -> None:
    assert re.search(rf"^\s*{re.escape(directive)};", text("nginx.conf"), re.MULTILINE)


def test_nginx_knows_the_gateways_of_compose() -> None:
    servers = re.findall(r"server (gateway-\d):(\d+)", text("nginx.conf"))
    assert servers == [(f"gateway-{number}", "5520") for number in (1, 2, 3)]


@pytest.mark.skipif(checks.find("nginx") is None, reason="nginx is not installed")
def test_nginx_accepts_its_configuration(tmp_path: Path) -> None:
    assert checks.check_nginx(tmp_path) == ""


@pytest.mark.skipif(checks.find("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    assert checks.check_unit(tmp_path) == ""


def settings(unit: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in unit.splitlines() if "=" in line and not line.startswith("#"))


def user_unit() -> ServiceUnit:
    """Return the unit that `routecodex service install` writes."""
    return ServiceUnit(
        name="routecodex",
        command=("routecodex", "serve"),
        directory=Path("/"),
        environ={},
        env_file=Path("/e"),
        log=Path("/l"),
        drain_seconds=DRAIN,
    )


def test_the_systemd_unit_stops_and_restarts_like_the_one_of_a_session() -> None:
    found, own = settings(checks.UNIT.read_text("utf-8")), settings(systemd_unit(user_unit()))
    alike = ("Type", "Restart", "RestartSec", "RestartPreventExitStatus", "KillMode", "KillSignal")
    assert {name: found[name] for name in alike} == {name: own[name] for name in alike}
    assert (found["RestartSec"], found["RestartPreventExitStatus"]) == (
        str(RESTART_SECONDS),
        str(INVALID_CONFIG),
    )
    assert int(found["TimeoutStopSec"]) == DRAIN + STOP_MARGIN_SECONDS
    assert (found["NoNewPrivileges"], found["ProtectSystem"], found["User"]) == (
        "yes",
        "strict",
        "routecodex",
    )


def test_the_systemd_unit_may_write_its_state_and_reloads() -> None:
    found = settings(checks.UNIT.read_text("utf-8"))
    state = f"/var/lib/{found['StateDirectory']}"
    assert found["Environment"] == f"ROUTECODEX_USER_DIR={state}"
    assert found["WorkingDirectory"] == state
    assert found["StateDirectoryMode"] == "0700"
    assert found["EnvironmentFile"] == "-/etc/routecodex/routecodex.env"
    assert found["ExecStart"].endswith("serve --config /etc/routecodex/config.toml")
    assert found["ExecReload"] == "/bin/kill -HUP $MAINPID"


def test_the_launchd_daemon_stops_and_restarts_like_the_agent_of_a_session() -> None:
    found = plistlib.loads((DEPLOY / "launchd" / "dev.routecodex.gateway.plist").read_bytes())
    own = plistlib.loads(launchd_agent(user_unit()).encode())
    alike = ("RunAtLoad", "KeepAlive", "ThrottleInterval", "ExitTimeOut")
    assert {name: found[name] for name in alike} == {name: own[name] for name in alike}
    assert found["Label"] == "dev.routecodex.gateway"
    assert found["ProgramArguments"][:2] == own["ProgramArguments"][:2]


def test_the_versions_of_chart_image_and_package_are_the_same() -> None:
    from routecodex import __version__

    about = chart.read_yaml((chart.CHART / "Chart.yaml").read_text("utf-8"))
    assert (about["version"], about["appVersion"]) == (__version__, __version__)
    assert f"localhost/routecodex:{__version__}" in text("compose.yaml")
