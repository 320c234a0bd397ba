"""Bytes to values, without IO.

sse          server-sent events: `Frames` splits bytes into frames, `frame` writes one
frame        Frame, one server-sent event
json         typed JSON readers, with errors that name the field
json_edit    edits JSON at byte offsets; all other bytes stay
scan         byte searches: repeated frames, needles, invalid UTF-8; in C if the hot path is compiled
plain_heads  parses heads that need no full HTTP parser; only in C
outline      cuts the long texts out of a large body and validates them; only in C
buffers      BodyBuffer for bodies of known length, WriteBatcher for writes that leave together
"""
