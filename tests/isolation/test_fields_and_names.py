"""Fields that vLLM would honour and names with a special meaning elsewhere: refused at the door."""

from collections.abc import Iterator

import httpx
import pytest

from tests.support.serving import PeftFiles
from tests.support.site import Site, make_unit, parts


@pytest.fixture(scope="module")
def own(site: Site, admin: httpx.Client) -> Iterator[httpx.Client]:
    with site.client(make_unit(admin).key) as client:
        yield client


#: Fields of vLLM's own requests: each affects other tenants, this machine, or values that the server sets.
FIELDS = {
    "priority": -1,
    "cache_salt": "another's",
    "request_id": "another's",
    "session_id": "another's",
    "kv_transfer_params": {"do_remote_prefill": True, "remote_host": "127.0.0.1"},
    "vllm_xargs": {"kv_transfer_params": "{}"},
    "prompt_embeds": "AAAA",
    "chat_template": "{{ 7 * 7 }}",
    "chat_template_kwargs": {"prompt": "x"},
    "mm_processor_kwargs": {"x": 1},
    "media_io_kwargs": {"image": {}},
    "documents": [{"text": "x"}],
    "lora_request": {"lora_name": "1@0", "lora_int_id": 1, "lora_path": "/etc"},
    "lora_path": "/etc",
    "data_parallel_rank": 1,
    "logits_processors": ["os.system"],
    "guided_grammar": 'root ::= "a"',
    "guided_decoding_backend": "outlines",
    "structural_tag": "{}",
    "allowed_token_ids": [1],
    "bad_words": ["x"],
    "prompt_logprobs": 20,
    "truncate_prompt_tokens": 1,
    "use_beam_search": True,
    "continue_final_message": True,
    "add_special_tokens": False,
    "echo_prompt": True,
    "webhook": "http://127.0.0.1/",
}


@pytest.mark.parametrize("field", FIELDS)
def test_a_field_that_vllm_would_honour_is_refused_by_name(own: httpx.Client, field: str) -> None:
    bodies = {
        "/v1/completions": {"prompt": "x"},
        "/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}]},
        "/v1/responses": {"input": "x"},
        "/v1/detokenize": {"tokens": [1]},
    }
    if field != "add_special_tokens":  # a field of this server's own tokenizer
        bodies["/v1/tokenize"] = {"prompt": "x"}
    for path, body in bodies.items():
        answer = own.post(path, json=body | {field: FIELDS[field]})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, field)
    asked = {"messages": [{"role": "user", "content": "x"}]}
    for path, body in (("/v1/messages", asked | {"max_tokens": 1}), ("/v1/messages/count_tokens", asked)):
        answer = own.post(path, json=body | {field: FIELDS[field]})
        assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")
        assert f"The field {field} is not supported." in answer.json()["error"]["message"]
    parameters = {field: FIELDS[field]}
    for path in ("/generate", "/generate_stream", "/"):
        answer = own.post(path, json={"inputs": "x", "parameters": parameters})
        assert answer.status_code == 400
        assert field in answer.json()["error"]


#: Names with a special meaning to a log, terminal, spreadsheet, shell, query, template or file system.
NAMES = {
    "a line of the log": "x\n2026-01-01 WARNING forged",
    "a header": "x\r\nset-cookie: a=b",
    "a terminal": "x\x1b[2J",
    "a formula": "=cmd|'/c calc'!a1",
    "another formula": "@sum(1)",
    "a sign": "-1",
    "SQL": "x' or '1'='1",
    "a wildcard": "%",
    "a template": "{{7*7}}",
    "a format": "%(message)s",
    "a shell": "$(id)",
    "a path": "..",
    "a root": "/etc/passwd",
    "markup": "<script>alert(1)</script>",
    "reversed text": "x\u202egnicirp",
    "a NUL": "x\x00y",
    "the base": "tiny-llama",
    "a modality": "text",
}


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_a_name_is_never_more_than_a_name(
    site: Site, own: httpx.Client, files: PeftFiles, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    """Holds for the name of an adapter and of a requested model.

    The log contains nothing of it.
    """
    quoted = "".join(f"%{byte:02x}" for byte in name.encode())
    published = own.post(f"/v1/adapters/{quoted}/versions", files=parts(files))
    assert published.status_code in {404, 422}, published.text
    # The base itself may be requested, and there is no engine here.
    for path, body in (
        ("/v1/completions", {"prompt": "x"}),
        ("/v1/responses", {"input": "x"}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1}),
    ):
        refused = own.post(path, json=body | {"model": name})
        assert refused.status_code == (503 if name == "tiny-llama" else 404)
        assert "set-cookie" not in refused.headers
    assert own.get("/v1/adapters").json()["data"] == []
    assert name == "tiny-llama" or name not in caplog.text
