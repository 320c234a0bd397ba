from __future__ import annotations

import logging

import pytest

from routecodex.canon.finish import Finish, Reason, encode, infer, trace

REASONS: list[tuple[str, str, Reason]] = [
    ("chat", "stop", "stop"),
    ("chat", "end_turn", "stop"),
    ("chat", "eos", "stop"),
    ("chat", "stop_sequence", "stop"),
    ("chat", "length", "length"),
    ("chat", "max_tokens", "length"),
    ("chat", "model_length", "length"),
    ("chat", "content_filter", "content_filter"),
    ("chat", "sensitive", "content_filter"),
    ("chat", "refusal", "refusal"),
    ("chat", "network_error", "error"),
    ("chat", "insufficient_system_resource", "error"),
    ("chat", "abort", "error"),
    ("chat", "error", "error"),
    ("messages", "end_turn", "stop"),
    ("messages", "stop_sequence", "stop"),
    ("messages", "max_tokens", "length"),
    ("messages", "model_context_window_exceeded", "length"),
    ("messages", "pause_turn", "pause"),
    ("messages", "compaction", "stop"),
    ("messages", "refusal", "refusal"),
    ("responses", "completed", "stop"),
    ("responses", "max_output_tokens", "length"),
    ("responses", "max_tokens", "length"),
    ("responses", "content_filter", "content_filter"),
    ("responses", "failed", "error"),
    ("responses", "cancelled", "error"),
    ("gemini", "STOP", "stop"),
    ("gemini", "MAX_TOKENS", "length"),
    ("gemini", "SAFETY", "content_filter"),
    ("gemini", "RECITATION", "content_filter"),
    ("gemini", "LANGUAGE", "content_filter"),
    ("gemini", "BLOCKLIST", "content_filter"),
    ("gemini", "PROHIBITED_CONTENT", "content_filter"),
    ("gemini", "SPII", "content_filter"),
    ("gemini", "MODEL_ARMOR", "content_filter"),
    ("gemini", "IMAGE_SAFETY", "content_filter"),
    ("gemini", "IMAGE_RECITATION", "content_filter"),
    ("gemini", "MALFORMED_FUNCTION_CALL", "error"),
    ("gemini", "MALFORMED_RESPONSE", "error"),
    ("gemini", "MISSING_THOUGHT_SIGNATURE", "error"),
    ("gemini", "NO_IMAGE", "error"),
    ("gemini", "IMAGE_OTHER", "error"),
    ("gemini", "UNEXPECTED_TOOL_CALL", "error"),
    ("gemini", "OTHER", "error"),
]
CALLING = [
    ("chat", "tool_calls"),
    ("chat", "function_call"),
    ("chat", "tool_use"),
    ("messages", "tool_use"),
]

EXPRESSED: list[tuple[Reason, str, str, str, str]] = [
    ("stop", "stop", "end_turn", "completed", "STOP"),
    ("length", "length", "max_tokens", "max_output_tokens", "MAX_TOKENS"),
    ("tool_calls", "tool_calls", "tool_use", "completed", "STOP"),
    ("content_filter", "content_filter", "refusal", "content_filter", "SAFETY"),
    ("refusal", "content_filter", "refusal", "completed", "SAFETY"),
    ("pause", "stop", "pause_turn", "completed", "STOP"),
    ("error", "stop", "stop_sequence", "failed", "OTHER"),
]
PROTOCOLS = ("chat", "messages", "responses", "gemini")


@pytest.mark.parametrize(("protocol", "upstream_reason", "reason"), REASONS)
def test_what_an_upstream_says_is_understood(protocol: str, upstream_reason: str, reason: Reason) -> None:
    assert infer(protocol, upstream_reason, has_calls=False) == Finish(
        reason, upstream_reason=upstream_reason
    )


@pytest.mark.parametrize(("protocol", "upstream_reason", "reason"), REASONS)
def test_calls_in_the_answer_win_whatever_was_said(
    protocol: str, upstream_reason: str, reason: Reason
) -> None:
    assert infer(protocol, upstream_reason, has_calls=True) == Finish(
        "tool_calls", upstream_reason=upstream_reason
    )


