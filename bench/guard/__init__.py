"""The guard: how much work fixed pieces of the hot path do, counted and not timed, next to a record of it.

- `scripts`: the pieces, each a step on inputs that never change.
- `whole`: a request from socket to socket, through a gateway in this process.
- `counting`: bytecodes that are executed, blocks and bytes that are allocated.
- `record`: what was recorded for each version of Python, and what has moved away from it.
- `streams/`: one answer of a provider in each protocol, as it came.

`python -m bench.guard` compares, `--record` writes the record anew.
"""
