"""Writes the bill of materials of the runtime: `python -m compile.sbom`, as CycloneDX 1.6 JSON.

Components and hashes come from `requirements/runtime.lock`. Licences and the edges between packages come from
the installed packages of the same versions, as a lock has neither. The same input gives the same bytes.
"""

from __future__ import annotations

import argparse
import json
import re
import tomllib
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LOCK = ROOT / "requirements/runtime.lock"

_PIN = re.compile(r"^([A-Za-z0-9_.-]+)==([^\s;]+)(?:\s*;\s*([^\\]+?))?\s*\\?$")
_HASH = re.compile(r"^\s*--hash=sha256:([0-9a-f]{64})\s*\\?$")
_NAMESPACE = uuid.uuid5(uuid.NAMESPACE_URL, "pkg:pypi/routecodex")


@dataclass(frozen=True, slots=True)
class LockedPackage:
    """One package of a lock file; `marker` says where it is installed, `hashes` are those of its files."""

    name: str
    version: str
    marker: str
    hashes: tuple[str, ...]

    @property
    def purl(self) -> str:
        """The package URL, which names it in the bill."""
        return f"pkg:pypi/{normalised(self.name)}@{self.version}"


def normalised(name: str) -> str:
    """Return the name of a package in the form that an index uses."""
    return re.sub(r"[-_.]+", "-", name).lower()


def read_lock(text: str) -> list[LockedPackage]:
    """Read a lock file; raise ValueError at a line that is neither a pin nor a hash."""
    found: list[tuple[str, str, str, list[str]]] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if pin := _PIN.match(line):
            found.append((pin[1], pin[2], pin[3] or "", []))
        elif (hashed := _HASH.match(line)) and found:
            found[-1][3].append(hashed[1])
        else:
            raise ValueError(f"line {number} of the lock is neither a pin nor a sha256 hash: {line!r}")
    return [LockedPackage(name, version, marker, tuple(hashes)) for name, version, marker, hashes in found]


def _installed(package: LockedPackage) -> metadata.Distribution | None:
    try:
        found = metadata.distribution(package.name)
    except metadata.PackageNotFoundError:
        return None
    return found if found.version == package.version else None


def _licences(package: LockedPackage) -> list[dict[str, Any]]:
    found = _installed(package)
    if found is None:
        return []
    fields = found.metadata
    if "License-Expression" in fields:
        return [{"expression": fields["License-Expression"]}]
    classifiers = fields.get_all("Classifier") or []
    names = [line.rpartition(" :: ")[2] for line in classifiers if line.startswith("License :: OSI Approved")]
    stated = fields["License"].strip().partition("\n")[0] if "License" in fields else ""
    return [{"license": {"name": name}} for name in names or filter(None, [stated])]


def _needs(package: LockedPackage, known: Mapping[str, str]) -> list[str]:
    found = _installed(package)
    lines = (found.requires if found is not None else None) or []
    names = (re.split(r"[^A-Za-z0-9_.-]", line, maxsplit=1)[0] for line in lines if "extra ==" not in line)
    return sorted(known[name] for name in map(normalised, names) if name in known)


def _component(package: LockedPackage) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "type": "library",
        "bom-ref": package.purl,
        "name": package.name,
        "version": package.version,
    }
    if licences := _licences(package):
        fields["licenses"] = licences
    fields["purl"] = package.purl
    hashes = [{"alg": "SHA-256", "content": content} for content in package.hashes]
    fields["externalReferences"] = [
        {"type": "distribution", "url": package.purl, "comment": "files of the release", "hashes": hashes}
    ]
    if package.marker:
        fields["properties"] = [{"name": "routecodex:environment-marker", "value": package.marker}]
    return fields


def bill(packages: Sequence[LockedPackage], project: Mapping[str, Any], version: str) -> dict[str, Any]:
    """Return the bill of materials of a project with these packages."""
    root = LockedPackage(project["name"], version, "", ())
    known = {normalised(package.name): package.purl for package in packages}
    direct = (normalised(re.split(r"[^\w.-]", line, maxsplit=1)[0]) for line in project["dependencies"])
    edges = {root.purl: sorted(known[name] for name in direct)}
    edges |= {package.purl: _needs(package, known) for package in packages}
    content = {
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": root.purl,
                "name": root.name,
                "version": version,
                "description": project["description"],
                "licenses": [{"expression": project["license"]}],
                "purl": root.purl,
            }
        },
        "components": [_component(package) for package in packages],
        "dependencies": [{"ref": ref, "dependsOn": needs} for ref, needs in edges.items()],
    }
    serial = uuid.uuid5(_NAMESPACE, json.dumps(content, sort_keys=True))
    head = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{serial}",
        "version": 1,
    }
    return {"$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json", **head, **content}


def _version() -> str:
    text = (ROOT / "src/routecodex/__init__.py").read_text("utf-8")
    found = re.search(r'^__version__ = "(.+)"$', text, re.MULTILINE)
    assert found is not None
    return found[1]


def _unlicensed(made: Mapping[str, Any]) -> Iterator[str]:
    return (part["name"] for part in made["components"] if "licenses" not in part)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the bill into a file and print its name."""
    parser = argparse.ArgumentParser(prog="compile.sbom", description="Write the bill of materials.")
    parser.add_argument("--into", type=Path, default=ROOT / "dist", help="directory of the file (dist)")
    options = parser.parse_args(arguments)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    version = _version()
    made = bill(read_lock(LOCK.read_text("utf-8")), project, version)
    file: Path = options.into / f"routecodex-{version}.cdx.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(made, indent=2) + "\n", "utf-8")
    unlicensed = ", ".join(_unlicensed(made))
    note = f"; without licences, because other versions are installed: {unlicensed}" if unlicensed else ""
    print(f"{file}: {len(made['components'])} components{note}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
