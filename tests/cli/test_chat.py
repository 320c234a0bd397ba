"""`routecodex chat` in a real terminal and from a pipe, against a gateway in its own process."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from routecodex.cli import main
from routecodex.cli.chat import server_url
from routecodex.cli.chat_output import call_text, strip_control_characters
from routecodex.cli.chat_tools import OutsideWorkspace, Workspace
from tests.cli.terminal import CTRL_C, CTRL_D, environ, gateway, terminal

CONFIG = (
    '[server]\nport = 0\ndrain_seconds = 1\n[store]\nurl = "memory:"\n[logging]\nlevel = "error"\n'
    '[providers.demo]\nprotocol = "demo"\npace = 0.002\n'
    "[providers.demo.models.demo-1]\n[providers.demo.models.demo-2]\n"
    '[routing]\ndefault = ["demo.demo-1"]\n'
)
PROMPT = r"you> "


@pytest.fixture(scope="module")
def user(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The user dir that the gateway and the commands share."""
    return tmp_path_factory.mktemp("home") / "user"


@pytest.fixture(scope="module")
def url(user: Path) -> Iterator[str]:
    """URL of the announced gateway."""
    with gateway(user.parent, CONFIG, user=user) as found:
        yield found


@pytest.fixture
def place(tmp_path: Path, url: str) -> Path:
    """A working directory with a few files; the gateway runs."""
    (tmp_path / "notes.txt").write_text("milk\nbread\n")
    (tmp_path / ".env").write_text("KEY=secret-value\n")
    return tmp_path


def saved(user: Path, session: str) -> list[dict[str, Any]]:
    chat = msgspec.json.decode((user / "chats" / f"{session}.json").read_bytes())
    messages: list[dict[str, Any]] = chat["messages"]
    return messages


def piped(place: Path, text: str, *arguments: str, user: Path) -> subprocess.CompletedProcess[str]:
    """Run the command with this text on its stdin."""
    command = [sys.executable, "-m", "routecodex", "chat", *arguments]
    return subprocess.run(
        command, cwd=place, env=environ(user), input=text, capture_output=True, text=True, timeout=60
    )


def test_an_answer_comes_word_by_word_with_who_gave_it_and_what_it_took(place: Path, user: Path) -> None:
    with terminal(place, "chat", "--session", "first", user=user) as screen:
        screen.shows(r"auto at http://\S+, session first")
        screen.shows(PROMPT)
        screen.type("demo:think\n")
        screen.shows(r"\x1b\[2mThe \x1b\[0m\x1b\[2muser ")
        screen.shows(r'You said: "demo:think"\.')
        screen.shows(r"demo\.key1\.demo-1 · route \w+ · \d+ \+ \d+ tokens")
        screen.shows(PROMPT)
        screen.type(CTRL_D)
        screen.shows(r"continue with `routecodex chat --resume --session first`")
        assert screen.ends() == 0
    assert [message["role"] for message in saved(user, "first")] == ["user", "assistant"]
    assert (user / "chats" / "first.json").stat().st_mode & 0o077 == 0
    assert "demo:think" in (user / "chat_history").read_text()


def test_ctrl_c_stops_the_answer_and_keeps_the_conversation_which_can_be_resumed(
    place: Path, user: Path
) -> None:
    with terminal(place, "chat", "--session", "stopped", "--system", "Be brief.", user=user) as screen:
        screen.shows(PROMPT)
        screen.sleeps()
        screen.type(CTRL_C)
        screen.shows(r"\(Ctrl-D quits\)")
        screen.shows(PROMPT)
        screen.type("demo:long 20000\n")
        screen.shows("the gateway takes a request from any client")
        screen.type(CTRL_C)
        screen.shows(r"\(interrupted; the answer so far is saved\)")
        screen.shows(PROMPT)
        screen.type("hello again\n")
        screen.shows(r'You said: "hello again"\..* I saw 3 messages, .* and a system prompt')
        screen.shows(PROMPT)
        screen.type("/quit\n")
        assert screen.ends() == 0
    messages = saved(user, "stopped")
    assert [message["role"] for message in messages] == ["system", "user", "assistant", "user", "assistant"]
    assert messages[2]["content"].startswith("the gateway takes a request")
    assert len(messages[2]["content"]) < 100_000
    with terminal(place, "chat", "--resume", "--session", "stopped", user=user) as screen:
        screen.shows(r"\(5 messages so far\)")
        screen.shows(PROMPT)
        screen.type("and now?\n")
        screen.shows(r"I saw 5 messages")
        screen.shows(PROMPT)
        screen.type(CTRL_D)
        assert screen.ends() == 0


