from __future__ import annotations

import pytest

from routecodex.canon.model_names import LONGEST_MODEL_NAME, is_model_name

NAMES = [
    "glm-4.7",
    "anthropic/claude-sonnet-4.6",
    "accounts/fireworks/models/kimi-k2p6",
    "hf.co/user/Model-GGUF:Q4_K_M",
    "ft:gpt-4.1:org::id",
    "@cf/meta/llama-3",
    "qwen3[1m]",
    "5.2",
    "模型",
    "x" * LONGEST_MODEL_NAME,
]
OTHERS = [
    "",
    "x" * (LONGEST_MODEL_NAME + 1),
    "two words",
    "line\nbreak",
    "null\0",
    "\x1b[31mred",
    "right\u202eleft",
    "../files",
    "a/../b",
    "a/./b",
    "/root",
    "a//b",
    "a/",
    "*",
    "glm-*",
    "a?b=c",
    "a#b",
    "<**clear**>",
    '"quoted"',
    "back\\slash",
    "7",
    "\ud800",
]


@pytest.mark.parametrize("name", NAMES)
def test_names_of_real_models_are_accepted(name: str) -> None:
    assert is_model_name(name)


@pytest.mark.parametrize("name", OTHERS)
def test_names_that_would_mean_something_else_are_not(name: str) -> None:
    assert not is_model_name(name)
