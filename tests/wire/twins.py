"""The sources of modules that are written in C as well, whatever is loaded under their names."""

from __future__ import annotations

import importlib.util
from types import ModuleType

from routecodex import compiled


def twin(name: str, package: str = "wire") -> ModuleType:
    """The module as its source says."""
    spec = importlib.util.spec_from_file_location(
        f"twin_of_{name}", compiled.source(f"routecodex.{package}.{name}")
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def functions(twin: ModuleType) -> set[str]:
    """The functions that the source of a module offers."""
    own = {name for name, value in vars(twin).items() if getattr(value, "__module__", "") == twin.__name__}
    return {name for name in own if name[0] != "_"}
