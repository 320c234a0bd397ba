"""Compiles the modules of the hot path with mypyc: `python -m compile`."""
