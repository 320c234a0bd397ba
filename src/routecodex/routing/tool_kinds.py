"""Classifies tools by name and shells by command: read, write, search, web, other.

Names are compared without case and separators (`read_file`, `ReadFile`, `read-file` are equal), those of MCP
servers by their last part (`mcp__files__read_file`). A name in no table is classified by its words.

A write anywhere in a command line makes it a write; else the first known command decides. This is a guess and
not a parser: a wrong guess only costs a request its best route.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Literal

import msgspec

from routecodex.canon.request import CalledTool

Kind = Literal["read", "write", "search", "web", "other"]


def by_name(rows: dict[Kind, str]) -> dict[str, Kind]:
    """Map each name to its kind."""
    return {name: kind for kind, names in rows.items() for name in names.split()}


def names(row: str) -> frozenset[str]:
    """Return the names of a row."""
    return frozenset(row.split())


PROGRAMS = by_name(
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
GIT = by_name(
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
"""Options with which a program that normally reads writes files."""

COMMAND_PREFIXES = names(
    "sudo env time nohup command builtin exec xargs timeout nice stdbuf doas then do else if while"
)
"""Words before a command that do not change its kind."""
INTERPRETERS = frozenset(["bash", "sh", "zsh", "dash", "ksh", "fish", "pwsh", "powershell"])
SCRIPT_OPTIONS = frozenset(["-c", "-lc", "-ic", "-cl", "-command"])

DISCARDING_REDIRECTS = frozenset(["/dev/null", "/dev/stderr", "/dev/stdout", "nul", "$null"])
"""Targets of redirects that do not write a file."""

_MAX_CHARS = 2048
_MAX_COMMANDS = 50
_MAX_DEPTH = 2
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
    """Return the kind of a command line."""
    if "*** Begin Patch" in command[:_MAX_CHARS]:
        return "write"
    first: Kind = "other"
    for words in islice(_commands(command[:_MAX_CHARS]), _MAX_COMMANDS):
        kind = "write" if words is None else words_kind(words, depth=depth)
        if kind == "write":
            return "write"
        if first == "other":
            first = kind
    return first


def words_kind(words: Sequence[str], *, depth: int = 0) -> Kind:
    """Return the kind of one command, split into words."""
    words = _without_prefixes(words)
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


def _without_prefixes(words: Sequence[str]) -> Sequence[str]:
    at = 0
    while at < len(words) and (words[at] in COMMAND_PREFIXES or _ASSIGNMENT.match(words[at])):
        at += 1
    return words[at:]


def _script_kind(words: Sequence[str], depth: int) -> Kind:
    """Return the kind of `bash -lc "…"`."""
    for at, word in enumerate(words[:-1]):
        if word.lower() in SCRIPT_OPTIONS and depth < _MAX_DEPTH:
            return command_kind(words[at + 1], depth=depth + 1)
    return "other"


def _git_words(words: Sequence[str]) -> Iterator[str]:
    """Yield the words after git's own options (`-C path`, `--no-pager`)."""
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
        if word in ("-exec", "-execdir", "-x", "-ok") and depth < _MAX_DEPTH:
            return words_kind(words[at + 1 :], depth=depth + 1) == "write"
    return False


def _commands(line: str) -> Iterator[list[str] | None]:
    """Yield the simple commands of a line as words; None for a redirect or a heredoc, which writes."""
    words: list[str] = []
    redirected = False
    for token in _TOKEN.finditer(line):
        kind = token.lastgroup
        if kind == "word":
            word = _QUOTED.sub(_unquoted, token[0])
            if not redirected:
                words.append(word)
            elif not (word.lower() in DISCARDING_REDIRECTS or word.isdigit()):
                yield None
            redirected = False
        elif kind == "here":
            yield None
        elif kind == "redirect":
            # `2>&1` and `>&2` join streams: a number follows.
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


NAMES = by_name(
    {
        "read": """
            read readfile readmanyfiles readmultiplefiles readtextfile readmediafile readnotebook notebookread
            view viewfile viewimage openfile open cat getfilecontents getfileinfo fsread readmcpresource
            readconsolemessages readfiles readlints getproblems getdiagnostics getsymbolsoverview
        """,
        "write": """
            write writefile writetofile createfile createnewfile createtextfile edit editfile editfiles
            multiedit multieditfile notebookedit editnotebook edittextfile replace replaceinfile strreplace
            strreplaceeditor insert insertcontent insertatline inserteditintofile patch applypatch applydiff
            applyedit searchreplace searchandreplace replacestringinfile multireplacestringinfile
            replacefilecontent multireplacefilecontent deletefile movefile renamefile copyfile
            createdirectory fswrite savefile undoedit replacesymbolbody insertaftersymbol insertbeforesymbol
        """,
        "search": """
            grep glob ls list listdir listdirectory listfiles listfilestoplevel listfilesrecursive
            listcodedefinitionnames listcodeusages listdirectorywithsizes directorytree searchfiles
            searchfilecontent grepsearch greppedsearch filesearch codebasesearch codebase semanticsearch
            searchcodebase findfiles findfile findbyname findsymbol findreferencingsymbols searchforpattern
            ripgrep rg find fileglobsearch codesearch lsp listmcpresources toolsearch
        """,
        "web": """
            websearch webfetch fetch fetchurl urlfetch searchweb searchtheweb internetsearch googlesearch
            googlewebsearch bravewebsearch bravesearch bingsearch tavilysearch tavilyextract exasearch
            websearchexa webcrawl webread readurl readurlcontent readwebpage fetchwebpage browse
            websearchprime webreader $websearch urlcontext firecrawlsearch firecrawlscrape
        """,
        "other": """
            todowrite todoread writetodos updateplan updatetodolist managetodolist task agent exitplanmode
            enterplanmode askuserquestion askfollowupquestion attemptcompletion bashoutput killshell
            killbash writestdin skill slashcommand memory savememory updatememory searchmemory taskoutput
            taskstop
        """,
    }
)
"""Tools of Claude Code, Codex, Gemini CLI, opencode, Cline and similar agents, by kind."""

