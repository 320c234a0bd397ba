"""The hooks of a turn: their names are the plugin interface.

A plugin is any object with some of these methods, each sync or async. `HookTable` finds out once which plugin
has which hook, so that a turn pays nothing for a hook nobody has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from routecodex.turns.turn import Turn

Hook = Callable[[Any], Any]

Hooked = tuple[tuple[int, Hook], ...]
"""The implementations of one hook, each with the place of its plugin."""


class Plugin:
    """A base one may inherit, for the signatures; every hook here does nothing and costs nothing."""

    def on_turn_start(self, turn: Turn[Any, Any, Any]) -> Any:
        """Before the first request; may return a cleanup, sync or async."""

    def on_before_request(self, turn: Turn[Any, Any, Any]) -> Any:
        """Before every request; `turn.request_body` may be edited."""

    def on_message_append(self, turn: Turn[Any, Any, Any]) -> Any:
        """Before a response or a plugin's message enters `turn.messages`."""

    def on_stream_data(self, turn: Turn[Any, Any, Any]) -> Any:
        """For every chunk, after it was merged."""

    def on_after_request(self, turn: Turn[Any, Any, Any]) -> Any:
        """After every request, concurrently with the other plugins; may ask for another one."""

    def on_turn_end(self, turn: Turn[Any, Any, Any]) -> Any:
        """After success or abort, before the cleanups."""


class HookTable:
    """Plugins in order, and for each hook those that have it."""

    __slots__ = (
        "on_after_request",
        "on_before_request",
        "on_message_append",
        "on_stream_data",
        "on_turn_end",
        "on_turn_start",
        "plugins",
    )

    def __init__(self, plugins: Iterable[object]) -> None:
        self.plugins: tuple[object, ...] = tuple(plugins)
        self.on_turn_start = self._having("on_turn_start")
        self.on_before_request = self._having("on_before_request")
        self.on_message_append = self._having("on_message_append")
        self.on_stream_data = self._having("on_stream_data")
        self.on_after_request = self._having("on_after_request")
        self.on_turn_end = self._having("on_turn_end")

    def _having(self, name: str) -> Hooked:
        found = ((place, _hook(plugin, name)) for place, plugin in enumerate(self.plugins))
        return tuple((place, hook) for place, hook in found if hook is not None)


def _hook(plugin: object, name: str) -> Hook | None:
    """The plugin's own implementation; None for a missing one or the empty one of `Plugin`."""
    hook = getattr(plugin, name, None)
    if hook is None or getattr(hook, "__func__", None) is getattr(Plugin, name):
        return None
    if not callable(hook):
        raise TypeError(f"{name} of {plugin!r} is {hook!r}, which cannot be called")
    return hook  # type: ignore[no-any-return]  # an object of anybody's making
