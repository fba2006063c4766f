"""Allow-list of OpenAI request bodies: a value either fits or is refused with the field's name."""

import importlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.errors import InvalidRequest, TenoraError, UnsupportedField
from app.services.bodies import parsing
from app.services.bodies.field_table import CHAT, COMPLETIONS, MODEL_FIELDS
from app.services.bodies.openai import chat_body, completion_body, ignored
from app.services.bodies.parsing import MAX_CONTAINERS, MAX_NAMES, MAX_VALUES, parse_large_object, parse_object
from app.settings import LimitSettings

LIMITS = LimitSettings()
TOOL = {"type": "function", "function": {"name": "price", "parameters": {"type": "object", "properties": {}}}}


def completion(**given):
    return completion_body({"prompt": "hello", **given}, LIMITS)


def chat(**given):
    return chat_body({"messages": [{"role": "user", "content": "hello"}], **given}, LIMITS)


# Fields of vLLM's request classes that no client may set.
REFUSED_COMPLETION = {
    "suffix", "use_beam_search", "watermarking", "length_penalty", "truncate_prompt_tokens", "truncation_side",
    "allowed_token_ids", "prompt_logprobs", "logprob_token_ids", "bad_words", "prompt_embeds", "add_special_tokens",
    "priority", "request_id", "session_id", "return_tokens_as_token_ids", "routed_experts_prompt_start",
    "return_token_offsets", "mm_payload", "return_mm_kwargs", "cache_salt", "kv_transfer_params",
    "ec_transfer_params", "vllm_xargs", "repetition_detection", "thinking_token_budget", "stream_interval",
}  # fmt: skip
REFUSED_CHAT = (REFUSED_COMPLETION - {"suffix", "prompt_embeds"}) | {
    "echo", "include_reasoning", "add_generation_prompt", "continue_final_message", "documents",
    "chat_template", "chat_template_kwargs", "media_io_kwargs", "mm_processor_kwargs", "return_prompt_text",
}  # fmt: skip


@pytest.mark.parametrize(
    ("module", "name", "allowed", "refused"),
    [
        ("completion", "CompletionRequest", COMPLETIONS.checks, REFUSED_COMPLETION),
        ("chat_completion", "ChatCompletionRequest", CHAT.checks, REFUSED_CHAT),
    ],
)
def test_every_engine_field_is_allowed_or_refused(module, name, allowed, refused):
    protocol = importlib.import_module(f"vllm.entrypoints.openai.{module}.protocol")
    fields = set(getattr(protocol, name).model_fields)
    assert not refused & set(allowed)
    assert fields - set(allowed) - MODEL_FIELDS == refused


@pytest.mark.parametrize("name", sorted(REFUSED_COMPLETION | {"guided_grammar", "made_up", "messages"}))
def test_completions_refuse_other_fields_by_name(name):
    with pytest.raises(UnsupportedField, match=name) as caught:
        completion(**{name: 1})
    assert caught.value.param == name


@pytest.mark.parametrize(
    "name", sorted(REFUSED_CHAT | {"functions", "audio", "verbosity", "web_search_options", "prompt"})
)
def test_chat_refuses_other_fields_by_name(name):
    with pytest.raises(UnsupportedField, match=name) as caught:
        chat(**{name: 1})
    assert caught.value.param == name


def test_what_is_checked_is_forwarded_and_nothing_else():
    given = {
        "temperature": 1,
        "top_p": 0.9,
        "stop": "END",
        "seed": 7,
        "n": 2,
        "logit_bias": {"5": -100},
        "stream": True,
    }
    body = completion(**given, model="pricing", adapter_id="pricing", user="u", best_of=2, max_tokens=None)
    assert body == {"prompt": "hello", **given, "stop": ["END"]}


PLATFORM = {
    "metadata": {"a": "b"}, "store": True, "reasoning_effort": "high", "prompt_cache_key": "k",
    "prompt_cache_options": {"mode": "explicit"}, "prompt_cache_retention": "24h", "safety_identifier": "s",
    "service_tier": "flex", "prediction": {"type": "content", "content": "x"},
}  # fmt: skip


