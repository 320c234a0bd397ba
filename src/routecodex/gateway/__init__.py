"""From a decoded request to an answered client.

build       from a configuration to the parts
gateway     Gateway: the object that holds the parts (registry, upstreams, store, memory)
exchange    one request: plan, attempts in order, the answer to the client
lane        Lane: a target made ready to send to
sources     where an answer comes from: HTTP through a pipe, or events
keep_alive  comments for streams on which nothing happens
ask         Ask, Client, Record: what comes in, whom we answer, what is remembered of it
memory      which provider made which signature, and the thoughts behind tool calls
history     the Responses API's memory, in the store
counting    token counters and estimates
embeddings  embeddings, passed through
ids         unique ids, cheaply
listing     the model lists of each protocol
own_calls   what the gateway asks of models by itself
sights      who describes images for models that cannot see
searching   who searches the web for models that cannot
"""
