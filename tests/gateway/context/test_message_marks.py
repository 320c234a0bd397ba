from __future__ import annotations

from routecodex.gateway.context.message_marks import MOST_MARKS, added, is_among, message_mark


def test_the_same_message_is_known_again() -> None:
    mark = message_mark("a")
    assert mark.known(()) is None
    assert mark.known(added((), mark)) == str(mark)
    assert message_mark("b").known(added((), mark)) is None


def test_the_same_text_typed_again_is_another_message() -> None:
    marks = added((), message_mark("a"))
    assert message_mark("a", 1).known(marks) is None


def test_a_shortened_history_makes_no_new_message() -> None:
    marks = added((), message_mark("a", 2))
    assert message_mark("a").known(marks) == marks[0]


def test_a_turn_of_the_client_decides_where_it_is_named() -> None:
    marks = added((), message_mark("a", 1, turn="one"))
    assert message_mark("a", turn="one").known(marks) == marks[0]
    assert message_mark("a", turn="two").known(marks) is None
    assert message_mark("b", turn="one").known(marks) is None


def test_a_message_behind_which_the_client_speaks_is_known_under_any_turn() -> None:
    marks = added((), message_mark("a", 1, turn="one"))
    assert message_mark("a", 1, turn="two", passed_over=True).known(marks) == marks[0]
    assert message_mark("a", turn="two", passed_over=True).known(marks) == marks[0]
    assert message_mark("a", 2, turn="two", passed_over=True).known(marks) is None


def test_a_turn_named_only_once_does_not_make_a_new_message() -> None:
    marks = added((), message_mark("a"))
    assert message_mark("a", turn="one").known(marks) == marks[0]


def test_the_last_marks_are_kept() -> None:
    marks: tuple[str, ...] = ()
    for number in range(MOST_MARKS + 3):
        marks = added(marks, message_mark(str(number)))
    assert len(marks) == MOST_MARKS
    assert message_mark("2").known(marks) is None
    assert message_mark("3").known(marks) == marks[0]


def test_a_mark_is_found_among_messages_whatever_their_turn() -> None:
    mark = str(message_mark("a", 1, turn="one"))
    assert is_among(mark, [message_mark("b"), message_mark("a", 1)])
    assert not is_among(mark, [message_mark("a")])
