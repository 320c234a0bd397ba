"""Build backend: hatchling, which tells pip the metadata without building the wheel.

Under pip, hatchling leaves `prepare_metadata_for_build_wheel` out, for hooks that change the dependencies of
a wheel. pip then builds a wheel to see its metadata and builds it again to install it, which would compile
twice. The hook of this project does not change the metadata.
"""

from __future__ import annotations

import os

_tracker = os.environ.pop("PIP_BUILD_TRACKER", None)

from hatchling.build import (  # noqa: E402  # without the variable by which hatchling recognises pip
    build_editable,
    build_sdist,
    build_wheel,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

if _tracker is not None:
    os.environ["PIP_BUILD_TRACKER"] = _tracker

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]