@pytest.mark.parametrize("ask", [chat, completion])
@pytest.mark.parametrize("name", sorted(CHAT.ignored))
@pytest.mark.parametrize("value", ["as OpenAI has it", {}, False, ["x"], 1.5])
def test_fields_of_openais_platform_are_not_forwarded(ask, name, value):
    body = {name: PLATFORM[name] if value == "as OpenAI has it" else value}
    assert set(ask(**body)) == set(ask())
    assert [*ignored(body)] == [name]
    assert [*ignored({name: None})] == []


def test_fields_without_effect_are_not_forwarded():
    given = {"modalities": ["text"], "verbosity": "medium", "functions": [], "function_call": "auto", "user": "someone"}
    assert set(chat(**given)) == {"messages"}
    assert [*ignored(given)] == []


@pytest.mark.parametrize(
    "given",
    [{"verbosity": "low"}, {"functions": [{"name": "f"}]}, {"function_call": {"name": "f"}}, {"audio": {"voice": "x"}}],
)
def test_what_could_change_the_answer_is_refused_by_name(given):
    with pytest.raises(UnsupportedField) as caught:
        chat(**given)
    assert caught.value.param in given


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", True), ("temperature", "1"), ("temperature", -0.1), ("temperature", 2.1),
        ("temperature", float("nan")), ("temperature", float("inf")), ("temperature", 10**400),
        ("top_p", 0), ("top_p", 1.01), ("min_p", -1), ("presence_penalty", 2.5), ("frequency_penalty", -2.5),
        ("repetition_penalty", 0), ("repetition_penalty", 1e-30), ("top_k", -2), ("top_k", 1.0), ("top_k", 2**40),
        ("n", 0), ("n", 9), ("n", True), ("logprobs", 21), ("logprobs", -1), ("logprobs", True),
        ("max_tokens", 0), ("max_tokens", -1), ("max_tokens", "5"), ("min_tokens", -1), ("seed", 2**63), ("seed", 1.5),
        ("stop", ["a"] * 17), ("stop", [""]), ("stop", ["x" * 257]), ("stop", ["\u00e9" * 129]), ("stop", 5),
        ("stop", [5]),
        ("stop_token_ids", [-1]), ("stop_token_ids", [True]), ("stop_token_ids", [1] * 129), ("stop_token_ids", 3),
        ("logit_bias", {"x": 1}), ("logit_bias", {"-1": 1}), ("logit_bias", {"1": 101}), ("logit_bias", [1]),
        ("logit_bias", {str(i): 1 for i in range(301)}), ("logit_bias", {"9" * 20: 1}), ("logit_bias", {"\u0663": 1}),
        ("echo", 1), ("stream", "yes"), ("ignore_eos", 0), ("user", 5), ("user", "x" * 513),
        ("stream_options", {"include_usage": True}), ("best_of", 9),
        ("prompt", ""), ("prompt", []), ("prompt", ["a"] * 129), ("prompt", ["a", 1]), ("prompt", [1, "a"]),
        ("prompt", [[1], "a"]), ("prompt", [[]]), ("prompt", [[1], [True]]), ("prompt", {"a": 1}), ("prompt", [None]),
        ("prompt", [2**31]), ("response_format", {"type": "grammar"}), ("response_format", "json"),
    ],
)  # fmt: skip
def test_values_that_do_not_fit_are_refused_with_their_field(field, value):
    with pytest.raises(InvalidRequest) as caught:
        completion(**{field: value})
    assert caught.value.param is not None
    assert caught.value.param.startswith(field)
    assert field in caught.value.message


@pytest.mark.parametrize("prompt", ["a", [1, 2], ["a", "b"], [[1], [2, 3]]])
def test_every_shape_of_prompt(prompt):
    assert completion(prompt=prompt)["prompt"] == prompt


def test_echo_alone_may_generate_nothing():
    assert completion(echo=True, max_tokens=0)["max_tokens"] == 0


def test_best_of_other_than_n_is_not_supported():
    with pytest.raises(UnsupportedField, match="best_of"):
        completion(best_of=2)


