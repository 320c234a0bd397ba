"""RouteCodex: a gateway that carries any AI client's protocol to any provider's protocol."""

__version__ = "0.1.0"
