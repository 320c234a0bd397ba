"""Owners of signatures: within a process, after a restart, and between processes."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any, cast

import pytest

from routecodex.gateway.state.signature_owners import PAGE, SPACE, SignatureOwners, is_owned_by, may_return_to
from routecodex.stores.file import FileStore
from routecodex.stores.memory import MemoryStore
from routecodex.stores.store import StoreError
from tests.kit import answers, asking
from tests.kit.answers.model_answer import ReasoningPiece
from tests.kit.gateway import one_target, provider, serving
from tests.kit.raw_client import call
from tests.kit.upstream import Upstream


def test_a_signature_goes_back_to_its_owner_alone() -> None:
    owners = SignatureOwners()
    owners.record("owner", "signed")
    assert (may_return_to(owners, "owner")("signed"), may_return_to(owners, "other")("signed")) == (
        True,
        False,
    )
    assert (is_owned_by(owners, "owner")("signed"), is_owned_by(owners, "other")("signed")) == (True, False)


def test_a_signature_without_a_known_owner_may_go_anywhere() -> None:
    owners = SignatureOwners()
    assert (may_return_to(owners, "any")("unknown"), is_owned_by(owners, "any")("unknown")) == (True, False)
    assert owners.has_unknown


def test_the_last_owner_of_a_signature_counts() -> None:
    owners = SignatureOwners()
    owners.record("first", "same")
    owners.record("second", "same")
    assert owners.owner_of("same") == "second"


def test_the_oldest_signatures_are_evicted_first() -> None:
    owners = SignatureOwners(most=2)
    for number in range(3):
        owners.record("owner", f"s{number}")
    assert [owners.owner_of(f"s{number}") for number in range(3)] == [None, "owner", "owner"]


async def test_owners_are_known_after_a_restart() -> None:
    store = MemoryStore()
    first = SignatureOwners(store)
    first.record("owner", "one")
    first.record("other", "two")
    await first.flush()
    second = SignatureOwners(store)
    await second.load()
    assert (second.owner_of("one"), second.owner_of("two")) == ("owner", "other")


async def test_a_full_page_is_followed_by_another() -> None:
    store = MemoryStore()
    first = SignatureOwners(store)
    for number in range(PAGE):
        first.record("owner", f"s{number}")
    await first.flush()
    first.record("owner", "one more")
    await first.flush()
    second = SignatureOwners(store)
    await second.load()
    assert len(await store.keys(SPACE)) == 2
    assert {second.owner_of(f"s{number}") for number in range(PAGE)} | {second.owner_of("one more")} == {
        "owner"
    }


async def test_another_process_loads_owners_it_does_not_know() -> None:
    store = MemoryStore()
    here, there = SignatureOwners(store), SignatureOwners(store)
    await here.load()
    there.record("owner", "theirs")
    await there.flush()
    assert (here.owner_of("theirs"), await here.learn(), here.owner_of("theirs")) == (None, True, "owner")


async def test_nothing_is_read_again_without_a_new_write() -> None:
    owners = SignatureOwners(MemoryStore())
    await owners.load()
    owners.owner_of("unknown")
    assert (await owners.learn(), owners.has_unknown) == (False, False)


async def test_an_invalid_page_is_ignored(caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryStore()
    for name, page in (("odd", b"[1]"), ("no hex", b'{"owner": ["xy"]}')):
        await store.put(SPACE, name, page)
    owners = SignatureOwners(store)
    owners.record("owner", "one")
    await owners.flush()
    owners = SignatureOwners(store)
    await owners.load()
    assert owners.owner_of("one") == "owner"
    assert [record.levelno for record in caplog.records] == [logging.WARNING, logging.WARNING]


class Broken(MemoryStore):
    """A store that is down for a while."""

    is_down = True

    async def put(self, *arguments: object, **options: object) -> int:
        if self.is_down:
            raise StoreError("it is down")
        return await super().put(*arguments, **options)  # type: ignore[arg-type]  # passed on as they came


async def test_owners_of_a_failed_write_are_saved_with_the_next() -> None:
    store = Broken()
    owners = SignatureOwners(store)
    for name in ("one", "two"):
        owners.record("owner", name)
        await owners.flush()
    store.is_down = False
    owners.record("owner", "three")
    await owners.flush()
    later = SignatureOwners(store)
    await later.load()
    assert {later.owner_of(name) for name in ("one", "two", "three")} == {"owner"}


async def test_a_file_store_keeps_digests_and_no_signatures(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    owners = SignatureOwners(store)
    owners.record("owner", "top-secret-signature")
    await owners.flush()
    await store.close()
    (file,) = (tmp_path / SPACE).glob("*.json")
    assert b"owner" in file.read_bytes()
    assert b"top-secret" not in file.read_bytes()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_signature_is_kept_from_another_provider_after_a_restart(
    tmp_path: Path, stream: bool
) -> None:
    async with Upstream() as owner_upstream, Upstream() as other:
        config = (
            f'[server]\nport = 0\n[store]\nurl = "file:{tmp_path}"\n'
            + provider("owner", "messages", owner_upstream)
            + provider("other", "messages", other)
            + '[routing]\ndefault = ["owner.m"]\n'
        )
        owner_upstream.queue(answers.thinking("messages", "Hm.", "Yes.", stream))
        async with serving(config) as gateway:
            answer = await call(
                gateway.port,
                asking.path("messages", stream=stream),
                asking.body("messages", stream=stream, model="owner.m"),
            )
        signature = ReasoningPiece("").signature
        assert signature.encode() in answer.body
        other.queue(answers.text("messages", "Well.", False))
        block = {"type": "thinking", "thinking": "Hm.", "signature": signature}
        messages = [
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": [block, {"type": "text", "text": "Yes."}]},
            {"role": "user", "content": "And now?"},
        ]
        async with serving(config) as gateway:
            answer = await call(
                gateway.port,
                "/v1/messages",
                {"model": "other.m", "max_tokens": 9, "messages": messages},
            )
    assert answer.status == 200
    assert b"dropped reasoning" in answer.headers["x-routecodex-notice"].encode()
    assert signature.encode() not in other.requests[0].body


async def test_loading_owners_during_a_request_leaves_images_unchanged(tmp_path: Path) -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}
    block = {"type": "thinking", "thinking": "Hm.", "signature": "theirs"}
    messages = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": [block, {"type": "text", "text": "Yes."}]},
        {"role": "user", "content": [image, {"type": "text", "text": "And this?"}]},
    ]
    async with Upstream() as up:
        up.queue(answers.text("messages", "A cat.", False))
        store = f'[store]\nurl = "file:{tmp_path}"\n'
        async with serving(store + one_target("messages", up)) as gateway:
            other = FileStore(tmp_path)
            owners = SignatureOwners(other)
            owners.record("elsewhere", "theirs")
            await owners.flush()
            await other.close()
            answer = await call(
                gateway.port, "/v1/messages", {"model": "up.m", "max_tokens": 9, "messages": messages}
            )
    assert answer.status == 200
    assert len(up.requests) == 1
    assert b"theirs" not in up.requests[0].body
    assert b"iVBORw0KGgo=" in up.requests[0].body


class Shared(MemoryStore):
    """A store that several machines share; its writes wait until they are let through."""

    processes = cast("Any", object())

    def __init__(self) -> None:
        super().__init__()
        self.allowed = asyncio.Semaphore(0)
        self.puts = 0

    async def put(self, *arguments: object, **options: object) -> int:
        self.puts += 1
        await self.allowed.acquire()
        return await super().put(*arguments, **options)  # type: ignore[arg-type]  # passed on as they came


async def test_answers_wait_for_the_write_that_has_their_signature_and_no_longer() -> None:
    store = Shared()
    owners = SignatureOwners(store)
    owners.record("owner", "one")
    first = asyncio.ensure_future(owners.save())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    owners.record("owner", "two")
    second = asyncio.ensure_future(owners.save())
    store.allowed.release()
    await first
    assert not second.done()
    owners.record("owner", "three")
    store.allowed.release()
    await second
    assert owners.unsaved
    store.allowed.release()
    await owners.save()
    assert (store.puts, owners.unsaved) == (3, False)


async def test_several_answers_share_a_write() -> None:
    store = Shared()
    owners = SignatureOwners(store)
    for number in range(10):
        owners.record("owner", f"s{number}")
    store.allowed.release()
    await asyncio.gather(*(owners.save() for _ in range(10)))
    assert (store.puts, owners.unsaved) == (1, False)
