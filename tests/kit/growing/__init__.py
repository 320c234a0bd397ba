"""Requests and answers with one list of `n` entries, and the work that they cause.

lists    REQUESTS, STREAMS, WHOLES: what a client or a provider can make long, by protocol and kind
chat, responses, messages, gemini    the lists of each protocol
shapes   types and values that the protocols share
work     counts lines and bytes, and how they grow
"""
