"""Checks of [console]: other machines reach it by TLS only, unless the file says otherwise."""

from __future__ import annotations

import pytest

from routecodex.config import ConsoleConfig, loads
from tests.config.checked import BASE, problems_of

IN_CLEAR = "would let tokens and logins cross the network in clear text"


def rows(text: str) -> list[tuple[str, str, str]]:
    return [(severity, path, message) for severity, path, message, _ in problems_of(BASE + text)]


def test_every_setting_has_its_default() -> None:
    assert loads(BASE, environ={}).console == ConsoleConfig(
        enabled=True,
        remote=False,
        public_url="",
        insecure_http=False,
        session_hours=12,
        detail_days=3,
    )


def test_every_setting_is_read() -> None:
    text = (
        '[console]\nenabled = false\nremote = true\npublic_url = "https://gate.example:8443"\n'
        "insecure_http = true\nsession_hours = 0.5\ndetail_days = 7\n"
    )
    assert loads(BASE + text, environ={}).console == ConsoleConfig(
        enabled=False,
        remote=True,
        public_url="https://gate.example:8443",
        insecure_http=True,
        session_hours=0.5,
        detail_days=7,
    )


def test_remote_needs_tls_in_front_or_consent() -> None:
    refused = [("error", "console.remote", IN_CLEAR)]
    assert rows("[console]\nremote = true\n") == refused
    assert rows('[console]\nremote = true\npublic_url = "http://gate.example"\n') == refused
    assert rows('[console]\nremote = true\npublic_url = "https://gate.example"\n') == []
    assert rows("[console]\nremote = true\ninsecure_http = true\n") == []


def test_consent_without_remote_is_pointed_out() -> None:
    warned = [("warning", "console.insecure_http", "has no effect without remote = true")]
    assert rows("[console]\ninsecure_http = true\n") == warned


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("gate.example", "is not a URL"),
        ("ftp://gate.example", "is not a URL"),
        ("https://gate.example/console", "has more than scheme, host and port"),
        ("https://gate.example/?a=b", "has more than scheme, host and port"),
        ("https://me:secret@gate.example", "has more than scheme, host and port"),
        ("https://gate.example:443", "has the default port, which browsers leave out"),
    ],
)
def test_a_public_url_is_an_origin(url: str, message: str) -> None:
    found = rows(f'[console]\npublic_url = "{url}"\n')
    assert found == [("error", "console.public_url", message)]


def test_a_password_in_a_public_url_is_not_shown() -> None:
    found = problems_of(BASE + '[console]\npublic_url = "https://me:secret@gate.example"\n')
    assert [fix for *_, fix in found] == ['write "https://gate.example"']


def test_the_origin_is_as_browsers_send_it() -> None:
    console = ConsoleConfig(public_url="https://Gate.Example:8443/")
    assert (console.origin, console.is_secure) == ("https://gate.example:8443", True)


@pytest.mark.parametrize("line", ["session_hours = 0", "detail_days = -1", "remoet = true"])
def test_senseless_values_are_refused(line: str) -> None:
    assert [severity for severity, *_ in rows(f"[console]\n{line}\n")] == ["error"]