@pytest.mark.parametrize("protocol", ["chat", "responses", "messages", "gemini"])
def test_a_command_runs_only_after_a_yes(place: Path, user: Path, protocol: str) -> None:
    with terminal(place, "chat", "--tools", "--protocol", protocol, user=user) as screen:
        screen.shows(PROMPT)
        call = 'demo:tool run_command {"command":"echo made-$((40+2)) | tee -a made"}\n'
        screen.type(call)
        screen.shows(r"→ run_command echo made-\$\(\(40\+2\)\) \| tee -a made \[y/N\] ")
        assert not (place / "made").exists()
        screen.type("n\n")
        screen.shows(r"↳ The call of 'run_command' was denied: the user said no")
        screen.shows(PROMPT)
        assert not (place / "made").exists()
        screen.type(call)
        screen.shows(r"\[y/N\] ")
        screen.type("y\n")
        screen.shows(r"↳ exit code 0 \(\+1 lines\)")
        screen.shows(r"run_command answered: exit code 0\s+made-42")
        screen.shows(PROMPT)
        assert (place / "made").read_text() == "made-42\n"
        screen.type(CTRL_D)
        assert screen.ends() == 0


def test_a_yes_that_was_typed_before_the_question_does_not_count(place: Path, user: Path) -> None:
    with terminal(place, "chat", "--tools", user=user) as screen:
        screen.shows(PROMPT)
        screen.type('demo:slow 0.5 demo:tool run_command {"command":"touch made"}\ny\n')
        screen.shows(r"run_command touch made \[y/N\] ")
        screen.type("n\n")
        screen.shows("was denied: the user said no")
        screen.shows(PROMPT)
    assert not (place / "made").exists()


def test_ctrl_c_at_the_question_is_no_yes(place: Path, user: Path) -> None:
    with terminal(place, "chat", "--tools", "--session", "asked", user=user) as screen:
        screen.shows(PROMPT)
        screen.type('demo:tool run_command {"command":"touch made"}\n')
        screen.shows(r"\[y/N\] ")
        screen.type(CTRL_C)
        screen.shows(r"\(interrupted")
        screen.shows(PROMPT)
        screen.type("demo:say still here\n")
        screen.shows("still here")
        screen.shows(PROMPT)
        screen.type(CTRL_D)
        assert screen.ends() == 0
    assert not (place / "made").exists()
    roles = [message["role"] for message in saved(user, "asked")]
    assert roles == ["user", "assistant", "tool", "user", "assistant"]


def test_files_are_read_unasked_but_hidden_ones_are_not(place: Path, user: Path) -> None:
    with terminal(place, "chat", "--tools", user=user) as screen:
        screen.shows(PROMPT)
        screen.type('demo:tool read_file {"path":"notes.txt"}\n')
        screen.shows(r'→ read_file {"path":"notes.txt"}(?! \[)')
        screen.shows(r"read_file answered: milk\s+bread")
        screen.shows(PROMPT)
        screen.type('demo:tool read_file {"path":".env"}\n')
        screen.shows(r'→ read_file {"path":".env"} \[y/N\] ')
        screen.type("\n")
        screen.shows("denied: the user said no")
        screen.shows(PROMPT)
        screen.type(CTRL_D)
        assert screen.ends() == 0
    assert "secret-value" not in screen.shown


