"""Translation of LoRAX requests to completions, and of completions answers to LoRAX."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.errors import ContextLengthExceeded, EngineUnavailable, InvalidRequest, UnsupportedField
from app.services.bodies.lorax import generation, ignored, in_lorax_words
from app.services.bodies.lorax_answers import LoraxEvents, share_text, whole
from app.settings import LimitSettings

LIMITS = LimitSettings()
EOS = 2
VOCABULARY = {1: "<s>", EOS: "</s>", 5: "Hel", 6: "lo", 7: " wor", 8: "ld", 9: "?"}

# Parameters that lorax-client 0.6.3 sends when only a prompt is given.
CLIENT_PARAMETERS = {
    "adapter_id": None, "adapter_source": None, "merged_adapters": None, "api_token": None, "do_sample": False,
    "max_new_tokens": None, "ignore_eos_token": False, "repetition_penalty": None, "return_full_text": False,
    "stop": [], "seed": None, "temperature": None, "top_k": None, "top_p": None, "truncate": None, "typical_p": None,
    "best_of": None, "watermark": False, "details": True, "decoder_input_details": False,
    "return_k_alternatives": None, "response_format": None,
}  # fmt: skip


def translated(stream=None, inputs="Hello", **parameters):
    return generation({"inputs": inputs, "parameters": parameters}, LIMITS, default_tokens=20, stream=stream)


def texts(token_ids):
    return [VOCABULARY[token_id] for token_id in token_ids]


def choice(text, token_ids, *, finish=None, stop_reason=None, names=None, **extra):
    """A choice in vLLM's form with ``logprobs`` and ``return_token_ids``."""
    names = names or [VOCABULARY[token_id] for token_id in token_ids]
    logprobs = {
        "tokens": names,
        "token_logprobs": [-0.5] * len(token_ids),
        "top_logprobs": [{name: -0.5, "token_id:9": -0.1, "token_id:8": -3.0} for name in names],
    }
    return {"index": 0, "text": text, "token_ids": token_ids, "logprobs": logprobs, "finish_reason": finish,
            "stop_reason": stop_reason, **extra}  # fmt: skip


async def answered(wanted, *choices):
    return whole(wanted, {"choices": list(choices)}, special=frozenset({1, EOS}), texts=texts)


async def stream_of(*chunks, done=True):
    for chunk in chunks:
        yield f"data: {json.dumps({'choices': [chunk]} if 'error' not in chunk else chunk)}\n\n"
    if done:
        yield "data: [DONE]\n\n"


async def streamed(wanted, *chunks, done=True):
    events = LoraxEvents(wanted, stream_of(*chunks, done=done), special=frozenset({1, EOS}), texts=texts)
    received = [event async for event in events]
    assert all(event.startswith("data:{") and event.endswith("}\n\n") for event in received)
    return [json.loads(event.removeprefix("data:")) for event in received]


def test_what_the_published_client_sends_by_default():
    wanted = generation(
        {"inputs": "Hello", "parameters": CLIENT_PARAMETERS, "stream": False}, LIMITS, default_tokens=20, stream=None
    )
    assert wanted.body == {
        "prompt": "Hello", "max_tokens": 20, "stream": False, "temperature": 0.0, "ignore_eos": False, "logprobs": 0,
        "return_token_ids": True,
    }  # fmt: skip
    assert (wanted.adapter_id, wanted.details, wanted.prefix, wanted.seed) == (None, True, "", None)


def test_only_the_text_is_asked_for_without_details():
    assert translated().body == {"prompt": "Hello", "max_tokens": 20, "stream": False, "temperature": 0.0}


@pytest.mark.parametrize(
    ("parameters", "sampling"),
    [
        ({}, {"temperature": 0.0}),
        ({"temperature": 1.0}, {"temperature": 0.0}),
        ({"do_sample": True}, {"temperature": 1.0}),
        ({"do_sample": True, "temperature": 0}, {"temperature": 0.0}),
        ({"temperature": 0.7}, {"temperature": 0.7}),
        ({"top_k": 5}, {"temperature": 1.0, "top_k": 5}),
        ({"top_p": 0.5, "seed": 3}, {"temperature": 1.0, "top_p": 0.5, "seed": 3}),
        ({"top_k": 5, "temperature": 0}, {"temperature": 0.0}),
        ({"seed": 3}, {"temperature": 0.0}),
    ],
)
def test_sampling_is_off_unless_something_asks_for_it(parameters, sampling):
    body = translated(**parameters).body
    assert {name: body[name] for name in body if name in ("temperature", "top_k", "top_p", "seed")} == sampling


