"""What routing looks at in a request: a few features, read without decoding all of it."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

NewestRole = Literal["user", "assistant", "tool", "system"]


class CalledTool(Struct, frozen=True):
    """A tool that the model called; `arguments` as text, JSON or free, maybe cut off after some 2 KB."""

    name: str
    arguments: str = ""


class RequestFeatures(Struct, frozen=True, kw_only=True):
    """One request as the classifier sees it.

    `newest` is whose message comes last: one that brings results of tools is the tools', whatever its role,
    unless the person wrote something in it too. Messages of the system are looked through. `calls` are those
    of the last assistant turn.
    """

    newest: NewestRole = "user"
    has_media: bool = False
    """An image or a film is in the newest message, and that is the user's."""
    text: str = ""
    """What the person wrote in the newest message: how it begins; both its ends where search is on offer."""
    calls: tuple[CalledTool, ...] = ()
    offers_search: bool = False
    """A tool that searches the web is declared."""
    asks_search: bool = False
    """The request asks for a web search by itself: not only may the model search, it is told to."""
    has_tools: bool = False
    has_answer: bool = False
    """The model has spoken before."""
    opening: str = ""
    """How the system text begins, or the first message where there is none; filled for short requests."""
