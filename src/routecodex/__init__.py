"""RouteCodex: a gateway that carries any AI client's protocol to any provider's protocol."""

from routecodex import compiled

__version__ = "0.1.0"

IS_COMPILED = compiled.install()
"""Whether the modules of the hot path run as machine code."""
