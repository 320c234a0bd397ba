"""`routecodex init` at a terminal: its questions, the key that is not shown, and Ctrl-C at each of them."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from routecodex.cli.found_providers import (
    FoundKey,
    FoundServer,
    LocalServer,
    find_keys,
    find_servers,
    key_variables,
)
from routecodex.cli.init_choices import ChosenProvider, Findings, InitOptions, choose
from routecodex.cli.init_questions import ask_providers
from tests.cli.terminal import CTRL_C, CTRL_D, Terminal, environ, terminal
from tests.cli.tls_providers import TlsProviders, tls_providers
from tests.kit import answers
from tests.kit.upstream import Answer, Json, Request

TYPED = "sk-typed-7654321"


@pytest.fixture(autouse=True)
def no_keys(user: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the keys of the person who runs the tests; a model server would add a question."""
    for name in (*key_variables(), "AZURE_RESOURCE_NAME", "AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    if find_servers():
        pytest.skip("a model server runs on this machine")


def by_key(request: Request) -> Answer:
    """Accept the key that was typed, refuse others."""
    if TYPED in request.headers.get("authorization", ""):
        return answers.text("chat", "OK", stream=False)
    return Json(401, {"error": {"message": "wrong key"}})


@pytest.fixture
def providers(tmp_path: Path) -> Iterator[TlsProviders]:
    with tls_providers(tmp_path, by_key) as served:
        yield served


def checked(user: Path, more: Mapping[str, str]) -> dict[str, Any]:
    """Check the written file with the real command; return its tables."""
    done = subprocess.run(
        [sys.executable, "-m", "routecodex", "config", "check"],
        env=environ(user, more),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return tomllib.loads((user / "config.toml").read_text())


def test_a_found_key_is_used_after_enter_at_every_question(tmp_path: Path, user: Path) -> None:
    more = {"DEEPSEEK_API_KEY": "ds-1"}
    with terminal(tmp_path, "init", "--no-test", user=user, more=more) as at:
        at.shows(r"Use DeepSeek with the key in DEEPSEEK_API_KEY\? \[Y/n\]")
        at.type("\n")
        at.shows(r"Model of deepseek \[deepseek-v4-pro\]")
        at.type("\n")
        at.shows(r"Further provider \(a preset; \? lists them, Enter for none\)")
        at.type("\n")
        at.shows("Providers: deepseek")
        at.shows(r"  default     deepseek\.deepseek-v4-pro\r\n  background  deepseek\.deepseek-v4-flash\r\n")
        at.shows(r"Write \S+config\.toml\? \[Y/n\]")
        at.type("\n")
        at.shows(r"wrote \S+config\.toml: providers deepseek; routes default, background")
        assert at.ends() == 0
    tree = checked(user, more)
    assert tree["providers"]["deepseek"]["auth"] == [{"env": "DEEPSEEK_API_KEY"}]


def test_the_region_or_plan_of_a_key_is_asked_for(tmp_path: Path, user: Path) -> None:
    more = {"ZHIPU_API_KEY": "k"}
    with terminal(tmp_path, "init", "--no-test", user=user, more=more) as at:
        at.shows(r"Which provider is the key in ZHIPU_API_KEY for\?")
        at.shows(r"1  zhipu: Zhipu GLM \(bigmodel\.cn\) \(cn, usage\)")
        at.shows(r"4  zai-coding: Z\.ai GLM coding plan \(global, coding\)")
        at.shows(r"Number .*\[1\]")
        at.type("9\n")
        at.shows("9 is not in the range")
        at.type("4\n")
        at.shows("Models of zai-coding: .*glm-4.7")
        at.shows(r"Model of zai-coding \[glm-5\.2\]")
        at.type("glm-4.7\n")
        at.shows("Further provider")
        at.type("\n")
        at.shows("Write ")
        at.type("y\n")
        assert at.ends() == 0
    tree = checked(user, more)
    assert tree["providers"]["zai-coding"]["auth"] == [{"env": "ZHIPU_API_KEY"}]
    assert tree["routing"] == {"default": ["zai-coding.glm-4.7"], "background": ["zai-coding.glm-4.5-air"]}


def test_a_typed_key_is_not_shown_tested_and_stored_in_a_private_file(
    tmp_path: Path, user: Path, providers: TlsProviders
) -> None:
    with terminal(tmp_path, "init", user=user, more=providers.environ) as at:
        at.shows("Further provider")
        at.type("?\n")
        at.shows(r"deepseek +DeepSeek \(global, usage\)")
        at.shows("Further provider")
        at.type("depseek\n")
        at.shows('There is no preset "depseek"; did you mean "deepseek"')
        at.shows("Further provider")
        at.type("deepseek\n")
        at.shows(r"Key of DeepSeek \(not shown; Enter to leave deepseek out\)")
        at.type("two words\n")
        at.shows("This is not a key")
        at.shows("Key of DeepSeek")
        at.type(f"{TYPED}\n")
        at.shows("Model of deepseek")
        at.type("\n")
        at.shows("Further provider")
        at.type("\n")
        at.shows("Testing 1 key with one small request each …")
        at.shows(r"deepseek: \S*ok\S*, deepseek-v4-pro answered in")
        at.shows("Write ")
        at.type("\n")
        assert at.ends() == 0
    key = user / "keys" / "deepseek"
    assert TYPED not in at.shown
    assert TYPED not in (user / "config.toml").read_text()
    assert (key.read_text(), key.stat().st_mode & 0o777) == (f"{TYPED}\n", 0o600)
    assert checked(user, {})["providers"]["deepseek"]["auth"] == [{"file": str(key)}]
    [request] = providers.requests
    assert request.headers["authorization"] == f"Bearer {TYPED}"


@pytest.mark.parametrize(("reply", "kept"), [("y\n", True), ("\n", False)])
def test_after_a_failed_test_the_person_decides(
    tmp_path: Path, user: Path, providers: TlsProviders, *, reply: str, kept: bool
) -> None:
    more = {"DEEPSEEK_API_KEY": "ds-wrong-key", **providers.environ}
    with terminal(tmp_path, "init", "--preset", "deepseek", user=user, more=more) as at:
        at.shows("Model of deepseek")
        at.type("\n")
        at.shows(r"deepseek: \S*failed\S*, the provider refused the key in DEEPSEEK_API_KEY: wrong key")
        at.shows(r"Keep deepseek all the same\? \[y/N\]")
        at.type(reply)
        if kept:
            at.shows("Write ")
            at.type("\n")
        assert at.ends() == (0 if kept else 1)
    assert (user / "config.toml").exists() is kept


def test_a_token_of_another_service_is_offered_but_not_by_default(tmp_path: Path, user: Path) -> None:
    with terminal(tmp_path, "init", "--no-test", user=user, more={"GITHUB_TOKEN": "t"}) as at:
        at.shows(r"Use GitHub Models with the key in GITHUB_TOKEN\? \[y/N\]")
        at.type("\n")
        at.shows("Further provider")
        at.type("\n")
        at.shows(r"No provider is chosen\. Set up the built-in demo\? \[y/N\]")
        at.type("\n")
        at.shows("No provider was chosen; nothing was written")
        assert at.ends() == 1
    assert not user.exists()


def test_the_demo_is_offered_when_there_is_nothing_else(tmp_path: Path, user: Path) -> None:
    with terminal(tmp_path, "init", user=user) as at:
        at.shows("Further provider")
        at.type("\n")
        at.shows("Set up the built-in demo")
        at.type("y\n")
        at.shows("Write ")
        at.type("\n")
        assert at.ends() == 0
    assert list(checked(user, {})["providers"]) == ["demo"]


def test_parts_of_an_address_are_asked_for(tmp_path: Path, user: Path) -> None:
    more = {"AZURE_API_KEY": "k"}
    with terminal(tmp_path, "init", "--no-test", "--preset", "azure", user=user, more=more) as at:
        at.shows("Model of azure")
        at.type("my-deployment\n")
        at.shows("Name of your Azure resource")
        at.type("mine\n")
        at.shows("Write ")
        at.type("\n")
        assert at.ends() == 0
    row = checked(user, more)["providers"]["azure"]
    assert (row["resource"], row["models"]) == ("mine", {"my-deployment": {}})


def test_an_existing_file_is_added_to_after_its_new_parts_were_shown(tmp_path: Path, user: Path) -> None:
    text = '# mine\n[providers.deepseek]\n[routing]\ndefault = ["deepseek.deepseek-v4-pro"]\n'
    user.mkdir()
    (user / "config.toml").write_text(text)
    more = {"DEEPSEEK_API_KEY": "k", "MINIMAX_API_KEY": "k"}
    with terminal(tmp_path, "init", "--no-test", user=user, more=more) as at:
        at.shows("Which provider is the key in MINIMAX_API_KEY for")
        at.type("2\n")
        at.shows("Model of minimax")
        at.type("\n")
        at.shows("Further provider")
        at.type("\n")
        at.shows("Providers: minimax")
        at.shows("Routes that are new:")
        at.shows(r"Add this to \S+config\.toml\? \[Y/n\]")
        assert (user / "config.toml").read_text() == text
        at.type("\n")
        at.shows("added to")
        assert at.ends() == 0
    assert (user / "config.toml").read_text().startswith(text)
    assert list(checked(user, more)["providers"]) == ["deepseek", "minimax"]


def test_no_at_the_end_writes_nothing(tmp_path: Path, user: Path) -> None:
    with terminal(tmp_path, "init", "--demo", user=user) as at:
        at.shows("Write ")
        at.type("n\n")
        at.shows("Nothing was written")
        assert at.ends() == 1
    assert not user.exists()


def test_colours_are_left_out_with_no_color(tmp_path: Path, user: Path, providers: TlsProviders) -> None:
    more = {"DEEPSEEK_API_KEY": TYPED, **providers.environ}
    for variables, coloured in ((more, True), ({**more, "NO_COLOR": "1"}, False)):
        with terminal(tmp_path, "init", "--preset", "deepseek", user=user, more=variables) as at:
            at.shows("Model of deepseek")
            at.type("\n")
            at.shows("answered in")
            at.shows("Write ")
            at.type("n\n")
            assert at.ends() == 1
        assert ("\x1b[" in at.shown) is coloured


def _to_menu(at: Terminal) -> None:
    at.shows("Which provider is the key in ZHIPU_API_KEY for")
    at.shows("Number")


def _to_model(at: Terminal) -> None:
    _to_menu(at)
    at.type("1\n")
    at.shows(r"Model of zhipu \[")


def _to_whether(at: Terminal) -> None:
    _to_model(at)
    at.type("\n")
    at.shows("Use Hugging Face router")


def _to_further(at: Terminal) -> None:
    _to_whether(at)
    at.type("n\n")
    at.shows("Further provider")


def _to_key(at: Terminal) -> None:
    _to_further(at)
    at.type("deepseek\n")
    at.shows("Key of DeepSeek")


def _to_keep(at: Terminal) -> None:
    _to_key(at)
    at.type("wrong-key\n")
    at.shows("Model of deepseek")
    at.type("\n")
    at.shows("Further provider")
    at.type("\n")
    at.shows("Keep zhipu all the same")


def _to_write(at: Terminal) -> None:
    _to_keep(at)
    at.type("y\n")
    at.shows("Keep deepseek all the same")
    at.type("y\n")
    at.shows("Write ")


QUESTIONS = (_to_menu, _to_model, _to_whether, _to_further, _to_key, _to_keep, _to_write)


@pytest.mark.parametrize("key", [CTRL_C, CTRL_D], ids=["Ctrl-C", "Ctrl-D"])
@pytest.mark.parametrize("question", QUESTIONS, ids=[one.__name__.removeprefix("_to_") for one in QUESTIONS])
def test_an_interrupted_question_writes_nothing(
    tmp_path: Path, user: Path, providers: TlsProviders, *, question: Callable[[Terminal], None], key: str
) -> None:
    more = {"ZHIPU_API_KEY": "k", "HF_TOKEN": "t", **providers.environ}
    with terminal(tmp_path, "init", user=user, more=more) as at:
        question(at)
        at.sleeps()
        at.type(key)
        at.shows("interrupted: nothing was written")
        assert at.ends() == 130
    assert not user.exists()


OLLAMA = LocalServer(preset="ollama", url="http://127.0.0.1:11434/v1")


def asked(findings: Findings, typed: str, **options: Any) -> tuple[list[ChosenProvider], str]:
    """Ask with these answers; return the choice and the screen."""
    chosen: list[ChosenProvider] = []

    @click.command()
    def ask() -> None:
        chosen.extend(ask_providers(InitOptions(file=Path("config.toml"), **options), findings))

    result = CliRunner().invoke(ask, input=typed, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return chosen, result.output


def test_a_server_on_this_machine_is_offered_with_its_models() -> None:
    found = FoundServer(server=OLLAMA, models={"qwen3:8b": None, "llama3.2": 8192, "nomic-embed-text": None})
    [one], screen = asked(Findings(servers=(found,)), "y\nllama3.2\n\n")
    assert "Use Ollama at http://127.0.0.1:11434/v1 (2 models)?" in screen
    assert "Models of ollama: llama3.2, qwen3:8b" in screen
    assert (one.draft.default, list(one.draft.models)) == ("llama3.2", ["llama3.2", "qwen3:8b"])
    assert one.draft.models["llama3.2"].context_tokens == 8192
    [taken], _ = asked(Findings(servers=(found,)), "\n\n\n")
    assert taken.draft.default == "qwen3:8b"
    assert asked(Findings(servers=(found,)), "n\n\nn\n")[0] == []


def test_a_server_without_models_is_left_out_with_a_word() -> None:
    findings = Findings(servers=(FoundServer(server=OLLAMA, models={}),))
    chosen, screen = asked(findings, "\nn\n")
    assert chosen == []
    assert "Ollama runs at http://127.0.0.1:11434/v1 but has no model that chats" in screen
    assert choose(InitOptions(file=Path("c")), findings) == (
        [],
        ["Ollama at http://127.0.0.1:11434/v1 has no model that chats"],
    )


def test_a_server_that_does_not_run_may_be_set_up_by_name() -> None:
    [one], _ = asked(Findings(), "qwen3\n", presets=("ollama",))
    assert (one.draft.name, one.draft.default, one.has_key) == ("ollama", "qwen3", False)


def test_a_model_that_an_option_names_is_not_asked_for() -> None:
    found = FoundServer(server=OLLAMA, models={"a": None, "b": None})
    [one], screen = asked(Findings(servers=(found,)), "y\n\n", models={"ollama": ("b",)})
    assert one.draft.default == "b"
    assert "Model of" not in screen


def test_two_keys_of_one_preset_become_two_providers() -> None:
    rows = find_keys({"ZAI_API_KEY": "k"})[0].rows
    twice = (FoundKey(variable="ONE", rows=rows), FoundKey(variable="TWO", rows=rows))
    chosen, _ = asked(Findings(keys=twice), "1\n\n1\n\n\n")
    assert [(one.draft.name, one.draft.preset, one.draft.env) for one in chosen] == [
        ("zai", "zai", "ONE"),
        ("zai-2", "zai", "TWO"),
    ]


def test_a_preset_is_chosen_once() -> None:
    chosen, screen = asked(Findings(keys=find_keys({"OPENAI_API_KEY": "k"})), "y\n\nopenai\n\n")
    assert [one.draft.name for one in chosen] == ["openai"]
    assert "openai is already chosen." in screen
