"""Adding to a file: providers and routes that are missing come, all that was there stays as it was."""

from __future__ import annotations

import tomllib

import pytest

from routecodex.cli.config_draft import ProviderDraft, draft_demo, draft_preset
from routecodex.cli.config_edit import EditedConfig, ExistingProviders, add_to_config
from routecodex.config import examine
from routecodex.protocols.dialect import Dialect
from routecodex.providers.catalog import PRESETS

ENVIRON = {"ZAI_API_KEY": "k", "OPENAI_API_KEY": "o"}

COMMENTED = """\
# My gateway.
[server]
port = 5530 # not the usual one

[providers.zai]
auth = [{ env = "ZAI_API_KEY" }]

[routing] # hand-made
default = ["zai.glm-4.7"]   # cheap
thinking = [
  "zai.glm-5.2", # best
]

# Names of my team.
[models]
"team" = "zai.glm-4.7"
# The end.
"""
FORMS = {
    "tables": COMMENTED,
    "no newline at the end": COMMENTED.rstrip("\n"),
    "CRLF": COMMENTED.replace("\n", "\r\n"),
    "pools": (
        '[providers.zai]\n[routing]\ndefault = ["zai.glm-4.7"]\n[[routing.coding]]\nid = "x"\n'
        'targets = ["zai.glm-4.7"]\n# last\n'
    ),
    "pools alone": '[providers.zai]\n[[routing.default]]\nid = "x"\ntargets = ["zai.glm-4.7"]\n',
    "dotted keys": 'providers.zai.preset = "zai"\nrouting.default = ["zai.glm-4.7"]\n',
    "inline tables": (
        'providers = { zai = { preset = "zai" } }\nrouting = { default = ["zai.glm-4.7"] } # r\nmodels = {}\n'
    ),
    "tables apart": (
        '[providers.zai]\n[routing]\ndefault = ["zai.glm-4.7"]\n[providers.spare]\nprotocol = "demo"\n'
        "[providers.spare.models.m]\n"
    ),
    "settings alone": "# nothing yet\n[server]\nport = 5530",
    "empty": "",
}


def drafted(preset: str, env: str) -> ProviderDraft:
    draft = draft_preset(preset, env=env)
    assert draft is not None
    return draft


OPENAI, ZAI = drafted("openai", "OPENAI_API_KEY"), drafted("zai", "ZAI_API_KEY")


def edited(text: str, *drafts: ProviderDraft) -> EditedConfig:
    config, _ = examine(text, environ=ENVIRON, presets=PRESETS, dialect_type=Dialect)
    return add_to_config(text, drafts, config=config)


@pytest.mark.parametrize("text", FORMS.values(), ids=FORMS.keys())
def test_every_form_of_a_file_is_added_to_and_stays_valid(text: str) -> None:
    result = edited(text, OPENAI, ZAI)
    config, problems = examine(result.text, environ=ENVIRON, presets=PRESETS, dialect_type=Dialect)
    assert problems == []
    assert config is not None
    before, after = tomllib.loads(text), tomllib.loads(result.text)
    assert {name: after["providers"][name] for name in before.get("providers", {})} == before.get(
        "providers", {}
    )
    assert after["providers"]["openai"]["auth"] == [{"env": "OPENAI_API_KEY"}]
    assert {route: after["routing"][route] for route in before.get("routing", {})} == before.get(
        "routing", {}
    )
    assert after["routing"]["background"][-1] in ("openai.gpt-5-mini", "zai.glm-4.5-air")
    assert after["models"]["claude-*haiku*"] == "route:background"
    assert set(result.text.splitlines()) >= {
        line for line in text.splitlines() if "#" in line and "{" not in line
    }


def test_the_text_before_stays_in_place_and_routes_join_their_table() -> None:
    result = edited(COMMENTED, OPENAI)
    head, _, _ = COMMENTED.partition("]\n\n# Names")
    assert result.text.startswith(head + "]\nbackground = ")
    assert '\n\n# Names of my team.\n[models]\n"team" = "zai.glm-4.7"\n"claude-*haiku*"' in result.text
    assert result.text.index("# The end.") < result.text.index("[providers.openai]")


