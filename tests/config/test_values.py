"""A secret is never shown."""

from __future__ import annotations

import msgspec
import pytest

from routecodex.config import Secret


def test_no_way_of_printing_shows_the_value() -> None:
    secret = Secret("sk-1")
    shown = [repr(secret), str(secret), f"{secret}", f"{secret!r}", repr([secret])]
    assert shown == ["Secret('…')"] * 4 + ["[Secret('…')]"]


def test_it_cannot_be_serialised_by_accident() -> None:
    with pytest.raises(TypeError):
        msgspec.json.encode({"key": Secret("sk-1")})


def test_it_compares_by_value_and_reveals_on_demand() -> None:
    assert Secret("a") == Secret("a") != Secret("b")
    assert Secret("a") != "a"
    assert len({Secret("a"), Secret("a")}) == 1
    assert Secret("é").matches("é")
    assert not Secret("a").matches("b")
    assert Secret("a").reveal() == "a"
    assert not Secret("")
