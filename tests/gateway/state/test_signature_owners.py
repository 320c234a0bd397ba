"""Who made which signature: within a process, after a restart, and between processes."""

from __future__ import annotations

from pathlib import Path
from routecodex.gateway.state.signature_owners import PAGE
from routecodex.gateway.state.signature_owners import SPACE
from routecodex.gateway.state.signature_owners import SignatureOwners
from routecodex.gateway.state.signature_owners import is_owned_by
from routecodex.gateway.state.signature_owners import may_return_to
from routecodex.stores.file import FileStore
from routecodex.stores.memory import MemoryStore
from routecodex.stores.store import StoreError
from tests.kit import answers
from tests.kit import asking
from tests.kit.answers.model_answer import ReasoningPiece
from tests.kit.gateway import one_target
from tests.kit.gateway import provider
from tests.kit.gateway import serving
from tests.kit.raw_client import call
from tests.kit.upstream import Upstream
import logging
import pytest


def test_a_signature_goes_back_to_its_maker_alone() -> None:
    makers = SignatureOwners()
    makers.record("maker", "signed")
    assert (may_return_to(makers, "maker")("signed"), may_return_to(makers, "other")("signed")) == (
        True,
        False,
    )
    assert (is_owned_by(makers, "maker")("signed"), is_owned_by(makers, "other")("signed")) == (True, False)


def test_a_signature_nobody_is_known_to_have_made_may_go_anywhere() -> None:
    makers = SignatureOwners()
    assert (may_return_to(makers, "any")("unknown"), is_owned_by(makers, "any")("unknown")) == (True, False)
    assert makers.has_unknown


def test_the_last_maker_of_a_signature_counts() -> None:
    makers = SignatureOwners()
    makers.record("first", "same")
    makers.record("second", "same")
    assert makers.owner_of("same") == "second"


def test_the_oldest_are_forgotten_first() -> None:
    makers = SignatureOwners(most=2)
    for number in range(3):
        makers.record("maker", f"s{number}")
    assert [makers.owner_of(f"s{number}") for number in range(3)] == [None, "maker", "maker"]


async def test_what_was_made_is_known_after_a_restart() -> None:
    store = MemoryStore()
    first = SignatureOwners(store)
    first.record("maker", "one")
    first.record("other", "two")
    await first.flush()
    second = SignatureOwners(store)
    await second.load()
    assert (second.owner_of("one"), second.owner_of("two")) == ("maker", "other")


async def test_a_full_page_is_followed_by_another() -> None:
    store = MemoryStore()
    first = SignatureOwners(store)
    for number in range(PAGE):
        first.record("maker", f"s{number}")
    await first.flush()
    first.record("maker", "one more")
    await first.flush()
    second = SignatureOwners(store)
    await second.load()
    assert len(await store.keys(SPACE)) == 2
    assert {second.owner_of(f"s{number}") for number in range(PAGE)} | {second.owner_of("one more")} == {
        "maker"
    }


async def test_another_process_learns_of_it_when_it_asks_in_vain() -> None:
    store = MemoryStore()
    here, there = SignatureOwners(store), SignatureOwners(store)
    await here.load()
    there.record("maker", "theirs")
    await there.flush()
    assert (here.owner_of("theirs"), await here.learn(), here.owner_of("theirs")) == (None, True, "maker")


async def test_nothing_is_read_again_while_nothing_is_written() -> None:
    makers = SignatureOwners(MemoryStore())
    await makers.load()
    makers.owner_of("unknown")
    assert (await makers.learn(), makers.has_unknown) == (False, False)


async def test_a_page_that_is_not_ours_is_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryStore()
    for name, page in (("odd", b"[1]"), ("no hex", b'{"maker": ["xy"]}')):
        await store.put(SPACE, name, page)
    makers = SignatureOwners(store)
    makers.record("maker", "one")
    await makers.flush()
    makers = SignatureOwners(store)
    await makers.load()
    assert makers.owner_of("one") == "maker"
    assert [record.levelno for record in caplog.records] == [logging.WARNING, logging.WARNING]


class Broken(MemoryStore):
    """A store that is down for a while."""

    is_down = True

    async def put(self, *arguments: object, **options: object) -> int:
        if self.is_down:
            raise StoreError("it is down")
        return await super().put(*arguments, **options)  # type: ignore[arg-type]  # passed on as they came


async def test_what_a_store_that_is_down_did_not_take_is_saved_with_the_next(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = Broken()
    makers = SignatureOwners(store)
    for name in ("one", "two"):
        makers.record("maker", name)
        await makers.flush()
    assert ["for now" in record.message for record in caplog.records] == [True]
    store.is_down = False
    makers.record("maker", "three")
    await makers.flush()
    later = SignatureOwners(store)
    await later.load()
    assert {later.owner_of(name) for name in ("one", "two", "three")} == {"maker"}


async def test_a_file_store_keeps_digests_and_no_signatures(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    makers = SignatureOwners(store)
    makers.record("maker", "top-secret-signature")
    await makers.flush()
    await store.close()
    (file,) = (tmp_path / SPACE).glob("*.json")
    assert b"maker" in file.read_bytes()
    assert b"top-secret" not in file.read_bytes()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_signature_is_kept_from_another_provider_after_a_restart(
    tmp_path: Path, stream: bool
) -> None:
    async with Upstream() as maker, Upstream() as other:
        config = (
            f'[server]\nport = 0\n[store]\nurl = "file:{tmp_path}"\n'
            + provider("maker", "messages", maker)
            + provider("other", "messages", other)
            + '[routing]\ndefault = ["maker.m"]\n'
        )
        maker.queue(answers.thinking("messages", "Hm.", "Yes.", stream))
        async with serving(config) as gateway:
            answer = await call(
                gateway.port,
                asking.path("messages", stream=stream),
                asking.body("messages", stream=stream, model="maker.m"),
            )
        signature = ReasoningPiece("").signature
        assert signature.encode() in answer.body
        other.queue(answers.text("messages", "Well.", False))
        thought = {"type": "thinking", "thinking": "Hm.", "signature": signature}
        said = [
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": [thought, {"type": "text", "text": "Yes."}]},
            {"role": "user", "content": "And now?"},
        ]
        async with serving(config) as gateway:
            answer = await call(
                gateway.port,
                "/v1/messages",
                {"model": "other.m", "max_tokens": 9, "messages": said},
            )
    assert answer.status == 200
    assert b"dropped reasoning" in answer.headers["x-routecodex-notice"].encode()
    assert signature.encode() not in other.requests[0].body


async def test_what_is_learned_on_the_way_leaves_images_as_they_are(tmp_path: Path) -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}
    thought = {"type": "thinking", "thinking": "Hm.", "signature": "theirs"}
    said = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": [thought, {"type": "text", "text": "Yes."}]},
        {"role": "user", "content": [image, {"type": "text", "text": "And this?"}]},
    ]
    async with Upstream() as up:
        up.queue(answers.text("messages", "A cat.", False))
        store = f'[store]\nurl = "file:{tmp_path}"\n'
        async with serving(store + one_target("messages", up)) as gateway:
            other = FileStore(tmp_path)
            makers = SignatureOwners(other)
            makers.record("elsewhere", "theirs")
            await makers.flush()
            await other.close()
            answer = await call(
                gateway.port, "/v1/messages", {"model": "up.m", "max_tokens": 9, "messages": said}
            )
    assert answer.status == 200
    assert len(up.requests) == 1
    assert b"theirs" not in up.requests[0].body
    assert b"iVBORw0KGgo=" in up.requests[0].body
