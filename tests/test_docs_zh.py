"""The Chinese pages have the sections, commands and examples of the English ones."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.test_docs import FENCE, HEADING, LINK, ROOT, prose

HEADINGS = {
    "README.md": {
        "RouteCodex": "RouteCodex",
        "Why": "为什么要用它",
        "Two commands": "两条命令",
        "The walk of a request": "一个请求的路径",
        "Routing from the chat": "在对话里选择路由",
        "Server tools": "服务端工具",
        "From the terminal and from Python": "在终端和 Python 里使用",
        "Configuration by hand": "手写配置",
        "Documentation": "文档",
    },
    "docs/clients.md": {
        "Clients": "客户端",
        "routecodex run": "routecodex run",
        "routecodex env": "routecodex env",
        "By hand": "手工设置",
        "Claude Code": "Claude Code",
        "Codex CLI": "Codex CLI",
        "Gemini CLI": "Gemini CLI",
        "OpenAI SDK": "OpenAI SDK",
        "Anthropic SDK": "Anthropic SDK",
        "Google Gen AI SDK": "Google Gen AI SDK",
        "Vercel AI SDK": "Vercel AI SDK",
        "aider": "aider",
        "opencode": "opencode",
        "When it does not work": "不能用的时候",
        "The demo": "演示模型",
    },
    "docs/routing.md": {
        "Routing": "路由",
        "A first look": "先试一下",
        "Instructions": "指令",
        "Names": "名称",
        "How a target is chosen": "目标是怎样选出来的",
        "Classes": "分类",
        "Roles": "角色",
        "Pools": "目标池",
        "Conversations keep their key": "会话固定使用同一个 key",
        "Health": "健康状态",
        "Sessions": "会话",
        "Operator settings": "运维设置",
        "Errors": "错误",
        "Seeing why": "查看原因",
    },
    "docs/server-tools.md": {
        "Server tools": "服务端工具",
        "A first look": "先试一下",
        "What the client sees": "客户端看到什么",
        "Limits": "上限",
        "stopMessage": "stopMessage",
        "Texts that work": "有效的写法",
        "Files": "文件",
        "The issue tracker bd": "任务跟踪工具 bd",
        "Settings": "设置",
        "Clock": "时钟",
        "An example": "一个例子",
        "What the tool can do": "工具能做什么",
        "When a task is delivered": "任务什么时候送达",
        "Telling the time": "告知时间",
        "Looking at tasks and removing them": "查看和删除任务",
        "Files of the clock": "时钟的文件",
        "vision_auto": "vision_auto",
        "empty_reply_continue": "empty_reply_continue",
        "web_search": "web_search",
        "Writing a server tool": "编写服务端工具",
        "What a tool may do": "工具可以做什么",
    },
}
"""Headings of each page and of its translation, in their order."""

COMMANDS = ("routecodex ", "make ", "pip ", "pipx ", "uvx ", "<**", "ROUTECODEX_", "x-routecodex-")
"""Starts of inline code that both languages must have: commands, instructions, variables, headers."""

SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
COMMENT = re.compile(r"(?:^|\s)#.*$", re.MULTILINE)

translated = pytest.mark.parametrize("page", HEADINGS)


def chinese(page: str) -> Path:
    """Return the translation of a page."""
    return ROOT / "README.zh-CN.md" if page == "README.md" else ROOT / "docs" / "zh" / Path(page).name


def headings(page: Path) -> list[tuple[str, str]]:
    """Return the headings of a page with their marks."""
    return [(found[0].split()[0], found[1].strip()) for found in HEADING.finditer(prose(page))]


def examples(page: Path) -> list[tuple[str, str]]:
    """Return the language and text of every code block; comments may be translated."""
    found = FENCE.findall(page.read_text("utf-8"))
    return [(name, COMMENT.sub("", text) if name in ("", "toml") else text) for name, text in found]


def commands(page: Path) -> set[str]:
    return {span for span in SPAN.findall(prose(page)) if span.startswith(COMMANDS)}


@translated
def test_a_page_has_the_same_sections_in_both_languages(page: str) -> None:
    expected = [(mark, HEADINGS[page][title]) for mark, title in headings(ROOT / page)]
    assert headings(chinese(page)) == expected
    assert len(expected) == len(HEADINGS[page])


@translated
def test_a_page_has_the_same_examples_in_both_languages(page: str) -> None:
    assert examples(chinese(page)) == examples(ROOT / page)


@translated
def test_a_page_names_the_same_commands_in_both_languages(page: str) -> None:
    assert commands(chinese(page)) == commands(ROOT / page)


def test_the_overview_of_the_configuration_has_its_examples_and_sections() -> None:
    english, overview = ROOT / "docs/configuration.md", chinese("docs/configuration.md")
    assert examples(overview) == examples(english)[:2]
    names = {
        "Configuration": "配置",
        "An example in full": "完整的例子",
        "Targets": "目标",
        "Presets": "预设",
        "Dialect": "方言",
    }
    titles = [title for _, title in headings(english) if not title.startswith("`[")]
    own = [title for _, title in headings(overview) if title != "各个表"]
    assert own == [names[title] for title in titles]


def test_the_overview_of_the_configuration_lists_the_tables_of_the_file() -> None:
    tables = [title for _, title in headings(ROOT / "docs/configuration.md") if title.startswith("`[")]
    page = chinese("docs/configuration.md").read_text("utf-8")
    listed = re.findall(r"^\| \[(`\[.+?\]`)\]\(", page, re.MULTILINE)
    assert [table for table in tables if table in listed] == listed
    outermost = {table.strip("`[]").partition(".")[0] for table in tables}
    assert {table.strip("`[]").partition(".")[0] for table in listed} == outermost


def test_the_chinese_readme_leads_to_the_same_pages_in_chinese_where_there_are_some() -> None:
    own = {link.partition("#")[0] for link in LINK.findall(prose(chinese("README.md")))}
    pages = {link.partition("#")[0] for link in LINK.findall(prose(ROOT / "README.md"))}
    local = {page for page in pages if "://" not in page and not page.startswith("README")}
    expected = {page: str(chinese(page).relative_to(ROOT)) for page in local}
    assert {page for page, here in expected.items() if here not in own and (ROOT / here).exists()} == set()
    assert {page for page in local if page not in own and expected[page] not in own} == set()


def test_pages_in_chinese_lead_to_each_other_where_they_can() -> None:
    pages = {path.name for path in (ROOT / "docs" / "zh").glob("*.md")}
    # The overview of the configuration and its links lead to the English reference on purpose.
    detours = [
        f"{page.name}: {link}"
        for page in (ROOT / "docs" / "zh").glob("*.md")
        for link in LINK.findall(prose(page))
        if link.startswith("../") and Path(link.partition("#")[0]).name in pages - {"configuration.md"}
    ]
    assert detours == []
