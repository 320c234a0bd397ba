"""Chooses the targets of a request: pure functions on values.

registry       Target, Selector, Provider, Model, Pool, Registry: targets, and how names resolve
instructions   instructions in a user message: parse, strip, the table of forms
state          SessionState, ServerState, and how instructions and operators change them
roles          finds the role of a request: main, subagent, utility or compaction; request_role is its result
classify       the route class of a request; tool_kinds classifies its tool calls
tokens         estimates the tokens of a request from its bytes
pools          orders the targets of a pool by its mode
target_filter  admits targets to a plan, records why others stay out
cooldown       the effect of failures and successes on a key
route_plan     RouteQuery, RoutePlan: input and output of the router
router         Router: plans a request, targets in order, with reasons
"""