def test_a_body_without_its_main_field():
    with pytest.raises(InvalidRequest, match="prompt is missing"):
        completion_body({}, LIMITS)
    with pytest.raises(InvalidRequest, match="messages is missing"):
        chat_body({}, LIMITS)


def test_unknown_stream_option():
    with pytest.raises(UnsupportedField, match=r"stream_options\.x"):
        completion(stream=True, stream_options={"x": True})


def test_padding_of_a_stream_is_ignored():
    body = {"stream": True, "stream_options": {"include_usage": True, "include_obfuscation": False}}
    assert completion(**body)["stream_options"] == {"include_usage": True}
    assert [*ignored(body)] == ["stream_options.include_obfuscation"]


def test_usage_of_a_stream():
    options = {"include_usage": True, "continuous_usage_stats": False}
    assert completion(stream=True, stream_options=options)["stream_options"] == options


@pytest.mark.parametrize(
    "messages",
    [
        [], "hi", [5], [{"content": "x"}], [{"role": "robot", "content": "x"}], [{"role": ["user"], "content": "x"}],
        [{"role": "user"}], [{"role": "user", "content": None}], [{"role": "user", "content": 5}],
        [{"role": "user", "content": ["x"]}], [{"role": "user", "content": {"type": "text", "text": "x"}}],
        [{"role": "function", "name": "f", "content": "x"}],
        [{"role": "developer", "content": "x", "tools": [{"type": "function"}]}],
        [{"role": "user", "content": [{"type": "text", "text": "x"}] * 257}],
        [{"role": "user", "content": [{"type": "file", "file": {"file_data": "x"}}]}],
        [{"role": "user", "content": [{"type": ["text"], "text": "x"}]}],
        [{"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "f", "input": {}}]}],
        [{"role": "user", "content": [{"type": "text"}]}], [{"role": "user", "content": [{"type": "text", "text": 5}]}],
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x"}}]}],
        [{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}],
        [{"role": "user", "content": "x", "name": 5}],
        [{"role": "tool", "content": "x", "tool_call_id": "1", "name": 5}],
        [{"role": "tool", "content": "x"}], [{"role": "tool", "tool_call_id": "1"}],
        [{"role": "assistant", "content": "x", "tool_calls": "none"}],
        [{"role": "assistant", "tool_calls": [{"id": "1", "type": "function"}]}],
        [{"role": "assistant", "tool_calls": [{"id": 1, "type": "function", "function": {
            "name": "f", "arguments": "{}"}}]}],
        [{"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f"}}]}],
        [{"role": "assistant", "tool_calls": [{"id": "1", "type": "custom", "function": {}}]}],
        [{"role": "user", "content": "x"}] * 2049,
    ],
)  # fmt: skip
def test_messages_that_do_not_fit(messages):
    with pytest.raises(TenoraError) as caught:
        chat(messages=messages)
    assert isinstance(caught.value, InvalidRequest | UnsupportedField)
    assert caught.value.param.startswith("messages")


def called(arguments):
    call = {"id": "c1", "type": "function", "function": {"name": "price", "arguments": arguments}}
    (turn,) = chat(messages=[{"role": "assistant", "content": None, "tool_calls": [call]}])["messages"]
    return turn["tool_calls"][0]["function"]["arguments"]


@pytest.mark.parametrize(
    "arguments",
    [
        "",
        " \n\t",
        "{",
        '{"sku": "sug',
        '{"sku": 1,}',
        '{"a": 1} {"b": 2}',
        "null",
        "[]",
        '"x"',
        "42",
        "nonsense",
        "\ufeff{}",
    ],
)
def test_arguments_that_are_blank_cut_off_or_no_object_are_none(arguments):
    assert called(arguments) == "{}"


@pytest.mark.parametrize("arguments", ["{}", ' {"a": {"b": [1, "\\ud83d\\ude00"]}} ', json.dumps({"deep": [[[[]]]]})])
def test_arguments_that_are_an_object_stay_as_they_are(arguments):
    assert called(arguments) == arguments


