"""Keys of values that belong to a client: every pair has its own."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routecodex.stores.owned_keys import owned_key, plain_key, split_key

# Letters of prefixes and separators, so that one pair comes close to another.
hostile = st.text(alphabet="client~:%7Eason \u00e9", max_size=16) | st.text(max_size=4)


@given(one=hostile, other=hostile, key=hostile, other_key=hostile)
def test_every_owner_and_key_have_a_key_of_their_own(one: str, other: str, key: str, other_key: str) -> None:
    keys = [owned_key(one, key), owned_key(other, other_key)]
    assert (keys[0] == keys[1]) == ((one, key) == (other, other_key))
    assert split_key(keys[0]) == (one, key)


@pytest.mark.parametrize(
    ("owner", "key", "result"),
    [
        ("", "session:s-1", "session:s-1"),
        ("laptop", "session:s-1", "client~laptop:session:s-1"),
        ("a b:c", "s-1", "client~a%20b%3Ac:s-1"),
        ("", "client~laptop:s-1", "client~:client~laptop:s-1"),
    ],
)
def test_the_name_of_the_client_stands_before_the_key(owner: str, key: str, result: str) -> None:
    assert owned_key(owner, key) == result
    assert plain_key(result) == key
