"""Bytes to values, without IO.

sse     server-sent events: `Frames` cuts bytes into frames however they are chunked; `frame` writes one
json    typed JSON readers: one place where untyped bytes become values, with errors that name the field
"""
