"""Translation of a caller's body into an engine request, and quarantine of versions that fail to load."""

import contextlib
from dataclasses import replace

import pytest

from app.database.versions import describe_version
from app.domain.access import Caller, Scope
from app.domain.errors import (
    AdapterLoadFailed,
    AdapterQuarantined,
    Forbidden,
    InvalidRequest,
    UnsupportedField,
)
from app.domain.load_phases import LoadPhases
from app.engine.port import Endpoint, EngineRequest
from app.services.serving.adapter_traffic import Traffic
from app.settings import Settings
from tests.support.inference import inference_service
from tests.support.recorder import PLATFORM, Recorder
from tests.support.registry import Node

pytest_plugins = ("tests.support.registry_fixtures",)


@pytest.fixture
async def caller(node: Node) -> Caller:
    """Caller of the tenant ``pricing``, whose adapter ``prices`` has versions 1 and 2."""
    tenant = await node.tenants.create("pricing", actor="cli")
    await node.publish("pricing", "prices", "a")
    await node.publish("pricing", "prices", "b")
    return Caller("key", tenant.id, "pricing", frozenset({Scope.INFERENCE}), "salt")


@pytest.mark.parametrize(
    ("names", "model", "version"),
    [
        ({}, "demo", None),
        ({"model": ""}, "demo", None),
        ({"model": "demo"}, "demo", None),
        ({"adapter_id": "demo", "model": "demo"}, "demo", None),
        ({"model": "prices"}, "prices", "prices@2"),
        ({"model": "prices@1"}, "prices@1", "prices@1"),
        ({"model": "demo", "adapter_id": "prices:default"}, "prices:default", "prices@2"),
        ({"model": "prices", "adapter_id": "prices"}, "prices", "prices@2"),
        ({"model": "prices", "adapter_id": ""}, "prices", "prices@2"),
    ],
)
async def test_a_name_becomes_a_version_and_stays_in_the_answer(node, caller, names, model, version):
    engine = Recorder({"choices": []})
    served = await inference_service(node, engine).complete(
        caller, "id", Endpoint.COMPLETIONS, {"prompt": "x", **names}
    )
    assert served.version == version
    (request,) = engine.requests
    expected = None if version is None else (await node.adapters.get_version("pricing", "prices", int(version[-1]))).key
    own = EngineRequest("id", Endpoint.COMPLETIONS, {"prompt": "x"}, model, expected, "salt", tenant="pricing")
    assert request == own


async def test_the_engine_gets_tenant_and_deadline(node, caller):
    engine = Recorder({"choices": [{"text": "five", "finish_reason": "length"}]})
    inference, heavy = inference_service(node, engine), replace(caller, weight=4.0)
    chat = {"messages": [{"role": "user", "content": "x"}]}
    await inference.complete(heavy, "1", Endpoint.CHAT, chat, deadline_s=2.5)
    await inference.generate(heavy, "2", {"inputs": "x"}, stream=False, deadline_s=0.5)
    await inference.generate(heavy, "3", {"inputs": "x"}, stream=False)
    assert [(request.tenant, request.weight, request.deadline_s) for request in engine.requests] == [
        ("pricing", 4.0, 2.5),
        ("pricing", 4.0, 0.5),
        ("pricing", 4.0, None),
    ]


async def test_an_answer_carries_what_its_own_request_waited_for(node, caller):
    engine = Recorder({"choices": [{"text": "five", "finish_reason": "length"}]})
    cold, other = LoadPhases(1.0, 0.5, 0.25, 0.125), LoadPhases(9.0, 9.0, 9.0, 9.0)
    engine.loads = {"cold": cold, "colder": cold, "else": other}
    inference, body = inference_service(node, engine), {"prompt": "x", "model": "prices"}
    assert (await inference.complete(caller, "cold", Endpoint.COMPLETIONS, body)).load == cold
    assert (await inference.complete(caller, "warm", Endpoint.COMPLETIONS, body)).load is None
    assert (await inference.generate(caller, "colder", {"inputs": "x"}, stream=None)).load == cold