def test_what_the_file_has_is_not_added_again() -> None:
    first = edited(COMMENTED, OPENAI, ZAI)
    again = edited(first.text, OPENAI, ZAI)
    assert (again.text, again.providers, dict(again.routes)) == (first.text, (), {})


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ('[providers.openai]\nauth = [{ env = "X" }]', "openai"),
        ('[providers.mine]\npreset = "openai"', "mine"),
        ('[providers.mine]\npreset = "openai-responses"', "mine"),
        ('[providers.mine]\nprotocol = "chat"\nbase_url = "https://api.openai.com/v1"', "mine"),
        ('[providers.openai]\nprotocol = "chat"\nbase_url = "http://127.0.0.1:9/v1"', None),
        ('[providers.mine]\npreset = "zai"', None),
        ('[providers.mine]\npreset = "no such preset"', None),
        ("providers = 3", None),
        ("", None),
    ],
)
def test_a_provider_is_known_by_its_preset_or_its_address(row: str, expected: str | None) -> None:
    assert ExistingProviders(tomllib.loads(row)).named_like(OPENAI) == expected


def test_the_demo_is_known_by_its_protocol() -> None:
    rows = ExistingProviders({"providers": {"try": {"protocol": "demo"}}})
    assert rows.named_like(draft_demo()) == "try"


def test_a_name_that_is_taken_gets_a_number() -> None:
    text = (
        '[providers.openai]\nprotocol = "chat"\nbase_url = "http://127.0.0.1:9/v1"\n[providers.openai.models.m]\n'
        '[routing]\ndefault = ["openai.m"]\n'
    )
    result = edited(text, OPENAI)
    assert [one.name for one in result.providers] == ["openai-2"]
    assert tomllib.loads(result.text)["routing"]["background"] == ["openai-2.gpt-5-mini"]


@pytest.mark.parametrize(
    ("row", "used"),
    [
        ('[providers.zai-coding]\nauth = [{ env = "ZAI_API_KEY" }]', True),
        ('[providers.zai-coding]\nauth = [{ value = "${ZAI_API_KEY}" }]', True),
        ('[providers.zai-coding]\nauth = [{ value = "${ZAI_API_KEY:-none}" }]', True),
        ("[providers.zai-coding]", True),
        ('[providers.zai-coding]\nauth = [{ file = "key" }]', False),
        ('[providers.zai-coding]\nauth = "oops"', False),
        ("[providers.openai]", False),
    ],
)
def test_a_key_that_the_file_uses_is_known_whatever_it_is_used_for(row: str, used: bool) -> None:
    assert ExistingProviders(tomllib.loads(row)).uses("ZAI_API_KEY") is used


@pytest.mark.parametrize("alias", ["claude-*", "claude-*haiku*", "*"])
def test_an_alias_that_matches_the_small_model_stays_alone(alias: str) -> None:
    text = f'[providers.zai]\n[routing]\ndefault = ["zai.glm-5.2"]\n[models]\n"{alias}" = "zai.glm-5.2"\n'
    result = edited(text, OPENAI)
    assert "background" in result.routes
    assert tomllib.loads(result.text)["models"] == {alias: "zai.glm-5.2"}


def test_a_background_route_that_was_there_gets_no_alias() -> None:
    text = '[providers.zai]\n[routing]\ndefault = ["zai.glm-5.2"]\nbackground = ["zai.glm-5.2"]\n'
    assert "models" not in tomllib.loads(edited(text, OPENAI).text)


def test_new_routes_use_the_models_that_the_file_has() -> None:
    text = (
        '[providers.mine]\npreset = "siliconflow"\nauth = [{ env = "ZAI_API_KEY" }]\n'
        'models = { "own" = {} }\n[routing]\ndefault = ["mine.own"]\n'
    )
    result = edited(text, OPENAI)
    assert dict(result.routes) == {
        "background": ["mine.own", "openai.gpt-5-mini"],
        "longcontext": ["openai.gpt-4.1"],
    }


def test_new_routes_may_use_any_model_of_a_provider_that_names_them_itself() -> None:
    text = '[providers.zai]\nmodels = "discover"\n[routing]\ndefault = ["zai.1.glm-9"]\n'
    after = edited(text, OPENAI)
    loaded, problems = examine(after.text, environ=ENVIRON, presets=PRESETS, dialect_type=Dialect)
    assert problems == []
    assert loaded is not None
    assert loaded.providers["zai"].discovers
    assert ZAI.target("background") in after.routes["background"]
