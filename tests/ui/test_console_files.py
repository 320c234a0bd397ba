"""The files of the console: their size, and the texts in both languages."""

from __future__ import annotations

import json
import re

from routecodex.console import console_files

_FILES = console_files()
_FIRST_PAGE = {
    "index.html",
    "app.css",
    "app.js",
    "dom.js",
    "text.js",
    "net.js",
    "parts.js",
    "plot.js",
    "pages/overview.js",
    "i18n/en.json",
}


def _size(names: set[str]) -> int:
    return sum(_FILES[name].stat().st_size for name in names)


def _texts(language: str) -> dict[str, str]:
    found: dict[str, str] = json.loads(_FILES[f"i18n/{language}.json"].read_text(encoding="utf-8"))
    return found


def _script() -> str:
    return "\n".join(
        path.read_text(encoding="utf-8") for name, path in _FILES.items() if name.endswith(".js")
    )


def test_all_files_together_are_small() -> None:
    assert _size(set(_FILES)) <= 150 * 1024


def test_first_page_is_small() -> None:
    assert _size(_FIRST_PAGE) <= 90_000
    assert len(_FIRST_PAGE) <= 14


def test_both_languages_have_the_same_keys_and_placeholders() -> None:
    english, chinese = _texts("en"), _texts("zh-CN")
    assert english.keys() == chinese.keys()

    def placeholders(text: str) -> list[str]:
        return sorted(re.findall(r"\{\w+\}", text))

    assert {key: placeholders(text) for key, text in english.items()} == {
        key: placeholders(text) for key, text in chinese.items()
    }


def test_every_text_that_a_page_names_exists() -> None:
    named = set(re.findall(r'\bt\("([\w.-]+)"', _script()))
    assert named - _texts("en").keys() == set()


def test_every_text_is_used() -> None:
    script = _script()
    areas = set(re.findall(r"t\(`(\w+)\.\$", script)) | set(re.findall(r'known\("(\w+)"', script))
    areas |= set(re.findall(r'choice\("(\w+)"', script))
    unused = {key for key in _texts("en") if f'"{key}"' not in script and key.partition(".")[0] not in areas}
    assert unused == set()


def test_colours_are_named_in_the_tokens_alone() -> None:
    texts = {name: path.read_text("utf-8") for name, path in _FILES.items() if name.endswith((".css", ".js"))}
    tokens, end, shapes = texts.pop("app.css").partition("/* Shapes")
    assert (tokens, end) != ("", "")
    found = {
        name: re.findall(r"#[0-9a-fA-F]{3,8}\b(?!\w)|rgba?\(", text)
        for name, text in {**texts, "app.css": shapes}.items()
    }
    assert {name: colours for name, colours in found.items() if colours} == {}


def test_no_html_is_made_of_strings() -> None:
    forbidden = (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        'setAttribute("style"',
        "eval(",
    )
    assert [word for word in forbidden if word in _script()] == []