async def test_requests_for_adapters_count_with_any_outcome(node, caller):
    traffic = Traffic()
    for outcome in ({"choices": []}, InvalidRequest("no")):
        inference = inference_service(node, Recorder(outcome), traffic=traffic)
        for names in ({}, {"model": "prices"}, {"model": "prices@1"}, {"model": "prices:default"}):
            with contextlib.suppress(InvalidRequest):
                await inference.complete(caller, "id", Endpoint.COMPLETIONS, {"prompt": "x", **names})
    assert [(share.name, share.requests) for share in traffic.most(9)] == [
        ("pricing/prices@2", 4),
        ("pricing/prices@1", 2),
        ("other", 0),
    ]


async def test_names_that_disagree(node, caller):
    body = {"prompt": "x", "model": "prices", "adapter_id": "prices@1"}
    with pytest.raises(InvalidRequest, match="adapter_id"):
        await inference_service(node, Recorder({})).complete(caller, "id", Endpoint.COMPLETIONS, body)


async def test_a_version_that_fails_to_load_is_quarantined(node, caller):
    version = await node.adapters.get_version("pricing", "prices", 2)
    engine = Recorder(AdapterLoadFailed("bad weights", version_id=version.key.version_id))
    inference = inference_service(node, engine)
    with pytest.raises(AdapterQuarantined, match="prices@2"):
        await inference.generate(caller, "id", {"inputs": "x", "parameters": {"adapter_id": "prices"}}, stream=None)
    with pytest.raises(AdapterQuarantined, match="prices@2"):
        await inference.complete(caller, "id", Endpoint.COMPLETIONS, {"prompt": "x", "model": "prices"})
    assert len(engine.requests) == 1
    assert (await node.adapters.get_version("pricing", "prices", 2)).state_reason == "bad weights"


async def test_a_body_is_refused_before_its_name_is_looked_up(node, caller):
    with pytest.raises(InvalidRequest, match="prompt"):
        await inference_service(node, Recorder({})).complete(caller, "id", Endpoint.COMPLETIONS, {"model": "never-was"})


@pytest.mark.parametrize("head", [False, True])
async def test_prompt_logprobs_are_refused_with_lora_head(node, caller, head):
    settings = Settings(engine={"lora_head": head})
    engine = Recorder({"choices": [{"text": "five", "finish_reason": "length"}]})
    inference = inference_service(node, engine, settings)
    for fields in ({"echo": True}, {"logprobs": 2}, {"echo": True, "logprobs": None}):
        await inference.complete(caller, "id", Endpoint.COMPLETIONS, {"prompt": "x", **fields})
    asked = {"prompt": "x", "echo": True, "logprobs": 0}
    lorax = {"inputs": "x", "parameters": {"decoder_input_details": True}}
    if not head:
        await inference.complete(caller, "id", Endpoint.COMPLETIONS, asked)
        return
    with pytest.raises(UnsupportedField, match=r"echo asks for logprobs .*TENORA_ENGINE__LORA_HEAD"):
        await inference.complete(caller, "id", Endpoint.COMPLETIONS, asked)
    with pytest.raises(UnsupportedField, match=r"decoder_input_details asks for logprobs .*TENORA_ENGINE__LORA_HEAD"):
        await inference.generate(caller, "id", lorax, stream=False)
    assert len(engine.requests) == 3


async def test_a_platform_key_has_no_models(node):
    inference = inference_service(node, Recorder({}))
    for body in ({"prompt": "x"}, {"prompt": "x", "model": "prices"}):
        with pytest.raises(Forbidden):
            await inference.complete(PLATFORM, "id", Endpoint.COMPLETIONS, body)


