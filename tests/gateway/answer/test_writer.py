from __future__ import annotations

from urllib.parse import unquote

import pytest

from routecodex.gateway.answer.writer import notice_text


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (("plain (text): a/b",), b"plain (text): a/b"),
        (("one", "two"), b"one; two"),
        (("größe 100%",), b"gr%C3%B6%C3%9Fe 100%25"),
        (("a\r\nset-cookie: b",), b"a%0D%0Aset-cookie: b"),
        (("half \ud83d of a pair",), b"half ? of a pair"),
    ],
)
def test_a_notice_is_printable_ascii_that_can_be_decoded(lines: tuple[str, ...], expected: bytes) -> None:
    assert notice_text(lines) == expected


@pytest.mark.parametrize("lead", ["", "x", "xx", "xxx"])
def test_a_long_notice_is_not_cut_inside_a_character(lead: str) -> None:
    header = notice_text((lead + "继" * 1000,))
    assert len(header) <= 2000
    assert unquote(header.decode(), errors="strict") == lead + "继" * ((2000 - len(lead)) // 9)
