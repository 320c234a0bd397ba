"""The benchmark: how fast the gateway is, next to its peers and to a plain reverse proxy.

- `native`: the mock provider and the load generator, compiled from C on first use.
- `requests`: the request bodies that are sent.
- `cells`: what is measured, one row per kind of traffic.
- `systems`, `peers`: what is measured against what, and how each is installed and started.
- `accounting`: CPU time and memory of processes, from /proc.
- `measure`: one sample, and the rounds of them.
- `memory`: start-up time and memory of our own gateway.
- `budget`: the rules that must hold, as data.
- `report`, `plot`: tables, JSON, the figures in the documentation.
- `run`: the command line.
"""
