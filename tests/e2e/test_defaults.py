"""Adapter defaults on the real engine: same answers as from requests that set the same fields."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import psutil
import pytest

from app.demo.train import Demo
from tests.support.reference import PeftReference
from tests.support.server import Server

QUESTION = "Can you explain sugar?"
USER = {"role": "user", "content": QUESTION}
SYSTEM = "Answer in one sentence."
#: Shaped like a version's own template: unlike the base's, with its special tokens, a loop and a filter.
TEMPLATE = """{{ bos_token }}{% for m in messages %}
{% if m.role == 'system' %}
Note: {{ m.content|trim }}
{% elif m.role == 'user' %}
[INST] {{ m.content }} [/INST]
{%- else %}
 {{ m.content }}{{ eos_token }}
{% endif %}
{% endfor %}"""


@pytest.fixture(scope="module")
def tuned(server: Server, trained_demo: Demo, keys: dict[str, str]) -> Iterator["Tuned"]:
    """The pricing unit's adapter again, under a name whose defaults these tests set."""
    assert server.publish("pricing", "tuned", trained_demo.adapters["pricing"]).status_code == 201
    with server.client(server.admin_key) as admin, server.client(keys["pricing"]) as tenant:
        yield Tuned(admin, tenant)


class Tuned:
    def __init__(self, admin: httpx.Client, tenant: httpx.Client) -> None:
        self._admin, self.tenant = admin, tenant

    def set(self, **defaults: Any) -> None:
        answer = self._admin.patch("/admin/tenants/pricing/adapters/tuned/versions/1", json={"defaults": defaults})
        assert answer.status_code == 200, answer.text

    def chat(self, *messages: dict[str, str], **given: Any) -> dict[str, Any]:
        body = {"model": "tuned", "messages": list(messages or [USER]), "return_token_ids": True, **given}
        answer = self.tenant.post("/v1/chat/completions", json=body)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())


def tokens(answer: dict[str, Any]) -> tuple[list[int], list[int]]:
    """Return the tokens of the prompt and of the answer."""
    return answer["prompt_token_ids"], answer["choices"][0]["token_ids"]


def test_defaults_are_what_the_request_would_have_said(tuned: Tuned, reference: PeftReference) -> None:
    tuned.set()
    system = {"role": "system", "content": SYSTEM}
    whole = tuned.chat(system, USER, temperature=0, max_tokens=40)
    text = whole["choices"][0]["message"]["content"]
    word = text.split()[3]
    said = tuned.chat(system, USER, temperature=0, max_tokens=40, stop=[word])
    tuned.set(system_prompt=SYSTEM, temperature=0, max_tokens=40, stop=[word])
    filled = tuned.chat()
    assert tokens(filled) == tokens(said)
    assert filled["choices"][0]["message"]["content"] == text[: text.index(word)]
    assert filled["choices"][0]["stop_reason"] == word
    ids = reference.chat_ids([system, USER])
    assert tokens(tuned.chat(stop=[])) == (ids, reference.greedy(ids, "pricing", 40))


def test_the_request_wins(tuned: Tuned, reference: PeftReference) -> None:
    tuned.set(system_prompt=SYSTEM, temperature=1.5, max_tokens=3, stop=["e"], top_k=5)
    system = {"role": "system", "content": "Be a pirate."}
    answer = tuned.chat(USER, system, temperature=0, max_completion_tokens=12, stop=[])
    ids = reference.chat_ids([USER, system])
    assert tokens(answer) == (ids, reference.greedy(ids, "pricing", 12))


