"""Prompt formats against the strings that their vendors document, and against the vendors' code where available."""

import re

import pytest
from mistral_common.protocol.instruct.messages import AssistantMessage, SystemMessage, UserMessage
from mistral_common.protocol.instruct.request import ChatCompletionRequest
from mistral_common.tokens.tokenizers.mistral import MistralTokenizer

from app.domain.errors import InvalidRequest, UnsupportedField
from app.services.bodies.openai import chat_body
from app.services.prompts.formats import FORMATS, render
from app.settings import LimitSettings


def turns(*texts, system=None):
    """Build alternating user and assistant messages, after an optional system prompt."""
    first = [] if system is None else [{"role": "system", "content": system}]
    roles = ("user", "assistant")
    return first + [{"role": roles[number % 2], "content": text} for number, text in enumerate(texts)]


def rendered(name, messages, **given):
    return render(name, chat_body({"messages": messages, **given}, LimitSettings()))


# https://www.llama.com/docs/model-cards-and-prompt-formats/meta-llama-2/. The page shows the newlines of B_SYS and
# E_SYS ("<<SYS>>\n" and "\n<</SYS>>\n\n" in llama/generation.py) as single ones.
LLAMA_2 = "<s>[INST] <<SYS>>\n{s}\n<</SYS>>\n\n{u1} [/INST] {a1} </s><s>[INST] {u2} [/INST]"
# https://www.llama.com/docs/model-cards-and-prompt-formats/meta-llama-3/, multi-turn example.
LLAMA_3 = (
    "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\n{s}<|eot_id|>"
    "<|start_header_id|>user<|end_header_id|>\n\n{u1}<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\n{a1}<|eot_id|>"
    "<|start_header_id|>user<|end_header_id|>\n\n{u2}<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\n"
)
HEADER = "<|start_header_id|>{}<|end_header_id|>\n\n"
# https://docs.mistral.ai/usage/guardrailing
MISTRAL = "<s>[INST] {s}\n\n{u1} [/INST] {a1}</s>[INST] {u2} [/INST]"

TEXTS = {
    "s": "You are a helpful AI assistant for travel tips and recommendations",
    "u1": "What is France's capital?",
    "a1": "Bonjour! The capital of France is Paris!",
    "u2": "What can I do there?",
}


@pytest.mark.parametrize(("name", "documented"), [("llama-2", LLAMA_2), ("llama-3", LLAMA_3), ("mistral", MISTRAL)])
def test_the_documented_string(name, documented):
    messages = turns(TEXTS["u1"], TEXTS["a1"], TEXTS["u2"], system=TEXTS["s"])
    assert rendered(name, messages) == documented.format(**TEXTS)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("llama-2", "<s>[INST] Hi [/INST]"),
        (
            "llama-3",
            f"<|begin_of_text|>{HEADER.format('user')}Hi<|eot_id|>{HEADER.format('assistant')}",
        ),
        ("mistral", "<s>[INST] Hi [/INST]"),
    ],
)
def test_one_turn_without_a_system_prompt(name, expected):
    assert rendered(name, turns("Hi")) == expected


def test_llama_2_as_its_own_code_writes_it():
    """Oracle: ``chat_completion`` of llama/generation.py, with the tokenizer's ``bos`` and ``eos`` written out."""
    b_inst, e_inst, b_sys, e_sys = "[INST]", "[/INST]", "<<SYS>>\n", "\n<</SYS>>\n\n"
    dialog = turns(" One \n", "\tFirst. ", "Two ", " Second.\n", " Three", system=" Be short. ")
    merged = [{**dialog[1], "content": b_sys + dialog[0]["content"] + e_sys + dialog[1]["content"]}, *dialog[2:]]
    expected = "".join(
        f"<s>{b_inst} {prompt['content'].strip()} {e_inst} {answer['content'].strip()} </s>"
        for prompt, answer in zip(merged[::2], merged[1::2], strict=False)
    )
    expected += f"<s>{b_inst} {merged[-1]['content'].strip()} {e_inst}"
    assert rendered("llama-2", dialog) == expected


def test_llama_3_strips_each_text_and_takes_any_order():
    messages = [{"role": "assistant", "content": " Hello! \n"}, {"role": "system", "content": "\nShort."}]
    assert rendered("llama-3", messages) == (
        "<|begin_of_text|><|start_header_id|>assistant<|end_header_id|>\n\nHello!<|eot_id|>"
        "<|start_header_id|>system<|end_header_id|>\n\nShort.<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
    )


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("system", [None, "Be short."])
def test_mistral_gives_the_tokens_of_mistral_common(system):
    """Oracle: the first tokenizer of Mistral's package, compared token by token."""
    mistral = MistralTokenizer.v1()
    texts = ("What is sugar?", "Sweet. ", "And\nrice? ")
    kinds = (UserMessage, AssistantMessage)
    messages = [kinds[number % 2](content=text) for number, text in enumerate(texts)]
    request = ChatCompletionRequest(messages=[SystemMessage(content=system), *messages] if system else messages)
    tokenizer = mistral.instruct_tokenizer.tokenizer
    ids = []
    for part in re.split("(</?s>)", rendered("mistral", turns(*texts, system=system))):
        special = {"<s>": tokenizer.bos_id, "</s>": tokenizer.eos_id}.get(part)
        ids += tokenizer.encode(part, bos=False, eos=False) if special is None else [special]
    assert ids == mistral.encode_chat_completion(request).tokens


def test_parts_and_developer_turns():
    messages = [
        {"role": "developer", "content": "Be short."},
        {"role": "user", "content": [{"type": "text", "text": "One"}, {"type": "text", "text": "two"}], "name": "ann"},
    ]
    assert rendered("mistral", messages) == "<s>[INST] Be short.\n\nOne\ntwo [/INST]"


@pytest.mark.parametrize("name", ["llama-2", "mistral"])
@pytest.mark.parametrize(
    ("messages", "param"),
    [
        (turns("a", "b"), "messages"),
        (turns(system="a"), "messages"),
        ([*turns("a"), *turns("b")], "messages.1.role"),
        ([{"role": "assistant", "content": "a"}, *turns("b")], "messages.0.role"),
        ([*turns("a", system="s"), {"role": "system", "content": "t"}], "messages.2.role"),
        ([{"role": "system", "content": "s"}, {"role": "system", "content": "t"}, *turns("a")], "messages.1.role"),
    ],
)
def test_turns_that_do_not_alternate_are_refused(name, messages, param):
    with pytest.raises(InvalidRequest, match=name) as caught:
        rendered(name, messages)
    assert caught.value.param == param


CALL = {"id": "c1", "type": "function", "function": {"name": "price", "arguments": "{}"}}


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_tools_are_refused_by_name(name):
    tool = {"type": "function", "function": {"name": "price"}}
    with pytest.raises(UnsupportedField, match=name) as caught:
        rendered(name, turns("a"), tools=[tool])
    assert caught.value.param == "tools"
    for turn in ({"role": "assistant", "tool_calls": [CALL]}, {"role": "tool", "tool_call_id": "c1", "content": "5"}):
        with pytest.raises(UnsupportedField, match="tool calls") as caught:
            rendered(name, [*turns("a"), turn])
        assert caught.value.param == "messages.1"
