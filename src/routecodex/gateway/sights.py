"""vision_auto in this gateway: who describes images, and for which requests."""

from __future__ import annotations

from routecodex.canon.parts import Media, Text
from routecodex.canon.request import ProtocolName, Request
from routecodex.config.server_tools import VisionAuto
from routecodex.gateway.ask import Ask
from routecodex.gateway.course import Course
from routecodex.gateway.lane import Lane
from routecodex.gateway.own_calls import Errand, OwnCalls, Reached
from routecodex.routing.instructions import strip
from routecodex.server_tools.vision import Album, Sight, may_hold_images, question
from routecodex.stores.store import Store

ROUTE = "vision"
_DROPPED = "dropped image"


class Sights:
    """Makes the Sight of each request that may need one."""

    def __init__(self, options: VisionAuto, calls: OwnCalls, *, store: Store) -> None:
        self._options = options
        self._calls = calls
        self._album = Album(store, ttl=options.cache_hours * 3600.0)

    def of(self, ask: Ask, course: Course) -> Sight | None:
        """Words for the images of this request; None when it holds none."""
        if not self._options.enabled or not may_hold_images(ask.codec.name, ask.inbound.body):
            return None

        async def describe(image: Media) -> str:
            return await self._described(image, ask, course)

        def note(line: str) -> None:
            if line not in ask.notices:
                ask.notices.append(line)

        return Sight(self._album, describe, note=note, max_images=self._options.max_images)

    async def _described(self, image: Media, ask: Ask, course: Course) -> str:
        source = ask.codec.name

        def wording(_lane: Reached) -> Request:
            return question(image, source, max_tokens=self._options.max_tokens)

        errand = Errand(
            id=f"{ask.id}:vision",
            route=ROUTE,
            wording=wording,
            able=lambda lane: _sees(lane, image, source),
            seconds=self._options.timeout_ms / 1000,
            whole=_DROPPED,
        )
        response = await self._calls.ask(errand, course)
        # What looks like an instruction to the gateway is shown to no provider, in an image neither.
        return strip("".join(part.text for part in response.parts if isinstance(part, Text)))


def _sees(lane: Reached, image: Media, source: ProtocolName) -> bool:
    """Whether this target can be shown the image: it sees, and takes it in the form the client sent."""
    if not isinstance(lane, Lane):
        return True
    if not lane.aim.vision:
        return False
    if image.data is not None:
        return True
    return lane.aim.dialect.image_urls if image.url is not None else lane.codec.name == source
