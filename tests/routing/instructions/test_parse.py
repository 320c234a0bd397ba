from __future__ import annotations

import pytest
from msgspec.structs import replace

from routecodex.routing.instructions import (
    INSTRUCTION_FORMS,
    MOST_INSTRUCTIONS,
    AllowProviders,
    ClearClock,
    ClearRouting,
    ClearStopMessage,
    DisableTarget,
    EnableTarget,
    ForceTarget,
    Instruction,
    ParseResult,
    SetStopMessage,
    SetStopMessageFromFile,
    ShowHelp,
    ShowStatus,
    SteerAgents,
    StickToTarget,
    help_text,
    parse,
)

NOWHERE = (0, 0)
STOP = SetStopMessage


def said(text: str) -> list[Instruction]:
    """The instructions of a text that holds nothing malformed, without their places."""
    parsed = parse(text)
    assert parsed.malformed == ()
    return [replace(one, span=NOWHERE) for one in parsed.instructions]


FORMS: list[tuple[str, Instruction]] = [
    ("agents:!glm.glm-4.7", SteerAgents(StickToTarget("glm.glm-4.7"))),
    ("Agents : !glm.2", SteerAgents(StickToTarget("glm.2"))),
    ("agents:!glm,openai", SteerAgents(AllowProviders(("glm", "openai")))),
    ("agents：#glm.1, openai", SteerAgents(DisableTarget(("glm.1", "openai")))),
    ("agents:@glm", SteerAgents(EnableTarget(("glm",)))),
    ("AGENTS:clear", SteerAgents(ClearRouting())),
    ("glm.glm-4.7", ForceTarget("glm.glm-4.7")),
    ("openai.primary.gpt-4.1", ForceTarget("openai.primary.gpt-4.1")),
    ("anthropic.primary", ForceTarget("anthropic.primary")),
    ("openai.1", ForceTarget("openai.1")),
    ("openrouter.z-ai/glm-4.7:free", ForceTarget("openrouter.z-ai/glm-4.7:free")),
    ("vertex.claude@2025", ForceTarget("vertex.claude@2025")),
    ("智谱.模型-4.7", ForceTarget("智谱.模型-4.7")),
    ("clear.x", ForceTarget("clear.x")),
    ("antigravity", AllowProviders(("antigravity",))),
    ("GLM", AllowProviders(("GLM",))),
    ("!glm", AllowProviders(("glm",))),
    ("!glm,openai", AllowProviders(("glm", "openai"))),
    ("!glm , openai,glm", AllowProviders(("glm", "openai"))),
    ("!glm，openai", AllowProviders(("glm", "openai"))),
    ("!clear", AllowProviders(("clear",))),
    ("!glm.glm-4.7", StickToTarget("glm.glm-4.7")),
    ("!openai.primary.gpt-4", StickToTarget("openai.primary.gpt-4")),
    ("!openai.3", StickToTarget("openai.3")),
    ("！glm.glm-4.7", StickToTarget("glm.glm-4.7")),
    ("#glm", DisableTarget(("glm",))),
    ("#openai.12345678901234567890", DisableTarget(("openai.12345678901234567890",))),
    ("#glm,openai.1, anthropic.primary", DisableTarget(("glm", "openai.1", "anthropic.primary"))),
    ("@glm", EnableTarget(("glm",))),
    ("@openai.1,openai.gpt-4.1", EnableTarget(("openai.1", "openai.gpt-4.1"))),
    ("clear", ClearRouting()),
    ("CLEAR", ClearRouting()),
    ("status", ShowStatus()),
    ("Status", ShowStatus()),
    ("help", ShowHelp()),
    ("clock:clear", ClearClock()),
    ("Clock : Clear", ClearClock()),
    ("stopMessage:clear", ClearStopMessage()),
    ("STOPMESSAGE: CLEAR", ClearStopMessage()),
    ('stopMessage:"继续"', STOP("继续", 10)),
    ('stopMessage:"继续",3', STOP("继续", 3)),
    ('stopmessage : "go on" , 3', STOP("go on", 3)),
    ("stopMessage：“继续”，３", STOP("继续", 3)),
    ("stopMessage:＂a＂", STOP("a", 10)),
    (r'stopMessage:"say \"hi\" and \\ done",2', STOP(r'say "hi" and \ done', 2)),
    (r'stopMessage:"a\nb\\"', STOP("a\\nb\\", 10)),
    (r'stopMessage:\"say \\"hi\\" now\",2', STOP('say "hi" now', 2)),
    ('stopMessage:"two\nlines"', STOP("two\nlines", 10)),
    ('stopMessage:" keeps its spaces "', STOP(" keeps its spaces ", 10)),
    ('stopMessage:"a **> b"', STOP("a **> b", 10)),
    ('stopMessage:"write <**clear**> then",4', STOP("write <**clear**> then", 4)),
    ('stopMessage:"run `make` and ```x```"', STOP("run `make` and ```x```", 10)),
    ('stopMessage:"clear"', STOP("clear", 10)),
    ('stopMessage:"a",9223372036854775807', STOP("a", 2**63 - 1)),
    ('stopMessage:"a",007', STOP("a", 7)),
    ("stopMessage:<file://stopMessage/x.md>", SetStopMessageFromFile("stopMessage/x.md", 10)),
    ("stopMessage:<file://stopMessage/说明.md>,5", SetStopMessageFromFile("stopMessage/说明.md", 5)),
    ("stopMessage: < file://x.md > , 5", SetStopMessageFromFile("x.md", 5)),
    ("stopMessage:<file:///etc/passwd>", SetStopMessageFromFile("/etc/passwd", 10)),
]


