"""Whatever JSON comes: a body that the engine may see, or an error of ours; never another exception."""

import contextlib
import json

from hypothesis import example, given
from hypothesis import strategies as st

from app.errors import InvalidRequest, TenoraError
from app.services.bodies.lorax import PARAMETERS, generation
from app.services.bodies.openai import CHAT_FIELDS, COMPLETION_FIELDS, MODEL_FIELDS, chat_body, completion_body
from app.services.bodies.parsing import parse_object
from app.settings import LimitSettings

LIMITS = LimitSettings()
TRANSLATED = {"max_tokens", "ignore_eos", "truncate_prompt_tokens", "truncation_side", "return_tokens_as_token_ids",
              "prompt_logprobs"}  # fmt: skip

words = st.sampled_from(
    [
        "",
        "text",
        "user",
        "assistant",
        "tool",
        "function",
        "json_schema",
        "json_object",
        "auto",
        "local",
        "pricing",
        "a*",
    ]
) | st.text(max_size=12)
keys = st.sampled_from(
    ["type", "role", "content", "text", "function", "name", "schema", "json_schema", "json", "regex", "choice", "$ref",
     "pattern", "patternProperties", "tool_calls", "tool_call_id", "arguments", "include_usage", "parameters", "id",
     "1"]
) | st.text(max_size=6)  # fmt: skip
scalars = st.none() | st.booleans() | st.integers() | st.floats() | words
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4), max_leaves=12
)


def bodies(fields, **main):
    """Bodies with a main field that mostly fits and any values for some of the other fields."""
    others = st.dictionaries(st.sampled_from(sorted(fields)) | keys, values, max_size=5)
    return st.builds(lambda other, fixed: fixed | other, others, st.fixed_dictionaries(main))


@given(bodies([*COMPLETION_FIELDS, *MODEL_FIELDS], prompt=st.just("x") | values))
def test_completions(body):
    with contextlib.suppress(TenoraError):
        checked = completion_body(body, LIMITS)
        assert set(checked) <= set(COMPLETION_FIELDS) - {"user", "best_of"}
        assert "prompt" in checked
        json.dumps(checked, allow_nan=False)


@given(bodies([*CHAT_FIELDS, *MODEL_FIELDS], messages=st.just([{"role": "user", "content": "x"}]) | values))
@example({"messages": [{"role": "user", "content": "x"}], "response_format": {"type": "text"}})
def test_chat(body):
    with contextlib.suppress(TenoraError):
        checked = chat_body(body, LIMITS)
        assert set(checked) <= set(CHAT_FIELDS) - {"user", "store", "metadata"}
        assert "messages" in checked
        json.dumps(checked, allow_nan=False)


@given(bodies(["stream"], inputs=st.just("x") | values, parameters=st.dictionaries(st.sampled_from(
    sorted(PARAMETERS)) | keys, values, max_size=4) | values), st.sampled_from([True, False, None]))  # fmt: skip
def test_lorax(body, stream):
    with contextlib.suppress(TenoraError):
        wanted = generation(body, LIMITS, default_tokens=5, stream=stream)
        assert set(wanted.body) <= set(COMPLETION_FIELDS) | TRANSLATED
        assert stream is None or wanted.stream is stream
        json.dumps(wanted.body, allow_nan=False)


@given(st.binary(max_size=40) | values.map(lambda value: json.dumps(value).encode()))
def test_bytes(raw):
    with contextlib.suppress(InvalidRequest):
        body = parse_object(raw)
        assert isinstance(body, dict)
        json.dumps(body, ensure_ascii=False).encode()
