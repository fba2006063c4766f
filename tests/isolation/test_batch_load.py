"""Batches of one tenant: requests and batches of others go on, and prefix caches stay apart."""

import random
import time
from typing import Any

import pytest

from tests.support import batch_client
from tests.support.batch_client import SCOPES, line, show, wait
from tests.support.server import Server

#: Token ids of the demo's vocabulary, without the special tokens.
TOKENS = range(10, 600)


def body(length: int, tokens: int) -> dict[str, Any]:
    return {"model": "demo", "prompt": random.choices(TOKENS, k=length), "max_tokens": tokens, "ignore_eos": True}


@pytest.mark.slow
def test_requests_of_others_pass_a_batch(server: Server) -> None:
    """A full engine window of a batch's lines: another tenant's requests are answered while lines end one by one."""
    batch_key, key = server.tenant("batch-flood", scopes=SCOPES), server.tenant("beside-the-batch")
    lines = [line(str(number), body(200, 60)) for number in range(600)]
    with server.client(batch_key) as client, server.client(key) as other:
        assert other.post("/v1/completions", json=body(8, 1)).status_code == 200
        batch_id = batch_client.create(client, lines)
        while show(client, batch_id)["request_counts"]["completed"] < 20:
            time.sleep(0.05)
        before = show(client, batch_id)["request_counts"]["completed"]
        for _ in range(20):
            assert other.post("/v1/completions", json=body(8, 1)).status_code == 200
        # Counts are a second old, and a window of lines may have ended with them.
        passed = show(client, batch_id)["request_counts"]["completed"] - before
        assert passed < 300
        assert client.post(f"/v1/batches/{batch_id}/cancel").is_success
        assert wait(client, batch_id)["status"] == "cancelled"


@pytest.mark.slow
def test_a_small_batch_of_another_tenant_passes_a_large_one(server: Server) -> None:
    large_key, small_key = server.tenant("batch-flood", scopes=SCOPES), server.tenant("small-batch", scopes=SCOPES)
    with server.client(large_key) as large, server.client(small_key) as small:
        large_id = batch_client.create(large, [line(str(number), body(50, 40)) for number in range(1500)])
        while show(large, large_id)["request_counts"]["completed"] < 20:
            time.sleep(0.05)
        ended = wait(small, batch_client.create(small, [line(str(number), body(8, 2)) for number in range(5)]))
        assert ended["request_counts"]["completed"] == 5
        assert show(large, large_id)["status"] == "in_progress"
        assert large.post(f"/v1/batches/{large_id}/cancel").is_success
        assert wait(large, large_id)["status"] == "cancelled"


def test_prefix_caches_stay_apart(server: Server) -> None:
    """A prompt that one tenant's batch has cached is cached for that tenant only."""
    chance = random.Random(5)
    prompt = chance.choices(TOKENS, k=400)
    asked = {"model": "demo", "prompt": prompt, "max_tokens": 1}
    first, second = server.tenant("cache-one", scopes=SCOPES), server.tenant("cache-two", scopes=SCOPES)
    with server.client(first) as client:
        batch_client.output(client, [line("one", asked)])
        own = wait(client, batch_client.create(client, [line("one", asked)]))
    with server.client(second) as client:
        others = wait(client, batch_client.create(client, [line("one", asked)]))
    assert own["usage"]["input_tokens_details"]["cached_tokens"] > 300
    assert others["usage"]["input_tokens_details"]["cached_tokens"] == 0


def test_no_client_can_choose_the_id_of_a_line(server: Server) -> None:
    """A client's own ``x-request-id`` never becomes the id under which usage is recorded."""
    with server.client(server.tenant("ids")) as client:
        chosen = "batch-00ff00ff00ff00ff-1"
        answer = client.post("/v1/completions", json=body(8, 1), headers={"x-request-id": chosen})
    assert answer.status_code == 200
    assert not answer.headers["x-request-id"].startswith("batch-")
    assert chosen not in answer.text