def test_everything_that_has_another_name():
    schema = {"type": "object"}
    body = translated(
        adapter_id="pricing", adapter_source="local", max_new_tokens=7, ignore_eos_token=True, repetition_penalty=1.1,
        stop=["END"], truncate=9, response_format={"type": "json_object", "schema": schema},
    ).body  # fmt: skip
    assert body == {
        "prompt": "Hello", "max_tokens": 7, "stream": False, "temperature": 0.0, "ignore_eos": True,
        "repetition_penalty": 1.1, "stop": ["END"], "include_stop_str_in_output": True, "truncate_prompt_tokens": 9,
        "truncation_side": "left", "structured_outputs": {"json": schema},
    }  # fmt: skip


def test_json_without_a_schema():
    body = translated(response_format={"type": "json_object"}).body
    assert body["structured_outputs"] == {"json_object": True}


@pytest.mark.parametrize("name", ["merged_adapters", "api_token", "made_up"])
def test_unsupported_parameters_are_refused_by_name(name):
    with pytest.raises(UnsupportedField, match=name):
        translated(**{name: 0.5})


@pytest.mark.parametrize("value", [0.95, 1, 0, "x", [1]])
def test_typical_p_changes_nothing_and_is_named(value):
    assert translated(typical_p=value, temperature=0.8) == translated(temperature=0.8)
    assert [*ignored({"inputs": "x", "parameters": {"typical_p": value}})] == ["parameters.typical_p"]


@pytest.mark.parametrize("parameters", [None, {}, {"typical_p": None, "top_p": 0.5}])
def test_nothing_else_is_ignored(parameters):
    assert [*ignored({"inputs": "x", "parameters": parameters})] == []


def test_a_refusal_of_the_engine_keeps_its_kind():
    told = in_lorax_words(ContextLengthExceeded("your prompt has max_tokens=9 too many", param="prompt"))
    assert isinstance(told, ContextLengthExceeded)
    assert (told.message, told.param) == ("your prompt has max_new_tokens=9 too many", "inputs")


@pytest.mark.parametrize(
    "parameters",
    [
        {"adapter_source": "hub"}, {"adapter_source": "s3"}, {"watermark": True}, {"apply_chat_template": True},
        {"adapter_id": 5}, {"temperature": -1}, {"temperature": "hot"}, {"top_k": 0}, {"top_p": 0}, {"top_p": 1.5},
        {"seed": -1}, {"max_new_tokens": 0}, {"truncate": 0}, {"repetition_penalty": 0}, {"stop": [""]},
        {"best_of": 9, "do_sample": True}, {"best_of": 2}, {"best_of": 2, "do_sample": True, "seed": 1},
        {"best_of": 2, "temperature": 0}, {"return_k_alternatives": 21}, {"return_k_alternatives": 0},
        {"details": 1}, {"response_format": {"type": "text"}}, {"response_format": {"schema": {}}},
    ],
)  # fmt: skip
def test_parameters_that_do_not_fit(parameters):
    with pytest.raises(InvalidRequest) as caught:
        translated(**parameters)
    assert caught.value.param.startswith("parameters.")
    assert caught.value.param.split(".")[1] in parameters


@pytest.mark.parametrize(
    "body",
    [
        {}, {"inputs": ""}, {"inputs": 5}, {"inputs": ["a"]}, {"inputs": "a", "stream": "yes"},
        {"inputs": "a", "parameters": []}, {"inputs": "a", "parameters": "x"},
    ],
)  # fmt: skip
def test_bodies_that_do_not_fit(body):
    with pytest.raises(InvalidRequest):
        generation(body, LIMITS, default_tokens=20, stream=None)


def test_other_fields_of_the_body_are_refused_by_name():
    with pytest.raises(UnsupportedField, match="model"):
        generation({"inputs": "a", "model": "pricing"}, LIMITS, default_tokens=20, stream=None)