@pytest.mark.parametrize(("form", "meant"), FORMS)
def test_every_form_is_read(form: str, meant: Instruction) -> None:
    assert said(f"<**{form}**>") == [meant]
    assert said(f"before<**{form}**>after") == [meant]


@pytest.mark.parametrize(("form", "meant"), FORMS)
@pytest.mark.parametrize(
    "white", [" ", "\n", "\t\r\n", "\u3000", "\u200b", "\ufeff", "\u00a0\u2060", "\u200e\u202c"]
)
def test_white_space_and_what_cannot_be_seen_may_stand_inside_the_marks(
    form: str, meant: Instruction, white: str
) -> None:
    assert said(f"{white}<**{white}{form}{white}**>{white}") == [meant]


@pytest.mark.parametrize("text", ["<** ! glm.glm-4.7 **>", "<**\u200b!\u3000glm.glm-4.7\ufeff**>"])
def test_white_space_may_stand_after_the_sign(text: str) -> None:
    assert said(text) == [StickToTarget("glm.glm-4.7")]


MALFORMED: list[tuple[str, str]] = [
    ("", "the instruction is empty"),
    ("   ", "the instruction is empty"),
    ("!", "a name is missing"),
    ("#glm,", "a name is missing"),
    ("@,glm", "a name is missing"),
    ("glm,openai", "only one target can be forced"),
    ("glm.a,openai.b", "only one target can be forced"),
    ("!glm,openai.gpt-5", "takes providers only, and openai.gpt-5 is a target"),
    ("!glm.a,glm.b", "takes providers only, and glm.a is a target"),
    ("glm . glm-4.7", "it contains white space"),
    ("gl\u200bm", "it contains white space"),
    ("gl\x00m", r"it contains '\x00'"),
    ("just some words", "it contains white space"),
    ("very important!", "'very important!' is not a valid name"),
    (".glm", "a part next to a dot is empty"),
    ("glm.", "a part next to a dot is empty"),
    ("#glm..x", "a part next to a dot is empty"),
    ("*", "'*' is not a valid name"),
    ("!!glm", "it contains '!'"),
    ("a" * 600, "600 characters is too long"),
    ("stopMessage", "needs a colon"),
    ("clock", "needs a colon"),
    ("clock:now", "clock takes clear only, not 'now'"),
    ("stopMessage:", "needs a text in quotes"),
    ("stopMessage:继续", "needs a text in quotes"),
    ("stopMessage:'go on'", "needs a text in quotes"),
    ('stopMessage:""', "is empty"),
    ('stopMessage:" \u200b\u3000",3', "is empty"),
    ('stopMessage:"a', "has no closing quote"),
    (r'stopMessage:"a\"', "has no closing quote"),
    ("stopMessage:“a", "has no closing quote"),
    ('stopMessage:"a" b', "only a comma and a number may follow"),
    ('stopMessage:"say "hi" now"', "only a comma and a number may follow"),
    ('stopMessage:"a",', "whole number of at least 1, not ''"),
    ('stopMessage:"a",0', "whole number of at least 1, not '0'"),
    ('stopMessage:"a",-1', "whole number of at least 1, not '-1'"),
    ('stopMessage:"a",1.5', "whole number of at least 1, not '1.5'"),
    ('stopMessage:"a",1e3', "whole number of at least 1"),
    ('stopMessage:"a",²', "whole number of at least 1"),
    ('stopMessage:"a",three', "whole number of at least 1"),
    ('stopMessage:"a",9223372036854775808', "whole number of at least 1"),
    ('stopMessage:"a",' + "9" * 5000, "whole number of at least 1"),
    ('stopMessage:"a **> b",0', "whole number of at least 1, not '0'"),
    ("stopMessage:<file://>", "needs a path"),
    ("stopMessage:<file://x.md>,0", "whole number of at least 1"),
    ("stopMessage:<http://x.md>", "needs a text in quotes"),
]


