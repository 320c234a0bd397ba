from __future__ import annotations

import sys

import pytest

from routecodex.routing.registry import Model, Pool, Provider, Registry, Selector, Target


def provider(name: str, keys: tuple[str, ...], *models: str) -> Provider:
    return Provider(
        name=name, protocol="chat", keys=keys, models={model: Model(id=f"up/{model}") for model in models}
    )


REGISTRY = Registry(
    [
        provider("glm", ("primary", "spare"), "glm-4.7", "glm-4.7-air", "spare.glm"),
        provider("open-ai", ("key1",), "gpt-5.2", "gpt-5.2.1-mini", "ft:gpt-4.1:org/x"),
        provider("keyless", (), "m"),
    ],
    routes={},
    aliases={
        "claude-sonnet": "glm.glm-4.7",
        "claude-*": "route:thinking",
        "*-mini": "open-ai.gpt-5.2",
        "gpt-?": "glm.spare.glm-4.7",
        "[abc]x": "glm.glm-4.7-air",
    },
)

TARGETS: list[tuple[str, list[str]]] = [
    ("glm.glm-4.7", ["glm.primary.glm-4.7", "glm.spare.glm-4.7"]),
    ("glm.primary.glm-4.7", ["glm.primary.glm-4.7"]),
    ("glm.spare.glm-4.7", ["glm.spare.glm-4.7"]),
    ("glm.glm-4.7-air", ["glm.primary.glm-4.7-air", "glm.spare.glm-4.7-air"]),
    ("glm.spare.glm", ["glm.primary.spare.glm", "glm.spare.spare.glm"]),
    ("glm.spare.spare.glm", ["glm.spare.spare.glm"]),
    ("open-ai.gpt-5.2", ["open-ai.key1.gpt-5.2"]),
    ("open-ai.key1.gpt-5.2.1-mini", ["open-ai.key1.gpt-5.2.1-mini"]),
    ("open-ai.ft:gpt-4.1:org/x", ["open-ai.key1.ft:gpt-4.1:org/x"]),
    ("open-ai.gpt-5", []),
    ("open-ai.gpt-5.2.1", []),
    ("open-ai.key2.gpt-5.2", []),
    ("open-ai.key1", []),
    ("open-ai.", []),
    ("open-ai", []),
    ("glm-4.7", []),
    ("GLM.glm-4.7", []),
    ("nobody.glm-4.7", []),
    ("keyless.m", []),
    ("", []),
    (".", []),
]


@pytest.mark.parametrize(("name", "targets"), TARGETS)
def test_dotted_names_resolve(name: str, targets: list[str]) -> None:
    assert [str(target) for target in REGISTRY.targets_of(name)] == targets


ALIASES: list[tuple[str, str | None]] = [
    ("claude-sonnet", "glm.glm-4.7"),
    ("claude-opus", "route:thinking"),
    ("claude-mini", "route:thinking"),
    ("gpt-5.2-mini", "open-ai.gpt-5.2"),
    ("gpt-5", "glm.spare.glm-4.7"),
    ("gpt-55", None),
    ("ax", "glm.glm-4.7-air"),
    ("dx", None),
    ("Claude-Opus", None),
    ("glm.glm-4.7", None),
    ("", None),
]


@pytest.mark.parametrize(("name", "to"), ALIASES)
def test_an_exact_alias_comes_first_then_the_first_glob(name: str, to: str | None) -> None:
    assert REGISTRY.alias_of(name) == to


def test_what_is_known_of_a_target_is_found() -> None:
    target = Target("glm", "primary", "glm-4.7")
    assert REGISTRY.model(target) == Model(id="up/glm-4.7")
    assert str(target) == "glm.primary.glm-4.7"


HUGE = ("glm." + "." * 2_000_000, "x" * 2_000_000, "glm.primary." + "a." * 1_000_000)


@pytest.mark.parametrize("name", HUGE, ids=("dots", "letters", "parts"))
def test_a_name_of_megabytes_is_read_in_one_pass_and_not_remembered(name: str) -> None:
    registry = Registry([provider("glm", ("primary",), "m")], routes={}, aliases={"x*": "glm.m"})
    references = sys.getrefcount(name)
    assert registry.targets_of(name) == ()
    assert registry.resolve(name, prefer="key") is None
    assert registry.alias_of(name) == ("glm.m" if name[0] == "x" else None)
    assert sys.getrefcount(name) == references


