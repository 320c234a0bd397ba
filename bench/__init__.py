"""The benchmark: speed of the gateway, compared with its peers and a plain reverse proxy.

- `native`: the mock provider and the load generator, compiled from C on first use.
- `requests`: request bodies.
- `cells`, `setups`: kinds of traffic; settings and sessions of our gateway for some of them.
- `systems`, `peers`, `processes`: the compared systems: installation, start and end.
- `accounting`: CPU time and memory of processes, from /proc.
- `measure`, `summary`: samples in rounds, and their medians.
- `store_costs`, `store_writes`: calls of the stores without a gateway.
- `memory`: memory of our gateway over many requests and with many open streams.
- `budget`: the rules that must hold, as data.
- `report`, `plot`: tables, JSON, the figures in the documentation.
- `run`: the command line.
- `profile`, `stacks`, `flame`: time of our gateway by stage, from sampled stacks, and as flame graphs.
- `workers`: our gateway with one and with several processes on a port.
- `page`: generated parts of documentation pages.
- `guard`: work of the hot path, counted instead of timed.
"""
