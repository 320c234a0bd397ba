"""Renders the Helm chart with a small program in Go, and checks the result by the schemas of Kubernetes.

There is no Helm among the packages of Debian. `render.go` does what this chart needs, with the libraries that
Helm itself is built on: text/template, sprig and sigs.k8s.io/yaml.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped] # it has no types of its own
import yaml  # type: ignore[import-untyped] # it has no types of its own

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "helm" / "routecodex"
RENDERER = Path(__file__).parent / "render.go"
EVERY_OPTION = Path(__file__).parent / "every_option.yaml"
"""Every option of a deployment of several gateways."""
PERSISTENT = Path(__file__).parent / "persistent.yaml"
"""One gateway with a claim."""
PACKAGES = ("golang-go", "golang-github-masterminds-sprig-dev", "golang-k8s-sigs-yaml-dev")
GO_SOURCES = Path("/usr/share/gocode")
"""Where Debian keeps the sources of Go packages."""
KUBERNETES = kubernetes_validate.latest_version()
OTHER_KINDS = frozenset({"ServiceMonitor"})
"""Kinds that come from other projects than Kubernetes, and are not among its schemas."""
_INSTALL = ["apt-get", "-o", "DPkg::Lock::Timeout=300", "install", "-y", "-q", "--no-install-recommends"]


class CannotRender(Exception):
    """Go or one of its packages is missing."""


def read_yaml(text: str) -> Any:
    """Return the value of a YAML document."""
    return yaml.safe_load(text)


def has_go() -> bool:
    """Return whether charts can be rendered here."""
    return shutil.which("go") is not None and (GO_SOURCES / "src/github.com/Masterminds/sprig").is_dir()


def install_go() -> None:
    """Install Go and the packages from Debian, if they are missing and that is permitted."""
    if not has_go() and shutil.which("apt-get") and os.geteuid() == 0:
        print(f"installing {', '.join(PACKAGES)} …", file=sys.stderr)
        subprocess.run([*_INSTALL, *PACKAGES], stdout=subprocess.DEVNULL, check=False)
    if not has_go():
        raise CannotRender(f"Go and its packages are missing: apt-get install {' '.join(PACKAGES)}")


def build_renderer(into: Path) -> Path:
    """Build the program that renders charts."""
    program = into / "render"
    environ = {
        **os.environ,
        "GO111MODULE": "off",
        "GOPATH": str(GO_SOURCES),
        "GOCACHE": str(into / "go-cache"),
        "GOFLAGS": "",
    }
    subprocess.run(["go", "build", "-o", str(program), str(RENDERER)], env=environ, check=True)
    return program


def render(program: Path, values: Path, into: Path) -> dict[str, Any]:
    """Render the chart; return its objects by kind."""
    into.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [str(program), str(CHART), str(values), str(into)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise ValueError(done.stderr.strip())
    objects = [read_yaml(file.read_text("utf-8")) for file in sorted(into.glob("*.yaml"))]
    return {one["kind"]: one for one in objects}


def mistakes(objects: dict[str, Any]) -> Iterator[str]:
    """Yield what the schemas of Kubernetes do not allow; unknown fields are mistakes too."""
    for kind, value in objects.items():
        if kind in OTHER_KINDS:
            continue
        try:
            kubernetes_validate.validate(value, KUBERNETES, strict=True)
        except kubernetes_validate.ValidationError as error:
            yield f"{kind}: {error.message} at {list(error.path)}"
