"""Secrets never leave a configuration text, whatever its state; everything else stays, line by line."""

from __future__ import annotations

import random
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routecodex.config.redact import HIDDEN, redact, redact_value

SECRET = "Zx9-hush-Zx9"
TEMPLATES = (
    'admin_token = "{}"',
    "admin_token = '{}'",
    'admin_token = """{}"""',
    "admin_token = {}",
    "admin_token = {} # and {}",
    "admin_token: {}",
    'admin_token = "{}',
    "admin_token = '{}",
    'client_keys = [{{ name = "laptop", key = "{}" }}]',
    'client_keys = [\n  {{ name = "a", key = "k-1" }},\n  {{ name = "b", key = "{}" }},\n]',
    'auth = [{{ alias = "primary", value = "{}", rpm = 5 }}]',
    'auth = [{{ value = "{}", alias = "primary" }}',
    "headers = {{ authorization = 'x {}' }}",
    'headers = {{ "x-any" = "{}" }}',
    '[providers.glm.headers]\nx-any = "{}"',
    '[providers.glm.query]\nsig = "{}"',
    'providers.glm.headers.x-any = "{}"',
    '[[server.client_keys]]\nname = "a"\nkey = "{}"',
    '[clients.a]\nkey = "{}"',
    '[clients.a]\nkey = {{ value = "{}" }}',
    '[clients.a]\nkey = """\n{}\n"""',
    '[usage]\nwebhook = "https://hooks.example/{}"',
    'url = "redis://:{}@host:6379/0"',
    'url = "redis://user:{}@host"',
    'base_url = "https://host/v1?api_key={}&x=1"',
    "# authorization: Bearer {}",
    'password = "{}"',
    'api_key = "{}"',
    'x-api-key = "{}"',
    '[unclosed\nadmin_token = "{}"',
    'list = ["a", "b"\nadmin_token = "{}"',
    'table = {{ a = 1\nadmin_token = "{}"',
    'open = """never closed\nadmin_token = "{}"',
    "open = '''never closed\nadmin_token = '{}'",
    'one = """a\nadmin_token = "{}"\ntwo = """b"""',
    '"quoted key".token = "{}"',
)


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("around", ["", "[server]\nport = 5520\n", "a = [1, 2]\n[x]\n"])
def test_a_secret_is_hidden_and_the_lines_stay(template: str, around: str) -> None:
    text = around + template.format(SECRET, SECRET) + '\n[routing]\ndefault = ["glm.glm-4.7"]\n'
    shown = redact(text)
    assert SECRET not in shown
    assert HIDDEN in shown
    assert shown.count("\n") == text.count("\n")
    assert 'default = ["glm.glm-4.7"]' in shown


@pytest.mark.parametrize(
    "text",
    [
        'key = "${LAPTOP_KEY}"',
        'auth = [{ alias = "primary", env = "GLM_API_KEY" }]',
        'auth = [{ alias = "primary", value = "${GLM_API_KEY}" }]',
        'key = { file = "/etc/keys/laptop" }',
        'headers = { authorization = "Bearer ${TOKEN}" }',
        'default = ["openrouter.anthropic/claude-sonnet-4-5-20250929-thinking-long-name"]',
        '"gpt-*" = "azure.accounts/fireworks/models/llama-v3p1-405b-instruct"',
        "max_tokens = 100\nkeepalive_ms = 5",
        'base_url = "https://open.bigmodel.cn/api/paas/v4"',
        "# a comment about keys",
        "[[server.client_keys]]",
        'weights = { "up.m" = 3, "up.n" = 1 }',
        "nested = [[1, 2], [3, 4]]",
        "",
    ],
)
def test_what_is_not_a_secret_stays(text: str) -> None:
    assert redact(text) == text


@pytest.mark.parametrize(
    "key",
    ["sk-proj-abcdef123456", "sk-ant-api03-AbCdEf", "rcx-0123456789abcdef", "AIzaSyA1234567890", "0a" * 16],
)
def test_a_text_like_a_key_is_hidden_wherever_it_stands(key: str) -> None:
    for text in (f"# old: {key}", f'note = "{key}"', f"{key} = 1", f'["{key}"]', key):
        assert key not in redact(text)


def test_known_secrets_are_hidden_wherever_they_stand() -> None:
    assert redact('# was hunter2\nname = "hunter2"', ["hunter2", ""]) == '# was …\nname = "…"'


@given(st.text(alphabet="ab=\"'[]{}#,.:\n \\$", max_size=200))
def test_any_text_keeps_its_lines(text: str) -> None:
    assert redact(text).count("\n") == text.count("\n")


def test_a_secret_stays_hidden_when_the_text_in_front_of_it_is_damaged() -> None:
    """Quotes and brackets are missing or too many; the line of the secret itself is whole."""
    chance = random.Random(7)
    head = '[server]\nport = 1\nallowed_hosts = ["a", "b"]\nnote = """x\ny"""\nt = { a = 1, b = "c" }\n'
    line = f'\nadmin_token = "{SECRET}"\n'
    for _ in range(2000):
        cut = list(head)
        for _ in range(chance.randrange(1, 6)):
            place = chance.randrange(len(cut))
            if chance.random() < 0.5:
                del cut[place]
            else:
                cut.insert(place, chance.choice("\"'[]{}=,#\n" + string.ascii_letters))
        assert SECRET not in redact("".join(cut) + line), "".join(cut)


@pytest.mark.parametrize(
    ("keys", "value", "shown"),
    [
        (("server", "host"), "127.0.0.1", "127.0.0.1"),
        (("providers", "glm", "headers", "x-any"), "word", HIDDEN),
        (("usage", "webhook"), "https://hooks/x", HIDDEN),
        (("usage", "webhook"), "", ""),
        (("store", "url"), "redis://:pw@host/0", "redis://…@host/0"),
        (("providers", "glm", "base_url"), "https://u:p@host/v1", "https://…@host/v1"),
    ],
)
def test_a_value_is_shown_without_its_secrets(keys: tuple[str, ...], value: str, shown: str) -> None:
    assert redact_value(keys, value) == shown
