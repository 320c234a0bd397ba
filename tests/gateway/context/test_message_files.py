from __future__ import annotations

import os
from pathlib import Path

import pytest

from routecodex.gateway.context.message_files import MOST_BYTES, MessageFileError, read_message


@pytest.fixture
def user_dir(tmp_path: Path) -> Path:
    home = tmp_path / "home"
    (home / "stopMessage" / "deep").mkdir(parents=True)
    (tmp_path / "outside.md").write_text("secret")
    (home / "config.toml").write_text('key = "secret"')
    return home


GOOD: list[tuple[str, bytes, str]] = [
    ("stopMessage/message1.md", "立即执行\n待处理任务\n".encode(), "立即执行\n待处理任务"),
    ("stopMessage/deep/x", b"  keeps its beginning \t\r\n\n", "  keeps its beginning"),
    ("stopMessage/bom.md", b"\xef\xbb\xbfgo on", "go on"),
    ("./stopMessage//a b.md", b"x", "x"),
    ("note.md", b"x", "x"),
    ("note.TXT", b"x", "x"),
    ("stopMessage/..x", b"x", "x"),
    ("stopMessage/full.md", b"x" * MOST_BYTES, "x" * MOST_BYTES),
]


@pytest.mark.parametrize(("path", "content", "text"), GOOD, ids=[path for path, _, _ in GOOD])
def test_a_text_below_the_user_dir_is_read(user_dir: Path, path: str, content: bytes, text: str) -> None:
    (user_dir / path).write_bytes(content)
    assert read_message(path, user_dir=user_dir) == text


def refused(path: str, user_dir: Path) -> str:
    with pytest.raises(MessageFileError) as raised:
        read_message(path, user_dir=user_dir)
    reason = str(raised.value)
    assert "\n" not in reason
    assert "secret" not in reason
    return reason


NAMES = [
    ("/etc/passwd", "not an absolute one"),
    ("//etc/passwd", "not an absolute one"),
    ("\\etc", "not an absolute one"),
    ("C:/x.md", "not an absolute one"),
    ("~/x.md", "not an absolute one"),
    ("", "not an absolute one"),
    ("../outside.md", "'..' is not allowed"),
    ("stopMessage/../note.md", "'..' is not allowed"),
    ("stopMessage\\..\\note.md", "'..' is not allowed"),
    ("stopMessage/a\nb", "control characters"),
    ("stopMessage/a\0b", "control characters"),
    ("stopMessage/missing.md", "does not exist"),
    ("nowhere/missing.md", "does not exist"),
    ("stopMessage", "is not a regular file"),
    ("stopMessage/", "is not a regular file"),
    ("stopMessage/deep", "is not a regular file"),
    (".", "must lie in stopMessage/"),
    ("config.toml", "must lie in stopMessage/"),
    ("config.toml/x.md", "cannot be read"),
    ("stopMessage/" + "x" * 5000, "cannot be read"),
]


@pytest.mark.parametrize(("path", "reason"), NAMES)
def test_a_path_outside_of_the_user_dir_is_refused(user_dir: Path, path: str, reason: str) -> None:
    assert reason in refused(path, user_dir)


CONTENTS = [
    (b"", "is empty"),
    (b" \n\t\n", "is empty"),
    (b"\xef\xbb\xbf", "is empty"),
    (b"\xff\xfe", "is not UTF-8"),
    (b"x" * (MOST_BYTES + 1), "is larger than 64 KB"),
]


@pytest.mark.parametrize(("content", "reason"), CONTENTS, ids=[reason for _, reason in CONTENTS])
def test_a_file_without_a_valid_message_is_refused(user_dir: Path, content: bytes, reason: str) -> None:
    (user_dir / "stopMessage" / "x.md").write_bytes(content)
    assert reason in refused("stopMessage/x.md", user_dir)


def test_symlinks_may_lead_anywhere_below_the_user_dir_only(user_dir: Path) -> None:
    here = user_dir / "stopMessage"
    (here / "real.md").write_text("go on")
    (here / "inside.md").symlink_to("real.md")
    (here / "outside.md").symlink_to("../../outside.md")
    (here / "way").symlink_to("../..")
    (here / "config.md").symlink_to("../config.toml")
    (here / "broken.md").symlink_to("nothing")
    (here / "circle.md").symlink_to("circle.md")
    assert read_message("stopMessage/inside.md", user_dir=user_dir) == "go on"
    assert "leaves the user dir" in refused("stopMessage/outside.md", user_dir)
    assert "leaves the user dir" in refused("stopMessage/way/outside.md", user_dir)
    assert "must lie in stopMessage/" in refused("stopMessage/config.md", user_dir)
    assert "does not exist" in refused("stopMessage/broken.md", user_dir)
    assert "cannot be read" in refused("stopMessage/circle.md", user_dir)


def test_the_user_dir_itself_may_be_a_symlink(user_dir: Path) -> None:
    (user_dir / "stopMessage" / "x.md").write_text("go on")
    link = user_dir.with_name("link")
    link.symlink_to(user_dir)
    assert read_message("stopMessage/x.md", user_dir=link) == "go on"


def test_a_user_dir_that_is_not_there_holds_no_message(tmp_path: Path) -> None:
    assert "does not exist" in refused("stopMessage/x.md", tmp_path / "nothing")


def test_a_pipe_does_not_block_the_reader(user_dir: Path) -> None:
    os.mkfifo(user_dir / "stopMessage" / "pipe.md")
    assert "is not a regular file" in refused("stopMessage/pipe.md", user_dir)


@pytest.mark.skipif(os.geteuid() == 0, reason="everything is readable for root")
def test_an_unreadable_file_is_an_error(user_dir: Path) -> None:
    closed = user_dir / "stopMessage" / "closed.md"
    closed.write_text("go on")
    closed.chmod(0)
    assert "Permission denied" in refused("stopMessage/closed.md", user_dir)