@pytest.mark.parametrize(
    "arguments",
    [
        '{"a": NaN}', '{"a": [-Infinity]}', '{"a": ' + "9" * 5000 + "}", '{"a": "\\ud800"}', '{"\\uDC00": 1}',
        '{"a": ' + "[" * 128 + "]" * 128 + "}", '{"a": ' * 200 + "1" + "}" * 200, "[" * 100_000,
    ],
)  # fmt: skip
def test_arguments_that_no_prompt_can_hold_are_refused(arguments):
    with pytest.raises(InvalidRequest) as caught:
        called(arguments)
    assert caught.value.param == "messages.0.tool_calls.0.function.arguments"
    assert len(caught.value.message) < 200


ADDED = {
    "index": 0, "id": "m1", "parsed": {"a": [1]}, "reasoning": "r", "reasoning_content": "", "refusal": "no",
    "annotations": [], "audio": {"id": "a"}, "function_call": {"name": "f", "arguments": "{}"}, "created_at": 1.5,
    "provider_specific_fields": {"reasoning": None}, "cache_control": {"type": "ephemeral"}, "tools": [],
}  # fmt: skip


@pytest.mark.parametrize("role", ["system", "developer", "user", "assistant", "tool"])
@pytest.mark.parametrize("name", [*ADDED, "made up", "k\u00fc", ""])
def test_what_clients_add_to_messages_is_ignored_and_named(role, name):
    plain = {"role": role, "content": "x"} | ({"tool_call_id": "c1"} if role == "tool" else {})
    sent = {"messages": [plain | {name: ADDED.get(name, 1)}]}
    assert chat(**sent) == chat(messages=[plain])
    assert [*ignored(sent)] == [f"messages[].{name}"]
    assert [*ignored({"messages": [plain | {name: None}]})] == []


def test_extra_fields_in_parts_and_calls_are_ignored_by_name():
    function = {"name": "price", "arguments": "{}"}
    call = {"id": "c1", "type": "function", "function": function}
    plain = [
        {"role": "user", "content": [{"type": "text", "text": "x"}]},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "content": "5", "tool_call_id": "c1", "name": "price"},
    ]
    sent = [
        {
            "role": "user",
            "content": [{"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}, "id": None}],
        },
        {
            "role": "assistant",
            "content": [],
            "tool_calls": [call | {"index": 0, "function": function | {"parsed_arguments": {}, "output": "5"}}],
        },
        plain[2],
    ]
    assert chat(messages=sent) == chat(messages=plain)
    assert [*ignored({"messages": sent})] == [
        "messages[].content[].cache_control",
        "messages[].tool_calls[].index",
        "messages[].tool_calls[].function.parsed_arguments",
        "messages[].tool_calls[].function.output",
    ]


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("text", "text"),
        ("input_text", "text"),
        ("output_text", "text"),
        ("refusal", "refusal"),
        ("thinking", "thinking"),
    ],
)
def test_parts_that_hold_text_are_text_to_the_engine(kind, name):
    (turn,) = chat(messages=[{"role": "assistant", "content": [{"type": kind, name: "hello", "annotations": []}]}])[
        "messages"
    ]
    assert turn == {"role": "assistant", "content": [{"type": "text", "text": "hello"}]}


@pytest.mark.parametrize("role", ["system", "user", "assistant", "tool"])
def test_no_part_at_all_is_the_empty_text(role):
    (turn,) = chat(messages=[{"role": role, "content": [], "tool_call_id": "c1"}])["messages"]
    assert turn["content"] == ""


@pytest.mark.parametrize("said", [{}, {"content": None}, {"content": ""}, {"content": [], "tool_calls": []}])
def test_an_assistant_may_have_said_nothing(said):
    (turn,) = chat(messages=[{"role": "assistant", **said}])["messages"]
    assert turn == {"role": "assistant", "content": ""}


def test_an_empty_list_of_tool_calls_is_none():
    (turn,) = chat(messages=[{"role": "assistant", "content": "x", "tool_calls": []}])["messages"]
    assert turn == {"role": "assistant", "content": "x"}


