"""Chat prompts: precedence of the version's template, its format, the server's format and the base's template."""

import pytest

from app.domain.errors import InvalidRequest, UnsupportedField
from app.services.bodies.openai import chat_body
from app.services.prompts.base_template import BaseTemplate
from app.services.prompts.chat import ChatPrompts
from app.settings import LimitSettings, Settings

TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
TEMPLATE = "{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m.content }}{{ eos_token }}{% endfor %}"
USER = {"role": "user", "content": "Hi"}
CALLS = [{"id": "1", "type": "function", "function": {"name": "price", "arguments": '{"sku": 1}'}}]
TOOL = {"type": "function", "function": {"name": "price"}}


@pytest.fixture
async def prompts():
    prompts = ChatPrompts(Settings(limits={"template_seconds": 0.3}), TOKENS, None)
    yield prompts
    await prompts.close()


def body(*messages, **given):
    return chat_body({"messages": list(messages or [USER]), **given}, LimitSettings())


async def render(prompts, defaults, *messages, **given):
    return await prompts.render(body(*messages, **given), defaults, owner="pricing")


async def test_without_any_of_them_the_bases_template_applies(prompts):
    with pytest.raises(InvalidRequest, match="messages needs a chat template, and this model's base has none"):
        await render(prompts, {"temperature": 0.5, "system_prompt": "x"})
    based = ChatPrompts(Settings(), TOKENS, BaseTemplate("{{ bos_token }}{{ messages[0].content }}", TOKENS))
    assert await render(based, {}) == "<s>Hi"
    assert await render(based, {"prompt_format": "llama-2"}) == "<s>[INST] Hi [/INST]"


async def test_the_server_s_format_and_what_wins_over_it():
    prompts = ChatPrompts(Settings(prompt_format="llama-2"), TOKENS, BaseTemplate("{{ 1 }}", TOKENS))
    try:
        assert await render(prompts, {}) == "<s>[INST] Hi [/INST]"
        assert (await render(prompts, {"prompt_format": "llama-3"})).startswith("<|begin_of_text|>")
        assert await render(prompts, {"chat_template": TEMPLATE}) == "<s><user>Hi</s>"
    finally:
        await prompts.close()


async def test_a_template_sees_what_the_engine_s_would(prompts):
    template = (
        "{% for m in messages %}{{ m.role }}:{{ m.content }}{% for c in m.tool_calls or [] %}"
        "{{ c.function.name }}({{ c.function.arguments.sku }}){% endfor %};{% endfor %}{{ tools[0].function.name }}"
    )
    messages = [
        {"role": "developer", "content": "Be short."},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "tool_calls": CALLS},
        {"role": "tool", "tool_call_id": "1", "content": "5"},
    ]
    text = await render(prompts, {"chat_template": template}, *messages, tools=[TOOL])
    assert text == "system:Be short.;user:a\nb;assistant:price(1);tool:5;price"


async def test_what_a_template_has_no_place_for_is_refused_by_name(prompts):
    with pytest.raises(UnsupportedField) as caught:
        await render(prompts, {"chat_template": TEMPLATE}, tools=[TOOL])
    assert caught.value.param == "tools"
    with pytest.raises(UnsupportedField, match="tool calls") as caught:
        await render(prompts, {"chat_template": TEMPLATE}, USER, {"role": "assistant", "tool_calls": CALLS})
    assert caught.value.param == "messages"


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ raise_exception('one turn only') }}", "refused messages: one turn only"),
        ("a\n{{ 1 / 0 }}", "line 2: ZeroDivisionError"),
        ("{% if false %}{{ messages }}{% endif %}", "empty prompt"),
        ("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "more than 0.3 s"),
    ],
)
async def test_a_template_that_fails_over_a_request(prompts, template, message):
    with pytest.raises(InvalidRequest, match=message) as caught:
        await render(prompts, {"chat_template": template})
    assert caught.value.param == "messages"


@pytest.mark.parametrize(
    ("defaults", "message"),
    [
        ({"chat_template": "a\n{% if %}"}, "line 2: Expected an expression"),
        ({"chat_template": "{{ raise_exception('never') }}"}, "never"),
        ({"chat_template": "{{ message }}"}, "does not output the user's message"),
        ({"chat_template": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"}, "0.3 s"),
        ({"chat_template": "{{ 'a' * 10 ** 9 }}"}, "memory"),
        (
            {
                "chat_template": "{{ raise_exception('no system') if messages[0].role == 'system' }}{{ messages }}",
                "system_prompt": "Be short.",
            },
            "no system",
        ),
    ],
)
async def test_a_template_is_tried_before_it_is_kept(prompts, defaults, message):
    with pytest.raises(InvalidRequest, match=message) as caught:
        await prompts.check(defaults, owner="pricing")
    assert caught.value.param == "defaults.chat_template"


async def test_a_template_that_works_is_kept(prompts):
    await prompts.check({"chat_template": TEMPLATE, "system_prompt": "Be short."}, owner="pricing")
    await prompts.check({"temperature": 0}, owner="pricing")