SHELLS = names(
    """
    bash sh shell localshell execcommand shellcommand unifiedexec runshellcommand executecommand runcommand
    runterminalcmd runterminalcommand runinterminal terminal executebash containerexec powershell exec
    execute run cmd process startprocess command
    """
)
"""Tools that run a command."""

EDITORS = frozenset(["strreplacebasededittool", "strreplaceeditor", "texteditor", "developertexteditor"])
"""Tools with their own commands: `view` reads, all others write."""

COMMANDS = ("command", "cmd", "commands", "script", "CommandLine", "command_line", "code", "input")
"""Arguments that hold the command of a shell tool."""

READING = frozenset(["read", "view", "open", "show", "cat", "get", "load"])
WRITING = names(
    """
    write edit create update replace insert append patch apply delete remove rename move copy save modify
    """
)
SEARCHING = frozenset(["search", "find", "grep", "glob", "ripgrep"])
LISTING = frozenset(["list", "tree", "scan"])
FILES = names(
    """
    file files directory directories dir dirs folder folders notebook path paths code symbol
    symbols diff patch
    """
)
WEB = frozenset(["web", "internet", "online", "url", "google", "bing", "brave", "webpage", "website"])

_LONGEST_NAME = 128
_LAST = re.compile(r"(?:__|[./:])")
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[0-9]+")
_COMMAND = re.compile(rf'"({"|".join(COMMANDS)})"\s*:\s*(\[?)\s*"')
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_NEXT = re.compile(r'"\s*,\s*"')
_END = re.compile(r'[^"\\]*(?:\\.[^"\\]*)*', re.DOTALL)


def kind_of(call: CalledTool) -> Kind:
    """Return the kind of a tool call."""
    name = _LAST.split(call.name[-_LONGEST_NAME:])[-1]
    plain = name.replace("_", "").replace("-", "").lower()
    if plain in EDITORS:
        return "read" if _command(call.arguments) in ("view", "read") else "write"
    if plain in SHELLS:
        return _shell_kind(call.arguments)
    return NAMES.get(plain) or _by_words(name)


def _by_words(name: str) -> Kind:
    words = {word.lower() for word in _WORD.findall(name)}
    if words & SEARCHING:
        return "web" if words & WEB else "search"
    if not words & FILES:
        return "other"
    if words & WRITING:
        return "write"
    if words & LISTING:
        return "search"
    return "read" if words & READING else "other"


def _shell_kind(arguments: str) -> Kind:
    command = _command(arguments)
    if isinstance(command, str):
        return command_kind(command)
    return words_kind(command)


def _command(arguments: str) -> str | list[str]:
    """Return the command in the arguments of a call, as text or words; free text is the command itself."""
    if arguments.lstrip()[:1] not in ("{", "["):
        return arguments
    try:
        return _command_in(msgspec.json.decode(arguments))
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return _command_in_truncated(arguments)


def _command_in(value: object) -> str | list[str]:
    if isinstance(value, dict):
        value = next((value[name] for name in COMMANDS if name in value), "")
    if isinstance(value, str):
        return value
    return [word for word in value if isinstance(word, str)] if isinstance(value, list) else ""


def _command_in_truncated(arguments: str) -> str | list[str]:
    """Return the command in truncated arguments."""
    found = _COMMAND.search(arguments)
    if found is None:
        return ""
    words: list[str] = []
    at = found.end()
    while True:
        end = _END.match(arguments, at)
        assert end is not None, "the pattern matches the empty text"
        words.append(_ESCAPE.sub(_unescape, end[0]))
        following = _NEXT.match(arguments, end.end())
        if following is None:
            return words if found[2] else words[0]
        at = following.end()


def _unescape(escape: re.Match[str]) -> str:
    code = escape[1]
    return chr(int(code[1:], 16)) if len(code) > 1 else _ESCAPES.get(code, code)
