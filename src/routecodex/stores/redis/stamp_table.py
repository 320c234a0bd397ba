"""Stamps that this process knows: what it has read, written or heard of; without IO.

Every change of a stripe has a generation, one more than the last. Messages about changes come in that order;
a gap means that one was missed, and then nothing of the stripe is known any more. What a call returned is
used only if no message that it may have missed was forgotten meanwhile.

A key that is not known has a negative stamp, another one each time: with a constant, a value that was cached
as unknown would look current after the next gap.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import count
from typing import NamedTuple

from routecodex.stores.store import check_space

MOST_KEYS = 16_384
"""Keys of one space that are known; the oldest are forgotten first."""


class KnownKey(NamedTuple):
    """The stamp of a key, 0 for one without a value, as of a generation of its stripe."""

    stamp: int
    generation: int
    stripe: int


class StripeView:
    """Knowledge of a stripe.

    Every change up to `heard` is accounted for; None if that is not known. Replies from before `floor` may
    have missed a change that was forgotten. Changes up to `counted` are in the stamp of the space.
    """

    __slots__ = ("counted", "floor", "heard")

    def __init__(self) -> None:
        self.heard: int | None = None
        self.floor = 0
        self.counted: int | None = None


class SpaceView:
    """Knowledge of a space."""

    __slots__ = ("keys", "stamp", "stripes")

    def __init__(self) -> None:
        self.keys: OrderedDict[str, KnownKey] = OrderedDict()
        self.stripes: dict[int, StripeView] = {}
        self.stamp = 0


class StampTable:
    """Stamps of keys and spaces.

    `is_live`: every change is heard of. While the store is down (`is_frozen`) the last known stamps stay, so
    that nobody tries to read.
    """

    def __init__(self, *, most: int = MOST_KEYS) -> None:
        self.era = 0
        """Changes when everything is forgotten: what was asked before is not used after."""
        self.missed = 0
        """Times that a change was not heard of."""
        self.is_live = False
        self.is_frozen = False
        self._most = most
        self._spaces: dict[str, SpaceView] = {}
        self._fresh = count(-2, -1)

    @property
    def spaces(self) -> list[str]:
        """The spaces in use."""
        return list(self._spaces)

    def stamp(self, space: str) -> int:
        """Return the stamp of a space; a new number each time while changes are not heard of."""
        view = self._spaces.get(space)
        if view is None:
            check_space(space)
            view = self._spaces[space] = SpaceView()
        return view.stamp if self.is_live or self.is_frozen else next(self._fresh)

    def stamp_of(self, space: str, key: str) -> int:
        """Return the stamp of a key: 0 if it has no value, negative if it is not known."""
        if self.is_live or self.is_frozen:
            view = self._spaces.get(space)
            known = None if view is None else view.keys.get(key)
            if known is not None:
                return known.stamp
        return next(self._fresh)

    def heard(self, space: str, stripe: int) -> int | None:
        """Return the generation up to which every change of a stripe is accounted for."""
        view = self._spaces.get(space)
        state = None if view is None else view.stripes.get(stripe)
        return None if state is None else state.heard

    def hear(self, space: str, stripe: int, generation: int, *, key: str, stamp: int) -> None:
        """Note a message about a change."""
        view, state = self._views(space, stripe)
        if state.heard is None:
            state.heard = state.floor = generation
        elif generation <= state.heard:
            return
        elif generation > state.heard + 1:
            self.missed += 1
            self._forget(view, stripe, generation)
        state.heard = generation
        if state.counted is None:
            view.stamp += 1
        _count(view, state, generation)
        self._know(view, KnownKey(stamp, generation, stripe), key)

    def learn(self, space: str, stripe: int, generation: int, *, key: str, stamp: int, era: int) -> None:
        """Note what a call returned; `era` is that of the moment when it was sent."""
        view, state = self._views(space, stripe)
        if era != self.era or not self.is_live:
            return
        self._begin(view, state, generation)
        if generation >= state.floor:
            self._know(view, KnownKey(stamp, generation, stripe), key)

    def wrote(self, space: str, stripe: int, generation: int, *, key: str, stamp: int, era: int) -> None:
        """Note a write of this process: the stamp of the space changes now, not with its message."""
        view, state = self._views(space, stripe)
        if state.counted is None:
            view.stamp += 1
            state.counted = generation
        _count(view, state, generation)
        self.learn(space, stripe, generation, key=key, stamp=stamp, era=era)

    def observe(self, space: str, stripe: int, generation: int, *, era: int) -> None:
        """Note the generation of a stripe whose keys were listed."""
        view, state = self._views(space, stripe)
        if era == self.era and self.is_live:
            self._begin(view, state, generation)

    def check(self, space: str, stripe: int, generation: int, *, before: int | None) -> None:
        """Compare with the generation that was read some time ago, when `before` was the last one heard.

        Messages that were under way have arrived since: one that is still missing was lost. A generation that
        went back is that of other data.
        """
        view, state = self._views(space, stripe)
        if state.heard is None:
            self._begin(view, state, generation)
        elif state.heard < generation or (before is not None and generation < before):
            self.missed += 1
            self._forget(view, stripe, generation)

    def forget_all(self) -> None:
        """Forget everything that is known."""
        self.era += 1
        for view in self._spaces.values():
            view.keys.clear()
            view.stamp += 1
            for state in view.stripes.values():
                # Generations of other data are lower, and each of its changes counts.
                state.heard, state.floor, state.counted = None, 0, None

    def _views(self, space: str, stripe: int) -> tuple[SpaceView, StripeView]:
        view = self._spaces.get(space)
        if view is None:
            view = self._spaces[space] = SpaceView()
        state = view.stripes.get(stripe)
        if state is None:
            state = view.stripes[stripe] = StripeView()
        return view, state

    def _begin(self, view: SpaceView, state: StripeView, generation: int) -> None:
        """Account for every change from this generation on."""
        if state.heard is None:
            state.heard = state.floor = generation
            _count(view, state, generation)

    def _forget(self, view: SpaceView, stripe: int, generation: int) -> None:
        """Forget the keys of a stripe; every change from this generation on is heard of again."""
        for key in [key for key, known in view.keys.items() if known.stripe == stripe]:
            del view.keys[key]
        view.stamp += 1
        state = view.stripes[stripe]
        state.heard = state.floor = state.counted = generation

    def _know(self, view: SpaceView, known: KnownKey, key: str) -> None:
        old = view.keys.get(key)
        if old is not None and old.generation > known.generation:
            return
        view.keys[key] = known
        while len(view.keys) > self._most:
            _, dropped = view.keys.popitem(last=False)
            state = view.stripes[dropped.stripe]
            state.floor = max(state.floor, dropped.generation)


def _count(view: SpaceView, state: StripeView, generation: int) -> None:
    """Let the stamp of the space change with every change of its stripes, once."""
    if state.counted is None:
        state.counted = generation
    elif generation > state.counted:
        view.stamp += generation - state.counted
        state.counted = generation
