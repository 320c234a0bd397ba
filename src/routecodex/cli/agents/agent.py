"""The description of a coding agent, and the plan by which it is started against a gateway."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from msgspec import Struct

KEY_VARIABLE = "ROUTECODEX_CLIENT_KEY"
"""Variable of the client key, for agents that read it from one of our choice."""


class ModelFacts(Struct, frozen=True, kw_only=True):
    """One model that the gateway lists, as far as agents must know it."""

    id: str
    context_tokens: int | None = None
    max_output_tokens: int | None = None
    vision: bool = True
    reasoning: bool = True

    @property
    def context_limit(self) -> int:
        """Its context, or a cautious guess: without a limit opencode, for one, never compacts."""
        return self.context_tokens or 128_000

    @property
    def output_limit(self) -> int:
        """Its longest answer, or a cautious guess."""
        return self.max_output_tokens or 16_000

    @property
    def modalities(self) -> list[str]:
        """The kinds of input, in the words of Codex and pi."""
        return ["text", "image"] if self.vision else ["text"]


class LaunchRequest(Struct, frozen=True, kw_only=True):
    """Facts that decide how an agent is started.

    `url` is the gateway's address without a path. `model` is None when the agent keeps its own names.
    `generated_session` is given to agents that do not name their session themselves. `folder` holds our files
    for this agent. `codex_rows` are the gateway's own rows for Codex's catalogue, if it has any.
    """

    url: str
    key: str
    models: tuple[ModelFacts, ...]
    folder: Path
    environ: Mapping[str, str]
    generated_session: str
    executable: str | None = None
    arguments: tuple[str, ...] = ()
    model: str | None = None
    small_model: str | None = None
    session: str | None = None
    codex_rows: tuple[dict[str, object], ...] = ()

    @property
    def home(self) -> Path:
        """The person's home directory, as the agent sees it."""
        return Path(self.environ.get("HOME") or Path.home())


class PlannedFile(Struct, frozen=True, kw_only=True):
    """A file of ours that the agent reads: its content, or the file of the person that it links to."""

    path: Path
    content: str = ""
    link: Path | None = None


class LaunchPlan(Struct, frozen=True, kw_only=True):
    """Start of an agent: its flags, variables that are set and removed, files written before."""

    flags: tuple[str, ...] = ()
    env: dict[str, str] = {}
    unset: tuple[str, ...] = ()
    files: tuple[PlannedFile, ...] = ()
    arguments: tuple[str, ...] | None = None
    """The person's arguments, where the plan had to change them."""


class Agent(Struct, frozen=True, kw_only=True):
    """A coding agent: how it is found and installed, and how it is pointed at a gateway.

    `places` are files below the home directory where its own installer puts it. `package` is its name at npm
    or PyPI, `other_packages` are further names that it was published under. `tested` is the version that
    the tests run. `keeps_models`: without `--model` it keeps its own names. `has_small_model`:
    `--small-model` applies.
    """

    name: str
    title: str
    executables: tuple[str, ...]
    package: str
    install: str
    tested: str
    plan: Callable[[LaunchRequest], LaunchPlan]
    places: tuple[str, ...] = ()
    other_packages: tuple[str, ...] = ()
    keeps_models: bool = False
    has_small_model: bool = False
