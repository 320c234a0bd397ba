"""Descriptions in place of images: which images, how many requests, and failures."""

from __future__ import annotations

import asyncio

import pytest

from routecodex.canon.errors import UpstreamFailed
from routecodex.canon.parts import Media, Text, ToolCall, ToolResult
from routecodex.canon.request import Message, Request
from routecodex.server_tools.vision import (
    SPACE,
    DescriptionCache,
    ImageDescriptions,
    description_request,
    image_key,
    images_of,
    may_hold_images,
)
from routecodex.stores.memory import MemoryStore
from routecodex.stores.store import Stored, StoreError

CAT = Media("image", "image/png", data="Y2F0")
DOG = Media("image", "image/png", data="ZG9n", cache={"type": "ephemeral"})
FAR = Media("image", url="https://a.example/x.png")
FILM = Media("video", "video/mp4", data="Y2F0")


def request_of(*messages: Message) -> Request:
    return Request(model="m", source="chat", messages=messages)


def user(*parts: Text | Media) -> Message:
    return Message("user", parts)


class Describer:
    """Describes images and records them."""

    def __init__(self, *, fails: bool = False, says: str = "") -> None:
        self.seen: list[str] = []
        self.at_once = 0
        self.most = 0
        self._fails = fails
        self._says = says

    async def __call__(self, image: Media) -> str:
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        await asyncio.sleep(0)
        self.at_once -= 1
        self.seen.append(image.data or image.url or "")
        if self._fails:
            raise UpstreamFailed("no eyes")
        return self._says or f"it is {image.data or image.url}"


def image_descriptions(
    describer: Describer, *, store: MemoryStore | None = None, notes: list[str] | None = None, most: int = 20
) -> ImageDescriptions:
    kept: list[str] = [] if notes is None else notes
    cache = DescriptionCache(store or MemoryStore(), ttl=3600)
    return ImageDescriptions(cache, describer, note=kept.append, max_images=most)


def description_text(what: str) -> str:
    return f"[An image stands here. What it shows, in the words of a model that saw it:\n{what}\n]"


def is_missing(message: Message) -> bool:
    (part,) = message.parts
    return isinstance(part, Text) and "cannot be shown" in part.text


async def test_every_image_is_replaced_by_words_and_nothing_else_changes() -> None:
    request = request_of(
        user(Text("look"), CAT, FILM),
        Message("assistant", (ToolCall("c", "shot"),)),
        Message("tool", (ToolResult("c", (Text("here"), DOG)),)),
    )
    notes: list[str] = []
    replaced = await image_descriptions(Describer(), notes=notes).replace_images(request, target="p.k.m")
    assert replaced == request_of(
        user(Text("look"), Text(description_text("it is Y2F0")), FILM),
        Message("assistant", (ToolCall("c", "shot"),)),
        Message(
            "tool", (ToolResult("c", (Text("here"), Text(description_text("it is ZG9n"), cache=DOG.cache))),)
        ),
    )
    assert notes == ["2 images replaced by descriptions: p.k.m does not support images"]


async def test_a_request_without_images_is_the_same_object() -> None:
    request = request_of(user(Text("hello"), FILM))
    assert await image_descriptions(Describer()).replace_images(request, target="t") is request


async def test_an_image_is_asked_for_once_by_content() -> None:
    describer, store = Describer(), MemoryStore()
    for _ in range(2):
        descriptions = image_descriptions(describer, store=store)
        await descriptions.replace_images(request_of(user(CAT), user(CAT, DOG)), target="t")
        await descriptions.replace_images(request_of(user(CAT)), target="t")
    assert sorted(describer.seen) == ["Y2F0", "ZG9n"]


async def test_what_fails_is_asked_for_once_in_a_request_and_again_in_the_next() -> None:
    describer, store, notes = Describer(fails=True), MemoryStore(), list[str]()
    for _ in range(2):
        descriptions = image_descriptions(describer, store=store, notes=notes)
        for _ in range(2):
            replaced = await descriptions.replace_images(request_of(user(CAT)), target="t")
    (part,) = replaced.messages[0].parts
    assert part == Text(
        "[An image stands here that cannot be shown: this model does not see images, and no description of "
        "it could be made.]"
    )
    assert describer.seen == ["Y2F0", "Y2F0"]
    assert "an image was not described: no eyes" in notes


