"""Python sources of modules that C replaces, also in a compiled run."""

from __future__ import annotations

import importlib.util
from types import ModuleType

from routecodex import compiled


def twin(name: str, package: str = "wire") -> ModuleType:
    """Load a module from its Python source."""
    spec = importlib.util.spec_from_file_location(
        f"twin_of_{name}", compiled.source(f"routecodex.{package}.{name}")
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def functions(twin: ModuleType) -> set[str]:
    """Return the public functions of a module."""
    own = {name for name, value in vars(twin).items() if getattr(value, "__module__", "") == twin.__name__}
    return {name for name in own if name[0] != "_"}
