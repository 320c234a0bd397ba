"""The text of the file: line numbers of keys."""

from __future__ import annotations

from routecodex.config.syntax import line_of, lines_of

TEXT = '''\
top = 1
[a]
x.y = 1   # [not.a.table]
"quoted key" = 2
list = [
  "one",
  { b = 1 },
]
text = """
[fake]
z = 1
"""
[a."b.c"]
d = 1
[[many]]
e = 1
[[many]]
e = 2
'''


def test_every_key_that_starts_a_line_has_its_number() -> None:
    assert lines_of(TEXT) == {
        ("top",): 1,
        ("a",): 2,
        ("a", "x", "y"): 3,
        ("a", "quoted key"): 4,
        ("a", "list"): 5,
        ("a", "text"): 9,
        ("a", "b.c"): 13,
        ("a", "b.c", "d"): 14,
        ("many", 0): 15,
        ("many", 0, "e"): 16,
        ("many", 1): 17,
        ("many", 1, "e"): 18,
    }


def test_a_place_without_a_line_takes_that_of_what_holds_it() -> None:
    lines = lines_of(TEXT)
    assert line_of(("a", "list", 1, "b"), lines) == 5
    assert line_of(("a", "b.c", "missing"), lines) == 13
    assert line_of(("nowhere",), lines) is None
    assert line_of((), lines) is None
