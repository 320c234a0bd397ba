"""The Helm chart, rendered and checked by the schemas of Kubernetes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.deploy import chart
from tests.deploy.test_files import loaded

pytestmark = pytest.mark.skipif(
    not chart.has_go(), reason="Go is not installed; `make deploy-check` installs it"
)
Objects = dict[str, Any]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return chart.build_renderer(tmp_path_factory.mktemp("renderer"))


def rendered(program: Path, folder: Path, values: str | Path) -> Objects:
    if isinstance(values, str):
        file = folder / "values.yaml"
        file.write_text(values, "utf-8")
        values = file
    return chart.render(program, values, folder / "rendered")


@pytest.mark.parametrize("values", ["{}", chart.EVERY_OPTION], ids=["defaults", "every option"])
def test_every_object_follows_the_schemas(program: Path, tmp_path: Path, values: str | Path) -> None:
    assert list(chart.mistakes(rendered(program, tmp_path, values))) == []


def test_every_option_makes_every_object(program: Path, tmp_path: Path) -> None:
    assert sorted(rendered(program, tmp_path, chart.EVERY_OPTION)) == [
        "ConfigMap",
        "Deployment",
        "HorizontalPodAutoscaler",
        "PodDisruptionBudget",
        "Service",
        "ServiceAccount",
        "ServiceMonitor",
    ]


def test_the_values_that_turn_every_option_on_name_options_of_the_chart() -> None:
    known = chart.read_yaml((chart.CHART / "values.yaml").read_text("utf-8"))
    used = chart.read_yaml(chart.EVERY_OPTION.read_text("utf-8"))
    assert used.keys() <= known.keys()
    assert known.keys() - used.keys() == {"config", "nameOverride", "resources"}


@pytest.mark.parametrize("values", ["{}", chart.EVERY_OPTION], ids=["defaults", "every option"])
def test_the_pod_is_confined_probed_and_given_time_to_drain(
    program: Path, tmp_path: Path, values: str | Path
) -> None:
    objects = rendered(program, tmp_path, values)
    pod = objects["Deployment"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["automountServiceAccountToken"] is False
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    probes = {name: container[name]["httpGet"]["path"] for name in container if name.endswith("Probe")}
    assert probes == {
        "startupProbe": "/health/live",
        "livenessProbe": "/health/live",
        "readinessProbe": "/health/ready",
    }
    written = objects["ConfigMap"]["data"]["config.toml"]
    config = loaded(written)
    longest = config.server.drain_seconds + config.server.drain_notice_ms / 1000
    assert pod["terminationGracePeriodSeconds"] > longest > config.server.drain_seconds
    assert config.server.port == container["ports"][0]["containerPort"]


def test_keys_come_from_secrets_that_exist(program: Path, tmp_path: Path) -> None:
    objects = rendered(program, tmp_path, chart.EVERY_OPTION)
    assert "Secret" not in objects
    (container,) = objects["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert [one["secretRef"]["name"] for one in container["envFrom"]] == ["providers", "clients"]
    (endpoint,) = objects["ServiceMonitor"]["spec"]["endpoints"]
    assert endpoint["authorization"]["credentials"] == {"name": "routecodex", "key": "ROUTECODEX_KEY"}


def test_selectors_select_the_pods(program: Path, tmp_path: Path) -> None:
    objects = rendered(program, tmp_path, chart.EVERY_OPTION)
    labels = objects["Deployment"]["spec"]["template"]["metadata"]["labels"]
    selectors = [
        objects["Service"]["spec"]["selector"],
        objects["Deployment"]["spec"]["selector"]["matchLabels"],
        objects["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
    ]
    assert all(selector.items() <= labels.items() for selector in selectors)
    monitored = objects["ServiceMonitor"]["spec"]["selector"]["matchLabels"]
    assert monitored.items() <= objects["Service"]["metadata"]["labels"].items()


def test_prometheus_scrapes_the_port_of_the_service(program: Path, tmp_path: Path) -> None:
    objects = rendered(program, tmp_path, chart.EVERY_OPTION)
    (endpoint,) = objects["ServiceMonitor"]["spec"]["endpoints"]
    (port,) = objects["Service"]["spec"]["ports"]
    (container,) = objects["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert (endpoint["path"], endpoint["port"], endpoint["interval"]) == ("/metrics", port["name"], "30s")
    assert port["targetPort"] == container["ports"][0]["name"]


def test_autoscaling_replaces_the_number_of_replicas(program: Path, tmp_path: Path) -> None:
    objects = rendered(program, tmp_path, chart.EVERY_OPTION)
    assert "replicas" not in objects["Deployment"]["spec"]
    assert objects["HorizontalPodAutoscaler"]["spec"]["scaleTargetRef"]["name"] == "gateway"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ("config: ''", "config must hold the configuration"),
        ("config: '[server]'", "config has a table [server]"),
        ("persistence: { enabled: true }", "persistence.existingClaim names the claim"),
    ],
)
def test_values_that_cannot_work_are_refused(
    program: Path, tmp_path: Path, values: str, message: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        rendered(program, tmp_path, values)


def test_the_schemas_refuse_an_unknown_field(program: Path, tmp_path: Path) -> None:
    objects = rendered(program, tmp_path, "{}")
    objects["Deployment"]["spec"]["replicaz"] = 1
    assert len(list(chart.mistakes(objects))) == 1
