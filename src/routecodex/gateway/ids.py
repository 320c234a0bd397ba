"""Ids: unique and not to be guessed, without a system call for each."""

from __future__ import annotations

import os
from typing import Final

_SIZE: Final = 12
_STOCK: Final = 512


class _Ids:
    """Random bytes bought in stock."""

    __slots__ = ("_at", "_stock")

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """A new stock; a forked worker must not go on with its parent's."""
        self._stock = os.urandom(_SIZE * _STOCK)
        self._at = 0

    def take(self) -> str:
        at = self._at
        if at == len(self._stock):
            self.renew()
            at = 0
        self._at = at + _SIZE
        return self._stock[at : at + _SIZE].hex()


_ids: Final = _Ids()
os.register_at_fork(after_in_child=_ids.renew)


def fresh_id() -> str:
    """24 hex digits that no other answer has."""
    return _ids.take()
