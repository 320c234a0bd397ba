"""Exports that a shell can evaluate, whatever the values are."""

from __future__ import annotations

import shutil
import subprocess

import msgspec
import pytest

from routecodex.cli.shell_text import command_text, exports

VALUES = {
    "PLAIN": "http://127.0.0.1:1/v1",
    "QUOTES": "it's \"so\" `date` $(date) $HOME \\ \\' !x",
    "LINES": "a\nb\r\tc",
    "TYPOGRAPHIC": "‘a’ ‚b‛",
    "JSON": '{"a": "b\\n"}',
}


@pytest.mark.parametrize("shell", ["sh", "bash", "zsh", "dash"])
def test_a_posix_shell_reads_what_was_meant(shell: str) -> None:
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"{shell} is not installed")
    script = "\n".join(exports("sh", VALUES, ["GONE", "NEVER_SET"]))
    ask = "/usr/bin/env -0"
    env = {"GONE": "x", "PATH": "/usr/bin:/bin"}
    ended = subprocess.run([program, "-euc", f"{script}\n{ask}"], env=env, capture_output=True, check=True)
    got = dict(line.split("=", 1) for line in ended.stdout.decode().split("\0") if "=" in line)
    assert {name: got[name] for name in VALUES} == VALUES
    assert "GONE" not in got


@pytest.mark.parametrize(
    ("shell", "lines"),
    [
        ("sh", ["export A='it'\\''s \\'", "unset B"]),
        ("fish", ["set -gx A 'it\\'s \\\\'", "set -e B"]),
        ("powershell", ["$env:A = 'it''s \\'", "Remove-Item Env:B -ErrorAction SilentlyContinue"]),
    ],
)
def test_each_shell_has_its_syntax(shell: str, lines: list[str]) -> None:
    assert exports(shell, {"A": "it's \\"}, ["B"]) == lines


def test_powershell_takes_typographic_quotes_for_quotes() -> None:
    assert exports("powershell", {"A": "‘x’"}, []) == ["$env:A = '‘‘x’’'"]


def test_a_command_is_one_line_that_the_shell_splits_as_it_was() -> None:
    words = ["claude", "--settings", msgspec.json.encode({"a": "it's"}).decode(), "", "a b"]
    text = command_text("sh", words)
    script = f"for word in {text}; do printf '%s\\n' \"$word\"; done"
    ended = subprocess.run(["sh", "-c", script], capture_output=True, check=True, text=True)
    assert ended.stdout.splitlines() == words
    assert "\n" not in command_text("sh", ["a\nb"])