def test_the_route_decides_and_the_body_only_where_it_does_not():
    assert generation({"inputs": "a"}, LIMITS, default_tokens=20, stream=True).stream is True
    assert generation({"inputs": "a", "stream": True}, LIMITS, default_tokens=20, stream=None).stream is True
    for route in (True, False):
        for sent in (True, False):
            wanted = generation({"inputs": "a", "stream": sent}, LIMITS, default_tokens=20, stream=route)
            assert wanted.stream is route
    with pytest.raises(InvalidRequest, match="stream"):
        generation({"inputs": "a", "stream": "yes"}, LIMITS, default_tokens=20, stream=True)


def test_the_engine_s_refusal_names_the_caller_s_field():
    error = in_lorax_words(InvalidRequest("max_tokens=5000 cannot be greater than 2048", param="max_tokens"))
    assert error.message == "max_new_tokens=5000 cannot be greater than 2048"
    assert error.param == "max_new_tokens"


@pytest.mark.parametrize("parameters", [{"decoder_input_details": True}, {"best_of": 2, "do_sample": True}])
def test_what_a_stream_cannot_have(parameters):
    with pytest.raises(InvalidRequest):
        translated(stream=True, **parameters)


async def test_a_whole_answer():
    wanted = translated(details=True, return_full_text=True)
    answer = await answered(wanted, choice("Hello", [5, 6, EOS], finish="stop", prompt_token_ids=[1, 9]))
    assert answer == {
        "generated_text": "HelloHello",
        "details": {
            "finish_reason": "eos_token",
            "generated_tokens": 3,
            "prompt_tokens": 2,
            "seed": None,
            "prefill": [],
            "tokens": [
                {"id": 5, "text": "Hel", "logprob": -0.5, "special": False},
                {"id": 6, "text": "lo", "logprob": -0.5, "special": False},
                {"id": EOS, "text": "</s>", "logprob": -0.5, "special": True},
            ],
        },
    }


async def test_a_whole_answer_without_details():
    answer = {"choices": [{"index": 0, "text": "Hello", "finish_reason": "length", "logprobs": None}]}
    assert whole(translated(), answer, special=frozenset(), texts=texts) == {"generated_text": "Hello"}


@pytest.mark.parametrize(
    ("finish", "stop_reason", "expected"),
    [
        ("length", None, "length"),
        ("stop", None, "eos_token"),
        ("stop", EOS, "eos_token"),
        ("stop", "x", "stop_sequence"),
    ],
)
async def test_finish_reasons(finish, stop_reason, expected):
    wanted = translated(details=True)
    done = choice("Hel", [5], finish=finish, stop_reason=stop_reason, prompt_token_ids=[1])
    assert (await answered(wanted, done))["details"]["finish_reason"] == expected


async def test_the_prompt_s_tokens():
    wanted = translated(decoder_input_details=True)
    positions = [None, {9: {"logprob": -1.5, "rank": 1, "decoded_token": "?"}}]
    done = choice("Hel", [5], finish="length", prompt_token_ids=[1, 9], prompt_logprobs=positions)
    assert (await answered(wanted, done))["details"]["prefill"] == [
        {"id": 1, "text": "<s>", "logprob": None},
        {"id": 9, "text": "?", "logprob": -1.5},
    ]


async def test_alternatives_are_the_most_likely_tokens_with_their_ids():
    wanted = translated(details=True, return_k_alternatives=2)
    assert wanted.body["return_tokens_as_token_ids"] is True
    done = choice("Hel", [5], finish="length", names=["token_id:5"], prompt_token_ids=[1])
    (token,) = (await answered(wanted, done))["details"]["tokens"]
    assert token["text"] == "Hel"
    assert token["alternative_tokens"] == [
        {"id": 9, "text": "?", "logprob": -0.1},
        {"id": 5, "text": "Hel", "logprob": -0.5},
    ]


async def test_the_best_of_several_is_the_likeliest():
    wanted = translated(details=True, best_of=2, do_sample=True)
    assert wanted.body["n"] == 2
    worse = choice("Hel", [5], finish="length", prompt_token_ids=[1])
    better = choice("lo", [6], finish="length", prompt_token_ids=[1])
    better["logprobs"]["token_logprobs"] = [-0.1]
    answer = await answered(wanted, worse, better)
    assert answer["generated_text"] == "lo"
    (other,) = answer["details"]["best_of_sequences"]
    assert other["generated_text"] == "Hel"


