"""The bill of materials: valid CycloneDX, with every package of the lock."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from compile import sbom
from routecodex import __version__

LOCK = """\
# a comment
Some_Package==1.2 ; sys_platform != 'win32' \\
    --hash=sha256:{a} \\
    --hash=sha256:{b}
other==3
""".format(a="a" * 64, b="b" * 64)

PROJECT = {
    "name": "it",
    "description": "A thing.",
    "license": "Apache-2.0",
    "dependencies": ["some-package>=1"],
}


def written(folder: Path) -> dict[str, Any]:
    assert sbom.main(["--into", str(folder)]) == 0
    made: dict[str, Any] = json.loads((folder / f"routecodex-{__version__}.cdx.json").read_text())
    return made


def test_the_bill_is_valid_by_the_schema_of_cyclonedx(tmp_path: Path) -> None:
    text = json.dumps(written(tmp_path))
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None


def test_every_locked_package_is_in_it_with_its_licence_and_the_hashes_of_its_files(tmp_path: Path) -> None:
    lines = sbom.LOCK.read_text().splitlines()
    pins = [pin.groups() for line in lines if (pin := re.match(r"([\w.-]+)==([\w.]+)", line))]
    components = written(tmp_path)["components"]
    assert [(each["name"], each["version"]) for each in components] == pins
    assert all(each["licenses"] for each in components)
    hashes = [each["content"] for one in components for each in one["externalReferences"][0]["hashes"]]
    assert hashes == re.findall(r"sha256:([0-9a-f]+)", sbom.LOCK.read_text())


def test_the_same_lock_gives_the_same_bill(tmp_path: Path) -> None:
    assert written(tmp_path / "one") == written(tmp_path / "two")


def test_a_lock_is_read_with_its_markers_and_hashes() -> None:
    assert sbom.read_lock(LOCK) == [
        sbom.LockedPackage("Some_Package", "1.2", "sys_platform != 'win32'", ("a" * 64, "b" * 64)),
        sbom.LockedPackage("other", "3", "", ()),
    ]


def test_the_project_depends_on_what_it_names() -> None:
    made = sbom.bill(sbom.read_lock(LOCK), PROJECT, "7")
    assert made["metadata"]["component"]["purl"] == "pkg:pypi/it@7"
    assert made["dependencies"] == [
        {"ref": "pkg:pypi/it@7", "dependsOn": ["pkg:pypi/some-package@1.2"]},
        {"ref": "pkg:pypi/some-package@1.2", "dependsOn": []},
        {"ref": "pkg:pypi/other@3", "dependsOn": []},
    ]
    assert made["components"][0]["properties"][0]["value"] == "sys_platform != 'win32'"


@pytest.mark.parametrize("line", ["click>=8", "--hash=sha256:" + "a" * 64, "-e .", "click @ file:///x"])
def test_a_line_that_is_not_locked_is_an_error(line: str) -> None:
    with pytest.raises(ValueError, match="line 1 of the lock"):
        sbom.read_lock(line)