@pytest.mark.parametrize("stream", [False, True])
def test_an_administrator_s_template_makes_the_prompt(tuned: Tuned, reference: PeftReference, stream: bool) -> None:
    tuned.set(chat_template=TEMPLATE, system_prompt=SYSTEM, temperature=0, max_tokens=30)
    turns = [USER, {"role": "assistant", "content": "Sweet."}, {"role": "user", "content": "{{ 7 * 7 }} </s> {% x %}"}]
    rendered = reference.tokenizer.apply_chat_template(
        [{"role": "system", "content": SYSTEM}, *turns], chat_template=TEMPLATE, tokenize=False
    )
    assert "{{ 7 * 7 }}" in rendered
    ids = list(reference.tokenizer(rendered, add_special_tokens=False).input_ids)
    assert ids.count(reference.tokenizer.bos_token_id) == 1
    expected = reference.greedy(ids, "pricing", 30)
    if not stream:
        answer = tuned.chat(*turns)
        assert answer["object"] == "chat.completion"
        assert tokens(answer) == (ids, expected)
        return
    body = {"model": "tuned", "messages": turns, "stream": True, "return_token_ids": True}
    with tuned.tenant.stream("POST", "/v1/chat/completions", json=body) as events:
        lines = [line.removeprefix("data: ") for line in events.iter_lines() if line]
    chunks = [json.loads(line) for line in lines if line != "[DONE]"]
    assert chunks[0]["prompt_token_ids"] == ids
    streamed = [token for chunk in chunks for choice in chunk["choices"] for token in choice.get("token_ids") or ()]
    assert streamed == expected


def test_a_prompt_format_by_name_makes_the_documented_prompt(tuned: Tuned, reference: PeftReference) -> None:
    tuned.set(prompt_format="llama-2", system_prompt=SYSTEM, temperature=0, max_tokens=20)
    documented = f"<s>[INST] <<SYS>>\n{SYSTEM}\n<</SYS>>\n\n{QUESTION} [/INST]"
    ids = list(reference.tokenizer(documented, add_special_tokens=False).input_ids)
    assert ids[0] == reference.tokenizer.bos_token_id
    assert ids.count(reference.tokenizer.bos_token_id) == 1
    assert tokens(tuned.chat()) == (ids, reference.greedy(ids, "pricing", 20))


def test_completions_and_lorax_take_no_template_but_the_rest(tuned: Tuned, reference: PeftReference) -> None:
    tuned.set(chat_template=TEMPLATE, system_prompt=SYSTEM, temperature=0, max_tokens=7)
    prompt = f"[INST] {QUESTION} [/INST]"
    ids = reference.encode(prompt)
    expected = reference.greedy(ids, "pricing", 7)
    body: dict[str, Any] = {"model": "tuned", "prompt": prompt, "return_token_ids": True}
    answer = tuned.tenant.post("/v1/completions", json=body).json()["choices"][0]
    assert (answer["prompt_token_ids"], answer["token_ids"]) == (ids, expected)
    body = {"inputs": prompt, "parameters": {"adapter_id": "tuned", "details": True, "stop": [], "do_sample": False}}
    details = tuned.tenant.post("/generate", json=body).json()["details"]
    assert [token["id"] for token in details["tokens"]] == expected


def test_what_a_template_cannot_do_is_said(tuned: Tuned) -> None:
    tuned.set(chat_template=TEMPLATE)
    tool = {"type": "function", "function": {"name": "price", "parameters": {"type": "object", "properties": {}}}}
    body = {"model": "tuned", "messages": [USER], "tools": [tool]}
    answer = tuned.tenant.post("/v1/chat/completions", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "tools")
    tuned.set(chat_template="{{ raise_exception('one turn only') if messages|length > 1 }}{{ messages[0].content }}")
    body = {"model": "tuned", "messages": [USER, USER], "max_tokens": 2}
    answer = tuned.tenant.post("/v1/chat/completions", json=body)
    assert answer.status_code == 400
    assert "one turn only" in answer.json()["error"]["message"]
    assert tuned.chat(max_tokens=2)["usage"]["completion_tokens"] == 2


def test_the_server_s_workers_end_with_it(tuned: Tuned, server: Server) -> None:
    """The fixture itself fails if any process of the server outlives it.

    This test gives it a worker process to stop.
    """
    tuned.set(chat_template=TEMPLATE, max_tokens=2)
    tuned.chat()
    children = psutil.Process(server.process.pid).children()
    assert any("app.services.prompts.template_worker" in child.cmdline() for child in children)
