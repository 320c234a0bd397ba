from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from routecodex.canon.errors import BadRequest, ProviderNotAvailable
from routecodex.routing.instructions import (
    AllowProviders,
    ClearClock,
    ClearRouting,
    ClearStopMessage,
    DisableTarget,
    EnableTarget,
    Instruction,
    SetStopMessage,
    SetStopMessageFromFile,
    ShowHelp,
    ShowStatus,
    StickToTarget,
    parse,
)
from routecodex.routing.instructions import ForceTarget as ForceInstruction
from routecodex.routing.registry import Model, Provider, Registry
from routecodex.routing.state import (
    ForcedTarget,
    RoutingChange,
    ServerState,
    SessionState,
    StopMessageState,
    apply_instructions,
    change_server,
    change_session,
)

NOW = 1000.0
BEFORE = 500.0


def provider(name: str, keys: tuple[str, ...], *models: str) -> Provider:
    return Provider(
        name=name, protocol="chat", keys=keys, models={model: Model(id=model) for model in models}
    )


REGISTRY = Registry(
    [
        provider("glm", ("primary", "spare"), "glm-4.7", "glm-4.7-air"),
        provider("openai", ("key1", "key2", "key3"), "gpt-5", "gpt-4.1"),
        # Two models are named like keys, a key like the number of another, one model like a key and a model.
        provider("odd", ("alpha", "9", "beta"), "alpha", "m", "beta.m", "2"),
        provider("lone", ("key1",), "m"),
    ],
    routes={},
    aliases={},
)
SET = SessionState(
    force=ForcedTarget("glm.glm-4.7", "turn 0"),
    sticky="openai.1",
    allow=("glm",),
    disable=("glm.spare",),
    stop_message=StopMessageState(text="old", max_repeats=2, used=1, updated_at=BEFORE, last_used_at=BEFORE),
    marks=("mark",),
    updated_at=BEFORE,
)


def after(state: SessionState, *instructions: Instruction) -> SessionState:
    return apply_instructions(state, instructions, registry=REGISTRY, turn="turn 1", now=NOW)


def told(text: str, state: SessionState | None = None) -> SessionState:
    """The state after the instructions in a text."""
    parsed = parse(text)
    assert parsed.malformed == ()
    return after(state or SessionState(), *parsed.instructions)


EFFECTS: list[tuple[Instruction, SessionState]] = [
    (ForceInstruction("openai.gpt-4.1"), replace(SET, force=ForcedTarget("openai.gpt-4.1", "turn 1"))),
    (ForceInstruction("openai.key2.gpt-5"), replace(SET, force=ForcedTarget("openai.key2.gpt-5", "turn 1"))),
    (ForceInstruction("openai.key2"), replace(SET, force=ForcedTarget("openai.key2", "turn 1"))),
    (ForceInstruction("openai.2"), replace(SET, force=ForcedTarget("openai.2", "turn 1"))),
    (StickToTarget("glm.glm-4.7"), replace(SET, sticky="glm.glm-4.7")),
    (StickToTarget("glm.2"), replace(SET, sticky="glm.2")),
    (StickToTarget("glm.spare.glm-4.7"), replace(SET, sticky="glm.spare.glm-4.7")),
    (AllowProviders(("openai", "glm")), replace(SET, allow=("openai", "glm"))),
    (DisableTarget(("openai.1", "glm")), replace(SET, disable=("openai.1", "glm"))),
    (EnableTarget(("glm.2",)), replace(SET, disable=())),
    (ClearRouting(), replace(SET, force=None, sticky=None, allow=(), disable=())),
    (
        SetStopMessage("go on", 3),
        replace(SET, stop_message=StopMessageState(text="go on", max_repeats=3, updated_at=NOW)),
    ),
    (
        SetStopMessage("old", 2),
        replace(SET, stop_message=StopMessageState(text="old", max_repeats=2, updated_at=NOW)),
    ),
    (ClearStopMessage(), replace(SET, stop_message=None)),
]


@pytest.mark.parametrize(("instruction", "state"), EFFECTS)
def test_an_instruction_changes_its_own_part_of_the_state(
    instruction: Instruction, state: SessionState
) -> None:
    assert after(SET, instruction) == replace(state, updated_at=NOW)


