"""RouteCodex: a gateway between any LLM client protocol and any provider protocol."""

from routecodex import compiled

__version__ = "0.1.0"

IS_COMPILED = compiled.install()
"""Whether the compiled modules of the hot path are in use."""
