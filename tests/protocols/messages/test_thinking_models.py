from __future__ import annotations

import pytest

from routecodex.protocols.messages.thinking import ModelTraits, model_traits

FIRST = ("low", "medium", "high", "max")
ALL = ("low", "medium", "high", "xhigh", "max")
BUDGETED = ModelTraits()
ONE_OF_TWO = ModelTraits(temperature_with_top_p=False)
FIRST_ADAPTIVE = ModelTraits(efforts=FIRST, temperature_with_top_p=False)
ADAPTIVE = ModelTraits(budgets=False, efforts=ALL, sampling=False, visible_by_default=False)
UNASKED = ModelTraits(
    budgets=False, efforts=ALL, sampling=False, visible_by_default=False, thinks_by_default=True
)
ALWAYS = ModelTraits(
    budgets=False, efforts=ALL, sampling=False, visible_by_default=False, thinks_by_default=True, off=None
)


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("claude-2.1", ModelTraits(thinks=False)),
        ("claude-3-opus-20240229", ModelTraits(thinks=False)),
        ("claude-3-5-haiku-latest", ModelTraits(thinks=False)),
        ("claude-3-7-sonnet-latest", BUDGETED),
        ("anthropic/claude-3.7-sonnet", BUDGETED),
        ("claude-opus-4-20250514", BUDGETED),
        ("claude-sonnet-4@20250514", BUDGETED),
        ("claude-opus-4-1-20250805", ONE_OF_TWO),
        ("us.anthropic.claude-sonnet-4-5-v1:0", ONE_OF_TWO),
        ("claude-haiku-4-5-20251001", ONE_OF_TWO),
        ("claude-opus-4-6", FIRST_ADAPTIVE),
        ("anthropic.claude-opus-4-6-v1", FIRST_ADAPTIVE),
        ("anthropic/claude-sonnet-4.6", FIRST_ADAPTIVE),
        ("claude-opus-4-7", ADAPTIVE),
        ("anthropic/claude-opus-4.8", ADAPTIVE),
        ("Claude-Opus-4-8-20260101", ADAPTIVE),
        ("claude-sonnet-5", UNASKED),
        ("us.anthropic.claude-sonnet-5-v1:0", UNASKED),
        ("claude-opus-5", UNASKED),
        ("claude-haiku-5-5", UNASKED),
        ("claude-opus-5-5", ALWAYS),
        ("claude-opus-6", ALWAYS),
        ("claude-fable-5-1", ALWAYS),
        ("claude-mythos-5", ALWAYS),
        (
            "claude-sonnet-5-5",
            ModelTraits(
                budgets=False,
                efforts=ALL,
                sampling=False,
                visible_by_default=False,
                thinks_by_default=True,
                off="between_tools",
            ),
        ),
        (
            "claude-mythos-preview",
            ModelTraits(
                budgets=False,
                efforts=FIRST,
                sampling=False,
                visible_by_default=False,
                thinks_by_default=True,
                off=None,
            ),
        ),
        ("claude-opus-latest", ONE_OF_TWO),
        ("glm-5.2", BUDGETED),
        ("kimi-k2-thinking", BUDGETED),
        ("deepseek-v4-pro", BUDGETED),
        ("MiniMax-M3", BUDGETED),
    ],
)
def test_a_model_is_known_by_its_name(model: str, expected: ModelTraits) -> None:
    assert model_traits(model) == expected


def test_a_model_that_always_thinks_does_not_accept_a_forced_call() -> None:
    models = (
        "claude-sonnet-4-5",
        "claude-opus-4-8",
        "claude-sonnet-5",
        "claude-sonnet-5-5",
        "claude-fable-5",
    )
    assert [model_traits(model).can_be_forced for model in models] == [True, True, True, False, False]
