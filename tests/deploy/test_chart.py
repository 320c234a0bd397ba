"""The Helm chart, rendered and checked by the schemas of Kubernetes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from routecodex import __version__
from routecodex.config import Config
from tests.deploy import chart
from tests.deploy.test_files import instructions, loaded

pytestmark = pytest.mark.skipif(
    not chart.has_go(), reason="Go is not installed; `make deploy-check` installs it"
)
Objects = dict[str, Any]
each_rendering = pytest.mark.parametrize(
    "values",
    ["{}", chart.EVERY_OPTION, chart.PERSISTENT],
    ids=["defaults", "every option", "persistent"],
)
ONE = "replicaCount: 1"
CLAIM = "persistence: { enabled: true, existingClaim: data }"
MEBIBYTES = {"Mi": 1, "Gi": 1024}


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return chart.build_renderer(tmp_path_factory.mktemp("renderer"))


def rendered(program: Path, folder: Path, values: str | Path) -> Objects:
    if isinstance(values, str):
        folder.mkdir(exist_ok=True)
        file = folder / "values.yaml"
        file.write_text(values, "utf-8")
        values = file
    return chart.render(program, values, folder / "rendered")


def pod_of(objects: Objects) -> Any:
    return objects["Deployment"]["spec"]["template"]["spec"]


def variables_of(objects: Objects) -> Objects:
    """Return the variables of the gateway: the value of each, or the field that it is taken from."""
    (container,) = pod_of(objects)["containers"]
    return {
        one["name"]: one["value"] if "value" in one else one["valueFrom"]["fieldRef"]["fieldPath"]
        for one in container["env"]
    }


def data_volume_of(objects: Objects) -> Any:
    (volume,) = (one for one in pod_of(objects)["volumes"] if one["name"] == "data")
    return volume


def with_config(config: str, *more: str) -> str:
    """Return values with this configuration."""
    lines = "".join(f"  {line}\n" for line in config.splitlines())
    return "\n".join([f"config: |\n{lines}", *more])


def with_extra(line: str) -> str:
    """Return values with this line in server.extra."""
    return f"server:\n  extra: |\n    {line}\n"


@each_rendering
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
    files = (chart.EVERY_OPTION, chart.PERSISTENT)
    used = {name for file in files for name in chart.read_yaml(file.read_text("utf-8"))}
    assert used <= known.keys()
    assert known.keys() - used == {"nameOverride", "resources"}


@each_rendering
def test_the_pod_is_confined_probed_and_given_time_to_drain(
    program: Path, tmp_path: Path, values: str | Path
) -> None:
    objects = rendered(program, tmp_path, values)
    pod = objects["Deployment"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
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


@each_rendering
def test_the_gateway_runs_from_the_image_with_the_configuration_of_its_map(
    program: Path, tmp_path: Path, values: str | Path
) -> None:
    objects = rendered(program, tmp_path, values)
    pod = pod_of(objects)
    (container,) = pod["containers"]
    every = values == chart.EVERY_OPTION
    image = "registry.example/routecodex:1.2.3" if every else f"localhost/routecodex:{__version__}"
    assert (container["image"], container["imagePullPolicy"]) == (image, "IfNotPresent")
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounts == {"config": "/etc/routecodex", "data": "/data", "tmp": "/tmp"}
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert volumes["config"]["configMap"]["name"] == objects["ConfigMap"]["metadata"]["name"]
    workers = "2" if every else "1"
    assert container["args"] == ["serve", "--config", "/etc/routecodex/config.toml", "--workers", workers]
    user = dict(instructions("Containerfile"))["USER"]
    security = pod["securityContext"]
    assert f"{security['runAsUser']}:{security['runAsGroup']}" == user
    # A claim belongs to root otherwise.
    assert security["fsGroup"] == security["runAsGroup"]
    probes = [container[name]["httpGet"]["port"] for name in container if name.endswith("Probe")]
    assert set(probes) == {container["ports"][0]["name"]}


def texts_of(value: Any) -> Iterator[str]:
    """Yield all texts and numbers below a value of YAML."""
    if isinstance(value, dict):
        for one in value.values():
            yield from texts_of(one)
    elif isinstance(value, list):
        for one in value:
            yield from texts_of(one)
    elif not isinstance(value, bool):
        yield str(value)


def test_every_value_of_every_option_is_in_an_object(program: Path, tmp_path: Path) -> None:
    objects = rendered(program, tmp_path, chart.EVERY_OPTION)
    values = chart.read_yaml(chart.EVERY_OPTION.read_text("utf-8"))
    # With autoscaling there is no number of replicas; the others are parts of texts.
    del values["replicaCount"], values["image"], values["server"]
    found = {text.replace("release", "{{ .Release.Name }}") for text in texts_of(objects)}
    assert set(texts_of(values)) - found - set(texts_of(objects)) == set()
    assert pod_of(objects)["serviceAccountName"] == objects["ServiceAccount"]["metadata"]["name"]


def test_a_change_of_the_configuration_and_nothing_else_starts_the_gateways_anew(
    program: Path, tmp_path: Path
) -> None:
    def template(name: str, values: str) -> Any:
        return rendered(program, tmp_path / name, values)["Deployment"]["spec"]["template"]

    before = template("a", "{}")
    assert template("b", "replicaCount: 3") == before
    for name, values in (("c", with_extra("max_queued = 5")), ("d", with_config(f"{REDIS}\n{NO_STORE}"))):
        assert template(name, values) != before


def test_the_service_learns_of_a_drain_before_the_gateway_accepts_nothing_more(
    program: Path, tmp_path: Path
) -> None:
    objects = rendered(program, tmp_path, "{}")
    (container,) = pod_of(objects)["containers"]
    probe = container["readinessProbe"]
    seconds = probe["periodSeconds"] * probe["failureThreshold"] + probe["timeoutSeconds"]
    assert seconds < loaded(objects["ConfigMap"]["data"]["config.toml"]).server.drain_notice_ms / 1000
    # A start waits 5 s for a store that hangs.
    start = container["startupProbe"]
    assert start["periodSeconds"] * start["failureThreshold"] > 30


def test_a_gateway_asks_for_what_its_autoscaling_is_a_share_of(program: Path, tmp_path: Path) -> None:
    objects = rendered(program, tmp_path, chart.EVERY_OPTION)
    (container,) = pod_of(objects)["containers"]
    (metric,) = objects["HorizontalPodAutoscaler"]["spec"]["metrics"]
    assert metric["resource"]["name"] == "cpu"
    assert container["resources"]["requests"]["cpu"] == "250m"


def test_without_autoscaling_there_are_as_many_gateways_as_asked_for(program: Path, tmp_path: Path) -> None:
    assert rendered(program, tmp_path / "two", "{}")["Deployment"]["spec"]["replicas"] == 2
    assert rendered(program, tmp_path / "five", "replicaCount: 5")["Deployment"]["spec"]["replicas"] == 5


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


def test_every_object_has_the_name_and_the_labels_of_its_release(program: Path, tmp_path: Path) -> None:
    objects = rendered(program, tmp_path, "serviceMonitor: { enabled: true }\nautoscaling: { enabled: true }")
    assert len(objects) == 7
    assert {one["metadata"]["name"] for one in objects.values()} == {"release-routecodex"}
    for one in objects.values():
        assert one["metadata"]["labels"] == {
            "helm.sh/chart": f"routecodex-{__version__}",
            "app.kubernetes.io/name": "routecodex",
            "app.kubernetes.io/instance": "release",
            "app.kubernetes.io/version": __version__,
            "app.kubernetes.io/managed-by": "Helm",
        }


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


@pytest.mark.parametrize("store", ["memory:", "redis://valkey"])
def test_a_gateway_with_a_claim_keeps_its_id_and_so_its_state(
    program: Path, tmp_path: Path, store: str
) -> None:
    config = f'[store]\nurl = "{store}"\n[routing]\ndefault = ["openai.gpt-4.1"]'
    objects = rendered(program, tmp_path, with_config(config, ONE, CLAIM))
    assert variables_of(objects)["ROUTECODEX_SERVER_ID"] == "release-routecodex"
    assert data_volume_of(objects)["persistentVolumeClaim"] == {"claimName": "data"}


@pytest.mark.parametrize("values", ["{}", chart.EVERY_OPTION, ONE])
def test_gateways_without_a_claim_have_the_ids_of_their_pods(
    program: Path, tmp_path: Path, values: str | Path
) -> None:
    objects = rendered(program, tmp_path, values)
    assert variables_of(objects)["ROUTECODEX_SERVER_ID"] == "metadata.name"


def test_a_gateway_with_a_claim_stops_before_its_successor_starts(program: Path, tmp_path: Path) -> None:
    claimed = rendered(program, tmp_path / "claimed", chart.PERSISTENT)
    assert claimed["Deployment"]["spec"]["strategy"] == {"type": "Recreate"}
    others = rendered(program, tmp_path / "others", chart.EVERY_OPTION)
    assert others["Deployment"]["spec"]["strategy"] == {
        "type": "RollingUpdate",
        "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1},
    }


def test_the_volume_of_a_gateway_without_a_claim_holds_what_the_gateway_may_write(
    program: Path, tmp_path: Path
) -> None:
    limit = data_volume_of(rendered(program, tmp_path, "{}"))["emptyDir"]["sizeLimit"]
    config = Config()
    bounds = (
        config.usage.max_mb,
        config.capture.max_mb,
        config.store.responses_max_mb,
        3 * config.logging.requests_max_mb,
    )
    # Twice: the write-ahead log of the ledger, hourly totals and sessions come on top.
    assert int(limit[:-2]) * MEBIBYTES[limit[-2:]] > 2 * sum(bounds)


def test_the_volume_may_have_no_limit(program: Path, tmp_path: Path) -> None:
    objects = rendered(program, tmp_path, "persistence: { sizeLimit: '' }")
    assert data_volume_of(objects)["emptyDir"] == {}


@pytest.mark.parametrize(
    ("host", "url"), [("0.0.0.0", "http://$(POD_IP):5520"), ("::", "http://[$(POD_IP)]:5520")]
)
def test_a_gateway_listens_on_the_family_of_its_pod_and_advertises_its_address(
    program: Path, tmp_path: Path, host: str, url: str
) -> None:
    objects = rendered(program, tmp_path, f'server: {{ host: "{host}" }}')
    assert loaded(objects["ConfigMap"]["data"]["config.toml"]).server.host == host
    assert variables_of(objects)["ROUTECODEX_ADVERTISE_URL"] == url
    assert variables_of(objects)["POD_IP"] == "status.podIP"


def test_the_comment_on_secrets_names_every_variable_of_the_default_configuration() -> None:
    text = (chart.CHART / "values.yaml").read_text("utf-8")
    values = chart.read_yaml(text)
    config = values["server"]["extra"] + values["config"]
    used = {name for pair in re.findall(r"\$\{(\w+)\}|env = \"(\w+)\"", config) for name in pair if name}
    assert used == {"ROUTECODEX_KEY", "ROUTECODEX_ADMIN_TOKEN", "OPENAI_API_KEY"}
    for place in (text, (chart.ROOT / "docs" / "deploy.md").read_text("utf-8")):
        assert set(re.findall(r"--from-literal=(\w+)=", place)) == used


REDIS = '[store]\nurl = "redis://valkey"'
NO_STORE = '[routing]\ndefault = ["openai.gpt-4.1"]'
FILE_STORE = f'[store]\nurl = "file:"\n{NO_STORE}'
TWO = "autoscaling: { enabled: true, maxReplicas: 2 }"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ("config: ''", "config must hold the configuration"),
        ("config: '[server]'", "config has a table [server]"),
        ("config: '[ server ]'", "config has a table [server]"),
        ("config: '[\"server\"]'", "config has a table [server]"),
        ("config: 'server.port = 1'", "config has a table [server]"),
        ("config: 'server = { port = 1 }'", "config has a table [server]"),
        (with_extra("[server]"), "server.extra has a table [server]"),
        (with_extra("[ server ]"), "server.extra has a table [server]"),
        (with_extra("server.port = 1"), "server.extra has a table [server]"),
        (with_extra("port = 1"), "server.extra sets a value of the chart"),
        (with_extra('"host" = "::1"'), "server.extra sets a value of the chart"),
        (with_extra("drain_seconds=1"), "server.extra sets a value of the chart"),
        ("server: { host: 127.0.0.1 }", "server.host is 0.0.0.0 or ::"),
        (f"{ONE}\npersistence: {{ enabled: true }}", "persistence.existingClaim names the claim"),
        (CLAIM, "persistence is for one gateway"),
        (f"{ONE}\n{CLAIM}\n{TWO}", "persistence is for one gateway"),
        (f"{ONE}\n{CLAIM}\n{TWO.replace('2', '1')}", "persistence is for one gateway"),
        (with_config(NO_STORE), "several gateways need a Redis store"),
        (with_config(FILE_STORE), "several gateways need a Redis store"),
        (with_config(f"# [store]\n# url = 'redis://valkey'\n{NO_STORE}"), "several gateways need a Redis"),
        (with_config(f"[store]\nprefix = 'a'\n[x]\nurl = 'redis://valkey'\n{NO_STORE}"), "several gateways"),
        (with_config(FILE_STORE, ONE, TWO), "several gateways need a Redis store"),
    ],
)
def test_values_that_cannot_work_are_refused(
    program: Path, tmp_path: Path, values: str, message: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        rendered(program, tmp_path, values)


@pytest.mark.parametrize(
    "values",
    [
        with_config(NO_STORE, ONE),
        with_config(f'[store]\n# [a]\nprefix = "a"\n\nurl = "rediss+sentinel://a,b/main"\n{NO_STORE}'),
        with_config(f"[ store ] # shared\nurl='${{STORE_URL}}'\n{NO_STORE}"),
        with_extra("max_queued = 5"),
        with_config(f"# [server]\n[store]\nurl = 'redis://valkey'\n[[server.client_keys]]\n{NO_STORE}"),
    ],
)
def test_values_that_work_are_not_refused(program: Path, tmp_path: Path, values: str) -> None:
    assert "Deployment" in rendered(program, tmp_path, values)


def test_keys_outside_any_table_stay_outside_the_table_that_the_chart_writes(
    program: Path, tmp_path: Path
) -> None:
    plain = 'logging = { level = "debug" }\nproviders.openai.auth = [{ env = "OPENAI_API_KEY" }]\n'
    objects = rendered(program, tmp_path, with_config(plain + 'routing.default = ["openai.gpt-4.1"]', ONE))
    config = loaded(objects["ConfigMap"]["data"]["config.toml"])
    assert (config.logging.level, config.server.port) == ("debug", 5520)


@pytest.mark.parametrize(("values", "warns"), [("{}", True), (ONE, False), (f"{ONE}\n{TWO}", True)])
def test_the_notes_say_that_several_gateways_share_a_store(
    program: Path, tmp_path: Path, values: str, warns: bool
) -> None:
    rendered(program, tmp_path, values)
    notes = (tmp_path / "rendered" / "NOTES.txt").read_text("utf-8")
    assert ("must be the same Redis" in notes) is warns


def test_the_schemas_refuse_an_unknown_field(program: Path, tmp_path: Path) -> None:
    objects = rendered(program, tmp_path, "{}")
    objects["Deployment"]["spec"]["replicaz"] = 1
    assert len(list(chart.mistakes(objects))) == 1
