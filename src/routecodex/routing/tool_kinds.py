"""What a tool does, from its name; what a shell does, from its command (shell_commands.py).

Names are compared without case and separators (`read_file`, `ReadFile`, `read-file` are one), those of MCP
servers by their last part (`mcp__files__read_file`). A name in no table is judged by the words it is made of.
"""

from __future__ import annotations

import re

import msgspec

from routecodex.canon.look import CalledTool
from routecodex.routing.shell_commands import Kind, command_kind, names, table, words_kind

NAMES = table(
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
"""Tools of Claude Code, Codex, Gemini CLI, opencode, Cline and their kin, by what they do."""

SHELLS = names(
    """
    bash sh shell localshell execcommand shellcommand unifiedexec runshellcommand executecommand runcommand
    runterminalcmd runterminalcommand runinterminal terminal executebash containerexec powershell exec
    execute run cmd process startprocess command
    """
)
"""Tools that run a command."""

EDITORS = frozenset(["strreplacebasededittool", "strreplaceeditor", "texteditor", "developertexteditor"])
"""Tools with commands of their own: `view` reads, all others write."""

COMMANDS = ("command", "cmd", "commands", "script", "CommandLine", "command_line", "code", "input")
"""Arguments that hold a shell's command."""

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
    """What a call does: reads files, writes them, searches among them, goes to the web, or something else."""
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
    """The command in a call's arguments, as text or as words; free text is a command itself."""
    if arguments.lstrip()[:1] not in ("{", "["):
        return arguments
    try:
        return _find(msgspec.json.decode(arguments))
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return _salvage(arguments)


def _find(value: object) -> str | list[str]:
    if isinstance(value, dict):
        value = next((value[name] for name in COMMANDS if name in value), "")
    if isinstance(value, str):
        return value
    return [word for word in value if isinstance(word, str)] if isinstance(value, list) else ""


def _salvage(arguments: str) -> str | list[str]:
    """The command in arguments that were cut off."""
    found = _COMMAND.search(arguments)
    if found is None:
        return ""
    words: list[str] = []
    at = found.end()
    while True:
        end = _END.match(arguments, at)
        assert end is not None, "the pattern matches the empty text"
        words.append(_ESCAPE.sub(_meaning, end[0]))
        following = _NEXT.match(arguments, end.end())
        if following is None:
            return words if found[2] else words[0]
        at = following.end()


def _meaning(escape: re.Match[str]) -> str:
    said = escape[1]
    return chr(int(said[1:], 16)) if len(said) > 1 else _ESCAPES.get(said, said)
