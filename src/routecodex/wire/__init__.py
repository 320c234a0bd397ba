"""Bytes to values, without IO.

sse     server-sent events: `Frames` cuts bytes into frames however they are chunked; `frame` writes one
frame   one of them
scan    searches of every byte (frames alike, needles, what is not UTF-8); in C where the hot path is compiled
heads   which requests and answers are so plain that they need no parser; in C likewise
outline the body without its long texts, which are checked on the way; in C likewise
room    memory for a body of known length, which is read to where it stays
outbox  when both ends of HTTP write: what is due in one turn of the event loop leaves together
json    typed JSON readers: one place where untyped bytes become values, with errors that name the field
"""
