"""Compiled modules are used exactly as long as they are made from the sources that are there."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from compile.modules import MODULES
from routecodex import compiled

NAMES = [f"routecodex.{module}" for module in MODULES]


def manifest(folder: Path, *, digest: str) -> Path:
    file = folder / "manifest.json"
    files = {"routecodex.wire.json": "routecodex/wire/json.so"}
    file.write_text(json.dumps({"digest": digest, "modules": NAMES, "files": files}))
    return file


def test_what_was_made_from_these_sources_is_found_and_nothing_else(tmp_path: Path) -> None:
    finder = compiled.made_for_these_sources(manifest(tmp_path, digest=compiled.digest(NAMES)))
    assert finder is not None
    spec = finder.find_spec("routecodex.wire.json", None)
    assert spec is not None
    assert spec.origin == str(tmp_path / "routecodex/wire/json.so")
    assert finder.find_spec("routecodex.wire.sse", None) is None


def test_what_was_made_from_other_sources_is_not_used(tmp_path: Path) -> None:
    assert compiled.made_for_these_sources(manifest(tmp_path, digest=compiled.digest(NAMES[1:]))) is None


@pytest.mark.parametrize("text", ["", "{", "{}", "[]"])
def test_a_manifest_that_is_none_is_passed_over(tmp_path: Path, text: str) -> None:
    file = tmp_path / "manifest.json"
    assert compiled.made_for_these_sources(file) is None
    file.write_text(text)
    assert compiled.made_for_these_sources(file) is None


def test_the_sources_run_where_that_is_asked_for() -> None:
    environ = {**os.environ, "ROUTECODEX_PURE": "1"}
    script = "import routecodex, routecodex.wire.json as m; print(routecodex.IS_COMPILED, m.__file__[-3:])"
    said = subprocess.check_output([sys.executable, "-c", script], env=environ, text=True)
    assert said == "False .py\n"


@pytest.mark.parametrize("name", NAMES)
def test_a_module_that_is_compiled_has_nothing_that_mypyc_cannot_build(name: str) -> None:
    tree = ast.parse(compiled.source(name).read_text("utf-8"))
    keyworded = [node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.keywords]
    coroutines = [node for node in ast.walk(tree) if isinstance(node, ast.AsyncFunctionDef)]
    unfit = ast.Try | ast.With | ast.AsyncWith | ast.Yield
    odd = [node.name for node in coroutines if any(isinstance(part, unfit) for part in ast.walk(node))]
    assert (keyworded, odd) == ([], [])