@pytest.mark.parametrize(("form", "reason"), MALFORMED)
def test_what_is_no_instruction_is_reported_with_a_reason(form: str, reason: str) -> None:
    tag = f"<**{form}**>"
    parsed = parse(f"a {tag} b")
    assert parsed.instructions == ()
    (malformed,) = parsed.malformed
    assert reason in malformed.reason
    assert malformed.span == (2, 2 + len(tag))
    assert "\n" not in malformed.raw + malformed.reason
    assert len(malformed.raw) <= 61
    assert malformed.raw.startswith("<**")


def test_instructions_come_from_left_to_right_with_their_places() -> None:
    text = '<**clear**> 好 <**!glm.x**><**oops !**>\n<**stopMessage:"a **> b",2**>'
    parsed = parse(text)
    assert [type(one) for one in parsed.instructions] == [ClearRouting, StickToTarget, SetStopMessage]
    assert [text[slice(*one.span)] for one in parsed.instructions] == [
        "<**clear**>",
        "<**!glm.x**>",
        '<**stopMessage:"a **> b",2**>',
    ]
    assert [text[slice(*one.span)] for one in parsed.malformed] == ["<**oops !**>"]


UNSAID = [
    "",
    "no tag at all",
    "an unterminated <**glm.x",
    "<**",
    "**> glm <**",
    "<**>",
    "<***>",
    "<*clear*>",
    "< **clear**>",
    "`<**clear**>`",
    "``a ` <**clear**>``",
    "it begins with `<**` and ends with `**>`",
    "a `span\nover lines <**clear**>`",
    "```\n<**clear**>\n```",
    "```text\n<**clear**>\n```\nend",
    "   ~~~~ x\n<**clear**>\n~~~\n<**clear**>\n~~~~~",
    "text\n```\nunterminated\n<**clear**>",
    "````\n```\n<**clear**>\n````",
    "```\r\n<**clear**>\r\n```\r\n",
    "<system-reminder>\n<**clear**>\n</system-reminder>",
    "hello <system-reminder><**clear**></system-reminder> there",
    "<system-reminder> names <system-reminder> twice <**clear**></system-reminder>",
    "<file><file>a</file><**clear**></file>",
    '<file path="a.md" lines="3">\n<**clear**>\n</file>',
    "<environment_context>\n  <cwd>/x</cwd><**clear**>\n</environment_context>",
    "<INSTRUCTIONS>`</INSTRUCTIONS><bash-stdout><**clear**>`</bash-stdout>",
    "a lone ` first\n<system-reminder>` <**clear**></system-reminder>",
    "# AGENTS.md instructions for /x\n\n<INSTRUCTIONS>\n</INSTRUCTIONS>\n<**clear**>",
    "<file>a</file><**clear**></file>",
    "a quoted </file_content> <**clear**>",
    "> a quoted line <**clear**>\n",
    "yes\n  > <**clear**>",
]


@pytest.mark.parametrize("text", UNSAID)
def test_code_envelopes_and_open_ends_are_not_read(text: str) -> None:
    result = parse(text)
    assert (result.instructions, result.malformed) == ((), ())


