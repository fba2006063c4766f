"""Privacy: a secret planted in prompts must not occur in anything that a server leaves behind, except answers."""

import json
import secrets
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.server import Server

#: About one token per byte, and too long to occur by chance.
SECRET = f"zq{secrets.token_hex(12)}"


def everything_left(server: Server) -> Iterator[tuple[str, bytes]]:
    """Collect every file of HOME (log, database, journal, spool, caches) and all operator views of the server."""
    for path in sorted(server.home.rglob("*")):
        if path.is_file() and "blobs" not in path.parts:
            yield str(path.relative_to(server.home)), path.read_bytes()
    with server.client(server.admin_key) as admin:
        for shown in ("/metrics", "/admin/engine", "/admin/usage?by=key,version,hour", "/health/ready"):
            yield shown, admin.get(shown).content
    # Process information that every user of the machine can read.
    for process in (server.process.pid, *(child.pid for child in server.engine_processes())):
        yield f"arguments of {process}", Path(f"/proc/{process}/cmdline").read_bytes()


def bodies() -> Iterator[tuple[str, object]]:
    """Requests that are answered, refused, aborted or malformed, each with the secret in a different place."""
    said = f"What is {SECRET}?"
    message = {"role": "user", "content": said}
    tool = {"type": "function", "function": {"name": "f", "description": said, "parameters": {"type": "object"}}}
    completions, chat = "/v1/completions", "/v1/chat/completions"
    yield completions, {"prompt": said, "max_tokens": 3, "echo": True, "logprobs": 1}
    yield completions, {"prompt": said, "max_tokens": 3, "stream": True}
    yield completions, {"prompt": "x", "max_tokens": 3, "stop": [SECRET], "user": SECRET}
    yield chat, {"messages": [message], "max_tokens": 3, "model": "pricing"}
    yield chat, {"messages": [message], "max_tokens": 3, "tools": [tool]}
    schema = {"type": "json_schema", "json_schema": {"name": SECRET, "schema": {"type": "object"}}}
    yield chat, {"messages": [message], "max_tokens": 3, "response_format": schema}
    yield "/v1/responses", {"input": said, "instructions": said, "max_output_tokens": 3, "metadata": {"a": SECRET}}
    yield "/v1/responses", {"input": said, "max_output_tokens": 3, "stream": True}
    yield "/v1/responses", {"input": [{"type": "item_reference", "id": SECRET}, {"role": "user", "content": said}]}
    yield "/v1/messages", {"messages": [message], "system": said, "max_tokens": 3, "stop_sequences": [SECRET]}
    yield "/v1/messages", {"messages": [message], "max_tokens": 3, "stream": True}
    yield "/v1/messages", {"messages": [{"role": "user", "content": [{"type": SECRET}]}], "max_tokens": 3}
    yield "/v1/messages/count_tokens", {"messages": [message]}
    yield "/v1/tokenize", {"prompt": said}
    yield "/v1/tokenize", {"prompt": said, SECRET: 1}
    yield "/generate", {"inputs": said, "parameters": {"max_new_tokens": 3, "return_full_text": True}}
    yield completions, {"prompt": said * 5000, "max_tokens": 3}  # longer than the context
    yield completions, {"prompt": said, "max_tokens": SECRET}
    yield completions, {"prompt": said, SECRET: 1}
    yield completions, {"prompt": said, "model": SECRET}
    yield completions, {"prompt": {"no": said}}
    yield chat, {"messages": [message, {"role": SECRET, "content": 1}]}
    yield completions, f'{{"prompt": "{SECRET}", '


def test_no_prompt_and_no_answer_is_kept_anywhere(server: Server, keys: dict[str, str]) -> None:
    answered = 0
    with server.client(keys["pricing"]) as client:
        for path, body in bodies():
            text = body if isinstance(body, str) else json.dumps(body)
            answer = client.post(path, content=text, headers={"content-type": "application/json"})
            answered += answer.status_code == 200
            assert answer.status_code < 500
        with (
            pytest.raises(httpx.ReadTimeout),
            client.stream(
                "POST",
                "/v1/completions",
                json={"prompt": SECRET, "max_tokens": 1000, "ignore_eos": True, "n": 8},
                timeout=httpx.Timeout(30, read=0.5),
            ),
        ):
            pass
    assert answered >= 13
    found = [name for name, content in everything_left(server) if SECRET.encode() in content]
    assert found == []


def test_keys_are_nowhere_in_clear(server: Server, keys: dict[str, str]) -> None:
    with server.client(keys["pricing"]) as client:
        assert client.post("/v1/completions", json={"prompt": "x", "max_tokens": 1}).status_code == 200
    for key in (server.admin_key, *keys.values()):
        secret = key.split("_")[2]
        found = [name for name, content in everything_left(server) if secret.encode() in content]
        assert found == []


def test_what_is_looked_through_would_hold_it(server: Server, keys: dict[str, str]) -> None:
    """The same search finds permitted data, so log, database and journal are really searched."""
    with server.client(server.admin_key) as admin:
        assert admin.patch("/admin/tenants/pricing", json={"name": f"Pricing {SECRET}"}).status_code == 200
        found = [name for name, content in everything_left(server) if SECRET.encode() in content]
        assert admin.patch("/admin/tenants/pricing", json={"name": "pricing"}).status_code == 200
    assert any(name.startswith("tenora.db") or ".db" in name for name in found), found
    names = [name for name, _ in everything_left(server)]
    assert "server.log" in names
    assert b"DEBUG" in (server.home / "server.log").read_bytes()
