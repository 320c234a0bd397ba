"""What the person wrote: the user's texts in a request of any protocol, and the body with them changed.

tags         may_hold_tags: whether a body is worth a closer look
hearing      user_messages, answers, …: the texts of the person and of the model, where they stand
retelling    retold: the body with texts changed, parts and messages left out, every other byte as it came
shapes       SHAPES: where each protocol keeps messages, parts and texts
pieces       Object, items_of, with_items: JSON changed at its byte offsets
"""

from __future__ import annotations

from .hearing import UserMessage, Written, answers, begun_answer, place, plain_answer, user_messages
from .retelling import retold
from .tags import may_hold_tags

__all__ = [
    "UserMessage",
    "Written",
    "answers",
    "begun_answer",
    "may_hold_tags",
    "place",
    "plain_answer",
    "retold",
    "user_messages",
]
