"""The benchmark: how fast the gateway is, next to its peers and to a plain reverse proxy.

- `native`: the mock provider and the load generator, compiled from C on first use.
- `requests`: the request bodies that are sent.
- `cells`, `setups`: what is measured, one row per kind of traffic; what our gateway is set up with for some.
- `systems`, `peers`, `processes`: what is compared, how each is installed, started and ended.
- `accounting`: CPU time and memory of processes, from /proc.
- `measure`, `summary`: samples in rounds, and their medians.
- `memory`: what our own gateway keeps, over many requests and many open streams.
- `budget`: the rules that must hold, as data.
- `report`, `plot`: tables, JSON, the figures in the documentation.
- `run`: the command line.
- `profile`, `stacks`, `flame`: where the time of our gateway goes, by sampled stacks: by stage, and drawn.
- `workers`: our gateway with one and with several processes on a port.
- `page`: parts of a page of the documentation that are written by a program.
- `guard`: the work of the hot path, counted instead of timed.
"""
