"""The regions of a text in which nobody speaks to the gateway: code, and what coding agents put in.

Code follows CommonMark roughly: fenced blocks, and spans between runs of backticks of one length, which do
not reach past a blank line. An envelope is an XML-like element by whose name an agent marks text of its own.
"""

from __future__ import annotations

import functools
import re
from bisect import bisect_left

from routecodex.routing.instructions.tags import WHITE, TagLookahead

_OF_AGENTS = {
    "Claude Code": "system-reminder local-command-caveat local-command-stdout local-command-stderr"
    " command-name command-message command-stdout command-stderr bash-input bash-stdout bash-stderr"
    " task-notification user-prompt-submit-hook session-start-hook post-tool-use-hook ide_opened_file"
    " ide_selection ide_diagnostics new-diagnostics tool_use_error persisted-output teammate-message",
    "Codex": "environment_context user_instructions INSTRUCTIONS turn_aborted user_shell_command"
    " subagent_notification model_switch collaboration_mode personality_spec skill skills_instructions"
    " apps_instructions plugins_instructions",
    "opencode": "env file files file_diagnostics project_diagnostics task_metadata skill_content"
    " available_skills",
    "Cline": "environment_details file_content final_file_content folder_content url_content"
    " workspace_diagnostics git_working_state git_commit terminal_output explicit_instructions",
    "Gemini CLI": "session_context hook_context loaded_context global_context project_context"
    " extension_context state_snapshot activated_skill background_output",
    "editors": "attached_files attachments attachment additional_data open_and_recently_viewed_files"
    " user_info project_layout git_status editorContext reminderInstructions environment_info workspace_info",
}

ENVELOPES = frozenset(name for names in _OF_AGENTS.values() for name in names.split())
"""The names agents give to text of their own inside a message of the user."""

AGENTS_FILE = "# AGENTS.md instructions"

_NAMES = "|".join(sorted(ENVELOPES))
_ENVELOPE_OPENING = rf"<(?:{_NAMES})(?=[\s/>])[^<>]*>"
_FENCE = r"^ {0,3}(?:`{3,}+(?=[^`\n]*$)|~{3,}+)"
_ENVELOPE = re.compile(_ENVELOPE_OPENING)
_FENCE_LINE = re.compile(r"^ {0,3}(`{3,}+|~{3,}+)[ \t\r]*$", re.MULTILINE)
_BREAK = re.compile(rf"\n[ \t\r]*\n|\n[ \t]*{_ENVELOPE_OPENING}|{_FENCE}", re.MULTILINE)
_TICKS = re.compile(r"`+")
_NAME = re.compile(r"<([\w-]+)")

MARKS = re.compile(
    rf"(?P<tag>(?:<\*\*)+)|(?P<fence>{_FENCE})|(?P<ticks>`+)|(?P<envelope>{_ENVELOPE_OPENING})", re.MULTILINE
)
"""Where something begins that a reader of instructions must know of."""


class QuotedRegions:
    """Where the regions of one text end, by the mark (one of `MARKS`) they begin with."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._breaks = TagLookahead(text, _BREAK)

    def end_of(self, mark: re.Match[str]) -> int:
        """Where to read on after the mark."""
        return _ENDS[mark.lastgroup or ""](self, mark)

    def _end_of_fence(self, mark: re.Match[str]) -> int:
        fence = mark[0].lstrip(" ")
        for line in _FENCE_LINE.finditer(self._text, mark.end()):
            if line[1][0] == fence[0] and len(line[1]) >= len(fence):
                return line.end()
        return len(self._text)

    def _end_of_span(self, mark: re.Match[str]) -> int:
        """The end of a code span, or of the backticks alone when they begin none."""
        length = len(mark[0])
        starts = self._runs.get(length, [])
        index = bisect_left(starts, mark.end())
        escaped = self._text[mark.start() - 1 : mark.start()] == "\\"
        if escaped or index == len(starts):
            return mark.end()
        broken = self._breaks.end_of_next(mark.end())
        return mark.end() if broken is not None and broken <= starts[index] else starts[index] + length

    def _end_of_envelope(self, mark: re.Match[str]) -> int:
        return end_of_envelope(self._text, mark)

    @functools.cached_property
    def _runs(self) -> dict[int, list[int]]:
        """Where the runs of backticks start, by their length."""
        runs: dict[int, list[int]] = {}
        for run in _TICKS.finditer(self._text):
            runs.setdefault(len(run[0]), []).append(run.start())
        return runs


_ENDS = {
    "fence": QuotedRegions._end_of_fence,
    "ticks": QuotedRegions._end_of_span,
    "envelope": QuotedRegions._end_of_envelope,
}


def end_of_envelope(text: str, opening: re.Match[str]) -> int:
    """The end of the envelope: its own closing tag, else the last there is, else the end of the text."""
    if opening[0].endswith("/>"):
        return opening.end()
    named = _NAME.match(opening[0])
    depth, last = 1, len(text)
    for tag in _tags_named(named[1] if named else "").finditer(text, opening.end()):
        if tag[1]:
            depth, last = depth - 1, tag.end()
        elif not tag[0].endswith("/>"):
            depth += 1
        if not depth:
            return last
    return last


def is_machine_made(text: str) -> bool:
    """Whether the text holds nothing but white space and envelopes: no word of the person."""
    rest = _skip_white(text, 0)
    if text.startswith(AGENTS_FILE, rest):
        return True
    while opening := _ENVELOPE.match(text, rest):
        rest = _skip_white(text, end_of_envelope(text, opening))
    return rest == len(text)


_WHITE_RUN = re.compile(f"[{re.escape(WHITE)}]*+")


def _skip_white(text: str, at: int) -> int:
    run = _WHITE_RUN.match(text, at)
    return run.end() if run else at


@functools.cache
def _tags_named(name: str) -> re.Pattern[str]:
    return re.compile(rf"<(/?){name}(?=[\s/>])[^<>]*>")
