# ruff: noqa: E501 - templates keep the lines that their models have
"""Equality of the gateway with vLLM: rendered chats, tokens, defaults and context lengths."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import LlamaConfig, PreTrainedTokenizerFast
from vllm.config.model import _get_and_verify_max_len
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.renderers.chat_utils import parse_chat_messages
from vllm.renderers.hf import _detect_content_format, safe_apply_chat_template
from vllm.renderers.online_renderer import _reused_prompt_token_ids
from vllm.transformers_utils.model_arch_config_convertor import ModelArchConfigConvertorBase

from app.demo.models import TEMPLATE_FILE
from app.engine.port import Endpoint, EngineRequest
from app.engine.vllm.arguments import InvalidEngineArgument, engine_arguments
from app.engine.vllm.translation import VllmRequest
from app.planning.base import context_length
from app.services.bodies.openai import chat_body
from app.services.prompts.base_template import BaseTemplate
from app.services.prompts.content_format import reads_parts
from app.services.prompts.template_worker import environment
from app.services.prompts.tokens import COMPLETION_TOKENS
from app.settings import EngineSettings, LimitSettings, Settings

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
#: Attributes of the model configuration that vLLM reads on this path.
STUB: Any = SimpleNamespace(
    model="",
    tokenizer="",
    revision=None,
    code_revision=None,
    tokenizer_revision=None,
    trust_remote_code=False,
    multimodal_config=None,
    enable_prompt_embeds=False,
    hf_config=SimpleNamespace(model_type="llama"),
)

#: Templates by what they exercise. They are shortened forms of templates of well-known models.
TEMPLATES = {
    "demo": TEMPLATE_FILE.read_text(encoding="utf-8"),
    "llama-3": (
        "{{- bos_token }}\n{%- if messages[0]['role'] == 'system' %}\n    {%- set system = messages[0]['content']|trim %}\n"
        "    {%- set messages = messages[1:] %}\n{%- else %}\n    {%- set system = '' %}\n{%- endif %}\n"
        "{{- '<|start_header_id|>system<|end_header_id|>\\n\\nDay: ' + strftime_now('%d') }}\n"
        "{%- if tools is not none %}\n    {%- for t in tools %}\n        {{- t | tojson(indent=4) }}\n    {%- endfor %}\n"
        "{%- endif %}\n{{- system + '<|eot_id|>' }}\n{%- for message in messages %}\n"
        "    {%- if message.role == 'tool' %}\n        {{- '<tool>' + (message.content | tojson) + message.tool_call_id }}\n"
        "    {%- elif 'tool_calls' in message %}\n        {%- if not message.tool_calls|length == 1 %}\n"
        "            {{- raise_exception('This model only supports single tool-calls at once!') }}\n        {%- endif %}\n"
        "        {%- set call = message.tool_calls[0].function %}\n"
        "        {{- call.name + (call.arguments | tojson) }}\n"
        "    {%- else %}\n        {{- '<' + message['role'] + '>' + message['content'] | trim + '<|eot_id|>' }}\n"
        "    {%- endif %}\n{%- endfor %}\n{%- if add_generation_prompt %}\n    {{- '<assistant>' }}\n{%- endif %}\n"
    ),
    "parts": (
        "{% for message in messages %}<|{{ message.role }}|>{% if message.content is string %}{{ message.content }}"
        "{% else %}{% for part in message['content'] %}{% if part.type == 'image' %}<img>{% break %}"
        "{% else %}[{{ part['text'] }}]{% endif %}{% endfor %}{% endif %}{{ message | tojson }}{% endfor %}"
    ),
    "macro": (
        "{% macro show(value) %}{% if value is string %}{{ value }}{% else %}{% for x in value %}({{ x.text }})"
        "{% endfor %}{% endif %}{% endmacro %}{% for m in messages[::-1] %}{{ show(m.content) }}{% endfor %}"
    ),
    "mistral": (
        "{%- set turns = messages | selectattr('role', 'equalto', 'user') | list %}{{ bos_token }}"
        "{% for message in messages %}{% if loop.index0 > 3 %}{{ raise_exception('Too many <turns> & more') }}{% endif %}"
        "{% if message.name is defined %}{{ message.name }}:{% endif %}[INST] {{ message.content }} [/INST]{{ eos_token }}"
        "{% endfor %}{{ turns | length }}{{ documents is none }}{{ tools | tojson if tools }}"
    ),
    "missing": "{% for m in messages %}{{ m.content.nothing.more }}{% endfor %}",
}

WORDS = st.text(alphabet="aé {}<>&\"'\n漢", max_size=12)
CONTENT = WORDS | st.lists(WORDS.map(lambda text: {"type": "text", "text": text}), max_size=3)
ARGUMENTS = st.dictionaries(WORDS, st.none() | st.integers() | WORDS | st.lists(WORDS, max_size=2), max_size=3)
CALL = st.builds(
    lambda name, arguments: {
        "id": "1",
        "type": "function",
        "function": {"name": name, "arguments": json.dumps(arguments)},
    },
    WORDS,
    ARGUMENTS,
)
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["system", "user", "developer"]), "content": CONTENT}, optional={"name": WORDS}
    )
    | st.fixed_dictionaries({"role": st.just("assistant"), "content": CONTENT})
    | st.fixed_dictionaries({"role": st.just("assistant"), "tool_calls": st.lists(CALL, min_size=1, max_size=2)})
    | st.fixed_dictionaries({"role": st.just("tool"), "content": CONTENT, "tool_call_id": WORDS}),
    min_size=1,
    max_size=5,
)
TOOL = st.fixed_dictionaries(
    {"name": st.just("price")},
    optional={
        "description": WORDS,
        "strict": st.booleans(),
        "parameters": st.just({"type": "object", "properties": {"b": {"type": "string"}, "a": {"type": "integer"}}}),
    },
).map(lambda function: {"type": "function", "function": function})
BODIES = st.fixed_dictionaries({"messages": MESSAGES}, optional={"tools": st.lists(TOOL, min_size=1, max_size=2)})


@pytest.fixture(scope="module")
def words() -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel({"a": 0}, unk_token="a")), **SPECIAL)


def of_vllm(template: str, body: dict[str, Any], words: PreTrainedTokenizerFast) -> str:
    """Render a body by the steps of vLLM's OnlineRenderer."""
    request = ChatCompletionRequest.model_validate({"model": "m", **body})
    form = _detect_content_format(template, default="string")
    conversation, _, _ = parse_chat_messages(request.messages, STUB, form)
    tools = None if request.tools is None else [tool.model_dump() for tool in request.tools]
    params = request.build_chat_params(template, "auto").with_defaults({"tools": tools, "tokenize": False})
    text = safe_apply_chat_template(STUB, words, conversation, **params.get_apply_chat_template_kwargs())
    assert isinstance(text, str)
    return text


