"""Spaces of a file store whose files are the values alone."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from routecodex.stores import open_store
from routecodex.stores.file import FileStore
from routecodex.stores.store import Conflict, Stored, StoreError


class Note(msgspec.Struct):
    owner: str


def owner_of(value: bytes) -> str:
    try:
        return msgspec.json.decode(value, type=Note).owner
    except msgspec.DecodeError as exc:
        raise ValueError(str(exc)) from exc


BARE = {"notes": owner_of}
ANN = b'{\n  "owner": "Ann"\n}\n'


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[FileStore]:
    opened = FileStore(tmp_path, bare=BARE)
    yield opened
    await opened.close()


async def test_a_file_is_the_value_byte_for_byte(store: FileStore, tmp_path: Path) -> None:
    version = await store.put("notes", "Ann", ANN)
    assert (tmp_path / "notes" / "%41nn.json").read_bytes() == ANN
    assert await store.get("notes", "Ann") == Stored(ANN, version, None)
    assert await store.keys("notes") == ["Ann"]
    assert await store.delete("notes", "Ann") is True
    assert await store.get("notes", "Ann") is None


async def test_other_spaces_keep_their_envelope(store: FileStore, tmp_path: Path) -> None:
    await store.put("other", "ann", b"1")
    assert msgspec.json.decode((tmp_path / "other" / "ann.json").read_bytes())["value"] == 1


async def test_a_key_too_long_for_a_name_is_told_by_its_value(store: FileStore) -> None:
    key = "x" * 5000
    await store.put("notes", key, msgspec.json.encode(Note(key)))
    assert await store.keys("notes") == [key]


async def test_versions_never_come_back_and_guard_against_other_writers(store: FileStore) -> None:
    versions = [await store.put("notes", "Ann", ANN) for _ in range(20)]
    assert versions == sorted(set(versions))
    assert await store.put("notes", "Ann", ANN, expected=versions[-1]) > versions[-1]
    with pytest.raises(Conflict):
        await store.put("notes", "Ann", ANN, expected=versions[-1])
    with pytest.raises(Conflict):
        await store.put("notes", "Ann", ANN, expected=0)


async def test_nothing_expires_in_a_bare_space(store: FileStore) -> None:
    with pytest.raises(StoreError, match="the space notes has bare values, which cannot expire"):
        await store.put("notes", "Ann", ANN, ttl=60)
    with pytest.raises(StoreError):
        await store.update("notes", "Ann", lambda old: ANN, ttl=60)
    assert await store.get("notes", "Ann") is None


async def test_a_file_written_by_hand_is_read_and_has_another_stamp(store: FileStore, tmp_path: Path) -> None:
    await store.put("notes", "ann", b'{"owner":"ann"}')
    before = store.stamp_of("notes", "ann")
    path = tmp_path / "notes" / "ann.json"
    path.write_bytes(b'{"owner":"ann","more":1}')
    os.utime(path, ns=(before + 5000, before + 5000))
    found = await store.get("notes", "ann")
    assert found is not None
    assert found.value == b'{"owner":"ann","more":1}'
    assert store.stamp_of("notes", "ann") != before


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"owner":"bob"}', b'{"owner":1}', b'{"owner":"\xff"}']
)
async def test_a_file_of_another_shape_is_set_aside(store: FileStore, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "notes" / "ann.json"
    path.parent.mkdir()
    path.write_bytes(content)
    assert await store.get("notes", "ann") is None
    assert path.with_name("ann.json.corrupt-1").read_bytes() == content


@pytest.mark.parametrize("url", ["file:", "file:{}"])
async def test_the_store_a_configuration_names_has_bare_spaces(tmp_path: Path, url: str) -> None:
    opened = open_store(url.format(tmp_path), session_dir=tmp_path, bare=BARE)
    await opened.put("notes", "ann", b'{"owner":"ann"}')
    assert (tmp_path / "notes" / "ann.json").read_bytes() == b'{"owner":"ann"}'
    await opened.close()
