"""Compiled modules are used exactly as long as they are made from the sources that are there."""

from __future__ import annotations

import ast
import json
import os
import platform
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from compile.modules import IN_C, MODULES
from compile.training import train
from routecodex import compiled
from tests.kit import source_tree
from tests.reference.installed import SWITCHES

TYPED = [f"routecodex.{module}" for module in MODULES]
NAMES = [*TYPED, *(f"routecodex.{module}" for module in IN_C)]


def manifest(folder: Path, *, digest: str, outside: dict[str, str] | None = None) -> Path:
    file = folder / "manifest.json"
    files = {"routecodex.wire.json": "routecodex/wire/json.so"}
    file.write_text(
        json.dumps({"digest": digest, "modules": NAMES, "outside": outside or {}, "files": files})
    )
    return file


def test_what_was_made_from_these_sources_is_found_and_nothing_else(tmp_path: Path) -> None:
    finder = compiled.matching_build(manifest(tmp_path, digest=compiled.digest(NAMES)))
    assert finder is not None
    spec = finder.find_spec("routecodex.wire.json", None)
    assert spec is not None
    assert spec.origin == str(tmp_path / "routecodex/wire/json.so")
    assert finder.find_spec("routecodex.wire.sse", None) is None


def test_what_was_made_from_other_sources_is_not_used(tmp_path: Path) -> None:
    assert compiled.matching_build(manifest(tmp_path, digest=compiled.digest(NAMES[1:]))) is None


def test_a_source_in_c_makes_what_was_made_stale_when_it_changes_but_not_when_it_is_gone(
    tmp_path: Path,
) -> None:
    written = tmp_path / "scan.c"
    written.write_text("int a;")
    outside = {os.path.relpath(written, compiled.PACKAGE): compiled.file_digest(written)}
    manifest_file = manifest(tmp_path, digest=compiled.digest(NAMES), outside=outside)
    assert compiled.matching_build(manifest_file) is not None
    written.write_text("int b;")
    assert compiled.matching_build(manifest_file) is None
    written.unlink()
    assert compiled.matching_build(manifest_file) is not None


@pytest.mark.parametrize("listed", [MODULES, tuple(IN_C)], ids=["MODULES", "IN_C"])
def test_every_module_that_is_listed_for_the_build_exists_and_is_listed_once(listed: tuple[str, ...]) -> None:
    assert [name for name in listed if not compiled.source(f"routecodex.{name}").is_file()] == []
    assert len(set(listed)) == len(listed)


def test_every_c_file_replaces_one_module_that_mypyc_does_not_compile() -> None:
    there = Path(__file__).parent.parent / "compile"
    assert sorted(IN_C.values()) == sorted(file.name for file in there.glob("*.c"))
    assert set(IN_C) & set(MODULES) == set()


def test_c_that_does_nothing_from_the_sources_has_a_reference_to_be_tested_against() -> None:
    there = Path(__file__).parent / "reference"
    names = {name.rpartition(".")[2] for name in IN_C} - {"scan"}
    assert names == {file.stem for file in there.glob("*.py")} - {"installed"}


def test_every_branch_that_asks_for_c_can_be_taken_from_the_sources_too() -> None:
    """A name of a module holds `scan.IN_C`, and the tests know it: they run both of its branches."""
    holders = []
    for file in sorted(compiled.PACKAGE.rglob("*.py")):
        module = ".".join(file.relative_to(compiled.PACKAGE).with_suffix("").parts)
        tree = source_tree.read(file)
        assigned = [node for node in tree.body if isinstance(node, ast.AnnAssign) and asks_for_c(node.value)]
        holders += [f"{module}.{ast.unparse(node.target)}" for node in assigned]
        asked = [node for node in ast.walk(tree) if asks_for_c(node)]
        assert len(asked) == len(assigned), f"{module}: hold scan.IN_C in a name, and use that"
    assert sorted(holders) == sorted(SWITCHES)


def asks_for_c(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "IN_C"


@pytest.mark.parametrize("text", ["", "{", "{}", "[]"])
def test_a_manifest_that_is_none_is_passed_over(tmp_path: Path, text: str) -> None:
    file = tmp_path / "manifest.json"
    assert compiled.matching_build(file) is None
    file.write_text(text)
    assert compiled.matching_build(file) is None


def test_a_build_serves_all_patch_releases_of_its_python_and_no_other_version() -> None:
    version = f"{sys.version_info.major}{sys.version_info.minor}"
    assert compiled.BINARY_INTERFACE.startswith(f"{sys.implementation.name}-{version} ")
    assert platform.python_version() not in compiled.BINARY_INTERFACE
    assert compiled.BINARY_INTERFACE.endswith(sysconfig.get_config_var("EXT_SUFFIX"))


@pytest.mark.parametrize("name", ["routecodex.wire.json", "routecodex.wire.scan"])
def test_the_sources_run_where_that_is_asked_for(name: str) -> None:
    environ = {**os.environ, "ROUTECODEX_PURE": "1"}
    script = f"import routecodex, {name} as m; print(routecodex.IS_COMPILED, m.__file__[-3:])"
    output = subprocess.check_output([sys.executable, "-c", script], env=environ, text=True)
    assert output == "False .py\n"


def test_what_the_compiler_learns_from_runs_to_its_end() -> None:
    train(pieces=1, requests=1)


@pytest.mark.parametrize("name", TYPED)
def test_a_module_that_is_compiled_has_nothing_that_mypyc_cannot_build(name: str) -> None:
    tree = source_tree.read(compiled.source(name))
    keyworded = [node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.keywords]
    coroutines = [node for node in ast.walk(tree) if isinstance(node, ast.AsyncFunctionDef)]
    odd = [node.name for node in coroutines if any(map(is_unfit, ast.walk(node)))]
    assert (keyworded, odd) == ([], [])


def is_unfit(part: ast.AST) -> bool:
    """Whether a coroutine with this would show its exception to whatever runs while it waits."""
    if isinstance(part, ast.Try):
        last = [*part.handlers, *part.finalbody]
        return any(isinstance(inner, ast.Await) for node in last for inner in ast.walk(node))
    return isinstance(part, ast.AsyncWith | ast.AsyncFor | ast.Yield)