async def outcome(template: str, body: dict[str, Any]) -> str:
    try:
        return await BaseTemplate(template, SPECIAL).render(body)
    except Exception as error:  # noqa: BLE001 - compared with vLLM's
        return f"refused: {error}"


@settings(max_examples=150, deadline=None)
@given(body=BODIES)
async def test_chats_are_rendered_as_vllm_renders_them(words: PreTrainedTokenizerFast, body: dict[str, Any]) -> None:
    checked = chat_body(body, LimitSettings())
    for name, template in TEMPLATES.items():
        try:
            expected = of_vllm(template, checked, words)
        except Exception as error:  # noqa: BLE001 - vLLM's refusal
            expected = f"refused: {error}"
        assert await outcome(template, checked) == expected, name


FORMS = [
    *TEMPLATES.values(),
    "{% for m in messages %}{% set content = m.content %}{% for c in content %}{{ c }}{% endfor %}{% endfor %}",
    "{% set all = messages %}{% for m in all | list %}{% for c in m['content'] | reverse %}{{ c }}{% endfor %}{% endfor %}",
    "{% set rest = messages[1:] %}{% set late = rest %}{% for m in late %}{% for c in m.content[:2] %}.{% endfor %}{% endfor %}",
    "{% macro f(x, y) %}{% for c in y %}{{ c }}{% endfor %}{% endmacro %}{% for m in messages %}{{ f(1, y=m.content) }}{% endfor %}",
    "{% macro f(x, y) %}{% for c in y %}{{ c }}{% endfor %}{% endmacro %}{% for m in messages %}{{ f(m.content, 1) }}{% endfor %}",
    "{% macro f(content) %}{% for c in content %}{{ c }}{% endfor %}{% endmacro %}{{ f(tools) }}",
    "{% for m in messages %}{% for c in m.tool_calls %}{{ c }}{% endfor %}{% endfor %}",
    "{% for c in messages[0].content %}{{ c }}{% endfor %}",
    "{% generation %}{{ messages }}{% endgeneration %}",
    "no template at all",
]