@pytest.mark.parametrize(
    "instruction",
    [
        ClearClock(),
        ShowStatus(),
        ShowHelp(),
        AllowProviders(("glm",)),
        StickToTarget("openai.1"),
        DisableTarget(("glm.spare",)),
    ],
)
def test_what_changes_nothing_leaves_the_time_of_the_last_change(instruction: Instruction) -> None:
    assert after(SET, instruction) is SET


UNKNOWN: list[tuple[Instruction, str]] = [
    (ForceInstruction("not.found"), "not.found"),
    (ForceInstruction("glm.glm-9"), "glm.glm-9"),
    (ForceInstruction("GLM.glm-4.7"), "GLM.glm-4.7"),
    (ForceInstruction("glm.0"), "glm.0"),
    (StickToTarget("openai.4"), "openai.4"),
    (StickToTarget("openai.99999999999999999999999"), "openai.99999999999999999999999"),
    (AllowProviders(("glm", "nobody")), "nobody"),
    (AllowProviders(("glm.spare",)), "glm.spare"),
    (DisableTarget(("glm", "nobody.1")), "nobody.1"),
    (EnableTarget(("nobody",)), "nobody"),
    (EnableTarget(("glm.spore",)), "glm.spore"),
]


@pytest.mark.parametrize(("instruction", "name"), UNKNOWN)
def test_an_unknown_name_leaves_nothing_applied(instruction: Instruction, name: str) -> None:
    with pytest.raises(ProviderNotAvailable) as raised:
        after(SET, ClearRouting(), instruction, AllowProviders(("openai",)))
    details = raised.value.details or {}
    near = details.pop("near", [])
    assert (raised.value.status, details) == (404, {"provider": name})
    listed = f"; near: {', '.join(near)}" if near else ""
    assert raised.value.message == f"Requested provider {name} not found in provider registry{listed}"


def test_a_file_must_have_been_read_before() -> None:
    with pytest.raises(TypeError, match=r"x\.md"):
        after(SET, SetStopMessageFromFile("x.md"))


LISTS: list[tuple[str, tuple[str, ...], tuple[str, ...]]] = [
    ("<**#glm**>", ("openai",), ("glm",)),
    ("<**#glm**> <**#openai.1**>", ("openai",), ("glm", "openai.1")),
    ("<**#openai.1**> <**#openai.key1**>", (), ("openai.1",)),
    ("<**#openai.key1,openai.1,openai.01**>", (), ("openai.key1",)),
    ("<**@glm**> <**#openai.1**>", ("glm", "openai.2"), ("openai.1",)),
    ("<**#glm**> <**clear**> <**#openai**>", (), ("openai",)),
    ("<**#glm**> <**@glm**> <**#openai**>", (), ("openai",)),
    ("<**@glm**>", ("glm", "glm.1", "openai.1", "glm.glm-4.7", "glm.spare.glm-4.7"), ("openai.1",)),
    ("<**@openai.1**>", ("openai.key1", "openai.2"), ("openai.2",)),
    ("<**@openai.key1**>", ("openai.1", "openai.2"), ("openai.2",)),
    ("<**@openai.1**>", ("glm", "openai", "glm.1"), ("glm", "openai.key2", "openai.key3", "glm.1")),
    ("<**@openai.2,openai.3**>", ("openai",), ("openai.key1",)),
    ("<**@openai.1,openai.2,openai.3**>", ("openai",), ()),
    ("<**@openai.gpt-5**>", ("openai",), ("openai.gpt-4.1",)),
    ("<**@openai.gpt-5**>", ("openai.1",), ("openai.key1.gpt-4.1",)),
    ("<**@openai.1**>", ("openai.gpt-5",), ("openai.key2.gpt-5", "openai.key3.gpt-5")),
    ("<**@openai.1.gpt-5**>", ("openai",), ("openai.key2", "openai.key3", "openai.key1.gpt-4.1")),
    ("<**@openai.1.gpt-5**>", ("openai.key1",), ("openai.key1.gpt-4.1",)),
    ("<**@openai.1.gpt-5**>", ("openai.gpt-5",), ("openai.key2.gpt-5", "openai.key3.gpt-5")),
    ("<**@openai.1.gpt-5**>", ("openai.key1.gpt-5", "openai.2.gpt-5"), ("openai.2.gpt-5",)),
    ("<**@openai.1.gpt-5**>", ("openai.2", "openai.gpt-4.1"), ("openai.2", "openai.gpt-4.1")),
    ("<**@openai.1**>", ("openai.1.gpt-5", "openai.key1.gpt-4.1"), ()),
    ("<**@openai.1**>", ("openai.2", "openai"), ("openai.2", "openai.key3")),
    ("<**@lone.1**>", ("lone",), ()),
    ("<**@lone.m**>", ("lone.1",), ()),
    ("<**@glm**>", ("openai.1",), ("openai.1",)),
]


