"""Which target answers a request: pure functions on values.

registry   Target, Provider, Model, Pool, Registry: what there is to route to, and how names resolve
plan       `plan(…)`: the ordered targets to try for one request, with the reason for each step
"""
