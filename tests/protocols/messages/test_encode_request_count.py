from __future__ import annotations

from routecodex.canon.parts import Text
from routecodex.canon.request import Message, Tool
from routecodex.protocols.messages.encode_request import encode_count, rewrite_count
from routecodex.protocols.messages.validate import validate, validate_count
from routecodex.wire import json
from tests.protocols.messages.samples import OPTIONS, body, chat_request

SETTINGS = {
    "temperature": 0.5,
    "top_k": 1,
    "stop_sequences": ["x"],
    "metadata": {"user_id": "u"},
    "stream": True,
}


def test_a_count_asks_about_the_prompt_only() -> None:
    settings = {"max_tokens": 5, "stream": True, "stop": ("x",), "temperature": 0.5, "user": "u"}
    hi = Message("user", (Text("hi"),))
    request = chat_request(hi, system=(Text("s"),), tools=(Tool("f"),), **settings)
    assert json.decode(encode_count(request, OPTIONS)).keys() == {"model", "system", "messages", "tools"}


def test_a_count_of_this_protocol_passes_with_its_model_changed() -> None:
    data = b'{"model": "asked", "messages": [{"role": "user", "content": "hi"}]}'
    assert rewrite_count(validate_count(data), OPTIONS) == data.replace(b"asked", b"m-1")


def test_a_request_for_an_answer_can_be_counted_too() -> None:
    assert json.decode(rewrite_count(validate(body(**SETTINGS, system="s")), OPTIONS)) == {
        "model": "m-1",
        "messages": [{"role": "user", "content": "hi"}],
        "system": "s",
    }
