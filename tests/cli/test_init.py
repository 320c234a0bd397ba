"""`routecodex init` without a terminal: what it finds, writes, adds to and refuses; every file is checked."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from routecodex.cli.config_draft import propose_config
from routecodex.cli.found_providers import find_servers, key_variables
from tests.cli.process import ROOT, running
from tests.cli.tls_providers import tls_providers
from tests.kit import answers
from tests.kit.asking import body
from tests.kit.raw_client import call
from tests.kit.upstream import Answer, Hang, Json, Request, Steps

KEYS = {"ZHIPU_API_KEY": "zk-secret-1", "DEEPSEEK_API_KEY": "ds-secret-2"}


@pytest.fixture(autouse=True)
def no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the keys of the person who runs the tests."""
    for name in (*key_variables(), "AZURE_RESOURCE_NAME", "AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)


async def run(folder: Path, *arguments: str, **environ: str) -> tuple[int, str, str]:
    """Run the command to its end; return exit code, stdout and stderr."""
    async with running(folder, "init", *arguments, environ=environ) as command:
        code = await command.ended()
        return code, "\n".join(command.out), command.text


async def checked(folder: Path, **environ: str) -> dict[str, Any]:
    """Check the written file with the real command; return its tables."""
    async with running(folder, "config", "check", environ=environ) as command:
        assert await command.ended() == 0, command.text
        assert command.text == ""
    return tomllib.loads(written(folder).read_text())


def written(folder: Path) -> Path:
    return folder / "user" / "config.toml"


async def test_keys_of_the_environment_become_providers_and_routes(tmp_path: Path) -> None:
    code, out, err = await run(tmp_path, "--yes", "--no-test", **KEYS)
    assert (code, err) == (0, "")
    assert f"wrote {written(tmp_path)}: providers deepseek, zhipu" in out
    tree = await checked(tmp_path, **KEYS)
    assert {name: row["auth"] for name, row in tree["providers"].items() if "auth" in row} == {
        "deepseek": [{"env": "DEEPSEEK_API_KEY"}],
        "zhipu": [{"env": "ZHIPU_API_KEY"}],
    }
    assert tree["routing"]["default"][:2] == ["deepseek.deepseek-v4-pro", "zhipu.glm-5.2"]
    assert tree["models"] == {"claude-*haiku*": "route:background"}
    assert written(tmp_path).stat().st_mode & 0o777 == 0o600
    assert "secret" not in written(tmp_path).read_text()


async def test_without_yes_and_without_a_terminal_nothing_is_asked(tmp_path: Path) -> None:
    code, _, err = await run(tmp_path, "--no-test", **KEYS)
    assert (code, err) == (0, "There is no terminal: nothing is asked, as with --yes.")
    assert set((await checked(tmp_path, **KEYS))["providers"]) >= {"deepseek", "zhipu"}


async def test_with_nothing_found_nothing_is_written_and_it_says_what_it_looked_for(tmp_path: Path) -> None:
    if find_servers():
        pytest.skip("a model server runs on this machine")
    code, out, err = await run(tmp_path, "--yes")
    assert (code, out) == (1, "")
    assert "no key and no model server was found; nothing was written" in err
    for name in ("OPENAI_API_KEY", "ZHIPU_API_KEY", "Ollama (http://127.0.0.1:11434/v1)", "8080", "--demo"):
        assert name in " ".join(err.split())
    assert max(map(len, err.splitlines())) <= 100
    assert not (tmp_path / "user").exists()


async def test_tokens_of_other_services_are_never_taken_unasked(tmp_path: Path) -> None:
    if find_servers():
        pytest.skip("a model server runs on this machine")
    tokens = {
        "GITHUB_TOKEN": "t-secret",
        "HF_TOKEN": "t",
        "AZURE_API_KEY": "t",
        "AWS_BEARER_TOKEN_BEDROCK": "t",
    }
    code, _, err = await run(tmp_path, "--yes", "--no-test", **tokens)
    assert code == 1
    assert "left out: GITHUB_TOKEN is used only with --preset github-models" in err
    assert not written(tmp_path).exists()


async def test_a_token_of_another_service_is_used_when_its_preset_is_named(tmp_path: Path) -> None:
    code, _, _ = await run(tmp_path, "--yes", "--no-test", "--preset", "github-models", GITHUB_TOKEN="t")
    tree = await checked(tmp_path, GITHUB_TOKEN="t")
    assert (code, tree["providers"]["github-models"]["auth"]) == (0, [{"env": "GITHUB_TOKEN"}])


async def test_only_the_presets_that_are_named_are_set_up(tmp_path: Path) -> None:
    code, _, _ = await run(tmp_path, "--yes", "--no-test", "--preset", "zhipu-coding", **KEYS)
    tree = await checked(tmp_path, **KEYS)
    assert (code, list(tree["providers"])) == (0, ["zhipu-coding"])


async def test_a_key_in_another_variable_and_other_models_are_taken_from_options(tmp_path: Path) -> None:
    options = (
        "--preset",
        "zai",
        "--key-env",
        "zai=MY_KEY",
        "--model",
        "zai=glm-4.7",
        "--model",
        "zai=own/one",
    )
    code, _, _ = await run(tmp_path, "--yes", "--no-test", *options, MY_KEY="k")
    tree = await checked(tmp_path, MY_KEY="k")
    assert code == 0
    assert tree["providers"] == {
        "zai": {
            "preset": "zai",
            "auth": [{"env": "MY_KEY"}],
            "models": {"glm-4.7": {}, "glm-4.5-air": {}, "glm-4.6v": {}, "own/one": {}},
        }
    }
    assert tree["routing"]["default"] == ["zai.glm-4.7"]


async def test_a_key_variable_adds_its_preset_to_what_is_found(tmp_path: Path) -> None:
    environ = {"MY_KEY": "k", **KEYS}
    code, _, _ = await run(tmp_path, "--yes", "--no-test", "--key-env", "zhipu=MY_KEY", **environ)
    tree = await checked(tmp_path, **environ)
    assert (code, tree["providers"]["zhipu"]["auth"]) == (0, [{"env": "MY_KEY"}])
    assert "deepseek" in tree["providers"]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--preset", "opnai"), 2, 'there is no preset "opnai"; did you mean "openai"?'),
        (("--preset", "alibaba"), 2, '"dashscope-cn"'),
        (("--preset", "#"), 2, "`routecodex config presets` lists them"),
        (("--key-env", "openai"), 2, "write it as PRESET=VARIABLE"),
        (("--key-env", "=X"), 2, "write it as PRESET=VARIABLE"),
        (("--key-env", "openai=NOT_SET"), 2, "the environment variable NOT_SET is not set"),
        (("--key-env", "openai=sk-proj-1234"), 2, "not the key"),
        (("--key-env", "opnai=HOME"), 2, 'did you mean "openai"?'),
        (("--model", "openai"), 2, "write it as PRESET=MODEL"),
        (("--model", "openai=a b"), 2, '"a b" is not a valid model name'),
        (("--yes", "--no-test", "--model", "openai=gpt-5"), 2, "add --preset openai"),
        (("--yes", "--preset", "openai"), 1, "there is no key for openai: set OPENAI_API_KEY"),
        (("--yes", "--preset", "qianfan", "--key-env", "qianfan=HOME"), 1, "--model qianfan=MODEL"),
        (
            ("--yes", "--preset", "azure", "--key-env", "azure=HOME", "--model", "azure=d"),
            2,
            "AZURE_RESOURCE_NAME",
        ),
        (("extra",), 2, "unexpected extra argument"),
    ],
)
async def test_wrong_options_are_named_and_nothing_is_written(
    tmp_path: Path, arguments: tuple[str, ...], code: int, words: str
) -> None:
    result, out, err = await run(tmp_path, *arguments, DEEPSEEK_API_KEY="k", HOME="/nowhere")
    assert (result, out) == (code, "")
    assert words in err
    assert "sk-proj-1234" not in err
    assert not (tmp_path / "user").exists()


