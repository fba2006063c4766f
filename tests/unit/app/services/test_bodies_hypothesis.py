"""Arbitrary JSON: either a body for the engine or a Tenora error, never another exception."""

import contextlib
import itertools
import json

from hypothesis import example, given
from hypothesis import strategies as st

from app.domain.errors import InvalidRequest, TenoraError
from app.services.bodies import lorax, openai
from app.services.bodies.anthropic import messages_request
from app.services.bodies.field_table import CHAT, COMPLETIONS, LORAX, MESSAGES, MODEL_FIELDS, RESPONSES
from app.services.bodies.lorax import generation
from app.services.bodies.openai import chat_body, completion_body
from app.services.bodies.parsing import parse_object
from app.services.bodies.responses import responses_request
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


extras = st.dictionaries(keys, values, max_size=2)
parts = st.builds(
    lambda other, part: other | part, extras, st.sampled_from([{"type": "text", "text": "x"}, {"type": "refusal"}])
)
calls = st.builds(
    lambda other, more, arguments: (
        other | {"id": "1", "type": "function", "function": more | {"name": "f", "arguments": arguments}}
    ),
    extras,
    extras,
    words | values.map(json.dumps) | st.sampled_from(["", "{", '{"a": NaN}']),
)
turns = st.builds(
    lambda other, turn: other | turn,
    extras,
    st.one_of(
        st.fixed_dictionaries({"role": st.just("user"), "content": words | st.lists(parts, max_size=2)}),
        st.fixed_dictionaries({"role": st.just("assistant"), "tool_calls": st.lists(calls, max_size=2)}),
        st.fixed_dictionaries({"role": st.just("tool"), "tool_call_id": words, "content": words}),
    ),
)


def bodies(fields, **main):
    """Bodies with a mostly valid main field and arbitrary values for some other fields."""
    others = st.dictionaries(st.sampled_from(sorted(fields)) | keys, values, max_size=5)
    return st.builds(lambda other, fixed: fixed | other, others, st.fixed_dictionaries(main))


@given(bodies([*COMPLETIONS.checks, *MODEL_FIELDS], prompt=st.just("x") | values))
def test_completions(body):
    with contextlib.suppress(TenoraError):
        checked = completion_body(body, LIMITS)
        assert set(checked) <= set(COMPLETIONS.checks) - {"user", "best_of", *CHAT.ignored}
        assert "prompt" in checked
        json.dumps(checked, allow_nan=False)
        assert not {*openai.ignored(body)} & set(checked)


@given(
    bodies(
        [*CHAT.checks, *MODEL_FIELDS],
        messages=st.just([{"role": "user", "content": "x"}]) | st.lists(turns, max_size=3) | values,
    )
)
@example({"messages": [{"role": "user", "content": "x"}], "response_format": {"type": "text"}})
def test_chat(body):
    with contextlib.suppress(TenoraError):
        checked = chat_body(body, LIMITS)
        assert set(checked) <= set(CHAT.checks) - {"user", *CHAT.ignored}
        assert "messages" in checked
        json.dumps(checked, allow_nan=False)
        assert not {*openai.ignored(body)} & set(checked)
        for turn in checked["messages"]:
            assert set(turn) <= {"role", "content", "name", "tool_calls", "tool_call_id"}
            for call in turn.get("tool_calls", ()):
                assert isinstance(json.loads(call["function"]["arguments"]), dict)


def typed(*kinds, **known):
    """Objects with one of these types, some known keys with any values, and other keys."""
    some = st.fixed_dictionaries({}, optional={name: value | values for name, value in known.items()})
    return st.builds(lambda other, own, kind: other | own | {"type": kind}, extras, some, st.sampled_from(kinds))


texts = typed("input_text", "output_text", "text", "refusal", "image", text=words, refusal=words)
contents = words | st.lists(texts, max_size=3)
roles = st.sampled_from(["user", "assistant", "system", "developer", "tool"])
items = st.one_of(
    typed("message", role=roles, content=contents),
    typed("function_call", call_id=words, name=words, arguments=words | values.map(json.dumps)),
    typed("function_call_output", call_id=words, output=contents),
    typed("reasoning", "item_reference", "web_search_call", id=words),
)
schemas = st.just({"type": "object"}) | values
functions = typed("function", "mcp", name=words, description=words, parameters=schemas, strict=st.booleans())


@given(
    bodies(
        sorted(RESPONSES.names),
        input=words | st.lists(items, max_size=4) | values,
        tools=st.just([]) | st.lists(functions, max_size=2) | values,
        text=st.fixed_dictionaries({"format": typed("text", "json_schema", name=words, schema=schemas)}) | st.none(),
    )
)
def test_responses(body):
    with contextlib.suppress(TenoraError):
        request = responses_request(body, LIMITS)
        assert set(request.chat) <= set(CHAT.checks)
        assert all(isinstance(name, str) for name in request.ignored)
        json.dumps([request.chat, request.shown], allow_nan=False)


uses = typed("tool_use", id=words, name=words, input=st.dictionaries(keys, values, max_size=2))
results = typed("tool_result", tool_use_id=words, content=contents, is_error=st.booleans())
blocks = words | st.lists(texts | uses | results | typed("thinking", "redacted_thinking", "document"), max_size=3)
replies = st.fixed_dictionaries({"role": roles | values, "content": blocks | values})
custom = typed(None, "custom", "bash_20250124", name=words, input_schema=schemas)


@given(
    bodies(
        sorted(MESSAGES.names),
        messages=st.lists(replies, min_size=1, max_size=4) | values,
        max_tokens=st.just(5) | values,
        system=contents | st.none(),
        tools=st.just([]) | st.lists(custom, max_size=2) | values,
        tool_choice=typed("auto", "any", "tool", "none", name=words) | st.none(),
    )
)
def test_messages(body):
    with contextlib.suppress(TenoraError):
        request = messages_request(body, LIMITS)
        assert set(request.chat) <= set(CHAT.checks)
        assert request.chat["messages"][-1]["role"] != "assistant"
        roles_in_order = [turn["role"] for turn in request.chat["messages"]]
        assert all(
            first != second or first in ("tool", "system") for first, second in itertools.pairwise(roles_in_order)
        )
        json.dumps([request.chat, request.ignored, request.stops], allow_nan=False)


parameters = st.dictionaries(st.sampled_from(sorted(LORAX.checks)) | keys, values, max_size=4)


@given(
    bodies(["stream"], inputs=st.just("x") | values, parameters=parameters | values),
    st.sampled_from([True, False, None]),
)
def test_lorax(body, stream):
    with contextlib.suppress(TenoraError):
        wanted = generation(body, LIMITS, default_tokens=5, stream=stream)
        assert set(wanted.body) <= set(COMPLETIONS.checks) | TRANSLATED
        assert stream is None or wanted.stream is stream
        assert {*lorax.ignored(body)} <= {"parameters.typical_p"}
        json.dumps(wanted.body, allow_nan=False)


@given(st.binary(max_size=40) | values.map(lambda value: json.dumps(value).encode()))
def test_bytes(raw):
    with contextlib.suppress(InvalidRequest):
        body = parse_object(raw)
        assert isinstance(body, dict)
        json.dumps(body, ensure_ascii=False).encode()
