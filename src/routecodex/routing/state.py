"""Routing state, and how instructions and operators change it.

What instructions and operators have set: values, and how an instruction changes them.

How instructions and operators change what is set: values in, values out.

Names stay in the state as they were typed. They are the same when they mean the same: `openai.1` and
`openai.key1` are one entry. A name that means nothing any more, since the configuration changed, is kept and
matches nothing; it goes when it is enabled by the same text.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, TypeVar, assert_never

from msgspec import Struct
from msgspec.structs import replace

from routecodex.canon.errors import BadRequest, ProviderNotAvailable
from routecodex.routing import instructions as said
from routecodex.routing.registry import Provider, Registry, Selector


class StopMessageState(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is said to a model that stops, and how often; times are seconds since the epoch."""

    text: str
    max_repeats: int = 10
    used: int = 0
    updated_at: float = 0.0
    last_used_at: float | None = None


class ForcedTarget(Struct, frozen=True):
    """A target for one turn of the person; `turn` marks the message that asked for it."""

    target: str
    turn: str


class SessionState(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What instructions have set for one conversation; targets are kept as they were typed.

    A name is made definite only when it is used: the number of a key means its place in the configuration
    of that moment. `applied` is the mark (place and content) of the message applied last, so that the same
    message sent again changes nothing.
    """

    force: ForcedTarget | None = None
    sticky: str | None = None
    allow: tuple[str, ...] = ()
    disable: tuple[str, ...] = ()
    stop_message: StopMessageState | None = None
    applied: str | None = None
    updated_at: float = 0.0


class ServerState(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an operator has set for all conversations of one server."""

    sticky: str | None = None
    allow: tuple[str, ...] = ()
    disable: tuple[str, ...] = ()


NOTHING_SET = SessionState()
"""The state of a session in which nothing was ever set: one for all, so that it is known at sight."""

NO_SERVER_STATE = ServerState()
"""The same for a server."""

StateT = TypeVar("StateT", SessionState, ServerState)


def apply_instructions(
    state: SessionState,
    instructions: Iterable[said.Instruction],
    *,
    registry: Registry,
    turn: str,
    now: float,
) -> SessionState:
    """The state after the instructions of one message, left to right; an unknown name leaves nothing applied.

    The first Disable of the message replaces the list, further ones add to it. `turn` is the mark of the
    message, for which a forced target holds.
    """
    adding = False
    for instruction in instructions:
        changed = _apply(state, instruction, registry=registry, turn=turn, now=now, adding=adding)
        state = _with_timestamp(state, changed, now)
        adding = adding or isinstance(instruction, said.DisableTarget)
    return state


def change_server(
    state: ServerState,
    *,
    registry: Registry,
    sticky: str | None = None,
    allow: tuple[str, ...] | None = None,
    disable: tuple[str, ...] = (),
    enable: tuple[str, ...] = (),
    clear: bool = False,
) -> ServerState:
    """The server's state after an operator's change: clear comes first, `disable` adds to the list."""
    start = ServerState() if clear else state
    return _apply_change(start, registry=registry, sticky=sticky, allow=allow, disable=disable, enable=enable)


def change_session(
    state: SessionState,
    *,
    registry: Registry,
    now: float,
    sticky: str | None = None,
    allow: tuple[str, ...] | None = None,
    disable: tuple[str, ...] = (),
    enable: tuple[str, ...] = (),
    clear: bool = False,
) -> SessionState:
    """A session's state after an operator's change; clear leaves the stop message alone."""
    start = _without_routing(state) if clear else state
    changed = _apply_change(
        start, registry=registry, sticky=sticky, allow=allow, disable=disable, enable=enable
    )
    return _with_timestamp(state, changed, now)


def add_disabled(entries: tuple[str, ...], names: tuple[str, ...], *, registry: Registry) -> tuple[str, ...]:
    """The list with these names added, each meaning once."""
    for name in names:
        _require_known(name, registry, prefer="key")
    return _distinct((*entries, *names), registry)


def remove_disabled(
    entries: tuple[str, ...], names: tuple[str, ...], *, registry: Registry
) -> tuple[str, ...]:
    """The list without what these names stand for; an entry that stands for more is narrowed to the rest."""
    for name in names:
        entries = _without(entries, name, registry)
    return _distinct(entries, registry)


def _apply(
    state: SessionState,
    instruction: said.Instruction,
    *,
    registry: Registry,
    turn: str,
    now: float,
    adding: bool,
) -> SessionState:
    match instruction:
        case said.ForceTarget(target=target):
            return replace(state, force=ForcedTarget(_require_known(target, registry, prefer="model"), turn))
        case said.StickToTarget(target=target):
            return replace(state, sticky=_require_known(target, registry, prefer="model"))
        case said.AllowProviders(providers=providers):
            return replace(state, allow=_providers(providers, registry))
        case said.DisableTarget(targets=targets):
            before = state.disable if adding else ()
            return replace(state, disable=add_disabled(before, targets, registry=registry))
        case said.EnableTarget(targets=targets):
            return replace(state, disable=remove_disabled(state.disable, targets, registry=registry))
        case said.ClearRouting():
            return _without_routing(state)
        case said.SetStopMessage(text=text, max_repeats=max_repeats):
            message = StopMessageState(text=text, max_repeats=max_repeats, updated_at=now)
            return replace(state, stop_message=message)
        case said.SetStopMessageFromFile(path=path):
            raise TypeError(f"the text of {path!r} must be read before the instruction is applied")
        case said.ClearStopMessage():
            return replace(state, stop_message=None)
        case said.ClearClock() | said.ShowStatus() | said.ShowHelp():
            return state
        case _:
            assert_never(instruction)


def _apply_change(
    state: StateT,
    *,
    registry: Registry,
    sticky: str | None,
    allow: tuple[str, ...] | None,
    disable: tuple[str, ...],
    enable: tuple[str, ...],
) -> StateT:
    if sticky is not None:
        state = replace(state, sticky=_sticky(sticky.removeprefix("!"), registry))
    if allow is not None:
        state = replace(state, allow=_providers(tuple(name.removeprefix("!") for name in allow), registry))
    listed = add_disabled(state.disable, disable, registry=registry) if disable else state.disable
    listed = remove_disabled(listed, enable, registry=registry) if enable else listed
    return replace(state, disable=listed)


def _without_routing(state: SessionState) -> SessionState:
    return replace(state, force=None, sticky=None, allow=(), disable=())


def _with_timestamp(before: SessionState, after: SessionState, now: float) -> SessionState:
    return before if after == before else replace(after, updated_at=now)


def _require_known(name: str, registry: Registry, *, prefer: Literal["model", "key"]) -> str:
    if registry.resolve(name, prefer=prefer) is None:
        raise ProviderNotAvailable.unknown(name)
    return name


def _sticky(name: str, registry: Registry) -> str:
    """A model or a key; a provider alone is what an allow list names."""
    if registry.resolve(_require_known(name, registry, prefer="model")) == Selector(name):
        raise BadRequest(
            f"sticky: {name!r} is a whole provider; name a model or a key of it ({name}.MODEL, "
            f"{name}.KEY.MODEL, {name}.1), or allow this provider alone (allow {name})",
            param="sticky",
        )
    return name


def _providers(names: tuple[str, ...], registry: Registry) -> tuple[str, ...]:
    for name in names:
        if name not in registry.providers:
            raise ProviderNotAvailable.unknown(name)
    return tuple(dict.fromkeys(names))


def _distinct(entries: tuple[str, ...], registry: Registry) -> tuple[str, ...]:
    """The entries without those that mean the same as an earlier one."""
    meanings: dict[Selector | str, str] = {}
    for entry in entries:
        meanings.setdefault(registry.resolve(entry, prefer="key") or entry, entry)
    return tuple(meanings.values())


def _without(entries: tuple[str, ...], name: str, registry: Registry) -> tuple[str, ...]:
    lifted = registry.resolve(name, prefer="key")
    forgotten = {entry for entry in entries if _is_obsolete(entry, name, registry)}
    if lifted is None and not forgotten:
        raise ProviderNotAvailable.unknown(name)
    kept = (entry for entry in entries if entry not in forgotten)
    return tuple(rest for entry in kept for rest in _narrowed(entry, lifted, registry))


def _is_obsolete(entry: str, name: str, registry: Registry) -> bool:
    """Whether the entry means nothing any more, and is what the name says or belongs to that provider."""
    same = entry == name or ("." not in name and entry.startswith(f"{name}."))
    return same and registry.resolve(entry, prefer="key") is None


def _narrowed(entry: str, lifted: Selector | None, registry: Registry) -> tuple[str, ...]:
    """The names of what the entry stands for without what is lifted."""
    selector = registry.resolve(entry, prefer="key")
    if selector is None or lifted is None or not _overlap(selector, lifted):
        return (entry,)
    provider = registry.providers[selector.provider]
    rests = _difference(selector, lifted, provider)
    return tuple(name for rest in rests for name in _names_of(rest, registry))


def _overlap(one: Selector, other: Selector) -> bool:
    return (
        one.provider == other.provider
        and (None in (one.key, other.key) or one.key == other.key)
        and (None in (one.model, other.model) or one.model == other.model)
    )


def _difference(whole: Selector, lifted: Selector, provider: Provider) -> list[Selector]:
    """The other keys, and for the key that was named the other models."""
    rests: list[Selector] = []
    if whole.key is None and lifted.key is not None:
        others = (key for key in provider.keys if key != lifted.key)
        rests += [Selector(provider.name, key, whole.model) for key in others]
    if whole.model is None and lifted.model is not None:
        others = (model for model in provider.models if model != lifted.model)
        rests += [Selector(provider.name, lifted.key or whole.key, model) for model in others]
    return rests


def _names_of(selector: Selector, registry: Registry) -> tuple[str, ...]:
    """Names that mean just this: one, or where a model is named like a key one for each key."""
    keys = registry.providers[selector.provider].keys
    number = str(keys.index(selector.key) + 1) if selector.key in keys else None
    for name in (str(selector), str(Selector(selector.provider, number, selector.model))):
        if registry.resolve(name, prefer="key") == selector:
            return (name,)
    if selector.key is not None or not keys:
        return (str(selector),)
    single = (Selector(selector.provider, key, selector.model) for key in keys)
    return tuple(name for one in single for name in _names_of(one, registry))
