from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routecodex.canon.request import CalledTool, RequestFeatures, RoleName
from routecodex.routing.classify import (
    SEARCH_PHRASES,
    ClassifierOptions,
    RouteClass,
    classify,
    wants_search,
)
from tests.routing.instruction_texts import PROTOCOLS, Step, features

protocols = pytest.mark.parametrize("protocol", PROTOCOLS)
QUESTION = ("user", "Fix the bug")


def called(name: str, **arguments: Any) -> list[Step]:
    return [QUESTION, ("call", name, arguments), ("result", "done")]


def classified(
    seen: RequestFeatures, *, model: str = "m", tokens: int = 1000, role: RoleName = "main", **options: Any
) -> RouteClass:
    return classify(seen, model=model, tokens=tokens, role=role, options=ClassifierOptions(**options))


ROWS: list[tuple[str, str, list[Step]]] = [
    (
        "vision",
        "the newest message has an image or a video",
        [QUESTION, ("assistant", "ok"), ("image", "and this?")],
    ),
    ("thinking", "the newest message is the user's", [QUESTION]),
    (
        "thinking",
        "the newest message is the user's",
        [("image", "see"), ("assistant", "a cat"), ("user", "sure?")],
    ),
    ("thinking", "the last turn read files (Read)", called("Read", file_path="a.py")),
    ("thinking", "the last turn read files (exec_command)", called("exec_command", cmd="sed -n 1,9p a")),
    ("coding", "the last turn wrote files (Edit)", called("Edit", file_path="a.py")),
    ("coding", "the last turn wrote files (Bash)", called("Bash", command="git commit -m x")),
    ("coding", "the last turn wrote files (write_file)", called("write_file", content="x" * 9000)),
    ("search", "the last turn searched (Grep)", called("Grep", pattern="x")),
    ("search", "the last turn searched (shell)", called("shell", command=["bash", "-lc", "rg foo"])),
    ("search", "the last turn went to the web (WebFetch)", called("WebFetch", url="http://x")),
    ("tools", "the last turn used a tool (Task)", called("Task", prompt="x")),
    ("tools", "the last turn used a tool (Bash)", called("Bash", command="pytest")),
    ("default", "no other class matches", [QUESTION, ("assistant", "Once upon a time")]),
]


@protocols
@pytest.mark.parametrize(("route", "reason", "steps"), ROWS, ids=[f"{row[0]}-{row[1]}" for row in ROWS])
def test_a_request_takes_its_route(protocol: str, route: str, reason: str, steps: list[Step]) -> None:
    assert classified(features(protocol, *steps)) == RouteClass(route, reason)


@protocols
def test_results_of_an_earlier_tool_do_not_count_when_the_user_speaks(protocol: str) -> None:
    steps: list[Step] = [*called("Edit"), ("assistant", "Edited."), ("user", "Thanks, and now?")]
    assert classified(features(protocol, *steps)).route == "thinking"


@protocols
def test_only_the_last_turn_counts(protocol: str) -> None:
    steps = [*called("Edit", path="a"), *called("Grep", pattern="x")[1:]]
    assert classified(features(protocol, *steps)).route == "search"


@protocols
def test_a_long_request_is_long_whatever_it_does(protocol: str) -> None:
    seen = features(protocol, *called("Edit"))
    assert classified(seen, tokens=180_000) == RouteClass(
        "longcontext", "about 180000 tokens, 180000 or more are long context"
    )
    assert classified(seen, tokens=179_999).route == "coding"
    assert classified(seen, tokens=50, longcontext_tokens=50).route == "longcontext"
    assert classified(features(protocol, ("image", "see")), tokens=180_000).route == "vision"


@protocols
def test_small_models_do_background_work(protocol: str) -> None:
    seen = features(protocol, *called("Edit"))
    assert classified(seen, model="claude-haiku-4-5") == RouteClass(
        "background", "claude-haiku-4-5 is a model for background work"
    )
    assert classified(seen, model="gpt-5-NANO", background_models=("x", "*-nano")).route == "background"
    assert classified(seen, model="claude-haiku-4-5", background_models=()).route == "coding"
    assert classified(seen, model="claude-haiku-4-5", tokens=200_000).route == "longcontext"


def test_a_role_with_a_route_of_its_own_takes_it() -> None:
    seen = features("chat", ("user", "hi"))
    routes = frozenset({"subagent", "compaction"})
    assert classified(seen, role="compaction", role_routes=routes).route == "compaction"
    assert classified(seen, role="subagent", role_routes=routes).route == "subagent"
    assert classified(seen, role="main", role_routes=routes).route == "thinking"


def test_a_role_without_a_route_is_classified_like_the_main_conversation() -> None:
    seen = features("chat", ("user", "hi"))
    assert classified(seen, role="compaction").route == "thinking"
    assert classified(seen, role="subagent").route == "thinking"


def test_utility_work_goes_to_background() -> None:
    seen = features("chat", ("user", "hi"))
    expected = RouteClass("background", "the request has the role utility")
    assert classified(seen, role="utility") == expected
    assert classified(seen, role="utility", tokens=200_000).route == "longcontext"


def test_utility_work_that_demands_a_search_goes_to_web_search_if_it_can() -> None:
    seen = RequestFeatures(asks_search=True)
    assert classified(seen, role="utility", role_routes=frozenset({"web_search"})).route == "web_search"
    assert classified(seen, role="utility").route == "background"


