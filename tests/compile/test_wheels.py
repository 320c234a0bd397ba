"""Distributions, installed as a user does: a fresh home, a fresh environment, the locked runtime.

`make test-wheel` runs these; pip needs an index of packages.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
import urllib.request
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from email.parser import HeaderParser
from pathlib import Path

import pytest

from compile.install import main as install
from compile.wheels import ROOT, build
from routecodex import __version__, compiled

pytestmark = [pytest.mark.wheels, pytest.mark.timeout(300)]

PYTHON = Path(sys.executable)
HAS_BUILD = compiled.matching_build() is not None
needs_build = pytest.mark.skipif(not HAS_BUILD, reason="there is no build of these sources: `make compile`")

MOST_MEGABYTES = 60
"""What an installation may take, Python's own pip included."""


@contextmanager
def command(venv: Path, *arguments: str, **environ: str) -> Iterator[subprocess.Popen[str]]:
    """Run the installed command with a home of its own and nothing of this tree."""
    home = venv.parent / "home"
    home.mkdir(exist_ok=True)
    process = subprocess.Popen(
        [venv / "bin/routecodex", *arguments],
        cwd=home,
        env={"HOME": str(home), "PATH": os.environ["PATH"], **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.terminate()


def answer(process: subprocess.Popen[str]) -> str:
    """Wait until the command shows its address, and return the answer to a chat."""
    assert process.stdout is not None
    address = None
    while address is None:
        line = process.stdout.readline()
        assert line, f"the command ended with code {process.wait()}"
        address = re.search(r"http://127\.0\.0\.1:\d+", line)
    chat = {"model": "demo.demo-1", "messages": [{"role": "user", "content": "Hello"}]}
    request = urllib.request.Request(
        f"{address[0]}/v1/chat/completions",
        json.dumps(chat).encode(),
        {"content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=30) as response:
        text: str = json.load(response)["choices"][0]["message"]["content"]
    return text


def module_file(venv: Path, **environ: str) -> str:
    """Return which file the environment imports for a module of the hot path."""
    script = "import routecodex.wire.json as module; print(module.__file__)"
    return subprocess.check_output([venv / "bin/python", "-I", "-c", script], env=environ, text=True).strip()


def megabytes(folder: Path) -> float:
    return sum(file.lstat().st_blocks * 512 for file in folder.rglob("*")) / 1e6


def test_a_user_installs_in_one_step_and_gets_an_answer(tmp_path: Path) -> None:
    venv = tmp_path / "venv"
    assert install(["--venv", str(venv), "--no-compile"]) == 0
    assert megabytes(venv) < MOST_MEGABYTES
    assert module_file(venv).endswith("wire/json.py")
    with command(venv, "demo", "--port", "0") as process:
        assert answer(process)


@needs_build
def test_a_compiled_wheel_is_used_unless_the_sources_are_wanted(tmp_path: Path) -> None:
    venv = tmp_path / "venv"
    assert install(["--venv", str(venv)]) == 0
    assert megabytes(venv) < MOST_MEGABYTES
    inside = "routecodex/_compiled/routecodex/wire/json."
    assert inside in module_file(venv)
    assert module_file(venv, ROUTECODEX_PURE="1").endswith("routecodex/wire/json.py")
    for pure in ("0", "1"):
        with command(venv, "demo", "--port", "0", ROUTECODEX_PURE=pure) as process:
            assert answer(process)


@needs_build
def test_the_compiled_wheel_names_the_python_and_platform_it_is_for(tmp_path: Path) -> None:
    wheel = build(PYTHON, "wheel", tmp_path)
    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    assert re.fullmatch(rf"routecodex-{__version__}-{python}-{python}-\w+\.whl", wheel.name)
    names = set(zipfile.ZipFile(wheel).namelist())
    manifest = json.loads(zipfile.ZipFile(wheel).read("routecodex/_compiled/manifest.json"))
    assert {f"routecodex/_compiled/{file}" for file in manifest["files"].values()} <= names


def test_the_pure_wheel_is_for_all_and_carries_everything_that_is_not_code(tmp_path: Path) -> None:
    wheel = build(PYTHON, "wheel", tmp_path, mode="0")
    assert wheel.name == f"routecodex-{__version__}-py3-none-any.whl"
    packed = zipfile.ZipFile(wheel)
    source = ROOT / "src"
    files = {file.relative_to(source).as_posix() for file in source.rglob("*") if file.is_file()}
    expected = {name for name in files if "/__pycache__/" not in name and "/_compiled/" not in name}
    assert {name for name in packed.namelist() if ".dist-info/" not in name} == expected
    metadata = HeaderParser().parsestr(packed.read(f"routecodex-{__version__}.dist-info/METADATA").decode())
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.11"
    assert "Typing :: Typed" in metadata.get_all("Classifier", [])
    assert f"routecodex-{__version__}.dist-info/licenses/LICENSE" in packed.namelist()


def test_a_wheel_can_be_built_from_the_sdist(tmp_path: Path) -> None:
    sdist = build(PYTHON, "sdist", tmp_path, mode="0")
    with tarfile.open(sdist) as packed:
        packed.extractall(tmp_path, filter="data")
    root = tmp_path / f"routecodex-{__version__}"
    assert {file.name for file in (root / "compile").glob("*.[ch]")} == {
        file.name for file in (ROOT / "compile").glob("*.[ch]")
    }
    assert not (root / "src/routecodex/_compiled").exists()
    assert not (root / ".venv").exists()
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", "made", root],
        cwd=tmp_path,
        env={**os.environ, "ROUTECODEX_COMPILE": "0"},
        check=True,
    )
    [wheel] = (tmp_path / "made").iterdir()
    names = zipfile.ZipFile(build(PYTHON, "wheel", tmp_path, mode="0")).namelist()
    assert zipfile.ZipFile(wheel).namelist() == names


def test_an_environment_of_a_contributor_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / ".dev").touch()
    assert install(["--venv", str(tmp_path)]) == 0
    assert "`make compile`" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == [tmp_path / ".dev"]