PARSED = [
    "`code` <**clear**> `code`",
    "a lone ` here <**clear**>",
    "a lone ` here\n\nand ` there <**clear**>",
    "a lone ` here\n\n<**clear**> ` there",
    "`` one kind <**clear**> ` another",
    r"escaped \`<**clear**>\`",
    "a ` b\n```\ncode `\n```\n<**clear**>",
    "```\ncode\n```\n<**clear**>",
    "```\ncode\n```   \n<**clear**>",
    "~~~\ncode\n~~~~\n<**clear**>",
    "``` not a fence ` \n<**clear**>",
    "text ~~~\n<**clear**>",
    "<system-reminder>x</system-reminder>\n<**clear**>",
    "<**clear**><system-reminder>x",
    "<system-reminder>a <system-reminder> b</system-reminder> <**clear**>",
    "<system-reminder>never closed <**clear**>",
    "look at <file> and <**clear**>",
    "> a quoted line\n<**clear**>",
    "1 > 0 <**clear**>",
    '<file path="x"/> <**clear**>',
    "`<file>` <**clear**>",
    "<filename> <**clear**>",
    "<instructions> <**clear**> </instructions>",
    "<command-args><**clear**></command-args>",
    "an open <** before <**clear**>",
    "<**<**clear**>",
    "<**a<**clear**>b",
]


@pytest.mark.parametrize("text", PARSED)
def test_what_stands_around_an_instruction_does_not_hide_it(text: str) -> None:
    assert said(text) == [ClearRouting()]


def test_a_quote_that_was_forgotten_does_not_reach_into_what_follows() -> None:
    parsed = parse('<**stopMessage:"go on**> print "hello" now <**clear**>')
    assert [one.span for one in parsed.malformed] == [(0, 24)]
    assert "no closing quote" in parsed.malformed[0].reason
    assert [type(one) for one in parsed.instructions] == [ClearRouting]


def test_a_tag_split_over_two_texts_is_text() -> None:
    assert parse("use <**glm.") == parse("glm-4.7**> now") == ParseResult()


def test_ten_thousand_instructions_are_read() -> None:
    assert said("<**#glm**>" * 10_000) == [DisableTarget(("glm",))] * 10_000


def test_of_more_than_a_message_may_hold_one_too_many_is_read() -> None:
    assert len(said("<**#glm**>" * (MOST_INSTRUCTIONS + 100))) == MOST_INSTRUCTIONS + 1
    some = parse("<**#glm**><** **>" * MOST_INSTRUCTIONS)
    assert len(some.instructions) + len(some.malformed) == MOST_INSTRUCTIONS + 1


@pytest.mark.parametrize("form", [form for row in INSTRUCTION_FORMS for form in row.forms])
def test_every_form_in_the_table_is_understood(form: str) -> None:
    assert len(said(form)) == 1


def test_the_table_has_every_instruction() -> None:
    kinds = {type(one) for row in INSTRUCTION_FORMS for form in row.forms for one in said(form)}
    assert kinds == {type(meant) for _, meant in FORMS}


def test_the_help_is_a_markdown_table_of_all_forms() -> None:
    lines = help_text().splitlines()
    assert lines[:2] == ["| Write | Effect | Lasts for |", "| --- | --- | --- |"]
    assert len(lines) == 2 + len(INSTRUCTION_FORMS)
    assert all(
        f"`{form}`" in line
        for row, line in zip(INSTRUCTION_FORMS, lines[2:], strict=True)
        for form in row.forms
    )
    assert all(line.count("|") == 4 for line in lines)


@pytest.mark.parametrize(
    "text", ["agents:glm.glm-4.7", "agents:", 'agents:stopMessage:"a"', "agents:status", "agents:agents:!glm"]
)
def test_agents_takes_one_instruction_of_its_list(text: str) -> None:
    (wrong,) = parse(f"<**{text}**>").malformed
    assert wrong.reason == (
        "agents takes one of !p.model, !p, #p, @p and clear, like agents:!p.model, agents:#p or agents:clear"
    )


def test_quoted_tags_are_counted() -> None:
    text = "`<**clear**>` <file><**clear**></file>\n> <**clear**>\n<**clear**> <**a b**>"
    result = parse(text)
    assert (len(result.instructions), len(result.malformed), result.quoted) == (1, 1, 3)
