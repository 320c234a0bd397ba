"""A short run of every fuzz target with a fixed seed, and every input that was a finding once."""

from __future__ import annotations

from random import Random

import pytest

from tests.fuzz import mutate, runs

INPUTS = {
    "requests": 300,
    "sse": 1500,
    "answers": 1500,
    "instructions": 1500,
    "http": 1500,
    "state-files": 15,
}
SEED = 20261118


@pytest.mark.parametrize("name", runs.available())
async def test_no_input_breaks_a_rule(name: str) -> None:
    inputs = INPUTS.get(name, 300)
    assert await runs.run(name, seed=SEED, inputs=inputs) == inputs


@pytest.mark.parametrize("name", runs.available())
async def test_findings_stay_fixed(name: str) -> None:
    assert await runs.replay(name) >= 0


def test_an_input_is_made_again_from_its_seed() -> None:
    value = {"messages": [{"role": "user", "content": "Hello"}]}
    assert mutate.json_body(value, Random("7")) == mutate.json_body(value, Random("7"))
    assert mutate.data(b"data: {}\n\n", Random("7")) == mutate.data(b"data: {}\n\n", Random("7"))
