"""Models that a provider names itself: how the file asks for them, and which targets are then known."""

from __future__ import annotations

from pathlib import Path

import pytest

from routecodex.config import Config, ModelConfig, examine, loads
from routecodex.config.check_routes import split_target
from routecodex.protocols.dialect import Dialect
from routecodex.providers.catalog import PRESETS, preset_rows

ALL = {"*": ModelConfig(id="*")}


def text(row: str, target: str = "q.any") -> str:
    return f'[providers.q]\n{row}\n[routing]\ndefault = ["{target}"]\n'


def own(models: str, *, more: str = "") -> str:
    return (
        f'protocol = "chat"\nbase_url = "http://127.0.0.1:1/v1"\nmodels = {models}\n'
        f'auth = [{{ alias = "primary", value = "a" }}, {{ value = "b" }}]\n{more}'
    )


def load(row: str, target: str = "q.any") -> Config:
    config, problems = examine(
        text(row, target), environ={"OPENAI_API_KEY": "k"}, presets=PRESETS, dialect_type=Dialect
    )
    assert problems == []
    assert config is not None
    return config


def problems_of(row: str, target: str = "q.any", **environ: str) -> list[tuple[str, str, str, str]]:
    _, problems = examine(text(row, target), environ=environ, presets=PRESETS, dialect_type=Dialect)
    return [(one.severity, one.path, one.message, one.fix) for one in problems]


@pytest.mark.parametrize("models", ['"discover"', '{ "*" = {} }'])
def test_both_forms_mean_the_same(models: str) -> None:
    row = load(own(models)).providers["q"]
    assert (row.models, row.discovers, row.named_models) == (ALL, True, {})


def test_named_models_may_stand_beside_the_discovered_ones() -> None:
    row = load(own('{ "*" = {}, mine = { context_tokens = 5 } }')).providers["q"]
    assert (row.discovers, row.named_models) == (True, {"mine": ModelConfig(id="mine", context_tokens=5)})


def test_the_models_of_a_preset_are_not_named_ones_of_a_provider_that_is_asked() -> None:
    row = load('preset = "openai"\nmodels = "discover"').providers["q"]
    assert row.models == ALL
    assert load('preset = "openai"', "q.gpt-5").providers["q"].discovers is False


SILENT = [row.preset for row in preset_rows() if row.models == "list"]


@pytest.mark.parametrize("preset", SILENT)
@pytest.mark.parametrize("models", ['"discover"', '{ "*" = {} }'])
def test_a_provider_that_does_not_list_its_models_cannot_be_asked(preset: str, models: str) -> None:
    parts = 'resource = "mine"' if preset == "azure" else 'region = "eu-1"' if preset == "bedrock" else ""
    key = {PRESETS[preset].env[0]: "k"}
    found = problems_of(f'preset = "{preset}"\n{parts}\nmodels = {models}', **key)
    assert found == [
        (
            "error",
            "providers.q.models",
            f"{PRESETS[preset].about} does not list its models, so they cannot be discovered",
            'name them: [providers.q.models."model-name"]',
        )
    ]


def test_a_server_of_ones_own_behind_such_a_preset_may_be_asked() -> None:
    row = 'preset = "perplexity"\nbase_url = "http://127.0.0.1:9/v1"\nmodels = "discover"'
    assert problems_of(row, PERPLEXITY_API_KEY="k") == []


def test_every_other_preset_can_be_asked() -> None:
    assert sorted(SILENT) == ["azure", "bedrock", "perplexity"]
    assert all(PRESETS[row.preset].lists_models == (row.models == "discover") for row in preset_rows())


TARGETS: list[tuple[str, tuple[str, str | None, str] | None]] = [
    ("q.mine", ("q", None, "mine")),
    ("q.any-name", ("q", None, "any-name")),
    ("q.org/model.5:free", ("q", None, "org/model.5:free")),
    ("q.primary.any", ("q", "primary", "any")),
    ("q.2.any", ("q", "key2", "any")),
    ("q.primary.mine", ("q", "primary", "mine")),
    ("q.primary", None),
    ("q.1", None),
    ("q.9", None),
    ("q.", None),
    ("q", None),
    ("q.*", None),
    ("q.two words", None),
    ("r.any", None),
]


@pytest.mark.parametrize(("target", "parts"), TARGETS)
def test_every_name_of_a_model_is_a_target(target: str, parts: tuple[str, str | None, str] | None) -> None:
    assert split_target(load(own('{ "*" = {}, mine = {} }')), target) == parts


def test_what_is_not_the_name_of_a_model_is_told() -> None:
    assert problems_of(own('"discover"'), "q.two words") == [
        (
            "error",
            "routing.default[0]",
            '"two words" is not the name of a model',
            "write it as the provider does, without spaces and * ? # < >",
        )
    ]
    assert problems_of(own('"discover"'), "q.primary") == [
        (
            "error",
            "routing.default[0]",
            'names the key "primary" of provider "q" but no model',
            'write provider.key.model: "q.primary.model"',
        )
    ]
    assert problems_of(own('"discover"'), "q") == [
        ("error", "routing.default[0]", '"q" has no model', 'write provider.model: "q.model"')
    ]


def test_routes_with_names_of_the_provider_are_fine() -> None:
    routes = 'vision = ["q.any"]\nlongcontext = ["q.1.any"]\n[models]\n"q.*" = "q.x"\nfast = "q.y"\n'
    config, problems = examine(text(own('"discover"')) + routes, environ={})
    assert (config is not None, problems) == (True, [])


def test_a_team_may_be_allowed_models_that_only_the_provider_names() -> None:
    team = '[teams.web.allow]\nmodels = ["brand-new-*", "q.other"]\n'
    assert examine(text(own('"discover"')) + team, environ={})[1] == []
    named = examine(text(own("{ any = {} }")) + team, environ={})[1]
    assert [one.path for one in named] == ["teams.web.allow.models[0]", "teams.web.allow.models[1]"]


def test_the_instructions_for_codex_are_looked_for_beside_the_file(tmp_path: Path) -> None:
    (tmp_path / "prompt.md").write_text("Be brief.")
    base = text(own('"discover"'))
    source = str(tmp_path / "gateway.toml")
    config = loads(f'{base}[codex]\ninstructions_file = "prompt.md"\n', source=source, environ={})
    assert config.codex.instructions_file == str(tmp_path / "prompt.md")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot read {}: No such file or directory"),
        (b"\xff\xfe", "cannot read {}: it is not text"),
        (b" \n", "names {}, which is empty"),
    ],
)
def test_instructions_that_cannot_be_used_are_an_error(
    tmp_path: Path, content: bytes | None, message: str
) -> None:
    file = tmp_path / "prompt.md"
    if content is not None:
        file.write_bytes(content)
    _, problems = examine(text(own('"discover"')) + f'[codex]\ninstructions_file = "{file}"\n', environ={})
    assert [(one.severity, one.path, one.message) for one in problems] == [
        ("error", "codex.instructions_file", message.format(file))
    ]