async def test_lorax_gets_its_own_shape_and_a_length_that_fits(node, caller):
    engine = Recorder({"choices": [{"text": "five", "finish_reason": "length"}]})
    served = await inference_service(node, engine).generate(caller, "id", {"inputs": "x"}, stream=False)
    assert served.answer == {"generated_text": "five"}
    # The default of 256 tokens exceeds this context length.
    assert engine.requests[0].body["max_tokens"] == 64


async def test_the_engine_s_refusal_speaks_the_caller_s_language(node, caller):
    engine = Recorder(InvalidRequest("max_tokens=99 is too large", param="max_tokens"))
    with pytest.raises(InvalidRequest, match="max_new_tokens=99") as caught:
        await inference_service(node, engine).generate(caller, "id", {"inputs": "x"}, stream=False)
    assert caught.value.param == "max_new_tokens"


async def describe(node, number, **defaults):
    version = await node.adapters.get_version("pricing", "prices", number)
    async with node.database.write() as connection:
        await describe_version(connection, version.key.version_id, card="", training_run=None, defaults=defaults)


async def test_a_version_s_defaults_fill_what_the_request_leaves_open(node, caller):
    await describe(node, 1, temperature=0.5, max_tokens=900, stop=["END"], system_prompt="Be short.")
    engine = Recorder({"choices": [{"text": "five", "finish_reason": "length"}]})
    inference = inference_service(node, engine)
    chat = {"messages": [{"role": "user", "content": "x"}], "temperature": 0.25}
    await inference.complete(caller, "id", Endpoint.CHAT, chat | {"model": "prices@1"})
    await inference.complete(caller, "id", Endpoint.COMPLETIONS, {"prompt": "x", "stop": [], "model": "prices@1"})
    await inference.generate(caller, "id", {"inputs": "x", "parameters": {"adapter_id": "prices@1"}}, stream=False)
    await inference.complete(caller, "id", Endpoint.CHAT, chat | {"model": "prices@2"})
    system = {"role": "system", "content": "Be short."}
    user = {"role": "user", "content": "x"}
    assert [request.body for request in engine.requests] == [
        # 900 tokens exceed this context length.
        {"messages": [system, user], "temperature": 0.25, "max_tokens": 64, "stop": ["END"]},
        {"prompt": "x", "stop": [], "temperature": 0.5, "max_tokens": 64},
        {
            "prompt": "x",
            "stream": False,
            "temperature": 0.5,
            "max_tokens": 64,
            "stop": ["END"],
            "include_stop_str_in_output": True,
        },
        {"messages": [user], "temperature": 0.25},
    ]
    assert [request.prompt for request in engine.requests] == ["<Be short.><x>", None, None, "<x>"]


async def test_a_version_s_prompt_format_is_for_its_chats_only(node, caller):
    await describe(node, 1, prompt_format="mistral", system_prompt="Be short.")
    engine = Recorder({"choices": []})
    inference = inference_service(node, engine)
    messages = [{"role": "user", "content": "x"}]
    await inference.complete(caller, "id", Endpoint.CHAT, {"messages": messages, "model": "prices@1"})
    await inference.complete(caller, "id", Endpoint.COMPLETIONS, {"prompt": "x", "model": "prices@1"})
    await inference.complete(caller, "id", Endpoint.CHAT, {"messages": messages})
    assert [request.prompt for request in engine.requests] == ["<s>[INST] Be short.\n\nx [/INST]", None, "<x>"]


@pytest.mark.parametrize("name", ["chat_template", "chat_template_kwargs", "prompt_format", "add_generation_prompt"])
async def test_a_request_brings_no_template_of_its_own(node, caller, name):
    await describe(node, 1, prompt_format="mistral")
    body = {"messages": [{"role": "user", "content": "x"}], "model": "prices@1", name: "{{ 1 }}"}
    with pytest.raises(UnsupportedField, match=name):
        await inference_service(node, Recorder({})).complete(caller, "id", Endpoint.CHAT, body)
