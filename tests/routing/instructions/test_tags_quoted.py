from __future__ import annotations

import pytest

from routecodex.canon.agent_texts import ENVELOPES
from routecodex.routing.instructions import is_machine_made, parse


@pytest.mark.parametrize("name", sorted(ENVELOPES))
def test_an_envelope_is_not_the_person_speaking(name: str) -> None:
    text = f"\n<{name}>\nsome <b>text</b> <**clear**>\n</{name}>\n"
    assert is_machine_made(text)
    assert parse(text).instructions == ()
    assert not is_machine_made(f"{text} and a word")
    assert len(parse(f"{text}<**clear**>").instructions) == 1


@pytest.mark.parametrize(
    "text",
    [
        "<system-reminder>a</system-reminder>\n\u200b<system-reminder>b</system-reminder>\n",
        "<bash-stdout>a</bash-stdout><bash-stderr></bash-stderr>",
        '<file name="a"/>',
        "# AGENTS.md instructions for /home/me\n\n<INSTRUCTIONS>\nBe kind.\n</INSTRUCTIONS>",
        "\n# AGENTS.md instructions\n",
        "<system-reminder>a<system-reminder></system-reminder>",
        "</system-reminder>",
        "a stray </file> and a word",
        "[read_file for 'a.txt'] Result:\nhello",
        "This session is being continued from a previous conversation that ran out of context.",
        "",
        " \n\u3000",
    ],
)
def test_text_of_agents_alone_is_machine_made(text: str) -> None:
    assert is_machine_made(text)


@pytest.mark.parametrize(
    "text",
    [
        "hello",
        "hello <system-reminder>a</system-reminder>",
        "<system-reminder>a</system-reminder> hello",
        "<system-reminders>a</system-reminders>",
        "<command-args>x</command-args>",
        "see # AGENTS.md instructions",
        "<**clear**>",
        "<environment_context>never closed",
    ],
)
def test_a_word_of_the_person_makes_it_the_persons(text: str) -> None:
    assert not is_machine_made(text)
