"""Answers requests: from a validated request to the last byte for the client.

request       ClientRequest, ClientConnection, RequestRecord: a request, its connection, its facts for the log
request_limits CallLimits: limits of one request, from its first reservation until it is settled
limit_headers headers of limits, as OpenAI and Anthropic name them
call_record   CallRecord: one call of a provider, with its usage and cost
capture       RequestCapture: one captured request in memory
gateway       Gateway: holds the parts of one configuration and answers requests
build         builds those parts from a configuration
services      GatewayServices: shared parts that every answer needs
context/      session, instructions and routing query of a request
answer/       failover, attempts, streams, and the writer to the client
state/        state that outlives a request: sessions, key health, signatures, reasoning, stored responses
internal/     work of the gateway itself: server tools, searches, image descriptions, the clock
request_parameters  sampling parameters of a request, for traces
count_tokens  counts tokens, by the upstream or as an estimate
embeddings    passes embeddings through to a provider that has them
model_list    lists models in each protocol's shape
codex_catalog the list of models as Codex reads it, with instructions for it
explain       explains a plan to people and programs
what_if       a gateway that plans by another configuration
config_text   reads the text of a configuration
records       records that compiled modules cannot define
model_descriptions  models with their sizes
"""
