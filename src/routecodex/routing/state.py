"""Routing state, and how instructions and operators change it: values in, values out.

Names stay in the state as they were typed. Two names of one key are equal: `openai.1` and `openai.key1` are
one entry. A name that the configuration no longer has is kept and matches no target; enabling the same text
removes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from routecodex.canon.errors import BadRequest, ProviderNotAvailable
from routecodex.routing.instructions import (
    AllowProviders,
    ClearClock,
    ClearRouting,
    ClearStopMessage,
    DisableTarget,
    EnableTarget,
    ForceTarget,
    Instruction,
    SetStopMessage,
    SetStopMessageFromFile,
    ShowHelp,
    ShowStatus,
    SteerAgents,
    StickToTarget,
)
from routecodex.routing.registry import Provider, Registry, Selector


class StopMessageState(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The text sent to a model that stops, and how often; times are seconds since the epoch."""

    text: str
    max_repeats: int = 10
    used: int = 0
    updated_at: float = 0.0
    last_used_at: float | None = None


class ForcedTarget(Struct, frozen=True):
    """A target for one user turn; `turn` identifies the message with the instruction."""

    target: str
    turn: str


class AgentsState(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Routing state of the sub-agents of one session."""

    sticky: str | None = None
    allow: tuple[str, ...] = ()
    disable: tuple[str, ...] = ()


class SessionState(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """State that instructions have set for one session; targets stay as they were typed.

    A name is resolved when it is used: the number of a key is its position in the configuration at that
    moment. `marks` identify the messages that were applied, the newest last, so that none is applied twice.
    """

    force: ForcedTarget | None = None
    sticky: str | None = None
    allow: tuple[str, ...] = ()
    disable: tuple[str, ...] = ()
    stop_message: StopMessageState | None = None
    agents: AgentsState | None = None
    marks: tuple[str, ...] = ()
    updated_at: float = 0.0


class ServerState(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """State that an operator has set for all conversations of one server."""

    sticky: str | None = None
    allow: tuple[str, ...] = ()
    disable: tuple[str, ...] = ()


NOTHING_SET = SessionState()
"""The empty state of a session: one shared object, so that it can be compared by identity."""

NO_SERVER_STATE = ServerState()
"""The empty state of a server."""

StateT = TypeVar("StateT", SessionState, ServerState)
RoutingT = TypeVar("RoutingT", SessionState, AgentsState)


def apply_instructions(
    state: SessionState, instructions: Iterable[Instruction], *, registry: Registry, turn: str, now: float
) -> SessionState:
    """Return the state after the instructions of one message, left to right; an unknown name raises an error.

    The first `#` of the message replaces the disable list, further ones add to it. `turn` identifies the
    message; a forced target holds for it only.
    """
    replaced: set[bool] = set()
    for instruction in instructions:
        for_agents, effect = isinstance(instruction, SteerAgents), _effect(instruction)
        adding = for_agents in replaced
        changed = _apply(state, instruction, registry=registry, turn=turn, now=now, adding=adding)
        state = _with_timestamp(state, changed, now)
        if isinstance(effect, DisableTarget):
            replaced.add(for_agents)
    return state


def for_subagents(state: SessionState) -> SessionState:
    """Return the routing state in force for the sub-agents of a session.

    Their own sticky target wins over the session's, their own allow list over the session's sticky target and
    allow list; disabled targets add up.
    """
    agents = state.agents
    if agents is None:
        return state
    own_choice = agents.sticky is not None or bool(agents.allow)
    return replace(
        state,
        sticky=agents.sticky if own_choice else state.sticky,
        allow=agents.allow or state.allow,
        disable=(*state.disable, *agents.disable),
    )


def without_sticky(state: SessionState, target: str) -> SessionState:
    """Return the state without this sticky target, of the session and of its sub-agents."""
    agents = state.agents
    if agents is not None and agents.sticky == target:
        agents = replace(agents, sticky=None)
    return replace(
        state,
        sticky=None if state.sticky == target else state.sticky,
        agents=None if agents == AgentsState() else agents,
    )


def _effect(instruction: Instruction) -> Instruction:
    return instruction.instruction if isinstance(instruction, SteerAgents) else instruction


class RoutingChange(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An operator's change: absent fields keep their value, `clear` comes first, `disable` adds."""

    sticky: str | None = None
    allow: tuple[str, ...] | None = None
    disable: tuple[str, ...] = ()
    enable: tuple[str, ...] = ()
    clear: bool = False


def change_server(state: ServerState, change: RoutingChange, *, registry: Registry) -> ServerState:
    """Return the server state after an operator's change."""
    return _apply_change(ServerState() if change.clear else state, change, registry)


def change_session(
    state: SessionState, change: RoutingChange, *, registry: Registry, now: float
) -> SessionState:
    """Return the session state after an operator's change; clear keeps the stop message."""
    start = _without_routing(state) if change.clear else state
    return _with_timestamp(state, _apply_change(start, change, registry), now)


def add_disabled(entries: tuple[str, ...], names: tuple[str, ...], *, registry: Registry) -> tuple[str, ...]:
    """Return the list with these names added, each key or model once."""
    for name in names:
        _require_known(name, registry, prefer="key")
    return _distinct((*entries, *names), registry)


def remove_disabled(
    entries: tuple[str, ...], names: tuple[str, ...], *, registry: Registry
) -> tuple[str, ...]:
    """Return the list without these names; an entry that covers more is narrowed to the rest."""
    for name in names:
        entries = _without(entries, name, registry)
    return _distinct(entries, registry)


def dropped_disabled(
    state: SessionState, instructions: Sequence[Instruction], *, registry: Registry
) -> tuple[str, ...]:
    """Return the entries that the first `#` of a message drops from a disable list and no `#` of it keeps.

    The sub-agents have a list of their own.
    """
    own = [one if isinstance(one, DisableTarget) else None for one in instructions]
    agents = [_disabled_for_agents(one) for one in instructions]
    return (
        *_dropped(state, instructions, own, registry=registry, of_agents=False),
        *_dropped(state, instructions, agents, registry=registry, of_agents=True),
    )


def _disabled_for_agents(instruction: Instruction) -> DisableTarget | None:
    inner = instruction.instruction if isinstance(instruction, SteerAgents) else None
    return inner if isinstance(inner, DisableTarget) else None


def _dropped(
    state: SessionState,
    instructions: Sequence[Instruction],
    disables: Sequence[DisableTarget | None],
    *,
    registry: Registry,
    of_agents: bool,
) -> tuple[str, ...]:
    first = next((at for at, one in enumerate(disables) if one is not None), None)
    if first is None:
        return ()
    before = apply_instructions(state, instructions[:first], registry=registry, turn="", now=0.0)
    listed = (before.agents or AgentsState()).disable if of_agents else before.disable
    names = [name for one in disables if one is not None for name in one.targets]
    return tuple(entry for entry in listed if not _is_within(entry, names, registry))


def _is_within(entry: str, names: Sequence[str], registry: Registry) -> bool:
    """Return whether one of the names includes all targets of the entry."""
    selector = registry.resolve(entry, prefer="key")
    if selector is None:
        return entry in names
    wholes = (registry.resolve(name, prefer="key") for name in names)
    return any(whole is not None and whole.covers(selector) for whole in wholes)


def _apply(
    state: SessionState, instruction: Instruction, *, registry: Registry, turn: str, now: float, adding: bool
) -> SessionState:
    match instruction:
        case ForceTarget(target=target):
            return replace(state, force=ForcedTarget(_require_known(target, registry, prefer="model"), turn))
        case ClearRouting():
            return _without_routing(state)
        case SteerAgents(instruction=ClearRouting()):
            return replace(state, agents=None)
        case SteerAgents(instruction=inner):
            agents = _steer(state.agents or AgentsState(), inner, registry=registry, adding=adding)
            return replace(state, agents=None if agents == AgentsState() else agents)
        case SetStopMessage(text=text, max_repeats=max_repeats):
            message = StopMessageState(text=text, max_repeats=max_repeats, updated_at=now)
            return replace(state, stop_message=message)
        case SetStopMessageFromFile(path=path):
            raise TypeError(f"the text of {path!r} must be read before the instruction is applied")
        case ClearStopMessage():
            return replace(state, stop_message=None)
        case ClearClock() | ShowStatus() | ShowHelp():
            return state
        case _:
            return _steer(state, instruction, registry=registry, adding=adding)


def _steer(state: RoutingT, instruction: Instruction, *, registry: Registry, adding: bool) -> RoutingT:
    """Apply an instruction that a session and its sub-agents both have."""
    match instruction:
        case StickToTarget(target=target):
            return replace(state, sticky=_require_known(target, registry, prefer="model"))
        case AllowProviders(providers=providers):
            return replace(state, allow=_providers(providers, registry))
        case DisableTarget(targets=targets):
            before = state.disable if adding else ()
            return replace(state, disable=add_disabled(before, targets, registry=registry))
        case EnableTarget(targets=targets):
            return replace(state, disable=remove_disabled(state.disable, targets, registry=registry))
        case _:
            raise TypeError(f"{instruction!r} does not steer routing")


def _apply_change(state: StateT, change: RoutingChange, registry: Registry) -> StateT:
    if change.sticky is not None:
        state = replace(state, sticky=_sticky(change.sticky.removeprefix("!"), registry))
    if change.allow is not None:
        names = tuple(name.removeprefix("!") for name in change.allow)
        state = replace(state, allow=_providers(names, registry))
    listed = state.disable
    if change.disable:
        listed = add_disabled(listed, change.disable, registry=registry)
    if change.enable:
        listed = remove_disabled(listed, change.enable, registry=registry)
    return replace(state, disable=listed)


def _without_routing(state: SessionState) -> SessionState:
    return replace(state, force=None, sticky=None, allow=(), disable=(), agents=None)


def _with_timestamp(before: SessionState, after: SessionState, now: float) -> SessionState:
    return before if after == before else replace(after, updated_at=now)


def _require_known(name: str, registry: Registry, *, prefer: Literal["model", "key"]) -> str:
    if registry.resolve(name, prefer=prefer) is None:
        raise ProviderNotAvailable.unknown(name, registry.near(name))
    return name


def _sticky(name: str, registry: Registry) -> str:
    """Return the name of a model or key; a provider alone belongs in an allow list."""
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
    """Return the entries without those that resolve to the same as an earlier one."""
    meanings: dict[Selector | str, str] = {}
    for entry in entries:
        meanings.setdefault(registry.resolve(entry, prefer="key") or entry, entry)
    return tuple(meanings.values())


def _without(entries: tuple[str, ...], name: str, registry: Registry) -> tuple[str, ...]:
    lifted = registry.resolve(name, prefer="key")
    obsolete = {entry for entry in entries if _is_obsolete(entry, name, registry)}
    if lifted is None and not obsolete:
        raise ProviderNotAvailable.unknown(name)
    remaining = (entry for entry in entries if entry not in obsolete)
    return tuple(rest for entry in remaining for rest in _narrowed(entry, lifted, registry))


def _is_obsolete(entry: str, name: str, registry: Registry) -> bool:
    """Return whether the entry is unknown now and equals the name or belongs to that provider."""
    same = entry == name or ("." not in name and entry.startswith(f"{name}."))
    return same and registry.resolve(entry, prefer="key") is None


def _narrowed(entry: str, lifted: Selector | None, registry: Registry) -> tuple[str, ...]:
    """Return the names of the entry's targets without the lifted ones."""
    selector = registry.resolve(entry, prefer="key")
    if selector is None or lifted is None or not selector.overlaps(lifted):
        return (entry,)
    provider = registry.providers[selector.provider]
    rests = _difference(selector, lifted, provider)
    return tuple(name for rest in rests for name in _names_of(rest, registry))


def _difference(whole: Selector, lifted: Selector, provider: Provider) -> list[Selector]:
    """Return the other keys, and for the named key the other models."""
    rests: list[Selector] = []
    if whole.key is None and lifted.key is not None:
        others = (key for key in provider.keys if key != lifted.key)
        rests += [Selector(provider.name, key, whole.model) for key in others]
    if whole.model is None and lifted.model is not None:
        others = (model for model in provider.models if model != lifted.model)
        rests += [Selector(provider.name, lifted.key or whole.key, model) for model in others]
    return rests


def _names_of(selector: Selector, registry: Registry) -> tuple[str, ...]:
    """Return names of the selector: one, or one per key if a model is named like a key."""
    keys = registry.providers[selector.provider].keys
    number = str(keys.index(selector.key) + 1) if selector.key in keys else None
    for name in (str(selector), str(Selector(selector.provider, number, selector.model))):
        if registry.resolve(name, prefer="key") == selector:
            return (name,)
    if selector.key is not None or not keys:
        return (str(selector),)
    single = (Selector(selector.provider, key, selector.model) for key in keys)
    return tuple(name for one in single for name in _names_of(one, registry))