async def test_a_nan_answer_is_never_best_and_has_null_logprobs():
    """The engine returns null where the logits were NaN."""
    sound = choice("lo", [6], finish="length", prompt_token_ids=[1])
    nan = choice("Hel", [5], finish="length", prompt_token_ids=[1])
    nan["logprobs"] |= {"token_logprobs": [None], "top_logprobs": [{"token_id:9": None, "token_id:5": None}]}
    answer = await answered(translated(details=True, best_of=2, do_sample=True), nan, sound)
    assert answer["generated_text"] == "lo"
    (token,) = (await answered(translated(details=True, return_k_alternatives=2), nan))["details"]["tokens"]
    assert token["logprob"] is None
    assert [each["logprob"] for each in token["alternative_tokens"]] == [None, None]


async def test_an_answer_that_was_cut_short_is_an_error():
    with pytest.raises(EngineUnavailable):
        await answered(translated(details=True), choice("Hel", [5], finish="abort", prompt_token_ids=[1]))


async def test_a_stream_has_an_event_per_token():
    wanted = translated(stream=True, details=True, return_full_text=True)
    events = await streamed(
        wanted,
        choice("Hel", [5], prompt_token_ids=[1, 9]),
        choice("lo wor", [6, 7]),
        choice("ld", [8, EOS], finish="stop"),
    )
    assert [event["token"]["id"] for event in events] == [5, 6, 7, 8, EOS]
    assert [event["token"]["text"] for event in events] == ["Hel", "lo", " wor", "ld", "</s>"]
    assert [event["token"]["special"] for event in events] == [False] * 4 + [True]
    assert [event["generated_text"] for event in events] == [None] * 4 + ["HelloHello world"]
    assert [event["details"] for event in events[:-1]] == [None] * 4
    assert events[-1]["details"] == {
        "finish_reason": "eos_token", "prompt_tokens": 2, "generated_tokens": 5, "seed": None
    }  # fmt: skip


async def test_a_stream_without_details():
    (event,) = await streamed(translated(stream=True), choice("Hel", [5], finish="length"))
    assert event == {
        "token": {"id": 5, "text": "Hel", "logprob": -0.5, "special": False}, "generated_text": "Hel", "details": None
    }  # fmt: skip


async def test_a_stream_that_stops_before_its_end_says_so():
    events = await streamed(translated(stream=True), choice("Hel", [5]))
    assert [set(event) for event in events] == [{"token", "generated_text", "details"}, {"error", "error_type"}]
    assert events[-1]["error_type"] == "incomplete_generation"


async def test_a_stream_that_was_aborted_says_so():
    events = await streamed(translated(stream=True), choice("Hel", [5], finish="abort"), done=False)
    assert events[-1]["error_type"] == "incomplete_generation"


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("service_unavailable_error", "overloaded"),
        ("invalid_request_error", "validation"),
        ("internal_error", "generation"),
    ],
)
async def test_an_error_in_mid_stream_is_lorax_s(kind, expected):
    error = {"error": {"message": "the engine stopped", "type": kind, "param": None, "code": "x"}}
    events = await streamed(translated(stream=True), choice("Hel", [5]), error)
    assert events[-1] == {"error": "the engine stopped", "error_type": expected}
    assert len(events) == 2


async def test_closing_closes_the_source():
    closed = []

    async def source():
        try:
            while True:
                yield f"data: {json.dumps({'choices': [choice('Hel', [5])]})}\n\n"
        finally:
            closed.append(True)

    events = LoraxEvents(translated(stream=True), source(), special=frozenset(), texts=texts)
    await anext(events)
    await events.aclose()
    assert closed
    with pytest.raises(StopAsyncIteration):
        await anext(events)


tokens = st.lists(
    st.fixed_dictionaries({"text": st.text(max_size=3), "special": st.booleans()}), min_size=1, max_size=5
)


@given(tokens, st.text(max_size=8))
def test_texts_of_tokens_that_are_not_special_add_up(some, text):
    share_text(some, text)
    assert "".join(token["text"] for token in some if not token["special"]) == text
