"""Stream events equal the output of vLLM's models byte for byte, except for their null fields."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from vllm.entrypoints.generate.base.protocol import UsageInfo
from vllm.entrypoints.openai.completion import protocol, serving

from app.engine.vllm.patches import stream_events
from app.engine.vllm.patches.stream_events import CHOICE, EVENT, StreamChoice, StreamEvent
from app.engine.vllm.patches.stream_nulls import CompletionStreamEvent
from app.engine.vllm.sse import NULLABLE

PLAIN = {
    "index": 0,
    "text": " a",
    "logprobs": None,
    "finish_reason": None,
    "stop_reason": None,
    "prompt_token_ids": None,
    "token_ids": None,
}
HEAD = {"id": "cmpl-1-0", "object": "text_completion", "created": 1764240000, "model": "acme/pricing@3"}
LOGPROBS = protocol.CompletionLogProbs(text_offset=[0], token_logprobs=[-0.5], tokens=[" a"], top_logprobs=[None])
USAGE = UsageInfo(prompt_tokens=3, completion_tokens=1, total_tokens=4)

texts = st.text(st.characters(exclude_categories=["Cs"]))
choice = st.fixed_dictionaries(
    {
        "index": st.integers(0, 127),
        "text": texts,
        "logprobs": st.sampled_from([None, LOGPROBS]),
        "finish_reason": st.sampled_from([None, "stop", "length", "abort"]),
        "stop_reason": st.one_of(st.none(), texts, st.integers(0, 2**31)),
        "prompt_token_ids": st.one_of(st.none(), st.lists(st.integers(0, 2**17), max_size=4)),
        "token_ids": st.one_of(st.none(), st.lists(st.integers(0, 2**17), max_size=4)),
    }
)
options = st.sampled_from([{"exclude_unset": True}, {"exclude_unset": False, "exclude_none": True}, {}])


def theirs(head: dict[str, Any], choices: list[dict[str, Any]]) -> protocol.CompletionStreamResponse:
    """Build vLLM's event, leaving vLLM-specific null fields unset."""
    kept = [{name: value for name, value in one.items() if value is not None or name in NULLABLE} for one in choices]
    return protocol.CompletionStreamResponse(
        **head, choices=[protocol.CompletionResponseStreamChoice(**one) for one in kept]
    )


def nulls(value: Any) -> set[str]:
    """Return the names of all null fields of a JSON value."""
    if isinstance(value, list):
        return set().union(*map(nulls, value))
    if not isinstance(value, dict):
        return set()
    return {name for name, item in value.items() if item is None}.union(*map(nulls, value.values()))


def ours(head: dict[str, Any], choices: list[dict[str, Any]]) -> StreamEvent:
    return StreamEvent(**head, choices=[StreamChoice(**one) for one in choices])


@given(
    st.fixed_dictionaries(
        {"id": texts, "object": st.just("text_completion"), "created": st.integers(0, 2**40), "model": texts}
    ),
    st.lists(choice, max_size=3),
    options,
)
def test_an_event_is_what_vllms_model_writes(
    head: dict[str, Any], choices: list[dict[str, Any]], how: dict[str, bool]
) -> None:
    text = ours(head, choices).model_dump_json(**how)
    assert text == theirs(head, choices).model_dump_json(**how)
    models = [protocol.CompletionResponseStreamChoice(**one) for one in choices]
    assert text == CompletionStreamEvent(**head, choices=models).model_dump_json(**how), "with stream_events off"
    if how:
        assert nulls(json.loads(text)) <= NULLABLE


@pytest.mark.parametrize(
    "later", [{"usage": USAGE}, {"system_fingerprint": "fp"}, {"usage": USAGE, "system_fingerprint": "fp"}]
)
def test_what_is_set_afterwards_is_written_too(later: dict[str, Any]) -> None:
    mine, model = ours(HEAD, [PLAIN]), theirs(HEAD, [PLAIN])
    for name, value in later.items():
        setattr(mine, name, value)
        setattr(model, name, value)
    assert mine.model_dump_json(exclude_unset=True) == model.model_dump_json(exclude_unset=True)


def test_what_is_left_out_is_left_out() -> None:
    few = {"index": 0, "text": " a"}
    assert ours(HEAD, [few]).model_dump_json(exclude_unset=True) == theirs(HEAD, [few]).model_dump_json(
        exclude_unset=True
    )


def test_a_plain_event_has_openais_fields_and_no_other() -> None:
    event = json.loads(ours(HEAD, [PLAIN]).model_dump_json(exclude_unset=True))
    assert event["choices"] == [{"index": 0, "text": " a", "logprobs": None, "finish_reason": None}]


def test_a_plain_event_needs_none_of_vllms_models(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = theirs(HEAD, [PLAIN]).model_dump_json(exclude_unset=True)
    monkeypatch.delattr(stream_events, "CompletionStreamEvent")
    assert ours(HEAD, [PLAIN]).model_dump_json(exclude_unset=True) == expected


def test_vllms_models_have_these_fields_in_this_order() -> None:
    assert tuple(protocol.CompletionResponseStreamChoice.model_fields) == CHOICE
    assert tuple(protocol.CompletionStreamResponse.model_fields)[: len(EVENT)] == EVENT


def test_vllms_streams_use_them(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CompletionStreamResponse", "CompletionResponseStreamChoice"):
        monkeypatch.setattr(serving, name, getattr(serving, name))
    stream_events.write_plainly()
    code = serving.OpenAIServingCompletion.completion_stream_generator.__code__
    assert serving.CompletionStreamResponse is StreamEvent
    assert {"CompletionStreamResponse", "CompletionResponseStreamChoice"} <= set(code.co_names)
    # Keyword names of the calls, in order: with other names, every event would be built from models again.
    assert {EVENT, CHOICE} <= set(code.co_consts)