@pytest.mark.parametrize(("text", "before", "listed"), LISTS)
def test_disabling_and_enabling(text: str, before: tuple[str, ...], listed: tuple[str, ...]) -> None:
    assert told(text, SessionState(disable=before)).disable == listed


FORGOTTEN: list[tuple[str, tuple[str, ...]]] = [
    ("<**@glm.old**>", ("gone", "gone.1", "glm.2")),
    ("<**@glm**>", ("gone", "gone.1")),
    ("<**@gone.1**>", ("gone", "glm.old", "glm.2")),
    ("<**@gone**>", ("glm.old", "glm.2")),
    ("<**@glm.2**>", ("gone", "gone.1", "glm.old")),
]


@pytest.mark.parametrize(("text", "listed"), FORGOTTEN)
def test_names_that_mean_nothing_any_more_go_by_their_text(text: str, listed: tuple[str, ...]) -> None:
    before = SessionState(disable=("gone", "gone.1", "glm.old", "glm.2"))
    assert told(text, before).disable == listed


def test_where_a_key_and_a_model_share_a_name_disabling_means_the_key() -> None:
    state = told("<**!odd.alpha**> <**#odd.alpha**>")
    assert state.disable == ("odd.alpha",)
    assert told("<**@odd.1**>", state).disable == ()
    assert state.sticky == "odd.alpha"


def test_the_rest_of_a_provider_is_named_so_that_each_name_means_just_that() -> None:
    keys = told("<**@odd.beta**>", SessionState(disable=("odd",))).disable
    assert [str(REGISTRY.resolve(name, prefer="key")) for name in keys] == ["odd.alpha", "odd.9"]
    assert keys == ("odd.alpha", "odd.2")
    models = told("<**@odd.m**>", SessionState(disable=("odd",))).disable
    named = {str(REGISTRY.resolve(name, prefer="key")) for name in models}
    assert named == {
        *("odd.alpha.alpha", "odd.9.alpha", "odd.beta.alpha"),
        "odd.beta.m",
        *("odd.alpha.2", "odd.9.2", "odd.beta.2"),
    }


NAMES = [
    *("glm", "glm.1", "glm.spare", "glm.glm-4.7", "glm.2.glm-4.7-air", "openai", "openai.2", "openai.key2"),
    *("openai.gpt-5", "openai.key3.gpt-4.1", "openai.1.gpt-5"),
]
TARGETS = st.lists(st.sampled_from(NAMES), min_size=1, max_size=3).map(tuple)
INSTRUCTIONS: st.SearchStrategy[list[Instruction]] = st.lists(
    st.one_of(
        st.sampled_from(NAMES[1:5]).map(ForceInstruction),
        st.sampled_from(NAMES[6:]).map(StickToTarget),
        st.sampled_from([("glm",), ("openai", "glm")]).map(AllowProviders),
        TARGETS.map(DisableTarget),
        TARGETS.map(EnableTarget),
        st.sampled_from(
            [ClearRouting(), ClearStopMessage(), ClearClock(), ShowHelp(), SetStopMessage("a", 2)]
        ),
    ),
    max_size=6,
)


def covered(state: SessionState) -> set[str]:
    """The targets that the disable list takes away."""
    selectors = [REGISTRY.resolve(name, prefer="key") for name in state.disable]
    targets = [
        target
        for provider in REGISTRY.providers.values()
        for model in provider.models
        for target in REGISTRY.targets_of(f"{provider.name}.{model}")
    ]
    return {str(target) for target in targets for chosen in selectors if chosen and chosen.covers(target)}


@given(INSTRUCTIONS, INSTRUCTIONS)
def test_one_message_is_two_messages_unless_both_disable(
    first: list[Instruction], second: list[Instruction]
) -> None:
    if any(isinstance(one, DisableTarget) for one in first):
        second = [one for one in second if not isinstance(one, DisableTarget)]
    assert after(SET, *first, *second) == after(after(SET, *first), *second)


