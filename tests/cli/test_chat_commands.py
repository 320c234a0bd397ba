"""Commands inside `routecodex chat`: models of the server, near names, tokens and cost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from routecodex.cli.chat_models import is_refused, list_models, near_names
from routecodex.cli.chat_usage import ChatUsage, reported_cost
from routecodex.turns import Message
from tests.cli.model_server import ModelServer, model_server
from tests.cli.terminal import CTRL_D, Terminal, gateway, terminal

PROMPT = r"you> "
CONFIG = (
    '[server]\nport = 0\ndrain_seconds = 1\n[store]\nurl = "memory:"\n[logging]\nlevel = "error"\n'
    '[providers.demo]\nprotocol = "demo"\npace = 0\n'
    "[providers.demo.models.demo-1]\n[providers.demo.models.demo-2]\n"
    '[routing]\ndefault = ["demo.demo-1"]\n'
)


@pytest.fixture
def model() -> Iterator[ModelServer]:
    with model_server() as server:
        yield server


def type_each(screen: Terminal, *lines: tuple[str, str]) -> None:
    """Type each line at its prompt, wait for what it shows, and quit."""
    for typed, shown in lines:
        screen.shows(PROMPT)
        screen.type(f"{typed}\n")
        screen.shows(shown)
    screen.shows(PROMPT)
    screen.type(CTRL_D)
    assert screen.ends() == 0


def test_models_of_the_gateway_are_listed_and_switched_with_near_names(tmp_path: Path) -> None:
    user = tmp_path / "user"
    with gateway(tmp_path, CONFIG, user=user), terminal(tmp_path, "chat", user=user) as screen:
        type_each(
            screen,
            ("/models", r"  demo\.demo-1\s+  demo\.demo-2\s+\S*\(the model is auto\)"),
            ("/model demo.demo-2", "model demo.demo-2"),
            ("/models 2", r"\* demo\.demo-2"),
            ("/models zzz", "no model contains 'zzz'"),
            ("/model demo.demo-3", r"no model 'demo\.demo-3'; near: demo\.demo-\d, demo\.demo-\d"),
            ("/model", "model demo.demo-2"),
            ("hello", "I am the demo model demo-2"),
            ("/model demo.key1.demo-1", r"(?<!listed)\s+\S*model demo\.key1\.demo-1"),
            (
                "/model claude-x",
                r"\(claude-x is not listed; the server may route .*\)\S*\s+\S*model claude-x",
            ),
            ("/model auto", "model auto"),
        )


def test_help_lists_every_command(tmp_path: Path, model: ModelServer) -> None:
    with terminal(tmp_path, "chat", "--url", model.url, user=tmp_path / "user") as screen:
        type_each(
            screen, ("/help", r"(?s)/models \[TEXT\].*/model \[NAME\].*/cost.*/clear.*/save FILE.*/quit")
        )


@pytest.mark.parametrize(
    ("models", "message"),
    [
        ((401, {}), r"error: http://\S+ rejected the key \(HTTP 401\); set \$ROUTECODEX_KEY"),
        ((404, {}), r"error: http://\S+ does not list its models \(HTTP 404\)"),
        ((200, b"<html>"), r"error: http://\S+ sent a list of models that cannot be read"),
        ((200, {"data": []}), "the server lists no models"),
    ],
)
def test_a_server_without_a_list_is_reported_and_the_model_is_switched_unchecked(
    tmp_path: Path, model: ModelServer, models: tuple[int, object], message: str
) -> None:
    model.models = models
    with terminal(tmp_path, "chat", "--url", model.url, user=tmp_path / "user") as screen:
        type_each(screen, ("/models", message), ("/model other", "model other"), ("hello", "tokens"))
    assert model.asked == ["other"]


def test_names_of_models_cannot_control_the_terminal(tmp_path: Path, model: ModelServer) -> None:
    model.models = (200, {"data": [{"id": "x\x1b[2J"}]})
    with terminal(tmp_path, "chat", "--url", model.url, user=tmp_path / "user") as screen:
        type_each(screen, ("/models", r"x\?\[2J"))


def test_cost_is_summed_over_the_conversation_and_kept_when_it_is_resumed(
    tmp_path: Path, model: ModelServer
) -> None:
    command = ("chat", "--url", model.url, "--session", "paid")
    with terminal(tmp_path, *command, user=tmp_path / "user") as screen:
        screen.shows(PROMPT)
        screen.type("/cost\n")
        screen.shows(r"0 requests, 0 input \+ 0 output tokens\r\n\S*cost — \(the server did not report it\)")
        model.headers = {"x-routecodex-cost": "0.0125"}
        screen.type("one\n")
        screen.shows("tokens")
        model.headers = {"x-routecodex-cost": "unknown"}
        screen.type("two\n")
        type_each(
            screen,
            ("/cost", r"2 requests, 20 input \+ 10 output tokens\r\n\S*cost \$0.0125 for 1 of 2 requests"),
        )
    model.headers = {}
    model.usage = {"prompt_tokens": 1000, "completion_tokens": 1, "cost": 0.5}
    with terminal(tmp_path, *command, "--resume", user=tmp_path / "user") as screen:
        type_each(
            screen,
            ("three", "tokens"),
            ("/clear", "cleared"),
            ("/cost", r"3 requests, 1,020 input \+ 11 output tokens\r\n\S*cost \$0.5125 for 2 of 3"),
        )


@pytest.mark.parametrize(
    ("metadata", "cost"),
    [
        ({}, None),
        ({"headers": {"x-routecodex-cost": "0.001234"}, "usage": {"cost": 9}}, 0.001234),
        ({"headers": {"x-routecodex-cost": "unknown"}, "usage": {"cost": 9}}, None),
        ({"headers": {"x-routecodex-cost": "-1"}}, None),
        ({"headers": {"x-routecodex-cost": "nan"}}, None),
        ({"usage": {"cost": 0}}, 0.0),
        ({"usage": {"cost": True}}, None),
        ({"usage": {"cost": 0.1, "is_byok": True, "cost_details": {"upstream_inference_cost": 2}}}, 2.1),
        ({"usage": {"cost": 0.1, "is_byok": True}}, None),
    ],
)
def test_only_a_reported_cost_counts(metadata: dict[str, object], cost: float | None) -> None:
    assert reported_cost(metadata) == cost


def test_cached_and_reasoning_tokens_are_named() -> None:
    usage = ChatUsage()
    details = {
        "prompt_tokens_details": {"cached_tokens": 8},
        "completion_tokens_details": {"reasoning_tokens": 3},
    }
    usage.add(
        Message("assistant", metadata={"usage": {"prompt_tokens": 9, "completion_tokens": 4, **details}})
    )
    assert usage.tokens_text() == "1 request, 9 input (8 from cache) + 4 output (3 reasoning) tokens"


@pytest.mark.parametrize(
    ("protocol", "path", "header", "answer"),
    [
        ("chat", "/v1/models", "authorization", {"data": [{"id": "a"}]}),
        ("responses", "/v1/models", "authorization", {"data": [{"id": "a"}]}),
        ("messages", "/v1/models?limit=1000", "x-api-key", {"data": [{"id": "a", "type": "model"}]}),
        ("gemini", "/v1beta/models?pageSize=1000", "x-goog-api-key", {"models": [{"name": "models/a"}]}),
    ],
)
def test_the_list_is_read_in_every_protocol(
    model: ModelServer, protocol: str, path: str, header: str, answer: object
) -> None:
    model.models = (200, answer)
    assert list_models(f"{model.url}/v1", protocol, "k1") == ["a"]
    ((asked, headers),) = model.seen
    sent = {name.lower(): value for name, value in headers.items()}
    assert (asked, sent[header].split()[-1]) == (path, "k1")
    # With this header a gateway answers in the shape of Anthropic.
    assert ("anthropic-version" in sent) == (protocol == "messages")


def test_names_near_a_wrong_one_are_of_the_same_spelling_or_provider() -> None:
    models = ["glm.glm-4.7", "glm.glm-4.7-air", "openai.gpt-5", "kimi.k2"]
    assert near_names("glm.glm-4.6", models)[0] == "glm.glm-4.7"
    assert near_names("gpt-5", models) == ["openai.gpt-5"]
    assert near_names("kimi.moonshot", models) == ["kimi.k2"]
    assert near_names("zzz", models) == []
    known = ("glm.glm-4.7", "glm.primary.glm-4.7", "claude-opus", "auto", "other.x")
    assert [name for name in (*known, "glm.zzz") if is_refused(name, models)] == ["glm.zzz"]