async def test_a_description_without_a_word_is_none() -> None:
    replaced = await image_descriptions(Describer(says=" \n")).replace_images(
        request_of(user(CAT)), target="t"
    )
    assert [is_missing(message) for message in replaced.messages] == [True]


async def test_past_the_most_images_the_oldest_go_without() -> None:
    describer = Describer()
    images = [Media("image", data=f"aW1n{at}") for at in range(5)]
    replaced = await image_descriptions(describer, most=2).replace_images(
        request_of(*map(user, images)), target="t"
    )
    assert describer.seen == ["aW1n4", "aW1n3"]
    assert [is_missing(message) for message in replaced.messages] == [True, True, True, False, False]


async def test_only_a_few_are_asked_for_at_once() -> None:
    describer = Describer()
    images = [Media("image", data=f"aW1n{at}") for at in range(12)]
    await image_descriptions(describer).replace_images(request_of(user(*images)), target="t")
    assert (len(describer.seen), describer.most) == (12, 4)


async def test_what_stands_behind_a_url_is_kept_for_a_day_at_most() -> None:
    now = [1000.0]
    store = MemoryStore(clock=lambda: now[0])
    cache = DescriptionCache(store, ttl=30 * 24 * 3600)
    descriptions = ImageDescriptions(cache, Describer(), note=lambda line: None, max_images=9)
    await descriptions.replace_images(request_of(user(CAT, FAR)), target="t")
    now[0] += 25 * 3600
    assert await store.keys(SPACE) == [image_key(CAT)]


class Broken(MemoryStore):
    """A store that is down."""

    async def get(self, space: str, key: str) -> Stored | None:
        raise StoreError("down")

    async def update(self, *_: object, **__: object) -> bytes | None:
        raise StoreError("down")

    def stamp_of(self, space: str, key: str) -> int:
        return 1


async def test_a_store_that_is_down_costs_only_time() -> None:
    replaced = await image_descriptions(Describer(), store=Broken()).replace_images(
        request_of(user(CAT)), target="t"
    )
    assert replaced.messages[0].parts == (Text(description_text("it is Y2F0")),)


async def test_a_corrupt_description_is_replaced() -> None:
    store = MemoryStore()
    await store.put(SPACE, image_key(CAT), b"[1]")
    request = request_of(user(CAT))
    replaced = await image_descriptions(Describer(), store=store).replace_images(request, target="t")
    assert replaced.messages[0].parts == (Text(description_text("it is Y2F0")),)


async def test_the_space_stays_bounded() -> None:
    store = MemoryStore()
    descriptions = ImageDescriptions(
        DescriptionCache(store, ttl=60, entries=10), Describer(), note=lambda line: None, max_images=50
    )
    images = [Media("image", data=f"aW1n{at}") for at in range(50)]
    await descriptions.replace_images(request_of(user(*images)), target="t")
    assert len(await store.keys(SPACE)) == 10


MARKED = [
    ("chat", b'{"type":"image_url"}', True),
    ("responses", b'{"type":"input_image"}', True),
    ("messages", b'{"type":"image"}', True),
    ("gemini", b'{"mimeType":"image/png"}', True),
    ("chat", b'{"content":"an image"}', False),
    ("gemini", b'{"text":"an image"}', False),
]


@pytest.mark.parametrize(("protocol", "body", "expected"), MARKED)
def test_a_glance_tells_where_to_look(protocol: str, body: bytes, expected: bool) -> None:
    assert may_hold_images(protocol, body) is expected  # type: ignore[arg-type]  # a table's part


def test_the_question_holds_the_image_alone_and_a_limit() -> None:
    put = description_request(DOG, "messages", max_tokens=7)
    assert list(images_of(put)) == [Media("image", "image/png", data="ZG9n")]
    assert (put.source, put.max_tokens, put.tools) == ("messages", 7, ())
