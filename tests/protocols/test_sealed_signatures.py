from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from routecodex.protocols.sealed_signatures import SEAL, returns_to, seal, unseal


@settings(max_examples=60)
@given(st.text("abcXYZ019-_", min_size=1, max_size=12), st.text(max_size=40))
def test_what_was_sealed_is_unsealed(provider: str, signature: str) -> None:
    assert unseal(seal(provider, signature)) == (provider, signature)


def test_a_seal_names_its_maker() -> None:
    assert seal("glm", "a.b=") == "rcx1.glm.a.b="
    assert SEAL == "rcx1."


@pytest.mark.parametrize("value", ["", "EqQBCkYIBBgCKkA=", "rcx1.", "rcx1.only", "rcx2.a.b", " rcx1.a.b"])
def test_what_is_not_ours_stays_as_it_is(value: str) -> None:
    assert unseal(value) == (None, value)


@pytest.mark.parametrize(
    ("origin", "same_protocol", "goes"),
    [
        ("glm", True, True),
        ("glm", False, True),
        ("other", True, False),
        ("other", False, False),
        (None, True, True),
        (None, False, False),
    ],
)
def test_a_signature_goes_back_only_to_its_maker(origin: str | None, same_protocol: bool, goes: bool) -> None:
    assert returns_to("glm", origin=origin, same_protocol=same_protocol) is goes
