"""Files of a plan: written for the owner alone, links that stay true, secrets hidden when shown."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from routecodex.cli.agents.agent import PlannedFile
from routecodex.cli.agents.overlay import without_comments
from routecodex.cli.agents.written_files import shown_content, without_secrets, write_files


def test_files_are_for_the_owner_alone_and_replaced_whole(tmp_path: Path) -> None:
    file = tmp_path / "ours" / "deep" / "a.json"
    for text in ("one", "two"):
        write_files(tmp_path / "ours", [PlannedFile(path=file, content=text)])
        assert file.read_text() == text
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700
    assert [path.name for path in file.parent.iterdir()] == ["a.json"]


def test_a_file_that_was_a_link_never_writes_through_it(tmp_path: Path) -> None:
    person = tmp_path / "person.json"
    person.write_text("of the person")
    (tmp_path / "ours").mkdir()
    (tmp_path / "ours" / "a.json").symlink_to(person)
    write_files(tmp_path / "ours", [PlannedFile(path=tmp_path / "ours" / "a.json", content="of us")])
    assert (person.read_text(), (tmp_path / "ours" / "a.json").read_text()) == ("of the person", "of us")


def test_links_follow_the_person_and_vanish_with_the_target(tmp_path: Path) -> None:
    ours, person = tmp_path / "ours", tmp_path / "person"
    person.mkdir()
    for name in ("kept", "gone"):
        (person / name).write_text(name)
    plan = [PlannedFile(path=ours / name, link=person / name) for name in ("kept", "gone")]
    write_files(ours, plan)
    write_files(ours, plan)
    assert (ours / "gone").read_text() == "gone"
    (person / "gone").unlink()
    write_files(ours, plan[:1])
    assert sorted(os.listdir(ours)) == ["kept"]


def test_a_file_that_the_agent_wrote_in_place_of_a_link_is_kept_while_it_is_newer(tmp_path: Path) -> None:
    ours, person = tmp_path / "ours", tmp_path / "person"
    person.mkdir()
    ours.mkdir()
    (person / "state").write_text("of the person")
    (ours / "state").write_text("of the agent")
    plan = [PlannedFile(path=ours / "state", link=person / "state")]
    os.utime(person / "state", (1000, 1000))
    os.utime(ours / "state", (2000, 2000))
    write_files(ours, plan)
    assert (ours / "state").read_text() == "of the agent"
    os.utime(person / "state", (3000, 3000))
    write_files(ours, plan)
    assert (ours / "state").read_text() == "of the person"


def test_a_folder_that_the_agent_made_in_place_of_a_link_is_kept(tmp_path: Path) -> None:
    ours, person = tmp_path / "ours", tmp_path / "person"
    (ours / "tmp").mkdir(parents=True)
    (person / "tmp").mkdir(parents=True)
    write_files(ours, [PlannedFile(path=ours / "tmp", link=person / "tmp")])
    assert not (ours / "tmp").is_symlink()


def test_catalogues_that_no_run_has_used_for_long_are_removed(tmp_path: Path) -> None:
    for name in ("models-00000000.json", "other.json"):
        (tmp_path / name).write_text("{}")
        os.utime(tmp_path / name, (1000, 1000))
    write_files(tmp_path, [PlannedFile(path=tmp_path / "models-11111111.json", content="{}")])
    assert sorted(os.listdir(tmp_path)) == ["models-11111111.json", "other.json"]


@pytest.mark.parametrize(
    "name",
    ["apiKey", "api_key", "OPENAI_API_KEY", "GITHUB_TOKEN", "client_secret", "Authorization", "password"],
)
def test_values_with_the_name_of_a_secret_are_hidden(name: str) -> None:
    text = msgspec.json.encode({"mcp": [{name: "hush", "url": "http://x", "maxTokens": 5}]}).decode()
    shown = msgspec.json.decode(without_secrets(text))
    assert shown == {"mcp": [{name: "***", "url": "http://x", "maxTokens": 5}]}


@pytest.mark.parametrize("text", ["plain", "{not json", "http://127.0.0.1"])
def test_other_texts_are_shown_as_they_are(text: str) -> None:
    assert without_secrets(text) == text


def test_a_link_is_shown_with_its_target() -> None:
    assert shown_content(PlannedFile(path=Path("/a"), link=Path("/b"))) == "link to /b"


def test_comments_are_removed_and_strings_kept() -> None:
    text = '{ // one\n "a": "http://x,]", /* two */ "b": "\\"//", "c": [1, ], } // three'
    assert msgspec.json.decode(without_comments(text)) == {"a": "http://x,]", "b": '"//', "c": [1]}