@pytest.mark.parametrize(("protocol", "upstream_reason"), CALLING)
def test_calls_that_were_announced_are_believed_only_if_made(protocol: str, upstream_reason: str) -> None:
    assert infer(protocol, upstream_reason, has_calls=True) == Finish(
        "tool_calls", upstream_reason=upstream_reason
    )
    assert infer(protocol, upstream_reason, has_calls=False) == Finish(
        "stop", upstream_reason=upstream_reason
    )


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_nothing_said_is_the_end_of_the_turn(protocol: str) -> None:
    assert infer(protocol, None, has_calls=False) == Finish("stop")
    assert infer(protocol, None, has_calls=True) == Finish("tool_calls")


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_word_nobody_knows_is_the_end_of_the_turn(protocol: str) -> None:
    assert infer(protocol, "because", has_calls=False) == Finish("stop", upstream_reason="because")


@pytest.mark.parametrize(
    ("protocol", "upstream_reason", "reason"), [row for row in REASONS if row[2] not in ("stop", "pause")]
)
def test_a_call_that_was_cut_off_is_no_call(protocol: str, upstream_reason: str, reason: Reason) -> None:
    inferred: Reason = "content_filter" if reason == "refusal" else reason
    assert infer(protocol, upstream_reason, has_calls=True, calls_whole=False) == Finish(
        inferred, upstream_reason=upstream_reason
    )
    assert infer(protocol, upstream_reason, has_calls=True, calls_whole=True) == Finish(
        "tool_calls", upstream_reason=upstream_reason
    )


def test_a_call_with_broken_arguments_is_still_a_call_when_nothing_cut_it_off() -> None:
    assert infer("chat", "stop", has_calls=True, calls_whole=False) == Finish(
        "tool_calls", upstream_reason="stop"
    )


def test_an_error_counts_unless_there_are_calls() -> None:
    assert infer("chat", "stop", has_calls=False, failed=True) == Finish("error", upstream_reason="stop")
    assert infer("chat", None, has_calls=True, failed=True) == Finish("tool_calls")


def test_the_stop_sequence_that_was_met_is_kept() -> None:
    end = infer("messages", "stop_sequence", has_calls=False, sequence="END")
    assert end == Finish("stop", sequence="END", upstream_reason="stop_sequence")
    assert [encode(protocol, end) for protocol in PROTOCOLS] == [
        "stop",
        "stop_sequence",
        "completed",
        "STOP",
    ]


@pytest.mark.parametrize(("reason", "chat", "messages", "responses", "gemini"), EXPRESSED)
def test_every_reason_has_a_word_in_every_protocol(
    reason: Reason, chat: str, messages: str, responses: str, gemini: str
) -> None:
    words = [encode(protocol, Finish(reason)) for protocol in PROTOCOLS]
    assert words == [chat, messages, responses, gemini]


@pytest.mark.parametrize("reason", ["content_filter", "refusal"])
def test_old_messages_clients_are_told_of_a_stop_sequence_in_place_of_a_refusal(reason: Reason) -> None:
    assert encode("messages", Finish(reason), knows_refusal=False) == "stop_sequence"
    assert encode("chat", Finish(reason), knows_refusal=False) == "content_filter"


def test_a_mapping_is_traced_when_switched_on(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "routecodex.finish")
    trace("req_1", Finish("tool_calls", upstream_reason="stop"), "tool_use")
    assert caplog.messages == ["request=req_1 upstream=stop inferred=tool_calls sent=tool_use"]


def test_nothing_is_traced_unless_switched_on(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "routecodex.finish")
    trace("req_1", Finish("stop"), "end_turn")
    assert caplog.messages == []


@pytest.mark.parametrize("word", ["model_context_window_exceeded", "compaction"])
def test_a_word_that_says_more_comes_back_in_its_own_protocol(word: str) -> None:
    end = infer("messages", word, has_calls=False)
    assert encode("messages", end) == word
    assert encode("chat", end) == encode("chat", Finish(end.reason))
    called = infer("messages", word, has_calls=True)
    assert encode("messages", called) == "tool_use"
    assert encode("messages", infer("chat", "compact", has_calls=False)) == "end_turn"
