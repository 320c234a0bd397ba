"""The built-in demo provider: a scripted model, no key, no network, the same answer for the same request.

engine        answer: the events of an answer at a realistic pace; respond: the same at once, pure
script        the parts of an answer: echo, tool calls, `demo:` commands
prompt        the parts of a request that the demo model reacts to
schema_fill   values that fit a JSON schema

The model echoes the user's text (both ends of a long one) and counts messages, tools and images. It calls an
offered tool when the user names it or asks for one ("use a tool"), or when `tool_choice` requires it, unless
the text forbids it; arguments come from the tool's schema and from quoted words, names and numbers in the
text. It quotes tool results and ends its turn. It emits reasoning when the request enables thinking, and
respects `max_tokens`, stop sequences and structured output.

Commands in the user's text test one thing each:

    demo:stop              a short answer that ends normally
    demo:length            an answer cut off by the token limit
    demo:empty             an answer without any content
    demo:refuse            a refusal
    demo:filter            an answer stopped by a content filter
    demo:think             reasoning before the answer, requested or not
    demo:long 500          an answer of that many words (at most 20000)
    demo:say TEXT          the rest of the line, verbatim
    demo:tool NAME {json}  a call of that tool; several make several calls; without JSON it fills the schema
    demo:error 429         a failure with that status before the first word, with a retry-after of 1 s at most
    demo:cutoff            a stream that breaks off after a few words
    demo:slow 5            a delay of that many seconds first; combines with any other command
"""

from __future__ import annotations

from routecodex.providers.demo.engine import MODELS, PACE, answer, respond

__all__ = ["MODELS", "PACE", "answer", "respond"]