def test_instructions_hold_for_the_session(place: Path, user: Path) -> None:
    with terminal(place, "chat", user=user) as screen:
        screen.shows(PROMPT)
        screen.type("<**!demo.demo-2**> demo:stop\n")
        screen.shows(r"Stopped, as you asked\.\s+(?:\x1b\[\d+m)*demo\.key1\.demo-2")
        screen.shows(PROMPT)
        screen.type("demo:stop\n")
        screen.shows(r"Stopped, as you asked\.\s+(?:\x1b\[\d+m)*demo\.key1\.demo-2")
        screen.shows(PROMPT)
        screen.type("<**status**>\n")
        screen.shows(r"demo\.demo-2")
        screen.shows(PROMPT)
        screen.type(CTRL_D)
        assert screen.ends() == 0


def test_commands_do_what_help_says(place: Path, user: Path) -> None:
    with terminal(place, "chat", "--model", "demo.demo-1", "--session", "led", user=user) as screen:
        for typed, shown in (
            ("/help\n", r"/model \[NAME\]"),
            ("/nonsense\n", "/nonsense is not a command"),
            ("/model demo.demo-2\n", "model demo.demo-2"),
            ("one \\\ntwo\n", 'You said: "one \\s+two".*demo-2'),
            ("/save\n", "needs the name of a file"),
            ("/save talk.md\n", r"\(2 messages in talk.md\)"),
            ("/save talk.md\n", "talk.md: File exists"),
            ("/clear\n", r"\(cleared\)"),
            ("demo:error 400\n", r"error: the demo model was told to fail with 400 \(invalid_request 400\)"),
            ("/etc/hosts is a file\n", r"I saw 1 message,"),
        ):
            screen.shows(PROMPT)
            screen.type(typed)
            screen.shows(shown)
        screen.shows(PROMPT)
        screen.type("/quit\n")
        assert screen.ends() == 0
    assert (place / "talk.md").read_text().startswith("## user\n\none \ntwo\n\n## assistant\n\nYou said:")


def test_a_question_from_a_pipe_is_answered_on_stdout(place: Path, user: Path, url: str) -> None:
    done = piped(place, "demo:say forty-two\n", "--session", "piped", "--protocol", "messages", user=user)
    assert (done.returncode, done.stdout, done.stderr) == (0, "forty-two\n", "")
    again = piped(place, "hello\n", "--resume", "--session", "piped", user=user)
    assert "I saw 3 messages" in again.stdout
    assert [message["content"] for message in saved(user, "piped")][:2] == ["demo:say forty-two", "forty-two"]
    fresh = piped(place, "hello\n", "--session", "piped", "--url", f"{url}/v1", user=user)
    assert "I saw 1 message," in fresh.stdout
    assert (user / "chats" / "piped.json.1").exists()


def test_a_refusal_is_shown_in_the_terminal_and_in_a_pipe(place: Path, user: Path) -> None:
    asked = piped(place, "demo:refuse", user=user)
    assert (asked.returncode, asked.stdout) == (0, "I will not help with that.\n")
    with terminal(place, "chat", user=user) as screen:
        screen.shows(PROMPT)
        screen.type("demo:refuse\n")
        screen.shows(r"I will not help with that\.\s")
        screen.shows(PROMPT)
        screen.type(CTRL_D)
        assert screen.ends() == 0


def test_bytes_that_are_no_text_are_replaced_and_the_conversation_goes_on(place: Path, user: Path) -> None:
    with terminal(place, "chat", "--session", "bytes", user=user) as screen:
        screen.shows(PROMPT)
        screen.type("demo:say caf\udcff noir\n")
        screen.shows(r"\bcaf\? noir\s+\S*demo")
        screen.shows(PROMPT)
        screen.type(CTRL_D)
        assert screen.ends() == 0
    assert [message["content"] for message in saved(user, "bytes")] == ["demo:say caf? noir", "caf? noir"]


