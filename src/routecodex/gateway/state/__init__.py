"""State that outlives a request.

sessions          Sessions: routing state of each session
operator_state    OperatorState: routing state that an operator set for all sessions
key_health        KeyHealth: cooldowns of all keys, shared through the store
probes            Probes: one probe per cooling target across processes
model_lists       ModelLists: models that providers name themselves
signature_owners  SignatureOwners: which provider made which signature
reasoning_cache   ReasoningCache: reasoning behind tool calls, restored in later requests
response_history  ResponseHistory, ResponseChains: stored Responses answers, and requests that continue them
"""
