"""Builds the container image with buildah: `python -m compile.image --base BASE`.

The wheels are collected here, so that the build needs neither network nor compiler: the compiled wheel for
this Python, the packages of `requirements/runtime.lock`, and those of the extra `redis`. BASE is an image
with the same Python and pip, or the archive of a root file system (`.tar`), such as mmdebstrap makes.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from compile.wheels import ROOT, build, build_tools, pip

CONTEXT = ROOT / "build" / "image"
CONTAINERFILE = ROOT / "deploy" / "Containerfile"
OPTIONS = ("--storage-driver", "vfs")
"""The driver that works without a kernel module and without root privileges of the host."""
_FORM = ("--isolation", "chroot", "--layers=false", "--format", "docker")
"""Without a daemon; in the format of Docker, because that of OCI has no HEALTHCHECK."""
_INSTALL = ["apt-get", "-o", "DPkg::Lock::Timeout=300", "install", "-y", "-q", "--no-install-recommends"]


def buildah() -> str:
    """Return the program; it is installed from the system's packages if that is permitted."""
    found = shutil.which("buildah")
    if found is None and shutil.which("apt-get") and os.geteuid() == 0:
        print("installing buildah …", file=sys.stderr)
        subprocess.run([*_INSTALL, "buildah"], check=True, stdout=subprocess.DEVNULL)
        found = shutil.which("buildah")
    if found is None:
        raise SystemExit("buildah is missing; install it: apt-get install buildah")
    return found


def prepare(context: Path, *, mode: str = "auto", wheel: Path | None = None) -> None:
    """Collect the wheels and the empty data directory in the context of the build."""
    wheels = context / "wheels"
    shutil.rmtree(context, ignore_errors=True)
    wheels.mkdir(parents=True)
    (context / "data").mkdir()
    with build_tools() as python:
        made = Path(shutil.copy(wheel, wheels)) if wheel else build(python, "wheel", wheels, mode=mode)
        lock = str(ROOT / "requirements" / "runtime.lock")
        pip(python, "download", "--only-binary", ":all:", "--require-hashes", "-r", lock, "-d", str(wheels))
        more = ("download", "--only-binary", ":all:", "--find-links", str(wheels), "-d", str(wheels))
        # redis needs async-timeout on Python before 3.11.3, which the base may have.
        pip(python, *more, f"{made}[redis]", *locked("redis", "hiredis", "async-timeout"))


def locked(*names: str) -> list[str]:
    """Return packages with the version that the tests use."""
    lines = (ROOT / "requirements" / "dev.lock").read_text("utf-8").splitlines()
    return [line.split()[0] for line in lines if line.split("==")[0] in names]


def import_root(program: str, archive: Path) -> str:
    """Make an image of a root file system, and return its name."""
    name = f"localhost/{archive.name.removesuffix('.tar')}:local"
    container = _output([program, *OPTIONS, "from", "scratch"])
    try:
        subprocess.run([program, *OPTIONS, "add", "--quiet", container, str(archive), "/"], check=True)
        subprocess.run([program, *OPTIONS, "commit", "--quiet", container, name], check=True)
    finally:
        subprocess.run([program, *OPTIONS, "rm", container], check=True, stdout=subprocess.DEVNULL)
    return name


def build_image(program: str, context: Path, *, base: str | None, tag: str) -> None:
    """Build the image from a prepared context."""
    named = () if base is None else ("--build-arg", f"BASE={base}")
    command = [program, *OPTIONS, "bud", *_FORM, *named]
    subprocess.run([*command, "-f", str(CONTAINERFILE), "-t", tag, str(context)], check=True)


def _output(command: Sequence[str]) -> str:
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout.strip()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="compile.image", description="Build the container image.")
    parser.add_argument("--base", help="image with Python and pip, or a root file system (.tar)")
    parser.add_argument("--tag", default="localhost/routecodex:0.1.0", help="name of the image")
    parser.add_argument("--wheel", type=Path, help="a wheel that is built already")
    parser.add_argument("--mode", default="auto", help="how to compile: auto, 0, 1 or plainly")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Collect the wheels and build the image."""
    options = _parser().parse_args(arguments)
    program = buildah()
    prepare(CONTEXT, mode=options.mode, wheel=options.wheel)
    base = options.base
    if base is not None and base.endswith(".tar"):
        base = import_root(program, Path(base))
    build_image(program, CONTEXT, base=base, tag=options.tag)
    print(f"built {options.tag}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
