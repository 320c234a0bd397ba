"""The guard: counts the work of fixed pieces of the hot path, and compares it with a record.

- `scripts`: the pieces, each a step on inputs that never change.
- `whole`: a request from socket to socket, through a gateway in this process.
- `counting`: bytecodes that are executed, blocks and bytes that are allocated.
- `record`: the recorded counts of each version of Python, and the differences.
- `streams/`: one answer of a provider in each protocol.

`python -m bench.guard` compares, `--record` replaces the record.
"""
