"""Adapter defaults: validation, and precedence of the request over them."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.errors import Forbidden, InvalidRequest, UnsupportedField
from app.engine.port import Endpoint
from app.services.bodies import lorax
from app.services.bodies.field_table import CHAT, COMPLETIONS, MAX_TOKENS
from app.services.bodies.openai import chat_body, completion_body
from app.services.prompts.defaults import (
    SAMPLING,
    apply_defaults,
    checked_defaults,
    lorax_generation,
    replaced_defaults,
)
from app.settings import LimitSettings

LIMITS = LimitSettings()
EVERYTHING = {
    "system_prompt": "Be short.", "temperature": 0.7, "top_p": 0.9, "top_k": 40, "min_p": 0.05,
    "repetition_penalty": 1.1, "presence_penalty": 0.5, "frequency_penalty": -0.5, "max_tokens": 64, "stop": ["END"],
    "prompt_format": "llama-3",
}  # fmt: skip


def checked(raw, *, admin=False, limits=LIMITS):
    return checked_defaults(raw, limits=limits, admin=admin)


def completion(defaults, *, longest=MAX_TOKENS, **given):
    body = completion_body({"prompt": "x", **given}, LIMITS)
    return apply_defaults(Endpoint.COMPLETIONS, body, defaults, longest=longest)


def chat(defaults, *, messages=None, **given):
    body = chat_body({"messages": messages or [{"role": "user", "content": "x"}], **given}, LIMITS)
    return apply_defaults(Endpoint.CHAT, body, defaults, longest=MAX_TOKENS)


def generated(defaults, *, longest=MAX_TOKENS, **parameters):
    body = {"inputs": "x", "parameters": parameters}
    lorax.generation(body, LIMITS, default_tokens=5, stream=None)  # the service validates the request first
    return lorax_generation(body, defaults, LIMITS, default_tokens=5, stream=None, longest=longest).body


def test_everything_that_may_be_a_default():
    assert checked(EVERYTHING) == EVERYTHING
    assert checked({}) == {}
    assert checked({"temperature": None, "stop": "END"}) == {"stop": ["END"]}


@pytest.mark.parametrize(
    ("raw", "param"),
    [
        ({"temperature": 2.1}, "temperature"), ({"temperature": "0.5"}, "temperature"), ({"top_p": 0}, "top_p"),
        ({"top_k": -2}, "top_k"), ({"min_p": 1.1}, "min_p"), ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"presence_penalty": 3}, "presence_penalty"), ({"frequency_penalty": True}, "frequency_penalty"),
        ({"max_tokens": 0}, "max_tokens"), ({"stop": []}, "stop"), ({"stop": [""]}, "stop"), ({"stop": 5}, "stop"),
        ({"system_prompt": ""}, "system_prompt"), ({"system_prompt": "x" * 20_000}, "system_prompt"),
        ({"system_prompt": "\u00e9" * 10_000}, "system_prompt"), ({"system_prompt": 5}, "system_prompt"),
        ({"system_prompt": "\ud800"}, "system_prompt"), ({"prompt_format": "chatml"}, "prompt_format"),
    ],
)  # fmt: skip
def test_invalid_values_are_refused_with_their_field(raw, param):
    with pytest.raises(InvalidRequest) as caught:
        checked(raw)
    assert caught.value.param.split(".")[:2] == ["defaults", param]


@pytest.mark.parametrize("name", ["n", "seed", "tools", "logprobs", "response_format", "chat_template_kwargs", "x"])
def test_other_fields_are_refused_by_name_with_what_is_allowed(name):
    with pytest.raises(UnsupportedField, match=f"{name}.*system_prompt") as caught:
        checked({name: 1})
    assert caught.value.param == f"defaults.{name}"


@pytest.mark.parametrize("raw", [[], "x", 5, None])
def test_what_is_no_object_is_refused(raw):
    with pytest.raises(InvalidRequest, match="defaults"):
        checked(raw)


def test_a_chat_template_is_for_administrators():
    assert checked({"chat_template": "{{ messages }}"}, admin=True) == {"chat_template": "{{ messages }}"}
    # The permission is checked first: a tenant does not learn whether its template would be valid.
    for template in ("{{ messages }}", 5, "x" * 100_000):
        with pytest.raises(Forbidden) as caught:
            checked({"chat_template": template})
        assert caught.value.param == "defaults.chat_template"
    for template in ("", "x" * 100_000, 5, "\udfff"):
        with pytest.raises(InvalidRequest, match="chat_template"):
            checked({"chat_template": template}, admin=True)


def test_a_template_and_a_format_exclude_each_other():
    with pytest.raises(InvalidRequest, match="prompt_format"):
        checked({"chat_template": "x", "prompt_format": "mistral"}, admin=True)


def test_the_caps_are_the_settings():
    small = LimitSettings(system_prompt_bytes=4, chat_template_bytes=8, stop=1)
    for raw in ({"system_prompt": "12345"}, {"chat_template": "123456789"}, {"stop": ["a", "b"]}):
        with pytest.raises(InvalidRequest, match=r"; (it must have 1 to [48]|the limit is 1)\."):
            checked(raw, admin=True, limits=small)


def test_a_tenant_cannot_change_an_administrators_template():
    old, new = {"chat_template": "mine", "top_p": 0.5}, {"temperature": 0.5}
    assert replaced_defaults(old, new, admin=True) == new
    assert replaced_defaults(old, new, admin=False) == {"temperature": 0.5, "chat_template": "mine"}
    assert replaced_defaults(old, {"chat_template": "yours"}, admin=False) == {"chat_template": "mine"}
    assert replaced_defaults({}, {"chat_template": "yours"}, admin=False) == {}
    with pytest.raises(InvalidRequest, match="prompt_format"):
        replaced_defaults(old, {"prompt_format": "mistral"}, admin=False)


def test_what_the_request_does_not_say_comes_from_the_defaults():
    sampling = {name: EVERYTHING[name] for name in SAMPLING}
    assert completion(EVERYTHING) == {"prompt": "x", **sampling}
    system = {"role": "system", "content": "Be short."}
    assert chat(EVERYTHING) == {"messages": [system, {"role": "user", "content": "x"}], **sampling}
    assert chat(EVERYTHING, temperature=None, stop=None) == chat(EVERYTHING)


@pytest.mark.parametrize("role", ["system", "developer"])
def test_the_requests_system_message_wins(role):
    messages = [{"role": "user", "content": "x"}, {"role": role, "content": "Be long."}]
    assert chat(EVERYTHING, messages=messages)["messages"][-1] == {"role": "system", "content": "Be long."}
    assert len(chat(EVERYTHING, messages=messages)["messages"]) == 2


def test_the_most_turns_fit_with_the_default_system_prompt():
    messages = [{"role": "user", "content": "x"}] * 2048
    assert len(chat(EVERYTHING, messages=messages)["messages"]) == 2049


def test_both_names_of_a_chat_s_length_win():
    assert "max_tokens" not in chat({"max_tokens": 64}, max_completion_tokens=5)
    assert chat({"max_tokens": 64}, max_tokens=5)["max_tokens"] == 5


def test_the_default_length_gives_way_to_what_the_request_needs():
    assert completion({"max_tokens": 4}, min_tokens=9)["max_tokens"] == 9
    assert completion({"max_tokens": 400}, longest=100)["max_tokens"] == 100
    assert completion({"max_tokens": 400}, longest=100, max_tokens=300)["max_tokens"] == 300


def test_several_answers_are_not_made_greedy():
    assert "temperature" not in completion({"temperature": 0}, n=2)
    assert completion({"temperature": 0}, n=2, temperature=0.5)["temperature"] == 0.5
    assert completion({"temperature": 0}, n=1)["temperature"] == 0


def test_empty_values_of_the_request_win_too():
    assert completion(EVERYTHING, stop=[])["stop"] == []
    assert completion(EVERYTHING, temperature=0, top_k=-1)["temperature"] == 0


values = {
    "temperature": st.floats(0, 2), "top_p": st.floats(0.01, 1), "top_k": st.integers(1, 1000),
    "min_p": st.floats(0, 1), "repetition_penalty": st.floats(0.01, 100), "presence_penalty": st.floats(-2, 2),
    "frequency_penalty": st.floats(-2, 2), "max_tokens": st.integers(1, 5000),
    "stop": st.lists(st.text("abc", min_size=1), min_size=1, max_size=3),
}  # fmt: skip
some = st.fixed_dictionaries({}, optional=values)


@given(some, some, st.sampled_from(["completions", "chat"]))
def test_the_request_always_wins(request, defaults, endpoint):
    body = (chat if endpoint == "chat" else completion)(checked(defaults), **request)
    for name in values:
        said = request.get(name, defaults.get(name))
        assert body.get(name) == said, name
    table = CHAT.checks if endpoint == "chat" else COMPLETIONS.checks
    assert set(body) <= set(table)


LORAX_NAMES = {"max_tokens": "max_new_tokens"}


@given(some.map(lambda given: {name: value for name, value in given.items() if name != "min_p"}), some)
def test_the_request_always_wins_on_lorax_routes(request, defaults):
    parameters = {LORAX_NAMES.get(name, name): value for name, value in request.items()}
    body = generated(checked(defaults), **parameters)
    alone = generated({}, **parameters)
    for name in request:
        if name == "temperature" and alone["temperature"] == 0:
            continue  # LoRAX reads temperature 1 alone as greedy decoding: see the test below
        if name in alone:
            assert body[name] == request[name], name
    assert body["max_tokens"] == request.get("max_tokens", defaults.get("max_tokens", 5))
    if request.get("temperature") == 0:
        assert body["temperature"] == 0
        assert not {"top_p", "top_k", "min_p"} & set(body)


#: Parameters that lorax-client 0.6.3 sends with every request.
SILENCE = {"do_sample": False, "stop": [], "temperature": None, "top_p": None, "seed": None, "max_new_tokens": None}


def test_lorax_s_client_gets_the_defaults():
    assert generated(EVERYTHING, **SILENCE) == {
        "prompt": "x", "stream": False, "temperature": 0.7, "top_p": 0.9, "top_k": 40, "min_p": 0.05,
        "repetition_penalty": 1.1, "presence_penalty": 0.5, "frequency_penalty": -0.5, "max_tokens": 64,
        "stop": ["END"], "include_stop_str_in_output": True,
    }  # fmt: skip
    assert generated({}, **SILENCE) == {"prompt": "x", "stream": False, "temperature": 0.0, "max_tokens": 5}


@pytest.mark.parametrize(
    ("defaults", "parameters", "temperature"),
    [
        ({"temperature": 0.7}, {}, 0.7),
        ({"temperature": 1.0}, {}, 1.0),
        ({"temperature": 0.7}, {"do_sample": True}, 0.7),
        ({"temperature": 0.7}, {"temperature": 0}, 0.0),
        ({"temperature": 0.7}, {"temperature": 0.3}, 0.3),
        ({"temperature": 0.7}, {"temperature": 1.0, "do_sample": True}, 1.0),
        ({"temperature": 0.0}, {}, 0.0),
        ({"temperature": 0.0, "top_p": 0.9, "top_k": 5, "min_p": 0.1}, {}, 0.0),
        ({"temperature": 0.0}, {"do_sample": True}, 1.0),
        ({"temperature": 0.0}, {"top_p": 0.5}, 1.0),
        ({"temperature": 0.0}, {"top_k": 5}, 1.0),
        ({"temperature": 0.0}, {"best_of": 2, "do_sample": True}, 1.0),
        ({"top_p": 0.9}, {}, 1.0),
        ({"top_k": -1}, {}, 0.0),
        ({"min_p": 0.1}, {}, 0.0),
    ],
)
def test_sampling_on_lorax_routes(defaults, parameters, temperature):
    body = generated(defaults, **parameters)
    assert body["temperature"] == temperature
    assert ("min_p" in body) == ("min_p" in defaults and temperature > 0)


def test_the_default_length_on_lorax_routes_fits_the_engine():
    assert generated({"max_tokens": 400}, longest=100)["max_tokens"] == 100
    assert generated({"max_tokens": 400}, longest=100, max_new_tokens=7)["max_tokens"] == 7


def test_a_lorax_body_without_parameters():
    defaults = {"max_tokens": 9}
    body = lorax_generation({"inputs": "x"}, defaults, LIMITS, default_tokens=5, stream=False, longest=99).body
    assert body == {"prompt": "x", "stream": False, "temperature": 0.0, "max_tokens": 9}


anything = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.lists(st.text(max_size=3), max_size=3)
)


@given(st.dictionaries(st.sampled_from(sorted(EVERYTHING)) | st.text(max_size=5), anything, max_size=4))
def test_any_object_is_checked_or_refused(raw):
    with contextlib.suppress(InvalidRequest, UnsupportedField, Forbidden):
        made = checked(raw)
        assert set(made) <= set(EVERYTHING)
        assert checked(made) == made
        completion(made)
        chat(made)
        generated(made)
