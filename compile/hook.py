"""Build hook of hatchling: puts the compiled hot path into the wheel where it can be compiled.

Without a C compiler, headers of Python or CPython itself the wheel is a pure one (`py3-none-any`), and so is
one whose compilation fails. `ROUTECODEX_COMPILE` decides otherwise, see `MODES`. An editable installation is
never compiled: `make compile` does that in the tree.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hatchling.builders.config import BuilderConfig
from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SWITCH = "ROUTECODEX_COMPILE"

MODES = {
    "auto": "compile if it is possible, and else build a pure wheel",
    "0": "never compile",
    "1": "compile, and fail if it is not possible",
    "plainly": "the same without a profile: half the time, code that is about a tenth slower",
}
"""Values of `ROUTECODEX_COMPILE`."""

INSIDE = "routecodex/_compiled"
"""The place of the compiled modules in the wheel, where `routecodex.compiled` looks for them."""


class CannotCompile(Exception):
    """`ROUTECODEX_COMPILE` demands a compilation that is not possible, or its value is unknown."""


def mode(environ: Mapping[str, str]) -> str:
    """Return the value of the switch, or raise CannotCompile if it is none of the MODES."""
    value = environ.get(SWITCH, "") or "auto"
    if value not in MODES:
        known = ", ".join(f"{name!r} ({meaning})" for name, meaning in MODES.items())
        raise CannotCompile(f"{SWITCH}={value!r} is not known; use one of {known}")
    return value


def missing(environ: Mapping[str, str]) -> str | None:
    """Return what is missing on this machine to compile, or None."""
    if sys.implementation.name != "cpython" or sysconfig.get_config_var("Py_GIL_DISABLED"):
        return "mypyc supports only CPython with its global lock"
    if os.name == "nt":
        return "a compilation on Windows is not tested"
    compiler = shlex.split(environ.get("CC", "") or sysconfig.get_config_var("CC") or "cc")[0]
    if shutil.which(compiler, path=environ.get("PATH")) is None:
        return f"there is no C compiler ({compiler!r} is not on PATH)"
    headers = Path(sysconfig.get_path("include"))
    if not (headers / "Python.h").is_file():
        return f"there are no headers of Python ({headers / 'Python.h'} does not exist)"
    return None


def decide(environ: Mapping[str, str]) -> tuple[bool, str]:
    """Return whether to compile, and why not; raise CannotCompile if it is demanded but not possible."""
    value = mode(environ)
    if value == "0":
        return False, f"{SWITCH}=0"
    lacking = missing(environ)
    if lacking is None:
        return True, ""
    if value != "auto":
        raise CannotCompile(f"{SWITCH}={value}, but {lacking}")
    return False, lacking


class CompiledWheel(BuildHookInterface[BuilderConfig]):
    """Adds the compiled modules to a wheel, and the tag of this Python and platform."""

    _folder: str | None = None

    def dependencies(self) -> list[str]:
        """Return the compilers, and what the sources import: mypyc reads its types, the training runs it."""
        if not decide(os.environ)[0]:
            return []
        return [*self.config["tools"], *self.metadata.core.dependencies]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile; without success, and unless it is demanded, leave the wheel pure."""
        if version == "editable":
            return
        compiles, reason = decide(os.environ)
        if not compiles:
            self.app.display_info(f"pure wheel: {reason}")
            return
        self._folder = tempfile.mkdtemp(prefix="routecodex-wheel-")
        into = Path(self._folder) / "compiled"
        if not self._compile(into):
            self._remove()
            if mode(os.environ) != "auto":
                raise CannotCompile("the compilation failed; its output is above")
            self.app.display_warning("pure wheel: the compilation failed; its output is above")
            return
        build_data["force_include"][str(into)] = INSIDE
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the compiled modules, which are in the wheel now."""
        self._remove()

    def _remove(self) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _compile(self, into: Path) -> bool:
        """Run the compilation in a process of its own; return whether it succeeded."""
        paths = [self.root, str(Path(self.root) / "src"), os.environ.get("PYTHONPATH", "")]
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        command = [sys.executable, "-m", "compile", "--into", str(into)]
        if mode(os.environ) == "plainly":
            command.append("--plainly")
        # Output of a build belongs on standard error: a front end reads standard output.
        return subprocess.run(command, cwd=self.root, env=environ, stdout=sys.stderr).returncode == 0
