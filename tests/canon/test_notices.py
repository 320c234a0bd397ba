from __future__ import annotations

from routecodex.canon.notices import Notices


def test_each_line_is_kept_once_in_its_order() -> None:
    notices = Notices()
    for field in ("top_k", "seed", "top_k"):
        notices.dropped(field, "chat has no such field")
    assert notices.lines() == (
        "dropped top_k: chat has no such field",
        "dropped seed: chat has no such field",
    )


def test_lines_of_others_are_added_once() -> None:
    notices = Notices()
    notices.add()
    assert notices.lines() == ()
    notices.add("a", "b", "a")
    notices.add("b", "c")
    assert notices.lines() == ("a", "b", "c")


def test_lines_are_short_and_stay_one_line() -> None:
    notices = Notices()
    notices.dropped("größe\r\nset-cookie: a=b", "no")
    notices.dropped("x" * 500, "no")
    first, second = notices.lines()
    assert first == "dropped größe??set-cookie: a=b: no"
    assert len(second) == 120
