"""What the person wrote: the user's texts in a request of any protocol, and the body with them changed.

tags         may_hold_tags: whether a body is worth a closer look
hearing      user_messages, answers, …: the texts of the person and of the model, where they stand
retelling    retold: the body with texts changed, parts and messages left out, every other byte as it came
shapes       SHAPES: where each protocol keeps messages, parts and texts
pieces       Object, items_of, with_items: JSON changed at its byte offsets
"""

from __future__ import annotations

from routecodex.protocols.person.hearing import (
    MessageText,
    UserMessage,
    message_path,
    model_text_at,
    model_texts,
    prefill_index,
    user_messages,
)
from routecodex.protocols.person.retelling import rewrite_texts
from routecodex.protocols.person.tags import may_hold_tags

__all__ = [
    "MessageText",
    "UserMessage",
    "may_hold_tags",
    "message_path",
    "model_text_at",
    "model_texts",
    "prefill_index",
    "rewrite_texts",
    "user_messages",
]
