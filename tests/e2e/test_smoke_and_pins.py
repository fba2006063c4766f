"""Smoke check, NaN and pins on the real engine, which has two slots."""

import asyncio
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.demo.train import Demo
from tests.support.planted_adapters import nan_adapter
from tests.support.scaled_adapters import publish, scaled
from tests.support.server import Server, until

RESTARTS = "tenora_engine_restarts_total"
PROMPT = "[INST] What is coffee? [/INST]"
SCORED = {"prompt": PROMPT, "max_tokens": 4, "temperature": 0, "logprobs": 1}
#: Keeps other requests in the engine during smoke checks.
TRAFFIC = {"prompt": "x", "max_tokens": 40, "ignore_eos": True, "temperature": 1}


def codes(answer: httpx.Response) -> list[str]:
    assert answer.status_code == 422, answer.text
    return [reason["code"] for reason in answer.json()["error"]["reasons"]]


def complete(client: httpx.Client, **body: object) -> dict[str, Any]:
    answer = client.post("/v1/completions", json=SCORED | body)
    assert answer.status_code == 200, answer.text
    return dict(answer.json()["choices"][0])


def is_sound(choice: dict[str, Any]) -> bool:
    """Return whether every token has a finite logprob."""
    return all(isinstance(value, float) and math.isfinite(value) for value in choice["logprobs"]["token_logprobs"])


async def under_traffic(server: Server, key: str, work: Callable[[], None]) -> None:
    """Do blocking work while other requests run on the base and on an adapter."""
    done = asyncio.Event()

    async def caller(model: str) -> None:
        async with httpx.AsyncClient(
            base_url=server.url, headers={"authorization": f"Bearer {key}"}, timeout=120
        ) as client:
            while not done.is_set():
                answer = await client.post("/v1/completions", json=TRAFFIC | {"model": model})
                assert answer.status_code == 200, answer.text

    callers = [asyncio.create_task(caller(model)) for model in ("demo", "pricing") * 4]
    try:
        await asyncio.to_thread(work)
    finally:
        done.set()
        await asyncio.gather(*callers)


async def test_an_adapter_without_effect_is_found_under_traffic(
    server: Server, keys: dict[str, str], trained_demo: Demo, tmp_path: Path
) -> None:
    source = trained_demo.adapters["pricing"]
    without = scaled(source, tmp_path / "zero", 0.0)
    with server.client(server.tenant("smoke")) as client:

        def try_them() -> None:
            for factor in (1e-4, 1e-2):
                weak = scaled(source, tmp_path / f"{factor}", factor)
                assert publish(client, "weak", weak).json()["state"] == "ready"
            for _ in range(5):
                assert codes(publish(client, "none", without)) == ["no_effect"]

        await under_traffic(server, keys["pricing"], try_them)
        allowed = publish(client, "none", without, allow_no_effect=True)
        assert (allowed.status_code, allowed.json()["state"]) == (201, "ready")
        assert complete(client, model="none")["logprobs"] == complete(client, model="demo")["logprobs"]


def test_a_nan_adapter_is_refused_and_leaves_nothing(
    server: Server, keys: dict[str, str], trained_demo: Demo, tmp_path: Path
) -> None:
    """The adapter's weights are finite.

    The KV cache entries that it left behind made the next request's answer NaN too.
    """
    with server.client(server.tenant("smoke")) as client, server.client(keys["pricing"]) as neighbour:
        before = {model: complete(neighbour, model=model) for model in ("demo", "pricing")}
        for attempt in range(4):
            overflowing = scaled(trained_demo.adapters["pricing"], tmp_path / f"nan {attempt}", 1e30 * (1 + attempt))
            assert codes(publish(client, "overflowing", overflowing)) == ["non_finite_output"]
            for model, expected in before.items():
                assert complete(neighbour, model=model) == expected


