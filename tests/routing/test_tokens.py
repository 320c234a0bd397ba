from __future__ import annotations

import base64

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from routecodex.routing.tokens import MEDIA, estimate

LONG = 180_000
PROSE = "The gateway reads what a client sends, finds the provider that should answer, and passes it on. "
PROSE_TOKENS = 20
CODE = """def fold(events: Iterable[Event]) -> Response:
    parts: list[Part] = []
    for event in events:
        if isinstance(event, PartStarted):
            parts.append(event.part)
    return Response(parts=tuple(parts), usage=None)

"""
CODE_TOKENS = 55
CHINESE = "网关读取客户端发送的请求，找到应当回答的提供商，然后把它转交过去。"


def body(*texts: str) -> bytes:
    content = [{"type": "text", "text": text} for text in texts]
    return msgspec.json.encode({"model": "m", "messages": [{"role": "user", "content": content}]})


def image(size: int) -> str:
    return base64.b64encode(bytes(range(256)) * (size // 256)).decode()


def test_a_small_body_is_not_looked_at() -> None:
    assert estimate(b"\xff" * 3000, threshold=LONG) == 1001
    assert estimate(b"", threshold=1) == 1


@pytest.mark.parametrize(("text", "tokens"), [(PROSE, PROSE_TOKENS), (CODE, CODE_TOKENS)])
def test_english_and_code_are_counted_about_right(text: str, tokens: int) -> None:
    count = 240_000 // tokens
    guess = estimate(body(text * count), threshold=LONG)
    assert 0.75 < guess / (count * tokens) < 1.25
    assert guess >= LONG


def test_a_chinese_character_is_about_a_token_escaped_or_not() -> None:
    text = CHINESE * 6000
    plain = estimate(body(text), threshold=LONG)
    escaped = estimate(
        body("").replace(b'""', b'"' + text.encode("ascii", "backslashreplace") + b'"'), threshold=LONG
    )
    for guess in (plain, escaped):
        assert 0.8 < guess / len(text) < 1.2


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64," + image(1_500_000)}},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": image(1_500_000)}},
        {"inlineData": {"mimeType": "image/png", "data": image(1_500_000)}},
    ],
)
@pytest.mark.parametrize("spaced", [False, True])
def test_a_screenshot_is_no_long_context(part: dict[str, object], spaced: bool) -> None:
    data = msgspec.json.encode({"messages": [part, part, {"text": PROSE}]})
    data = data.replace(b'":"', b'": "') if spaced else data
    assert 2 * MEDIA < estimate(data, threshold=LONG) < 2 * MEDIA + 200


def test_long_text_beside_a_screenshot_is_still_long() -> None:
    picture = "data:image/png;base64," + image(600_000)
    data = msgspec.json.encode([{"url": picture}, {"text": PROSE * 12_000}, {"url": picture}])
    assert 180_000 < estimate(data, threshold=LONG) < 330_000


def test_many_small_pictures_in_a_long_body_are_no_text() -> None:
    parts = [{"url": "data:image/png;base64," + image(9_000)}, {"text": PROSE}]
    data = msgspec.json.encode(parts * 120)
    text = estimate(msgspec.json.encode(parts[1:] * 120), threshold=0)
    assert 0.9 < estimate(data, threshold=0) / (120 * MEDIA + text) < 1.2


def test_one_small_picture_in_a_very_long_text_changes_little() -> None:
    text = {"text": PROSE * 20_000}
    data = msgspec.json.encode([text, {"url": "data:image/png;base64," + image(2_000)}, text])
    assert 0.95 < estimate(data, threshold=0) / estimate(body(text["text"] * 2), threshold=0) < 1.05


def test_a_text_that_changes_on_the_way_is_counted_everywhere() -> None:
    texts = (PROSE * 10_000, CHINESE * 10_000, CODE * 4000)
    parts = sum(estimate(body(text), threshold=0) for text in texts)
    assert 0.95 < estimate(body(*texts), threshold=0) / parts < 1.05


def test_letters_indents_signs_escapes_and_bytes_beyond_ascii_each_count_for_themselves() -> None:
    text = b"a" * 4800 + b"    " * 48 + b"!" * 100 + b"\\u0001" * 10 + b"\\" * 5 + "é".encode() * 30
    assert estimate(text, threshold=0) == 1000 + 10 + 60 + 10 + 20 + 1


def test_numbers_in_a_field_named_data_are_no_attachment() -> None:
    numbers = msgspec.json.encode({"data": [1000] * 200_000})
    elsewhere = numbers.replace(b"data", b"dots")
    assert LONG < estimate(numbers, threshold=LONG) == estimate(elsewhere, threshold=LONG)


def test_text_in_a_field_named_data_is_text() -> None:
    assert estimate(msgspec.json.encode({"data": PROSE * 12_000}), threshold=LONG) > LONG


def test_the_guess_is_never_above_the_high_one() -> None:
    data = b'"data":""' * 100_000
    assert estimate(data, threshold=1) <= len(data) // 3 + 1


@given(st.lists(st.sampled_from([b'"data":"', b";base64,", b'"', b"\\", b"\\u", b"A" * 600, b" ", b"\xff"])))
def test_any_bytes_have_an_estimate(pieces: list[bytes]) -> None:
    data = b"".join(pieces)
    assert 0 < estimate(data, threshold=0) <= len(data) // 3 + 1 + MEDIA * len(pieces)
