"""State that outlives a request.

sessions          Sessions: routing state of each session
operator_state    OperatorState: routing state that an operator set for all sessions
key_health        KeyHealth: cooldowns of all keys, shared through the store
key_allowances    KeyAllowances: keys of which little is left, by the headers of their providers
limiter           Limiter: the limits of all clients, teams and provider keys
limit_webhook     LimitWebhook: sends events of limits to a URL
probes            Probes: one probe per cooling target across processes
model_lists       ModelLists: models that providers name themselves
signature_owners  SignatureOwners: which provider made which signature
reasoning_cache   ReasoningCache: reasoning behind tool calls, restored in later requests
thoughts          ThoughtStore: the same in the store, for all workers and later runs
response_history  ResponseHistory, ResponseChains: stored Responses answers, and requests that continue them
"""