def test_a_short_name_is_remembered() -> None:
    registry = Registry([provider("glm", ("primary",), "m")], routes={}, aliases={})
    found = registry.resolve("glm.1.m")
    assert found == Selector("glm", "primary", "m")
    assert registry.resolve("glm.1.m") is found


def test_near_targets_are_ranked_by_likeness_and_at_most_five() -> None:
    names = ("glm-4.5", "glm-4.6", "glm-4.7", "air", "flash", "ocr")
    rows = {name: Model(id=name) for name in names}
    registry = Registry(
        [
            Provider(name="glm", protocol="chat", keys=("a",), models=rows),
            Provider(name="zai", protocol="chat", keys=("a",), models={"glm-9": Model(id="glm-9")}),
        ],
        routes={},
        aliases={},
    )
    assert registry.near("glm.glm-4.78")[0] == "glm.glm-4.7"
    assert len(registry.near("glm.x")) == 5
    assert registry.near("glm.glm-9")[0] == "zai.glm-9"
    assert registry.near("nobody.glm-9") == registry.near("glm") == ()


def described(name: str) -> Model:
    return Model(id=name, context_tokens=77 if name == "small" else None)


OPEN = Registry(
    [
        Provider(
            name="up",
            protocol="chat",
            keys=("primary", "spare"),
            models={"listed": Model(id="listed", context_tokens=5), "1.5": Model(id="1.5")},
            describe=described,
        ),
        provider("closed", ("k",), "m"),
    ],
    routes={"default": (Pool(id="main", targets=("up.small", "closed.m")),)},
    aliases={"claude-via-mine": "closed.m", "claude-*": "closed.m"},
)

ANY_NAME: list[tuple[str, list[str]]] = [
    ("up.listed", ["up.primary.listed", "up.spare.listed"]),
    ("up.new", ["up.primary.new", "up.spare.new"]),
    ("up.org/new.5", ["up.primary.org/new.5", "up.spare.org/new.5"]),
    ("up.spare.new", ["up.spare.new"]),
    ("up.2.new", ["up.spare.new"]),
    ("up.1.5", ["up.primary.1.5", "up.spare.1.5"]),
    ("up.3.new", ["up.primary.3.new", "up.spare.3.new"]),
    ("up.spare", []),
    ("up.2", []),
    ("up.3", []),
    ("up.", []),
    ("up", []),
    ("up.*", []),
    ("up.a b", []),
    ("closed.new", []),
]


@pytest.mark.parametrize(("name", "targets"), ANY_NAME)
def test_any_name_is_a_target_of_a_provider_that_names_its_models(name: str, targets: list[str]) -> None:
    assert [str(target) for target in OPEN.targets_of(name)] == targets


def test_a_key_comes_before_a_name_that_nobody_has_listed() -> None:
    assert OPEN.resolve("up.spare") == Selector("up", "spare")
    assert OPEN.resolve("up.2") == Selector("up", "spare")
    assert OPEN.resolve("up.new") == Selector("up", model="new")
    assert OPEN.resolve("up.new", prefer="key") == Selector("up", model="new")
    assert OPEN.resolve("up.9") is None


def test_a_name_that_nobody_has_listed_is_described() -> None:
    assert OPEN.model(Target("up", "spare", "small")) == Model(id="small", context_tokens=77)
    assert OPEN.is_listed(Target("up", "spare", "listed"))
    assert not OPEN.is_listed(Target("up", "spare", "small"))


def test_only_models_that_routes_name_bound_the_size_of_requests() -> None:
    assert OPEN.smallest_context == 77


def test_a_name_that_is_none_has_no_near_ones_among_thousands() -> None:
    assert OPEN.near("up.a b") == ()
    assert OPEN.near("closed.listed") == ("up.listed", "closed.m")


@pytest.mark.parametrize(
    ("name", "to"),
    [
        ("claude-via-up.new", "up.new"),
        ("claude-via-closed.unknown", "closed.unknown"),
        ("claude-via-mine", "closed.m"),
        ("claude-via-nobody.m", "closed.m"),
        ("claude-via-up", "closed.m"),
    ],
)
def test_the_name_of_a_picker_comes_before_globs(name: str, to: str) -> None:
    assert OPEN.alias_of(name) == to


def test_a_provider_that_is_called_like_the_prefix_keeps_its_name() -> None:
    registry = Registry(
        [provider("claude-via-up", ("k",), "m"), provider("up", ("k",), "m")], routes={}, aliases={}
    )
    assert registry.alias_of("claude-via-up.m") is None
    assert [str(target) for target in registry.targets_of("claude-via-up.m")] == ["claude-via-up.k.m"]