def test_a_whole_conversation():
    call = {"id": "c1", "type": "function", "function": {"name": "price", "arguments": '{"sku": 1}'}}
    body = chat(
        messages=[
            {"role": "developer", "content": "Be short."},
            {"role": "user", "content": [{"type": "text", "text": "What does it cost?"}], "name": "ann"},
            # An answer as the SDK dumps it: unset fields are null.
            {"role": "assistant", "content": None, "tool_calls": [call], "refusal": None, "audio": None},
            {"role": "tool", "content": "5", "tool_call_id": "c1", "name": "price"},
        ],
        tools=[TOOL],
        tool_choice="auto",
    )
    assert body["messages"] == [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": [{"type": "text", "text": "What does it cost?"}], "name": "ann"},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "content": "5", "tool_call_id": "c1", "name": "price"},
    ]


def test_top_logprobs_need_logprobs():
    assert chat(logprobs=True, top_logprobs=5)["top_logprobs"] == 5
    with pytest.raises(InvalidRequest, match="top_logprobs"):
        chat(top_logprobs=5)


@pytest.mark.parametrize(
    "given",
    [
        {"tools": [{"type": "custom", "custom": {"name": "x"}}]}, {"tools": [{"type": "function"}]},
        {"tools": [{"type": "function", "function": {"name": "a b"}}]}, {"tools": [TOOL] * 129},
        {"tools": [{"type": "function", "function": {"name": "a", "description": "x" * 70_000}}]},
        {"tools": [{"type": "function", "function": {"name": "a", "parameters": {"maxItems": 1000}}}] * 11},
        {"tool_choice": "required"}, {"tools": [], "tool_choice": "required"}, {"tools": [TOOL], "tool_choice": "any"},
        {"tool_choice": {"type": "function", "function": {"name": "price"}}}, {"tools": {}}, {"tools": [None]},
        {"tools": [TOOL | {"defer_loading": True}]},
        {"tools": [{"type": "function", "function": TOOL["function"] | {"returns": "a number"}}]},
        {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "other"}}},
        {"tools": [TOOL], "tool_choice": {"type": "function"}}, {"tools": [TOOL], "parallel_tool_calls": 1},
    ],
)  # fmt: skip
def test_tools_that_do_not_fit(given):
    with pytest.raises((InvalidRequest, UnsupportedField), match="tool"):
        chat(**given)


def test_without_tools_there_is_nothing_to_choose():
    for body in ({"tools": []}, {"tool_choice": "auto"}, {"tools": [], "tool_choice": "none"}):
        assert set(chat(**body)) == {"messages"}
    assert [*ignored({"tools": []})] == []
    assert [*ignored({"tools": [], "tool_choice": "auto"})] == ["tool_choice"]


def test_calls_are_parallel_unless_the_client_says_no():
    assert chat(tools=[TOOL], parallel_tool_calls=False)["parallel_tool_calls"] is False
    for body in ({"tools": [TOOL], "parallel_tool_calls": True}, {"parallel_tool_calls": False}):
        assert "parallel_tool_calls" not in chat(**body)
        assert [*ignored(body)] == ["parallel_tool_calls"]


def test_what_clients_add_to_tools_is_ignored_and_named():
    sent = [TOOL | {"cache_control": {"type": "ephemeral"}, "defer_loading": None}]
    assert chat(tools=sent)["tools"] == [TOOL]
    assert [*ignored({"tools": sent})] == ["tools[].cache_control"]


def test_a_named_tool():
    choice = {"type": "function", "function": {"name": "price"}}
    assert chat(tools=[TOOL], tool_choice=choice)["tool_choice"] == choice


@pytest.mark.parametrize(
    "raw",
    [
        b"", b"nonsense", b"[1]", b"null", b'"x"', b'{"a": NaN}', b'{"a": -Infinity}', b"\xff\xfe{}",
        b"\xef\xbb\xbf", b"\xef\xbb\xbf\xef\xbb\xbf{}", b'{"a": 1e999}', b'{"a": -1E400}',
        b'{"a":' * 100_000, b"[" * 100_000, b'{"a": ' + b"9" * 5000 + b"}", b'{"a": "\\ud800"}', b'{"\\uDC00": 1}',
        b'{"a": "\xed\xa0\x80"}', json.dumps({"a": 1}).encode("utf-16"),
    ],
)  # fmt: skip
def test_bytes_that_are_no_json_object(raw):
    with pytest.raises(InvalidRequest, match="body"):
        parse_object(raw)


