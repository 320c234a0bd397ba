"""Makes machine code of the hot path: `python -m compile`.

modules   what is compiled: by mypyc, and what is written a second time in C
build     the compiler's work
training  what the hot path is run with, so that the compiler sees which ways are taken
"""