def test_a_compaction_comes_before_long_context_and_a_subagent_after_it() -> None:
    seen, routes = features("chat", ("user", "hi")), frozenset({"subagent", "compaction"})
    assert classified(seen, role="compaction", tokens=200_000, role_routes=routes).route == "compaction"
    assert classified(seen, role="subagent", tokens=200_000, role_routes=routes).route == "longcontext"
    assert classified(seen, role="subagent", model="claude-haiku", role_routes=routes).route == "subagent"


@protocols
def test_a_wish_to_search_needs_a_tool_that_can(protocol: str) -> None:
    wish = ("user", "Please search the web for the newest release.")
    wanted = RouteClass("web_search", "the user asks for a web search and a search tool is declared")
    assert classified(features(protocol, wish, tools=("Read", "WebSearch"))) == wanted
    assert classified(features(protocol, wish, tools=("Read", "mcp__x__brave_web_search"))) == wanted
    assert classified(features(protocol, wish, tools=("Read",))).route == "thinking"
    assert classified(features(protocol, QUESTION, tools=("Read", "WebSearch"))).route == "thinking"


@protocols
def test_a_wish_is_found_at_both_ends_of_a_long_message(protocol: str) -> None:
    filling = 'lorem \\ "ipsum" é\n' * 5000
    for text in (f"search the web\n{filling}", f"{filling}联网查一下"):
        assert classified(features(protocol, ("user", text), tools=("web_search",))).route == "web_search"


@protocols
def test_a_wish_does_not_last_beyond_the_users_turn(protocol: str) -> None:
    steps = [("user", "Search the web"), ("call", "WebSearch", {"query": "x"}), ("result", "found")]
    assert classified(features(protocol, *steps, tools=("WebSearch",))).route == "search"


NATIVE: list[tuple[str, dict[str, Any]]] = [
    ("chat", {"web_search_options": {}}),
    ("chat", {"tools": [{"type": "web_search", "web_search": {"enable": True}}]}),
    ("responses", {"tools": [{"type": "web_search_preview"}]}),
    ("responses", {"tools": [{"type": "web_search"}, {"type": "x"}], "tool_choice": {"type": "web_search"}}),
    ("messages", {"tools": [{"type": "web_search_20250305", "name": "web_search"}]}),
    ("gemini", {"tools": [{"googleSearch": {}}]}),
    ("gemini", {"tools": [{"google_search": {}}]}),
]


@pytest.mark.parametrize(("protocol", "fields"), NATIVE)
def test_a_request_can_ask_for_a_search_by_itself(protocol: str, fields: dict[str, Any]) -> None:
    assert classified(features(protocol, QUESTION, **fields)) == RouteClass(
        "web_search", "the request asks for a web search"
    )


@pytest.mark.parametrize(
    "text",
    [
        "Can you search the web for this?",
        "Look it up online, please",
        "just Google it",
        "What's the latest news on Mars?",
        "帮我联网查资料",
        "搜索一下今年的诺贝尔奖",
        "查一下明天北京的天气",
        "上网查最新的版本",
        "最新のニュースは？",
        "인터넷에서 찾아줘",
        "Busca en internet el precio",
        "Suche im Internet nach Preisen",
        "Cherche sur Internet",
        "погугли это",
    ],
)
def test_people_ask_for_a_search_in_many_words(text: str) -> None:
    assert wants_search(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "search the code for foo",
        "add a search box to the page",
        "write a binary search",
        "the web server is down",
        "use the google cloud sdk",
        "查一下这个 bug 的原因",
        "搜索代码里的 TODO",
        "查一下日志",
        "go on",
    ],
)
def test_not_every_search_is_one_of_the_web(text: str) -> None:
    assert not wants_search(text)


@pytest.mark.parametrize("phrase", SEARCH_PHRASES)
def test_every_phrase_is_found(phrase: str) -> None:
    assert phrase == phrase.lower()
    assert wants_search(f"Please, {phrase.upper()}!")


def test_more_phrases_can_be_set() -> None:
    assert wants_search("FRAG DAS ORAKEL", ("frag das Orakel",))
    seen = RequestFeatures(offers_search=True, text="frag das Orakel")
    assert classified(seen, search_phrases=("Orakel",)).route == "web_search"
    assert classified(seen, search_phrases=("",)).route == "thinking"


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        (("Read", "Edit", "Grep"), RouteClass("coding", "the last turn wrote files (Edit)")),
        (("Task", "Grep", "Read"), RouteClass("thinking", "the last turn read files (Read)")),
        (("Task", "Grep"), RouteClass("search", "the last turn searched (Grep)")),
        ((), RouteClass("tools", "the newest message has tool results")),
    ],
)
def test_of_several_calls_the_weightiest_counts(calls: tuple[str, ...], expected: RouteClass) -> None:
    assert classified(RequestFeatures(newest="tool", calls=tuple(map(CalledTool, calls)))) == expected


def test_a_request_of_the_system_alone_takes_the_default() -> None:
    assert classified(RequestFeatures(newest="system")) == RouteClass("default", "no other class matches")


@given(
    st.builds(
        RequestFeatures,
        newest=st.sampled_from(["user", "assistant", "tool", "system"]),
        text=st.text(),
        opening=st.text(),
        calls=st.lists(st.builds(CalledTool, st.text(), st.text())).map(tuple),
        offers_search=st.booleans(),
    ),
    st.text(),
)
def test_every_look_has_a_class(seen: RequestFeatures, model: str) -> None:
    assert classified(seen, model=model).route in {row[0] for row in ROWS} | {"background", "web_search"}
