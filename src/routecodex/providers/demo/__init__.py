"""The built-in demo provider: a scripted model, no key, no network, the same answer for the same request.

answer    the events of an answer at a believable pace
respond   the same events at once: pure
MODELS    the names it answers to; all run the same script
PACE      seconds between two pieces, about 40 words a second

What it does: it echoes the user's words (of a long text both ends) and says what it saw (messages, tools,
images). It calls an offered tool when the user names it, asks to use one ("use a tool"), or `tool_choice`
requires it, unless it is told not to; arguments are made from the tool's schema and from quoted words, names
and numbers in the text. After tool results it quotes them and ends its turn. It thinks first when asked to,
keeps to `max_tokens`, stop sequences and structured output.

Commands in the user's text try one thing each:

    demo:stop              a short answer that ends properly
    demo:length            an answer cut off by the token limit
    demo:empty             an answer without any content
    demo:refuse            a refusal
    demo:filter            an answer stopped by a content filter
    demo:think             a thought before the answer, asked for or not
    demo:long 500          an answer of so many words (at most 20000)
    demo:say TEXT          the rest of the line, word for word
    demo:tool NAME {json}  a call of that tool; several make several calls; without JSON it fills the schema
    demo:error 429         a failure with that status before the first word; it rests for a second at most
    demo:cutoff            a stream that breaks off after a few words
    demo:slow 5            silence for so many seconds first; goes with any other command
"""

from __future__ import annotations

from routecodex.providers.demo.engine import MODELS, PACE, answer, respond

__all__ = ["MODELS", "PACE", "answer", "respond"]