def test_a_byte_order_mark_is_no_text():
    assert parse_object(b'\xef\xbb\xbf{"a": "\xef\xbb\xbf"}') == {"a": "\ufeff"}


MUCH = {
    "arrays and objects": '{"a": [' + "[]," * MAX_CONTAINERS + "[]]}",
    "objects": '{"a": [' + "{}," * MAX_CONTAINERS + "{}]}",
    "names": "{" + ",".join(f'"{number}":0' for number in range(MAX_NAMES + 1)) + "}",
    "values": '{"a": [' + "1," * (MAX_VALUES + 1) + "1]}",
    "strings": '{"a": [' + '"",' * (MAX_VALUES + MAX_NAMES) + '""]}',
    "behind strings": '{"a\\\\": "\\"", "b": "[[\\\\", "c": [' + "[]," * MAX_CONTAINERS + "[]]}",
    "nothing that ends": '{"a": "\\' + "[" * 2**17,
}


@pytest.mark.parametrize("text", MUCH.values(), ids=MUCH)
def test_a_large_body_of_too_many_things_is_refused(text):
    with pytest.raises(InvalidRequest, match=r"^The body (has \d+ [a-z ]+; the limit is \d+|is not valid JSON: .+)\.$"):
        parse_large_object(text.encode())


def test_what_is_in_a_string_is_one_thing():
    text = '[{"a": 1}, "b\\"], ' * 40_000
    assert parse_large_object(json.dumps({"prompt": text, "n": 1}).encode()) == {"prompt": text, "n": 1}


@given(st.recursive(st.integers() | st.text('\\"[]{},:a'), lambda inner: st.lists(inner) | st.dictionaries(
    st.text('\\"[]{},:a'), inner)))  # fmt: skip
def test_things_are_counted_as_a_parser_finds_them(value):
    def count(node):
        inner = [*node.values()] if isinstance(node, dict) else node if isinstance(node, list) else []
        own = (isinstance(node, list | dict), len(inner) if isinstance(node, dict) else 0, max(0, len(inner) - 1))
        return [sum(column) for column in zip(own, *map(count, inner), strict=True)]

    counted = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parsing, "_bounded", lambda what, found, allowed: counted.append(found))
        parsing.check_amount(json.dumps(value).encode())
    assert counted[1:] == count(value)


JSON_IN_STRINGS = {
    "half a pair": '{"a": "\\ud800"}',
    "the other half": '{"a": ["\\uDC00\\ud800"]}',
    "half a pair as a name": '{"\\udfff": 1}',
    "NaN": '{"a": NaN}',
    "an infinity": '{"a": [-Infinity]}',
    "beyond a double": '{"a": 1e999}',
}


@pytest.mark.parametrize("text", JSON_IN_STRINGS.values(), ids=JSON_IN_STRINGS)
def test_json_within_a_string_is_as_strict(text):
    turn = {
        "role": "assistant",
        "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": text}}],
    }
    body = {"messages": [turn, {"role": "tool", "tool_call_id": "1", "content": "x"}]}
    with pytest.raises(InvalidRequest, match=r"messages\.0\.tool_calls\.0\.function\.arguments contains"):
        chat_body(parse_object(json.dumps(body).encode()), LIMITS)
    with pytest.raises(InvalidRequest, match="guided_json"):
        chat(guided_json=text.replace('"a"', '"const"'))


def test_surrogate_pairs_are_text():
    assert parse_object(b'{"a": "\\ud83d\\ude00"}') == {"a": "\U0001f600"}


def test_errors_never_repeat_a_long_value():
    with pytest.raises(InvalidRequest) as caught:
        completion(temperature="secret " * 100)
    assert len(caught.value.message) < 200