async def test_the_demo_needs_no_key_and_really_answers(tmp_path: Path) -> None:
    code, _, _ = await run(tmp_path, "--yes", "--demo", **KEYS)
    assert (code, list((await checked(tmp_path))["providers"])) == (0, ["demo"])
    async with running(tmp_path, "serve", "--port", "0") as server:
        reply = await call(
            await server.port(), "/v1/chat/completions", body("chat", "hello", stream=False, model="auto")
        )
    assert reply.status == 200
    assert "hello" in reply.body.decode()


async def test_dry_run_prints_the_file_and_writes_nothing(tmp_path: Path) -> None:
    code, out, err = await run(tmp_path, "--yes", "--dry-run", **KEYS)
    assert (code, err) == (0, "")
    assert set(tomllib.loads(out)["providers"]) >= {"deepseek", "zhipu"}
    assert f"{out}\n" == propose_config(KEYS)
    assert not (tmp_path / "user").exists()


async def test_another_file_may_be_named(tmp_path: Path) -> None:
    file = tmp_path / "new" / "gateway.toml"
    code, out, _ = await run(tmp_path, "--yes", "--no-test", "--config", str(file), **KEYS)
    assert (code, file.exists(), written(tmp_path).exists()) == (0, True, False)
    assert f"`routecodex start --config {file}`" in out


