"""What a fuzz target is: it makes inputs of a random number generator, and checks what must hold for each."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random

CORPUS = Path(__file__).parent / "corpus"


class Target(ABC):
    """One target; its resources live in `stack`, from `open` to the end of the run."""

    name: str
    stack: AsyncExitStack

    async def open(self) -> None:
        """Start what the target needs."""
        return

    @abstractmethod
    def make(self, random: Random) -> bytes:
        """Return an input; the same for the same state of the generator."""

    @abstractmethod
    async def check(self, data: bytes) -> None:
        """Raise AssertionError, or anything else, if something does not hold for this input."""

    def corpus(self) -> dict[str, bytes]:
        """Return the inputs that are kept, by name."""
        files = sorted((CORPUS / self.name).glob("*"))
        return {file.name: file.read_bytes() for file in files}
