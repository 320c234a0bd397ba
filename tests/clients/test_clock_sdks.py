"""Answers of a gateway with a clock, read by the official SDKs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from tests.clients.gateway import Gateway, Gateways, Upstreams
from tests.clients.python.sdks import Sdks
from tests.clients.python.speakers import SPEAKERS, Speaker
from tests.clients.python.talk import ENDS
from tests.kit import answers
from tests.kit.answers import PROTOCOLS, Call, Words
from tests.kit.upstream import Json, Request, Sse

speakers = pytest.mark.parametrize(
    "speaker", [pytest.param(speaker, id=name) for name, speaker in SPEAKERS.items()]
)
upstreams_ = pytest.mark.parametrize("upstream", [pytest.param(name, id=f"to-{name}") for name in PROTOCOLS])
ROUND = (21, 9)
