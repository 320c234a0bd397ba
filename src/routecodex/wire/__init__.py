"""Bytes to values, without IO.

sse     server-sent events: `Frames` cuts bytes into frames however they are chunked; `frame` writes one
frame   one of them
scan    searches of every byte (frames alike, needles, what is not UTF-8); in C where the hot path is compiled
plain_heads  parses heads that need no full HTTP parser; only in C
outline cuts the long texts out of a large body and validates them on the way; only in C
room    memory for a body of known length, which is read to where it stays
outbox  when both ends of HTTP write: what is due in one turn of the event loop leaves together
json    typed JSON readers: one place where untyped bytes become values, with errors that name the field
"""
