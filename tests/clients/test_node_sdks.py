"""The official Node SDKs, and the Vercel AI SDK, run a tool loop through every kind of upstream.

Each script runs once and tells one line per scenario; each line is a test of its own.
"""

from __future__ import annotations

import pytest

from tests.clients.gateway import Gateway, Gateways
from tests.clients.node_sdks import Told, run
from tests.kit.answers import PROTOCOLS

MODELS = {name: f"up_{name}.model-x" for name in PROTOCOLS}
MODES = ("whole", "stream", "helper")
HELLO = "You said: hello there, gateway"
ASK = "please look_up the sky over Paris"


def _scenarios(prefix: str, *modes: str) -> list[str]:
    return [f"{prefix}{kind}-{mode}" for kind in ("plain", "loop", "two") for mode in modes]


SCRIPTS: dict[str, list[str]] = {
    "openai.mjs": [*_scenarios("chat-", *MODES), *_scenarios("responses-", *MODES), "chat-loop-runner"],
    "anthropic.mjs": _scenarios("", *MODES),
    "google.mjs": [*_scenarios("", "whole", "stream"), "count-tokens", "list-models"],
    "vercel.mjs": [
        name
        for provider in ("chat", "responses", "anthropic", "google", "compatible")
        for name in _scenarios(f"{provider}-", "whole", "stream")
    ],
}
CALLS: dict[str, list[dict[str, str]]] = {
    "loop": [{"city": ASK}],
    "two": [{"city": "Paris"}, {"city": "Oslo"}],
}
QUOTES: dict[str, list[str]] = {
    "plain": [HELLO],
    "loop": ["The tool says: ", f"sunny in {ASK}"],
    "two": ["The tool says: ", "sunny in Paris", "sunny in Oslo"],
    "count": ["number"],
    "list": ["listed"],
}
"""What the last text quotes, in order; some SDKs wrap a result in an object of their own."""
_CASES = [
    pytest.param(script, upstream, scenario, id=f"{script.removesuffix('.mjs')}-{scenario}-to-{upstream}")
    for script, scenarios in SCRIPTS.items()
    for upstream in PROTOCOLS
    for scenario in scenarios
]


class Runs:
    """What each script told, run when first asked for."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._told: dict[str, Told] = {}

    def of(self, script: str) -> Told:
        if script not in self._told:
            self._told[script] = run(script, self._gateway, list(MODELS.values()))
        return self._told[script]


@pytest.fixture(scope="module")
def runs(running: Gateways) -> Runs:
    return Runs(running.get())


@pytest.mark.parametrize(("script", "upstream", "scenario"), _CASES)
def test_a_node_sdk_gets_what_it_asks_for(runs: Runs, script: str, upstream: str, scenario: str) -> None:
    told = runs.of(script)[MODELS[upstream], scenario]
    assert told.get("error") is None
    kind = next(kind for kind in QUOTES if kind in scenario.split("-"))
    assert told.get("calls") == CALLS.get(kind)
    places = [told["text"].find(quote) for quote in QUOTES[kind]]
    assert -1 not in places, told["text"]
    assert places == sorted(places)


@pytest.mark.parametrize("script", SCRIPTS)
def test_no_scenario_of_a_script_goes_unchecked(runs: Runs, script: str) -> None:
    expected = {(model, scenario) for model in MODELS.values() for scenario in SCRIPTS[script]}
    assert runs.of(script).keys() == expected


STATUSES = {"says-400": 400, "says-401": 502, "says-404": 404, "says-429": 429, "says-500": 502}
PLAIN: dict[str, tuple[str, ...]] = {
    script: tuple(name for name in scenarios if "plain" in name) for script, scenarios in SCRIPTS.items()
}


def models_with(fault: str) -> dict[str, str]:
    return {name: f"{fault.replace('-', '_')}_{name}.{fault}" for name in PROTOCOLS}


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_fault_of_the_upstream_is_thrown_with_its_status(gateway: Gateway, script: str) -> None:
    models = {model: status for fault, status in STATUSES.items() for model in models_with(fault).values()}
    told = run(script, gateway, list(models), PLAIN[script])
    assert {case: line.get("status") for case, line in told.items()} == {
        (model, scenario): status for model, status in models.items() for scenario in PLAIN[script]
    }


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_stream_that_breaks_in_the_middle_is_thrown_too(gateway: Gateway, script: str) -> None:
    streamed = tuple(name for name in PLAIN[script] if not name.endswith("whole"))
    models = [*models_with("breaks-off").values(), *models_with("reports-an-error").values()]
    told = run(script, gateway, models, streamed)
    assert len(told) == len(models) * len(streamed)
    assert {case: line for case, line in told.items() if line.get("error") is None} == {}
