"""Which target answers a request: pure functions on values.

registry       Target, Selector, Provider, Model, Pool, Registry: what there is, and how names resolve
instructions   what a person tells the gateway inside a message: parse, strip, the table of forms
state          SessionState, ServerState: what is set;  apply  how instructions and operators change it
classify       the route of a request by what stands in it, from tool_kinds, shell_commands and intents
tokens         how long a request is, cheaply
pools          the order of the targets inside a pool;  sieve  what keeps a target out
health         what failures and successes do to a key
plan           Router: the ordered targets to try for one request, with the reason for each step
"""