EXISTING = """\
# Mine.
[providers.zhipu]
auth = [{ env = "ZHIPU_API_KEY" }] # from work

[routing]
default = ["zhipu.glm-4.7"] # cheap
"""


def existing(folder: Path, text: str = EXISTING) -> Path:
    file = written(folder)
    file.parent.mkdir()
    file.write_text(text)
    file.chmod(0o640)
    return file


async def test_an_existing_file_is_added_to(tmp_path: Path) -> None:
    file = existing(tmp_path)
    code, out, err = await run(tmp_path, "--yes", "--no-test", **KEYS)
    assert code == 0
    assert f"added to {file}: providers deepseek; routes background" in out
    assert "the route default was set and stays as it is" in err
    assert file.read_text().startswith(EXISTING)
    assert file.stat().st_mode & 0o777 == 0o640
    tree = await checked(tmp_path, **KEYS)
    assert tree["routing"]["default"] == ["zhipu.glm-4.7"]
    assert tree["routing"]["background"][:2] == ["zhipu.glm-4.5-air", "deepseek.deepseek-v4-flash"]
    assert sorted(path.name for path in file.parent.iterdir()) == ["config.toml"]
    code, out, _ = await run(tmp_path, "--yes", "--no-test", **KEYS)
    assert (code, out) == (0, f"{file}: nothing is missing, nothing was changed")


async def test_a_key_that_the_file_uses_for_another_plan_is_left_alone(tmp_path: Path) -> None:
    if find_servers():
        pytest.skip("a model server runs on this machine")
    routes = 'default = ["zhipu-coding.glm-5.2"]\nbackground = ["zhipu-coding.glm-5.2"]\n'
    text = f"[providers.zhipu-coding]\n[routing]\n{routes}"
    file = existing(tmp_path, text)
    code, _, _ = await run(tmp_path, "--yes", "--no-test", ZHIPU_API_KEY="k")
    assert (code, file.read_text()) == (0, text)


async def test_a_named_preset_that_the_file_has_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("k")
    rest = 'models = { "own" = {} }\n[routing]\ndefault = ["mine.own"]\n'
    text = f'[providers.mine]\npreset = "cohere"\nauth = [{{ file = "{tmp_path}/key" }}]\n{rest}'
    file = existing(tmp_path, text)
    code, out, err = await run(tmp_path, "--yes", "--preset", "cohere", COHERE_API_KEY="k")
    assert (code, file.read_text()) == (0, text)
    assert err == "cohere is left as it is: the file has it as [providers.mine]"
    assert "nothing is missing" in out


