from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routecodex.stores import file_format

KEYS = st.text() | st.text(alphabet="aAbB./\\%_-~\x00 é", max_size=60) | st.text(min_size=100, max_size=400)
SAFE = re.compile(r"(?:%|~[0-9a-f]{64}|(?:[a-z0-9_]|%[0-9a-f]{2})(?:[a-z0-9_-]|%[0-9a-f]{2})*)\.json")


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("", "%.json"),
        ("0199c0de-7a11", "0199c0de-7a11.json"),
        ("resp_123", "resp_123.json"),
        ("Case", "%43ase.json"),
        ("../x", "%2e%2e%2fx.json"),
        ("-rf", "%2drf.json"),
        ("%43ase", "%2543ase.json"),
        ("é", "%c3%a9.json"),
        ("ntp-state", "%6etp-state.json"),
        ("x" * 120, "x" * 120 + ".json"),
    ],
)
def test_a_key_becomes_a_name_and_back(key: str, name: str) -> None:
    assert file_format.encode_name(key) == name
    assert file_format.decode_name(name) == key


def test_a_long_key_becomes_a_hash() -> None:
    name = file_format.encode_name("x" * 121)
    assert re.fullmatch(r"~[0-9a-f]{64}\.json", name)
    assert file_format.is_store_file(name)
    assert file_format.decode_name(name) is None


@pytest.mark.parametrize(
    "name",
    [
        "ntp-state.json",
        ".json",
        ".lock",
        "one",
        "one.json.corrupt-1",
        "Case.json",
        "%4.json",
        "%4A.json",
        "%61.json",
        "%ff.json",
        "%%.json",
        "a.b.json",
        "-x.json",
        "~12.json",
        "x" * 121 + ".json",
        "one.json\n",
    ],
)
def test_names_of_other_making_are_not_ours(name: str) -> None:
    assert file_format.is_store_file(name) is False


@given(KEYS)
def test_every_name_is_safe_on_every_file_system(key: str) -> None:
    name = file_format.encode_name(key)
    assert SAFE.fullmatch(name)
    assert len(name) <= file_format.MAX_STEM + len(file_format.SUFFIX)
    assert name == name.lower()
    assert file_format.is_store_file(name)


@given(KEYS)
def test_a_name_that_is_not_a_hash_decodes_to_its_key(key: str) -> None:
    name = file_format.encode_name(key)
    assert file_format.decode_name(name) == (None if name.startswith("~") else key)


@given(KEYS, KEYS)
def test_two_keys_never_share_a_name(one: str, other: str) -> None:
    assert (file_format.encode_name(one) == file_format.encode_name(other)) == (one == other)


@given(st.text(max_size=30).map(lambda stem: stem + ".json"))
def test_any_file_name_is_read_without_an_error(name: str) -> None:
    key = file_format.decode_name(name)
    assert key is None or file_format.encode_name(key) == name


@given(st.integers(0, 4 * 10**15), st.none() | st.floats(-10, 3e8), st.floats(0, 4e9))
def test_a_file_is_only_passed_over_when_it_lives_or_soon_will_be_seen(
    moment: int, ttl: float | None, now: float
) -> None:
    mtime = file_format.stamp(moment, ttl)
    assert mtime // 1000 == moment
    seen = file_format.may_have_expired(mtime, now)
    if ttl is None:
        assert not seen
    elif now > moment / 1e6 + max(ttl, 1) * 1.03:
        assert seen
    elif moment / 1e6 <= now < moment / 1e6 + ttl * 0.999:
        assert not seen


def test_later_moments_have_later_stamps_whatever_their_ttl() -> None:
    assert file_format.stamp(5, 1e300) < file_format.stamp(6, None)