@given(TARGETS, TARGETS)
def test_enabling_takes_away_just_what_it_names(disable: tuple[str, ...], enable: tuple[str, ...]) -> None:
    before, lifted = (
        after(SessionState(), DisableTarget(disable)),
        after(SessionState(), DisableTarget(enable)),
    )
    assert covered(after(before, EnableTarget(enable))) == covered(before) - covered(lifted)


SERVER = ServerState(sticky="glm.glm-4.7", allow=("glm",), disable=("openai.1",))


def test_an_operator_sets_what_is_named_and_leaves_the_rest() -> None:
    assert change_server(SERVER, RoutingChange(), registry=REGISTRY) == SERVER
    assert change_server(SERVER, RoutingChange(sticky="!openai.2"), registry=REGISTRY) == replace(
        SERVER, sticky="openai.2"
    )
    assert change_server(SERVER, RoutingChange(allow=("openai", "glm")), registry=REGISTRY) == replace(
        SERVER, allow=("openai", "glm")
    )
    assert change_server(SERVER, RoutingChange(allow=()), registry=REGISTRY) == replace(SERVER, allow=())
    assert change_server(
        SERVER, RoutingChange(disable=("openai.key1", "glm.2")), registry=REGISTRY
    ) == replace(SERVER, disable=("openai.1", "glm.2"))
    assert change_server(SERVER, RoutingChange(enable=("openai.key1",)), registry=REGISTRY) == replace(
        SERVER, disable=()
    )
    assert change_server(
        SERVER, RoutingChange(disable=("openai",), enable=("openai.3",)), registry=REGISTRY
    ) == replace(SERVER, disable=("openai.1", "openai.key2"))


def test_an_operators_clear_comes_before_the_rest_of_the_change() -> None:
    assert change_server(SERVER, RoutingChange(clear=True), registry=REGISTRY) == ServerState()
    changed = change_server(
        SERVER, RoutingChange(clear=True, sticky="glm.1", disable=("openai.2",)), registry=REGISTRY
    )
    assert changed == ServerState(sticky="glm.1", disable=("openai.2",))


def test_an_operator_changes_a_session_by_the_same_rules() -> None:
    assert change_session(SET, RoutingChange(), registry=REGISTRY, now=NOW) is SET
    assert change_session(SET, RoutingChange(clear=True), registry=REGISTRY, now=NOW) == replace(
        SET, force=None, sticky=None, allow=(), disable=(), updated_at=NOW
    )
    assert change_session(
        SET, RoutingChange(sticky="!glm.1", disable=("glm",), enable=("glm.2",)), registry=REGISTRY, now=NOW
    ) == replace(SET, sticky="glm.1", disable=("glm.primary",), updated_at=NOW)


@pytest.mark.parametrize(
    ("sticky", "allow", "disable", "enable"),
    [
        ("!no.where", None, (), ()),
        (None, ("no.where",), (), ()),
        (None, None, ("no.where",), ()),
        (None, None, (), ("no.where",)),
    ],
)
def test_an_operator_is_told_of_an_unknown_name(
    sticky: str | None, allow: tuple[str, ...] | None, disable: tuple[str, ...], enable: tuple[str, ...]
) -> None:
    with pytest.raises(ProviderNotAvailable, match=r"Requested provider no\.where not found"):
        change_server(
            SERVER,
            RoutingChange(sticky=sticky, allow=allow, disable=disable, enable=enable, clear=True),
            registry=REGISTRY,
        )


@pytest.mark.parametrize("name", ["glm", "!glm"])
def test_a_whole_provider_is_nothing_to_stick_to(name: str) -> None:
    with pytest.raises(BadRequest) as caught:
        change_server(SERVER, RoutingChange(sticky=name), registry=REGISTRY)
    assert caught.value.message == (
        "sticky: 'glm' is a whole provider; name a model or a key of it (glm.MODEL, glm.KEY.MODEL, glm.1), "
        "or allow this provider alone (allow glm)"
    )
    with pytest.raises(BadRequest):
        change_session(SET, RoutingChange(sticky=name), registry=REGISTRY, now=NOW)
