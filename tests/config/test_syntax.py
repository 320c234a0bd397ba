"""Text that is not TOML: where it breaks, and what to write instead."""

from __future__ import annotations

import pytest

from routecodex.config import Problem, examine
from routecodex.config.syntax import MINIMAL_CONFIG

AS_TOML = f"write it as TOML; the smallest file is:\n{MINIMAL_CONFIG}"


def problem_of(text: str) -> Problem:
    config, (problem,) = examine(text, environ={})
    assert config is None
    return problem


@pytest.mark.parametrize(
    ("text", "message", "line"),
    [
        ('{\n  "providers": {"x": {}}\n}\n', "is JSON, but the configuration is written in TOML", 1),
        ('\n{"providers": {}}', "is JSON, but the configuration is written in TOML", 2),
        ("providers:\n  x:\n    protocol: chat\n", "is YAML, but the configuration is written in TOML", 1),
        ("# mine\n---\nproviders: {}\n", "is YAML, but the configuration is written in TOML", 2),
    ],
)
def test_another_format_is_named(text: str, message: str, line: int) -> None:
    problem = problem_of(text)
    assert (problem.message, problem.fix, problem.line) == (message, AS_TOML, line)


@pytest.mark.parametrize(
    ("line", "fix"),
    [
        ("protocol = chat", 'put the text in quotes: protocol = "chat"'),
        ("protocol = chat  # OpenAI", 'put the text in quotes: protocol = "chat"'),
        ("base_url = https://a.test/v1", 'put the text in quotes: base_url = "https://a.test/v1"'),
        ("base_url = 127.0.0.1:80/v1", 'put the text in quotes: base_url = "127.0.0.1:80/v1"'),
        ("default = [glm.glm-4.7, a.b]", 'put the text in quotes: "glm.glm-4.7"'),
        ("default = glm.glm-4.7", 'put the text in quotes: default = "glm.glm-4.7"'),
        ("protocol = “chat”", 'use straight quotes: protocol = "chat"'),
        ("verify = True", "write true in lower case"),
        ("protocol: chat", "write = instead of : after protocol"),
        ("value = sk-1234", 'put the text in quotes: value = "…"'),
        ("auth = [{ value = sk-1234 }]", "put the text in quotes"),
        ("  sk-1234,", "correct the syntax there"),
        ("admin_token = ${TOKEN}", 'put the text in quotes: admin_token = "${TOKEN}"'),
        ("x =", "write a value after ="),
    ],
)
def test_a_broken_line_has_its_fix(line: str, fix: str) -> None:
    problem = problem_of(f"[providers.x]\n{line}\n")
    assert (problem.fix, problem.line) == (fix, 2)
    assert "1234" not in str(problem)


@pytest.mark.parametrize(
    ("text", "message", "fix"),
    [
        (
            '[providers."a.b"]\nx = 1\n[providers."a.b"]\n',
            'at line 3, column 17: [providers."a.b"] is declared twice',
            "move its lines below the first one, at line 1, and remove this one",
        ),
        (
            "[[a]]\n[b]\n[a]\n",
            "at line 3, column 3: [a] is declared twice",
            "move its lines below the first one, and remove this one",
        ),
        (
            "[a]\nb = 1\nb = 2\n",
            "at line 3, column 6: b is set twice",
            "keep one of the two lines",
        ),
        (
            "[a]\nb = { c = 1 }\nb.d = 2\n",
            "at line 3, column 8: Cannot mutate immutable namespace a.b",
            "correct the syntax there",
        ),
    ],
)
def test_a_repeated_table_or_key_is_named_as_in_the_file(text: str, message: str, fix: str) -> None:
    problem = problem_of(text)
    assert (problem.message, problem.fix, problem.line) == (f"is not valid TOML {message}", fix, 3)