@pytest.mark.parametrize("template", FORMS)
def test_the_form_of_content_is_found_as_vllm_finds_it(template: str) -> None:
    form = _detect_content_format(template, default="string")
    assert reads_parts(environment().parse(template)) == (form == "openai")


def test_vllm_takes_the_tokens_of_a_chat() -> None:
    body = {"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}], "tools": None}
    request = EngineRequest("1", Endpoint.CHAT, body, "m", None, "salt", prompt="x", token_ids=((1, 5, 7),))
    made = ChatCompletionRequest.model_validate(VllmRequest.of(request, "m").body(request))
    checked: list[list[int]] = []
    renderer: Any = SimpleNamespace(validate_token_ids=lambda ids, parameter: checked.append(ids))
    assert _reused_prompt_token_ids(made, renderer, made.messages) == [1, 5, 7] == checked[0]
    assert not made.kv_transfer_params  # else the engine would see them
    assert not made.add_special_tokens


def test_vllm_takes_the_tokens_of_completions() -> None:
    request = EngineRequest("1", Endpoint.COMPLETIONS, {"prompt": "x"}, "m", None, "salt", token_ids=((1, 5), (7,)))
    made = CompletionRequest.model_validate(VllmRequest.of(request, "m").body(request))
    assert made.prompt == [[1, 5], [7]]
    assert made.add_special_tokens  # a text of a completion gets its BOS, as in the gateway


def test_the_default_lengths_of_answers_are_vllms() -> None:
    assert CompletionRequest.model_fields["max_tokens"].default == COMPLETION_TOKENS
    assert ChatCompletionRequest.model_fields["max_tokens"].default is None


@pytest.mark.parametrize(
    "fields",
    [
        {"max_position_embeddings": 512},
        {},
        {"max_position_embeddings": 512, "rope_scaling": {"type": "linear", "factor": 4.0}},
        {"max_position_embeddings": 512, "rope_scaling": {"rope_type": "dynamic", "factor": 2.5}},
        {"max_position_embeddings": 512, "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}},
        {
            "max_position_embeddings": 512,
            "rope_scaling": {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            },
        },
        {
            "max_position_embeddings": 512,
            "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128},
        },
    ],
)
def test_the_context_is_the_one_that_vllm_derives(fields: dict[str, Any]) -> None:
    config = LlamaConfig(**fields)
    derived = ModelArchConfigConvertorBase(config, config).derive_max_model_len_and_key()
    found = _get_and_verify_max_len(
        config, SimpleNamespace(derived_max_model_len_and_key=derived), None, None, False, None
    )
    assert context_length(fields) == found


@pytest.mark.parametrize("name", ["chat_template", "tokenizer", "tokenizer-mode"])
def test_arguments_that_would_change_prompts_are_refused(tmp_path: Path, name: str) -> None:
    extra = Settings(engine=EngineSettings(extra_args={name: "x"}))
    with pytest.raises(InvalidEngineArgument, match=name.replace("-", "_")):
        engine_arguments(extra, tmp_path, served_name="base", cpu=True, slots=4)