def test_a_question_from_a_pipe_that_fails_says_so_with_its_exit_code(place: Path, user: Path) -> None:
    failed = piped(place, "demo:error 400", user=user)
    assert (failed.returncode, failed.stdout) == (1, "")
    assert failed.stderr == "error: the demo model was told to fail with 400 (invalid_request 400)\n"
    cut = piped(place, "demo:cutoff", user=user)
    assert (cut.returncode, cut.stdout[-1]) == (1, "\n")
    assert cut.stderr.startswith("error: ")
    denied = piped(place, 'demo:tool run_command {"command":"touch made"}', "--tools", user=user)
    assert denied.returncode == 0
    assert "denied, because there is no terminal to confirm it" in denied.stderr
    assert not (place / "made").exists()


@pytest.mark.parametrize(
    ("arguments", "text", "message"),
    [
        ([], "", "pipe a message into the command"),
        (["--url", "localhost"], "hello", "must look like https://host"),
        (["--session", "../x"], "hello", "letters, digits"),
        (["--resume", "--session", "unheard-of"], "hello", "no conversation is called 'unheard-of'"),
    ],
)
def test_what_cannot_be_done_is_wrong_usage(
    arguments: list[str], text: str, message: str, user: Path, url: str
) -> None:
    runner = CliRunner(env={"ROUTECODEX_USER_DIR": str(user)})
    result = runner.invoke(main, ["chat", *arguments], input=text)
    assert (result.exit_code, result.stdout) == (2, ""), result.exception
    assert message in result.stderr


def test_a_refused_key_names_the_variable_to_set(place: Path, tmp_path: Path) -> None:
    keyed = CONFIG.replace("drain_seconds", 'client_keys = [{ name = "a", key = "k" }]\ndrain_seconds')
    user = tmp_path / "other"
    with gateway(tmp_path, keyed, user=user) as address:
        without = piped(place, "hello", "--url", address, user=user)
    assert without.returncode == 1
    assert without.stderr.rstrip().endswith("; set $ROUTECODEX_KEY to a client key of the gateway")


def test_without_a_server_it_says_how_to_start_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ROUTECODEX_USER_DIR", str(tmp_path))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert server_url(port) == f"http://127.0.0.1:{port}"
    with pytest.raises(SystemExit) as ended:
        server_url(port)
    assert ended.value.code == 3
    assert "routecodex start" in capsys.readouterr().err


def test_tools_stay_below_the_working_directory(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "sub").mkdir(parents=True)
    (root / "sub" / "a.txt").write_text("one\ntwo\nthree\n")
    (root / "b.bin").write_bytes(b"\0\1")
    (root / ".hidden").write_text("x")
    (tmp_path / "secret").write_text("x")
    (root / "link").symlink_to(tmp_path / "secret")
    workspace = Workspace(root)
    assert workspace.list_files() == "b.bin\nlink\nsub/a.txt"
    assert workspace.list_files("sub/a.txt") == "sub/a.txt is not a directory"
    assert workspace.read_file("sub/a.txt", first_line=2, lines=1) == "two"
    assert workspace.read_file("b.bin") == "b.bin is not a text file"
    assert workspace.read_file("sub") == "sub is not a file"
    for path in ("../secret", "link", str(tmp_path / "secret")):
        with pytest.raises(OutsideWorkspace, match="outside the working directory"):
            workspace.read_file(path)
    assert workspace.is_harmless("read_file", {"path": "sub/a.txt"})
    assert not workspace.is_harmless("read_file", {"path": "sub/../.hidden"})
    assert not workspace.is_harmless("run_command", {"command": "ls"})


def test_nothing_a_model_writes_steers_the_terminal_or_hides_in_a_question() -> None:
    assert strip_control_characters("a\x1b[2Jb\r\n\tc\u202e") == "a[2Jb\n\tc"
    assert call_text("run_command", {"command": "ls\x1b[8m; rm x"}) == "run_command ls�[8m; rm x"
    assert call_text("run_command", {"command": "ls\nrm x"}) == r'run_command {"command":"ls\nrm x"}'
