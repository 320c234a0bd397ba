"""The build hook: which wheel is built, by what is there and what `ROUTECODEX_COMPILE` demands.

A small project with a compiler of its own stands in for this one: compiling takes minutes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from compile import hook

ROOT = Path(__file__).parents[2]
PYTHON = f"cp{sys.version_info.major}{sys.version_info.minor}"

PROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "build_backend"
backend-path = ["compile/backend"]

[project]
name = "small"
version = "1"
requires-python = ">=3.11"
dependencies = ["msgspec"]

[tool.hatch.build.targets.wheel]
packages = ["src/routecodex"]
exclude = ["src/routecodex/_compiled"]

[tool.hatch.build.targets.wheel.hooks.custom]
path = "compile/hook.py"
tools = ["mypy", "setuptools"]
"""

COMPILER = """
import pathlib, sys
with open(pathlib.Path(__file__).parents[1] / "compilations", "a") as log:
    log.write("x")
into = pathlib.Path(sys.argv[sys.argv.index("--into") + 1])
into.mkdir(parents=True)
(into / "manifest.json").write_text(" ".join(sys.argv[3:]))
sys.exit({code})
"""


class Project:
    """A small project that is built with the hook."""

    def __init__(self, root: Path, *, compiler_exit: int = 0) -> None:
        self.root = root
        self._write("pyproject.toml", PROJECT)
        self._write("src/routecodex/__init__.py", "")
        self._write("src/routecodex/_compiled/of_the_tree.so", "")
        self._write("compile/hook.py", (ROOT / "compile/hook.py").read_text())
        backend = "compile/backend/build_backend.py"
        self._write(backend, (ROOT / backend).read_text())
        self._write("compile/__main__.py", COMPILER.format(code=compiler_exit))

    def _write(self, name: str, text: str) -> None:
        file = self.root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def build(self, **environ: str) -> subprocess.CompletedProcess[str]:
        """Build a wheel into `dist`."""
        clean = {name: value for name, value in os.environ.items() if name not in (hook.SWITCH, "PYTHONPATH")}
        return subprocess.run(
            [sys.executable, "-m", "hatchling", "build", "-t", "wheel"],
            cwd=self.root,
            env={**clean, **environ},
            capture_output=True,
            text=True,
        )

    def wheel(self) -> tuple[str, list[str]]:
        """Return the tag of the built wheel and its files below the package."""
        [file] = (self.root / "dist").glob("*.whl")
        names = zipfile.ZipFile(file).namelist()
        return file.stem.removeprefix("small-1-"), [name for name in names if name.startswith("routecodex/")]


can_compile = pytest.mark.skipif(hook.missing(os.environ) is not None, reason="nothing can be compiled here")
PURE = ("py3-none-any", ["routecodex/__init__.py"])


def assert_compiled(wheel: tuple[str, list[str]]) -> None:
    tag, files = wheel
    assert tag.startswith(f"{PYTHON}-{PYTHON}-")
    assert files == ["routecodex/__init__.py", "routecodex/_compiled/manifest.json"]


@can_compile
def test_a_wheel_is_compiled_where_that_is_possible(tmp_path: Path) -> None:
    project = Project(tmp_path)
    done = project.build()
    assert done.returncode == 0
    assert_compiled(project.wheel())


def test_the_switch_forbids_it(tmp_path: Path) -> None:
    project = Project(tmp_path)
    done = project.build(ROUTECODEX_COMPILE="0")
    assert done.returncode == 0
    assert project.wheel() == PURE


@can_compile
@pytest.mark.parametrize(("value", "arguments"), [("1", ""), ("plainly", "--plainly")])
def test_the_switch_demands_it_and_says_how(tmp_path: Path, value: str, arguments: str) -> None:
    project = Project(tmp_path)
    assert project.build(ROUTECODEX_COMPILE=value).returncode == 0
    assert_compiled(project.wheel())
    [file] = (tmp_path / "dist").glob("*.whl")
    assert zipfile.ZipFile(file).read("routecodex/_compiled/manifest.json").decode() == arguments


@can_compile
def test_a_compilation_that_fails_leaves_a_pure_wheel(tmp_path: Path) -> None:
    project = Project(tmp_path, compiler_exit=1)
    done = project.build()
    assert done.returncode == 0
    assert "pure wheel: the compilation failed" in done.stderr
    assert project.wheel() == PURE


@can_compile
def test_a_compilation_that_was_demanded_and_fails_is_an_error(tmp_path: Path) -> None:
    done = Project(tmp_path, compiler_exit=1).build(ROUTECODEX_COMPILE="1")
    assert done.returncode != 0
    assert "the compilation failed; its output is above" in done.stderr
    assert not (tmp_path / "dist").exists() or not list((tmp_path / "dist").glob("*.whl"))


def test_without_a_compiler_the_wheel_is_pure(tmp_path: Path) -> None:
    project = Project(tmp_path)
    done = project.build(CC="no-such-compiler")
    assert done.returncode == 0
    assert "there is no C compiler ('no-such-compiler' is not on PATH)" in done.stderr
    assert project.wheel() == PURE


@can_compile
def test_pip_compiles_once(tmp_path: Path) -> None:
    """It needs the metadata first, and would build a wheel for that too if the backend had no other way."""
    project = Project(tmp_path)
    pip = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        "dist",
        ".",
    ]
    subprocess.run(pip, cwd=tmp_path, check=True)
    assert_compiled(project.wheel())
    assert (tmp_path / "compilations").read_text() == "x"


def test_an_installation_in_place_is_not_compiled(tmp_path: Path) -> None:
    Project(tmp_path)
    script = "import hatchling.build as b; print(b.build_editable('dist'))"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip().endswith("py3-none-any.whl")


@can_compile
@pytest.mark.parametrize("switch", ["auto", "0"])
def test_a_front_end_installs_the_compilers_only_if_they_are_used(tmp_path: Path, switch: str) -> None:
    Project(tmp_path)
    script = "import hatchling.build as b; print(*b.get_requires_for_build_wheel())"
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env={**os.environ, hook.SWITCH: switch},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == (["mypy", "setuptools", "msgspec"] if switch == "auto" else [])


def test_a_demand_that_cannot_be_met_says_what_is_missing() -> None:
    environ = {hook.SWITCH: "1", "CC": "no-such-compiler", "PATH": "/nowhere"}
    with pytest.raises(hook.CannotCompile, match=r"ROUTECODEX_COMPILE=1, but there is no C compiler"):
        hook.decide(environ)


def test_an_unknown_value_of_the_switch_is_an_error_that_lists_the_known_ones() -> None:
    with pytest.raises(hook.CannotCompile, match="'yes' is not known; use one of 'auto'") as error:
        hook.decide({hook.SWITCH: "yes"})
    assert all(name in str(error.value) for name in hook.MODES)


def test_the_compiler_of_this_python_is_looked_for() -> None:
    compiler = (sysconfig.get_config_var("CC") or "cc").split()[0]
    assert hook.missing({"PATH": "/nowhere"}) == f"there is no C compiler ({compiler!r} is not on PATH)"
