"""Translation of vLLM's errors and answers for the client."""

from typing import Any

import pytest

from app.domain.errors import ContextLengthExceeded, EngineUnavailable, InvalidRequest, TenoraError
from app.engine.port import Endpoint, EngineRequest
from app.engine.vllm.translation import GENERATION_FAILED, VllmRequest

FAILED = {"message": GENERATION_FAILED, "code": 500}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}}


def asked(**body: Any) -> VllmRequest:
    request = EngineRequest("1", Endpoint.CHAT, body, "prices", None, cache_salt="salt")
    return VllmRequest.of(request, "7@ab")


def told(error: TenoraError) -> tuple[type[TenoraError], str | None]:
    return type(error), error.param


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"structured_outputs": {"regex": "a"}}, "structured_outputs"),
        ({"response_format": SCHEMA}, "response_format"),
        ({"response_format": {"type": "json_object"}, "tools": []}, "response_format"),
        ({"response_format": {"type": "text"}, "tools": [{"type": "function"}]}, "tools"),
    ],
)
def test_an_abandoned_grammar_is_a_client_error(body: dict[str, Any], field: str) -> None:
    for error in (asked(**body).error(FAILED), asked(**body).failed()):
        assert told(error) == (InvalidRequest, field)
        assert error.message == f"{field} has more parts than the grammar compiler can keep. Send a simpler one."


@pytest.mark.parametrize("body", [{}, {"response_format": {"type": "text"}}, {"response_format": None, "tools": []}])
def test_without_one_it_is_the_servers(body: dict[str, Any]) -> None:
    assert told(asked(**body).error(FAILED)) == (EngineUnavailable, None)


def test_a_death_is_never_the_clients() -> None:
    dead = {"message": "EngineCore encountered an issue.", "code": 500}
    assert told(asked(response_format=SCHEMA).error(dead)) == (EngineUnavailable, None)


def test_what_the_client_did_wrong_keeps_its_words_and_its_name() -> None:
    error = asked().error({"message": "7@ab takes 512 tokens", "code": 400, "param": "max_tokens"})
    assert (told(error), error.message) == ((InvalidRequest, "max_tokens"), "prices takes 512 tokens")


def test_names_inside_the_engine_are_left_out() -> None:
    words = "max_tokens=9000 cannot be greater than max_model_len=512. Please request fewer output tokens."
    body = {"message": f"{words} (parameter=max_tokens, value=9000)", "code": 400, "param": "max_tokens"}
    error = asked().error(body)
    assert (told(error), error.message) == ((InvalidRequest, "max_tokens"), words)


@pytest.mark.parametrize(("endpoint", "field"), [(Endpoint.CHAT, "messages"), (Endpoint.COMPLETIONS, "prompt")])
@pytest.mark.parametrize("param", ["input_text", "input_tokens"])
def test_a_prompt_that_is_too_long_has_a_code_and_its_field(endpoint: Endpoint, field: str, param: str) -> None:
    words = "This model's maximum context length is 256 tokens."
    own = VllmRequest.of(EngineRequest("1", endpoint, {}, "prices", None, cache_salt="salt"), "7@ab")
    error = own.error({"message": f"{words} (parameter={param}, value=300)", "code": 400, "param": param})
    assert told(error) == (ContextLengthExceeded, field)
    assert error.message == words
    assert told(own.too_long(words)) == (ContextLengthExceeded, field)


def test_the_server_has_the_last_word_in_a_request() -> None:
    body = {"model": "7@xx", "cache_salt": "another's", "request_id": "2", "messages": [], "chat_template": "{{ 1 }}"}
    request = EngineRequest("1", Endpoint.CHAT, body, "prices", None, cache_salt="salt", prompt="[INST] x [/INST]")
    whole = VllmRequest.of(request, "7@ab").body(request)
    assert whole == {
        "model": "7@ab",
        "request_id": "1",
        "cache_salt": "salt",
        "messages": [],
        "chat_template": "{{ prompt }}",
        "chat_template_kwargs": {"prompt": "[INST] x [/INST]"},
    }


@pytest.mark.parametrize(
    ("endpoint", "body", "fields"),
    [
        (Endpoint.CHAT, {"messages": []}, {"messages": [], "kv_transfer_params": {"prompt_token_ids": [1, 5]}}),
        (Endpoint.COMPLETIONS, {"prompt": "x"}, {"prompt": [[1, 5]]}),
        (Endpoint.COMPLETIONS, {"prompt": "x", "echo": False}, {"prompt": [[1, 5]], "echo": False}),
        (Endpoint.COMPLETIONS, {"prompt": "x", "echo": True}, {"prompt": "x", "echo": True}),
    ],
)
def test_vllm_gets_tokens_unless_the_answer_repeats_the_text(
    endpoint: Endpoint, body: dict[str, Any], fields: dict[str, Any]
) -> None:
    request = EngineRequest("1", endpoint, body, "prices", None, cache_salt="salt", token_ids=((1, 5),))
    own = {"model": "7@ab", "request_id": "1", "cache_salt": "salt"}
    assert VllmRequest.of(request, "7@ab").body(request) == own | fields


@pytest.mark.parametrize(
    ("body", "temperature"),
    [
        ({"n": 2}, 1.0),
        ({"n": 2, "temperature": 0.3}, 0.3),
        ({"n": 1}, None),
        ({}, None),
    ],
)
def test_several_answers_of_a_greedy_base_are_sampled(body: dict[str, Any], temperature: float | None) -> None:
    request = EngineRequest("1", Endpoint.CHAT, body, "prices", None, cache_salt="salt")
    assert VllmRequest.of(request, "7@ab", greedy=True).body(request).get("temperature") == temperature
    assert VllmRequest.of(request, "7@ab").body(request).get("temperature") == body.get("temperature")
