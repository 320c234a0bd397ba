"""Removes secrets from the text of a configuration file, also from one that is not valid TOML.

A text is read once, character by character, with the keys in front of each value. Values of secret keys go,
unless they only name environment variables; so do passwords in addresses, texts that look like a key of a
provider, and secrets that the gateway knows. Lines stay where they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

HIDDEN = "…"
"""Text in place of a secret."""

_TEXT = (
    r'"""(?:[^\\]|\\.)*?"""'
    r"|'''.*?'''"
    r'|"(?:[^"\\\n]|\\.)*(?:"|(?=\n)|\Z)'
    r"|'[^'\n]*(?:'|(?=\n)|\Z)"
)
"""A string of TOML; one of a single line that is not closed ends with it."""
_TOKEN = re.compile(
    rf"(?P<comment>\#[^\n]*)|(?P<text>{_TEXT})|(?P<header>^[ \t]*\[\[?(?=[^\n=,{{}}]*\][ \t]*(?:\#|$)))"
    r"|(?P<open>[\[{])|(?P<close>[\]}])|(?P<equals>=|:(?=\s))|(?P<comma>,)|(?P<newline>\n)"
    r"|(?P<word>[^\s\[\]{}=,\#\"':]+|:)|(?P<space>[^\S\n]+)",
    re.DOTALL | re.MULTILINE,
)
_SECRET_KEY = re.compile(
    r"(?:^|[_-])(?:key|token|secret|password|passwd|pass|value|authorization|credentials?|cookie|webhook)$"
    r"|api[_-]?key|access[_-]?key|^x-.*key$",
    re.IGNORECASE,
)
_SECRET_TABLES = frozenset(("headers", "query"))
_REFERENCE = re.compile(r"(?:[\w .:/-]{0,16}\$\{[A-Za-z_][A-Za-z0-9_]*\})+\Z")
_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://)([^\s/@\"']+)@")
_ADDRESS_QUERY = re.compile(
    r"([?&][^=&\s\"']*(?:key|token|secret|sig|password|auth)[^=&\s\"']*=)[^&\s\"'#]+", re.IGNORECASE
)
_KEY_LIKE = re.compile(
    r"(?<![A-Za-z0-9_$-])(?:(?:sk|pk|rk|rcx|xai|gsk|ghp|gho|hf|nvapi|csk|fw|r8|tgp)[-_][A-Za-z0-9_-]{6,}"
    r"|AIza[A-Za-z0-9_-]{8,}|eyJ[A-Za-z0-9_.-]{16,}"
    r"|(?=[A-Za-z]*[0-9])(?=[0-9]*[A-Za-z])[A-Za-z0-9]{32,}(?:\.[A-Za-z0-9]+)?)"
)
_BEARER = re.compile(r"(?i)\b(bearer|basic)\s+[^\s\"'$]+")
_SHORTEST = 4


def redact(text: str, known: Iterable[str] = ()) -> str:
    """Return the text without secrets; `known` are values that must not be shown anywhere in it."""
    text = "".join(_parts(text))
    for secret in sorted({one for one in known if len(one) >= _SHORTEST}, key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    return text


def redact_value(keys: Iterable[str], value: str, known: Iterable[str] = ()) -> str:
    """Return the value of a key, given with the tables it is in, without secrets."""
    shown = HIDDEN if value and _is_secret([*keys]) and not _REFERENCE.match(value) else _scrubbed(value)
    for secret in sorted({one for one in known if len(one) >= _SHORTEST}, key=len, reverse=True):
        shown = shown.replace(secret, HIDDEN)
    return shown


def _parts(text: str) -> Iterator[str]:
    """Yield the text in parts, with the values of secret keys replaced."""
    keys = _KeyPath()
    at = 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            yield text[at]
            at += 1
            continue
        at = found.end()
        yield keys.part(found.lastgroup or "", found[0])


class _KeyPath:
    """The keys in front of the place that is being read; tolerant of whatever is not TOML."""

    def __init__(self) -> None:
        self._table: list[str] = []
        self._stack: list[tuple[str, list[str]]] = []
        """Brackets that are open, each with the key in front of it."""
        self._key: list[str] = []
        self._last: list[str] = []
        self._in_header = False
        self._is_value = False
        self._hides_line = False

    def part(self, kind: str, text: str) -> str:
        """Return one part of the text as it may be shown."""
        if self._hides_line and kind != "newline":
            return HIDDEN if kind in ("text", "word", "comment") else text
        match kind:
            case "comment":
                return _scrubbed(text)
            case "header":
                self._begin_header()
            case "open" if text == "[" and not self._is_value and not self._stack:
                # A header without its end.
                self._begin_header()
            case "open":
                self._open(text)
            case "close":
                self._close()
            case "newline":
                self._end_line()
            case "comma":
                self._key, self._is_value = [], self._is_in_list
            case "equals":
                self._begin_value()
            case "text" | "word":
                return self._shown(kind, text)
        return text

    @property
    def _is_in_list(self) -> bool:
        return bool(self._stack) and self._stack[-1][0] == "["

    def _begin_header(self) -> None:
        self._stack, self._table, self._key = [], [], []
        self._in_header, self._is_value = True, False

    def _begin_value(self) -> None:
        if self._is_in_list:
            # An entry of a list has no key: the list was not closed.
            self._stack, self._key = [], self._last
        self._is_value = True

    def _open(self, bracket: str) -> None:
        self._stack.append((bracket, self._key))
        self._key, self._is_value = [], bracket == "["

    def _close(self) -> None:
        self._in_header = False
        if self._stack:
            self._key = self._stack.pop()[1]
        self._is_value = self._is_in_list

    def _end_line(self) -> None:
        self._in_header = self._hides_line = False
        if not self._is_in_list:
            self._key, self._is_value = [], False

    def _shown(self, kind: str, text: str) -> str:
        plain = text.strip("\"'")
        self._last = _steps(kind, plain)
        if self._in_header:
            self._table += self._last
            return _scrubbed(text)
        if not self._is_value:
            self._key = [*self._key, *self._last]
            return _scrubbed(text)
        path = [*self._table, *(step for _, keys in self._stack for step in keys), *self._key]
        if not plain or not _is_secret(path) or _REFERENCE.match(plain):
            return _scrubbed(text) if "\n" not in text else _inside(text)
        # A value without quotes is not valid, and may go on behind a character that ends it here.
        self._hides_line = kind == "word" and text not in ("true", "false")
        return _hidden(kind, text)


def _inside(text: str) -> str:
    """Return a string of several lines: if the quotes of another one are missing, it holds settings."""
    return f"{text[:3]}{''.join(_parts(text[3:-3]))}{text[-3:]}"


def _steps(kind: str, text: str) -> list[str]:
    return [step for step in text.split(".") if step] if kind == "word" else [text]


def _hidden(kind: str, text: str) -> str:
    """Return the replacement of a value, with the same number of lines."""
    if kind == "word":
        return text if text in ("true", "false") else HIDDEN
    quotes = text[:3] if text[:3] in ('"""', "'''") else text[:1]
    return f"{quotes}{HIDDEN}{chr(10) * text.count(chr(10))}{quotes}"


def _is_secret(path: list[str]) -> bool:
    if not _SECRET_TABLES.isdisjoint(path[:-1]):
        return True
    return bool(path) and _SECRET_KEY.search(path[-1]) is not None


def _scrubbed(text: str) -> str:
    """Return a text that may be shown, without passwords in addresses and without keys of providers."""
    text = _ADDRESS.sub(rf"\1{HIDDEN}@", text)
    text = _ADDRESS_QUERY.sub(rf"\1{HIDDEN}", text)
    text = _BEARER.sub(rf"\1 {HIDDEN}", text)
    return _KEY_LIKE.sub(HIDDEN, text)
