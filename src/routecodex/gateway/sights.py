"""vision_auto in this gateway: who describes images, and for which requests."""

from __future__ import annotations

from routecodex.canon.parts import Media, Text
from routecodex.canon.request import ProtocolName, Request
from routecodex.config.server_tools import VisionAutoConfig
from routecodex.gateway.ask import ClientRequest
from routecodex.gateway.course import RoutingContext
from routecodex.gateway.lane import PreparedTarget
from routecodex.gateway.own_calls import AnyTarget, InternalCall, InternalCalls
from routecodex.routing.instructions import strip
from routecodex.server_tools.vision import (
    DescriptionCache,
    ImageDescriptions,
    description_request,
    may_hold_images,
)
from routecodex.stores.store import Store

ROUTE = "vision"
_DROPPED = "dropped image"


class ImageDescriber:
    """Makes the Sight of each request that may need one."""

    def __init__(self, options: VisionAutoConfig, calls: InternalCalls, *, store: Store) -> None:
        self._options = options
        self._calls = calls
        self._album = DescriptionCache(store, ttl=options.cache_hours * 3600.0)

    def of(self, ask: ClientRequest, course: RoutingContext) -> ImageDescriptions | None:
        """Words for the images of this request; None when it holds none."""
        if not self._options.enabled or not may_hold_images(ask.codec.name, ask.inbound.body):
            return None

        async def describe(image: Media) -> str:
            return await self._described(image, ask, course)

        def note(line: str) -> None:
            if line not in ask.notices:
                ask.notices.append(line)

        return ImageDescriptions(self._album, describe, note=note, max_images=self._options.max_images)

    async def _described(self, image: Media, ask: ClientRequest, course: RoutingContext) -> str:
        source = ask.codec.name

        def wording(_lane: AnyTarget) -> Request:
            return description_request(image, source, max_tokens=self._options.max_tokens)

        errand = InternalCall(
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


def _sees(lane: AnyTarget, image: Media, source: ProtocolName) -> bool:
    """Whether this target can be shown the image: it sees, and takes it in the form the client sent."""
    if not isinstance(lane, PreparedTarget):
        return True
    if not lane.aim.vision:
        return False
    if image.data is not None:
        return True
    return lane.aim.dialect.image_urls if image.url is not None else lane.codec.name == source