async def test_force_starts_anew_and_keeps_the_old_file(tmp_path: Path) -> None:
    file = existing(tmp_path, "this is not TOML")
    for count in (1, 2):
        code, _, err = await run(tmp_path, "--yes", "--no-test", "--force", **KEYS)
        kept = sorted(path.name for path in file.parent.glob("config.toml.bak-*"))
        assert (code, len(kept)) == (0, count)
        assert "the old file is kept as" in err
    assert (file.parent / kept[0]).read_text() == "this is not TOML"
    await checked(tmp_path, **KEYS)


async def test_force_and_dry_run_together_change_nothing(tmp_path: Path) -> None:
    file = existing(tmp_path)
    code, out, _ = await run(tmp_path, "--yes", "--force", "--dry-run", **KEYS)
    assert (code, file.read_text()) == (0, EXISTING)
    assert "# Mine." not in out
    assert sorted(path.name for path in file.parent.iterdir()) == ["config.toml"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"port = = 1\n", "config.toml:1"),
        (b'{"providers": {}}\n', "is JSON"),
        (b"\xff\xfe", "is not UTF-8"),
        (b'[providers.mine]\nprotocol = "nonsense"\n[routing]\ndefault = ["mine.m"]\n', "nonsense"),
        (b'[providers.openai]\n[routing]\ndefault = ["openai.gpt-5"]\n', "OPENAI_API_KEY is not set"),
    ],
)
async def test_a_broken_file_is_not_changed_and_config_check_is_offered(
    tmp_path: Path, content: bytes, words: str
) -> None:
    file = existing(tmp_path)
    file.write_bytes(content)
    code, out, err = await run(tmp_path, "--yes", "--no-test", **KEYS)
    assert (code, out) == (2, "")
    assert words in err
    assert "was not changed. `routecodex config check` shows its problems" in err
    assert file.read_bytes() == content


async def test_a_file_with_settings_alone_is_completed(tmp_path: Path) -> None:
    file = existing(tmp_path, "\ufeff[server]\r\nport = 5599 # mine\r\n")
    code, _, _ = await run(tmp_path, "--yes", "--no-test", **KEYS)
    assert code == 0
    assert file.read_bytes().startswith("\ufeff[server]\r\nport = 5599 # mine\r\n".encode())
    async with running(tmp_path, "config", "check", environ=KEYS) as command:
        assert await command.ended() == 0, command.text


async def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    code, out, err = await run(
        tmp_path, "--yes", "--no-test", "--config", str(tmp_path / "file" / "c.toml"), **KEYS
    )
    assert (code, out) == (1, "")
    assert f"cannot write {tmp_path}/file/c.toml" in err
    assert "choose another file with --config" in err


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is there on Linux")
async def test_a_failure_while_writing_is_named(tmp_path: Path) -> None:
    code, out, err = await run(tmp_path, "--yes", "--no-test", "--config", "/proc/routecodex/c.toml", **KEYS)
    assert (code, out) == (1, "")
    assert "cannot write /proc/routecodex/c.toml" in err


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
async def test_a_directory_without_permission_is_named(tmp_path: Path) -> None:
    (tmp_path / "user").mkdir(mode=0o500)
    code, _, err = await run(tmp_path, "--yes", "--no-test", **KEYS)
    assert code == 1
    assert "cannot be written by this user" in err


def by_host(request: Request) -> Answer:
    """Answer for three providers: one that works, one that refuses the key, one that is down."""
    host = request.headers["host"]
    if host == "api.deepseek.com":
        return answers.text("chat", "OK", stream=False)
    if host == "open.bigmodel.cn":
        return Json(401, {"error": {"message": "token zk-secret-1 is wrong", "code": "1000"}})
    return Json(503, {"error": {"message": "down for maintenance"}})


async def test_keys_are_tested_and_one_that_is_refused_is_left_out(tmp_path: Path) -> None:
    with tls_providers(tmp_path, by_host) as providers:
        environ = {**KEYS, "OPENAI_API_KEY": "sk-secret-3", **providers.environ}
        code, out, err = await run(tmp_path, "--yes", **environ)
    assert code == 0
    assert sorted(providers.hosts) == ["api.deepseek.com", "api.openai.com", "open.bigmodel.cn"]
    assert len(providers.requests) == 3
    assert "Testing 3 keys with one small request each …" in err
    assert "  deepseek: ok, deepseek-v4-pro answered in " in err
    assert "  zhipu: failed, the provider refused the key in ZHIPU_API_KEY: " in err
    assert "  zhipu is left out; --no-test keeps it" in err
    assert "  openai: failed, " in err
    assert "down for maintenance" in err
    assert "  openai is kept" in err
    assert "secret" not in out + err
    tree = await checked(tmp_path, **environ)
    assert "zhipu" not in tree["providers"]
    assert {"openai", "deepseek"} <= set(tree["providers"])


