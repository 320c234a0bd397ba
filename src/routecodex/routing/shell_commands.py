"""What a shell command does to files: reads them, writes them, searches among them, or something else.

A write anywhere in the line makes it a write; else the first command we know decides. This guesses, it does
not parse: a wrong guess costs a request its best route, nothing more.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Literal

Kind = Literal["read", "write", "search", "web", "other"]


def table(rows: dict[Kind, str]) -> dict[str, Kind]:
    """Names by what they do, from rows of names."""
    return {name: kind for kind, names in rows.items() for name in names.split()}


def names(row: str) -> frozenset[str]:
    """The names of a row."""
    return frozenset(row.split())


PROGRAMS = table(
    {
        "read": """
            cat head tail less more nl bat batcat tac sed awk gawk jq yq xxd od hexdump strings zcat diff cmp
            get-content gc type
        """,
        "search": """
            rg grep egrep fgrep zgrep ag ack find fd fdfind ls ll dir tree exa eza locate which whereis
            get-childitem gci select-string
        """,
        "write": """
            tee mv cp rm mkdir rmdir touch ln chmod chown patch apply_patch applypatch truncate dd install
            rsync unzip shred set-content add-content out-file new-item remove-item move-item copy-item
        """,
    }
)
GIT = table(
    {
        "read": "show diff blame cat-file",
        "search": "grep log ls-files ls-tree status branch reflog shortlog rev-list",
        "write": """
            add commit apply am rm mv checkout switch restore reset revert merge rebase cherry-pick stash push
            pull clone init tag clean worktree
        """,
    }
)
IN_PLACE = {"sed": re.compile(r"-[a-zA-Z]*i|--in-place"), "perl": re.compile(r"-[a-zA-Z0-9]*i")}
"""Programs that write files in place when they get such an option."""
WRITING_OPTIONS = {"find": frozenset(["-delete", "-fprint"]), "sort": frozenset(["-o"])}
"""Options with which a program writes that otherwise does not."""
FORERUNNERS = names(
    "sudo env time nohup command builtin exec xargs timeout nice stdbuf doas then do else if while"
)
"""Words before a command that say nothing of it."""
INTERPRETERS = frozenset(["bash", "sh", "zsh", "dash", "ksh", "fish", "pwsh", "powershell"])
SCRIPT_OPTIONS = frozenset(["-c", "-lc", "-ic", "-cl", "-command"])
HARMLESS = frozenset(["/dev/null", "/dev/stderr", "/dev/stdout", "nul", "$null"])
"""Where a redirect may go without writing a file."""

_LONGEST = 2048
_MOST = 50
_DEEPEST = 2
_TOKEN = re.compile(
    r"""
      (?P<here>(?<!<)<<-?(?!<)\s*["'\\]?[A-Za-z_])
    | (?P<redirect>(?:[0-9]+|&)?>>?\|?&?)
    | (?P<end>&&|\|\|?&?|;+|\n|&(?!>)|[()]|[{}](?=\s|$))
    | (?P<comment>(?<!\S)\#[^\n]*)
    | (?P<word>(?:[^\s"'\\;|&<>()]|\\.|'[^']*'|"(?:[^"\\]|\\.)*")+)
    | .
    """,
    re.VERBOSE | re.DOTALL,
)
_ASSIGNMENT = re.compile(r"\w+=|-|[0-9.]+[smhd]?$")
_QUOTED = re.compile(r"""'([^']*)'|"((?:[^"\\]|\\.)*)"|\\(.)""", re.DOTALL)
_ESCAPED = re.compile(r'\\(["\\$`\n])')


def command_kind(command: str, *, depth: int = 0) -> Kind:
    """What a command line does."""
    if "*** Begin Patch" in command[:_LONGEST]:
        return "write"
    first: Kind = "other"
    for words in islice(_commands(command[:_LONGEST]), _MOST):
        kind = "write" if words is None else words_kind(words, depth=depth)
        if kind == "write":
            return "write"
        if first == "other":
            first = kind
    return first


def words_kind(words: Sequence[str], *, depth: int = 0) -> Kind:
    """What one command does, given as its words."""
    words = _past_forerunners(words)
    if not words:
        return "other"
    name = words[0].replace("\\", "/").rpartition("/")[2].lower().removesuffix(".exe")
    rest = words[1:]
    if name in INTERPRETERS:
        return _script_kind(rest, depth)
    if name == "git":
        return next((GIT.get(word, "other") for word in _git_words(rest)), "other")
    in_place = IN_PLACE.get(name)
    if in_place is not None and any(in_place.match(word) for word in rest):
        return "write"
    if not WRITING_OPTIONS.get(name, frozenset()).isdisjoint(rest):
        return "write"
    if name in ("find", "fd") and _runs_writer(rest, depth):
        return "write"
    return PROGRAMS.get(name, "other")


def _past_forerunners(words: Sequence[str]) -> Sequence[str]:
    at = 0
    while at < len(words) and (words[at] in FORERUNNERS or _ASSIGNMENT.match(words[at])):
        at += 1
    return words[at:]


def _script_kind(words: Sequence[str], depth: int) -> Kind:
    """What `bash -lc "…"` does."""
    for at, word in enumerate(words[:-1]):
        if word.lower() in SCRIPT_OPTIONS and depth < _DEEPEST:
            return command_kind(words[at + 1], depth=depth + 1)
    return "other"


def _git_words(words: Sequence[str]) -> Iterator[str]:
    """The words behind git's own options (`-C path`, `--no-pager`)."""
    takes = False
    for word in words:
        if takes:
            takes = False
        elif word.startswith("-"):
            takes = word in ("-C", "-c")
        else:
            yield word


def _runs_writer(words: Sequence[str], depth: int) -> bool:
    for at, word in enumerate(words):
        if word in ("-exec", "-execdir", "-x", "-ok") and depth < _DEEPEST:
            return words_kind(words[at + 1 :], depth=depth + 1) == "write"
    return False


def _commands(line: str) -> Iterator[list[str] | None]:
    """The simple commands of a line, as words; None stands for a redirect or a heredoc, which writes."""
    words: list[str] = []
    redirected = False
    for token in _TOKEN.finditer(line):
        kind = token.lastgroup
        if kind == "word":
            word = _QUOTED.sub(_unquoted, token[0])
            if not redirected:
                words.append(word)
            elif not (word.lower() in HARMLESS or word.isdigit()):
                yield None
            redirected = False
        elif kind == "here":
            yield None
        elif kind == "redirect":
            # `2>&1` and `>&2` join streams: what follows is a number.
            redirected = True
        elif kind == "end":
            yield words
            words, redirected = [], False
    yield words


def _unquoted(quoted: re.Match[str]) -> str:
    single, double, escaped = quoted.groups()
    if double is not None:
        return _ESCAPED.sub(r"\1", double)
    return single if single is not None else escaped