def test_nan_answers_are_null_in_their_request_only(
    server: Server, keys: dict[str, str], trained_demo: Demo, tmp_path: Path
) -> None:
    bad = nan_adapter(trained_demo.base, tmp_path / "bad", PROMPT)
    with server.client(server.tenant("smoke")) as client, server.client(keys["pricing"]) as neighbour:
        assert publish(client, "sometimes", bad).json()["state"] == "ready"
        before = {model: complete(neighbour, model=model) for model in ("demo", "pricing")}
        for attempt in range(6):
            # A new prompt each time avoids the prefix cache.
            chosen = complete(client, model="sometimes", stream=False, max_tokens=4 + attempt)
            assert not is_sound(chosen)
            assert None in chosen["logprobs"]["token_logprobs"]
            for model, expected in before.items():
                assert complete(neighbour, model=model) == expected
        parameters = {"adapter_id": "sometimes", "max_new_tokens": 4, "details": True, "best_of": 2, "do_sample": True}
        answer = client.post("/generate", json={"inputs": PROMPT, "parameters": parameters})
        assert answer.status_code == 200, answer.text
        assert {token["logprob"] for token in answer.json()["details"]["tokens"]} == {None}


async def test_logprobs_of_prompts_asked_for_by_many_at_once(server: Server, keys: dict[str, str]) -> None:
    """On a CPU, vLLM's LoRA kernel for the head crashes on two such requests in one step.

    No adapter here changes the head.
    """
    async with httpx.AsyncClient(
        base_url=server.url, headers={"authorization": f"Bearer {keys['pricing']}"}, timeout=120
    ) as client:
        body = SCORED | {"prompt": [PROMPT, PROMPT + " one", "x"], "echo": True}
        answers = await asyncio.gather(
            *(client.post("/v1/completions", json=body | {"model": model}) for model in ("demo", "pricing") * 4)
        )
    assert {answer.status_code for answer in answers} == {200}
    assert server.metric(RESTARTS) == 0


@pytest.fixture
def unpinned(server: Server) -> Any:
    yield
    with server.client(server.admin_key) as admin:
        for pin in admin.get("/admin/pins").json()["data"]:
            admin.delete(pin_path(pin["tenant"]))
        until(lambda: not held(admin), 30)


def pin_path(unit: str) -> str:
    return f"/admin/tenants/{unit}/adapters/{unit}/versions/1/pin"


def held(admin: httpx.Client) -> list[str]:
    return [pin["name"] for pin in admin.get("/admin/pins").json()["data"] if pin["held"]]


async def test_a_pinned_version_never_waits_and_one_slot_stays_free(
    server: Server, keys: dict[str, str], trained_demo: Demo, tmp_path: Path, unpinned: None
) -> None:
    with server.client(server.admin_key) as admin, server.client(server.tenant("smoke")) as client:
        assert publish(client, "third", scaled(trained_demo.adapters["pricing"], tmp_path / "half", 0.5)).is_success
        assert admin.put(pin_path("pricing")).status_code == 201
        refused = admin.put(pin_path("supply-chain"))
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "conflict")
        assert "1 of 2 slots are pinned; the limit is 1" in refused.json()["error"]["message"]
        await asyncio.to_thread(until, lambda: held(admin) == ["pricing@1"], 30)
        # The other slot is taken for long, and a request waits for it.
        long = {"prompt": "x", "max_tokens": 1000, "n": 8, "ignore_eos": True, "temperature": 1}
        async with httpx.AsyncClient(base_url=server.url, timeout=120) as outside:

            def ask(key: str, **body: object) -> asyncio.Task[httpx.Response]:
                headers = {"authorization": f"Bearer {key}"}
                return asyncio.create_task(outside.post("/v1/completions", json=body, headers=headers))

            hog = ask(keys["supply-chain"], **long, model="supply-chain")
            await asyncio.to_thread(until, lambda: server.metric("tenora_engine_requests_running") > 0, 30)
            waiting = ask(client.headers["authorization"].split()[1], model="third", prompt="x", max_tokens=1)
            await asyncio.to_thread(until, lambda: server.metric("tenora_engine_requests_waiting") == 1, 30)
            answered = await ask(keys["pricing"], model="pricing", prompt="x", max_tokens=1)
            assert answered.status_code == 200
            assert not waiting.done()
            hog.cancel()
            assert (await waiting).status_code == 200