async def test_a_refused_key_alone_writes_nothing(tmp_path: Path) -> None:
    with tls_providers(tmp_path, by_host) as providers:
        environ = {"ZHIPU_API_KEY": "zk-secret-1", **providers.environ}
        code, _, err = await run(tmp_path, "--yes", "--preset", "zhipu", **environ)
    assert (code, written(tmp_path).exists()) == (1, False)
    assert err.endswith("zhipu is left out; --no-test keeps it\nNo provider is left; nothing was written.")


async def test_no_test_and_dry_run_send_nothing(tmp_path: Path) -> None:
    with tls_providers(tmp_path, by_host) as providers:
        environ = {**KEYS, **providers.environ}
        await run(tmp_path, "--yes", "--dry-run", **environ)
        code, _, err = await run(tmp_path, "--yes", "--no-test", **environ)
    assert (code, providers.requests, providers.hosts, err) == (0, [], [], "")


async def test_without_a_network_the_providers_are_kept(tmp_path: Path) -> None:
    environ = {"DEEPSEEK_API_KEY": "k", "HTTPS_PROXY": "http://127.0.0.1:1"}
    code, _, err = await run(tmp_path, "--yes", "--preset", "deepseek", **environ)
    assert code == 0
    assert "deepseek: failed, the provider cannot be reached: " in err
    assert "check the network and the proxy variables" in err
    assert list((await checked(tmp_path, **environ))["providers"]) == ["deepseek"]


async def test_the_written_file_is_served_and_answers_through_the_provider(tmp_path: Path) -> None:
    with tls_providers(tmp_path, by_host) as providers:
        environ = {"DEEPSEEK_API_KEY": "ds-secret-2", **providers.environ}
        code, _, _ = await run(tmp_path, "--yes", "--no-test", "--preset", "deepseek", **environ)
        assert code == 0
        async with running(tmp_path, "serve", "--port", "0", environ=environ) as server:
            reply = await call(
                await server.port(), "/v1/chat/completions", body("chat", "hello", stream=False, model="auto")
            )
        assert (reply.status, "OK" in reply.body.decode()) == (200, True)
        [request] = providers.requests
    assert request.headers["authorization"] == "Bearer ds-secret-2"
    assert msgspec.json.decode(request.body)["model"] == "deepseek-v4-pro"


@pytest.mark.parametrize("arguments", [("--help",), ("--yes", "--no-test", "--dry-run")])
def test_neither_the_gateway_nor_tomlkit_is_loaded_for_a_new_file(
    tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    script = (
        "import sys; from routecodex.cli import main; main(['init', *sys.argv[1:]], standalone_mode=False); "
        "print(sorted({'tomlkit', 'routecodex.gateway', 'routecodex.server'} & set(sys.modules)))"
    )
    environ = {**os.environ, **KEYS, "ROUTECODEX_USER_DIR": str(tmp_path), "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], env=environ, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


async def test_a_signal_during_the_tests_writes_nothing(tmp_path: Path) -> None:
    with tls_providers(tmp_path, lambda _request: Steps([Hang()])) as providers:
        environ = {"DEEPSEEK_API_KEY": "k", **providers.environ}
        async with running(tmp_path, "init", "--yes", "--preset", "deepseek", environ=environ) as command:
            await command.wait_for("Testing 1 key")
            while not providers.requests:
                await asyncio.sleep(0.01)
            command.signal(signal.SIGINT)
            assert await command.ended() == 130
    assert "interrupted: nothing was written" in command.text
    assert not written(tmp_path).exists()
