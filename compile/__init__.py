"""Compiles the hot path to machine code: `python -m compile`.

modules   the modules that mypyc compiles, and those that C replaces
build     runs the compilers
training  runs the hot path, so that the compiler can optimise by profile
"""
