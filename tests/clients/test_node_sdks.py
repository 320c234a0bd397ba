"""The official Node SDKs, and the Vercel AI SDK, run a tool loop through every kind of upstream.

Each script runs once and prints one line per scenario; each line is a separate test.
"""

from __future__ import annotations

import pytest

from tests.clients.gateway import Gateway, Gateways
from tests.clients.node_sdks import ScenarioResults, run
from tests.kit.answers import PROTOCOLS

MODELS = {name: f"up_{name}.model-x" for name in PROTOCOLS}
MODES = ("whole", "stream", "helper")
HELLO = "You said: hello there, gateway"
QUESTION = "please look_up the sky over Paris"


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
    "loop": [{"city": QUESTION}],
    "two": [{"city": "Paris"}, {"city": "Oslo"}],
}

QUOTES: dict[str, list[str]] = {
    "plain": [HELLO],
    "loop": ["The tool says: ", f"sunny in {QUESTION}"],
    "two": ["The tool says: ", "sunny in Paris", "sunny in Oslo"],
    "count": ["number"],
    "list": ["listed"],
}
"""Quotes in the last text, in order; some SDKs wrap a result in an object of their own."""
_CASES = [
    pytest.param(script, upstream, scenario, id=f"{script.removesuffix('.mjs')}-{scenario}-to-{upstream}")
    for script, scenarios in SCRIPTS.items()
    for upstream in PROTOCOLS
    for scenario in scenarios
]


class Runs:
    """Results of each script, run on first use."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._results: dict[str, ScenarioResults] = {}

    def of(self, script: str) -> ScenarioResults:
        if script not in self._results:
            self._results[script] = run(script, self._gateway, list(MODELS.values()))
        return self._results[script]


@pytest.fixture(scope="module")
def runs(running: Gateways) -> Runs:
    return Runs(running.get())


@pytest.mark.parametrize(("script", "upstream", "scenario"), _CASES)
def test_a_node_sdk_completes_the_scenario(runs: Runs, script: str, upstream: str, scenario: str) -> None:
    results = runs.of(script)[MODELS[upstream], scenario]
    assert results.get("error") is None
    kind = next(kind for kind in QUOTES if kind in scenario.split("-"))
    assert results.get("calls") == CALLS.get(kind)
    places = [results["text"].find(quote) for quote in QUOTES[kind]]
    assert -1 not in places, results["text"]
    assert places == sorted(places)


@pytest.mark.parametrize("script", SCRIPTS)
def test_no_scenario_of_a_script_goes_unchecked(runs: Runs, script: str) -> None:
    expected = {(model, scenario) for model in MODELS.values() for scenario in SCRIPTS[script]}
    assert runs.of(script).keys() == expected


STATUSES = {"says-400": 400, "says-401": 424, "says-404": 404, "says-429": 429, "says-500": 502}
PLAIN: dict[str, tuple[str, ...]] = {
    script: tuple(name for name in scenarios if "plain" in name) for script, scenarios in SCRIPTS.items()
}


def models_with(fault: str) -> dict[str, str]:
    return {name: f"{fault.replace('-', '_')}_{name}.{fault}" for name in PROTOCOLS}


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_fault_of_the_upstream_is_thrown_with_its_status(gateway: Gateway, script: str) -> None:
    models = {model: status for fault, status in STATUSES.items() for model in models_with(fault).values()}
    results = run(script, gateway, list(models), PLAIN[script])
    # Codex retries a 424 on /v1/responses: there it is a 400.
    assert {case: line.get("status") for case, line in results.items()} == {
        (model, scenario): 400 if status == 424 and scenario.startswith("responses-") else status
        for model, status in models.items()
        for scenario in PLAIN[script]
    }


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_stream_that_breaks_in_the_middle_throws(gateway: Gateway, script: str) -> None:
    streamed = tuple(name for name in PLAIN[script] if not name.endswith("whole"))
    models = [*models_with("breaks-off").values(), *models_with("reports-an-error").values()]
    results = run(script, gateway, models, streamed)
    assert len(results) == len(models) * len(streamed)
    assert {case: line for case, line in results.items() if line.get("error") is None} == {}
