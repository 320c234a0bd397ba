"""Variables and commands in the syntax of a shell, safe to evaluate."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

_PLAIN = re.compile(r"[A-Za-z0-9_@%+=:,./-]+")


def _quote_fish(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _quote_powershell(text: str) -> str:
    # PowerShell takes typographic quotes for plain ones.
    return "'" + re.sub("(['\u2018\u2019\u201a\u201b])", r"\1\1", text) + "'"


def _quote_sh(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


class ShellSyntax(Struct, frozen=True, kw_only=True):
    """Syntax by which a shell quotes a text, sets a variable and removes one."""

    quote: Callable[[str], str]
    assign: str
    remove: str


SHELLS: Mapping[str, ShellSyntax] = {
    "sh": ShellSyntax(quote=_quote_sh, assign="export {name}={value}", remove="unset {name}"),
    "fish": ShellSyntax(quote=_quote_fish, assign="set -gx {name} {value}", remove="set -e {name}"),
    "powershell": ShellSyntax(
        quote=_quote_powershell,
        assign="$env:{name} = {value}",
        remove="Remove-Item Env:{name} -ErrorAction SilentlyContinue",
    ),
}


def exports(shell: str, env: Mapping[str, str], unset: Sequence[str]) -> list[str]:
    """Return the lines that set and remove variables."""
    syntax = SHELLS[shell]
    assigned = [syntax.assign.format(name=name, value=syntax.quote(value)) for name, value in env.items()]
    return [*assigned, *(syntax.remove.format(name=name) for name in unset)]


def command_text(shell: str, words: Sequence[str]) -> str:
    """Return a command in one line; words are quoted where the shell would change them."""
    quote = shlex.quote if shell == "sh" else SHELLS[shell].quote
    text = " ".join(word if _PLAIN.fullmatch(word) else quote(word) for word in words)
    return text.replace("\r", " ").replace("\n", " ")
