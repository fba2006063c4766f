"""Timing attacks on the engine: detect another tenant's warm adapter or a prompt that it has sent."""

import random
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from app.demo.train import Demo
from tests.support.server import Server, until
from tests.support.timing import BOUND, Stopwatch, assert_alike, told_apart

pytestmark = pytest.mark.slow

#: Long enough for the prefix cache to matter; token ids of the demo's vocabulary, without its special tokens.
LENGTH, TOKENS = 480, range(10, 700)


@pytest.fixture(scope="module")
def listener(server: Server, keys: dict[str, str]) -> Iterator[str]:
    """Key of a tenant with which the owner shares its adapter, so that both send prompts to the same adapter."""
    key = server.tenant("listener", scopes=("inference", "usage:read"))
    path = "/admin/tenants/pricing/adapters/pricing/shares/listener"
    with server.client(server.admin_key) as admin:
        assert admin.put(path).status_code == 201
        yield key
        assert admin.delete(path).status_code == 204


def body(model: str, prompt: list[int]) -> dict[str, Any]:
    return {"model": model, "prompt": prompt, "max_tokens": 1, "temperature": 0}


def chance() -> list[int]:
    return random.choices(TOKENS, k=LENGTH)


def asking(
    owner: Stopwatch, watch: Stopwatch, owners: tuple[str, str], own: tuple[str, str], *, same: bool
) -> Callable[[], float]:
    """One listener probe: wait for the owner's prompt, send the same or a new one, and time the first token.

    Args:
        owners, own: key and model of each.
    """

    def one() -> float:
        sent = chance()
        owner.seconds("POST", "/v1/completions", key=owners[0], status=200, body=body(owners[1], sent))
        asked = sent if same else chance()
        # Two tokens: the event of the last one waits for the record.
        streamed = body(own[1], asked) | {"stream": True, "max_tokens": 2}
        return watch.seconds("POST", "/v1/completions", key=own[0], status=200, body=streamed)

    return one


@pytest.mark.parametrize(("owners", "own"), [("demo", "demo"), ("pricing", "pricing/pricing")])
def test_whether_another_tenant_has_sent_a_prompt(
    server: Server, keys: dict[str, str], listener: str, owners: str, own: str
) -> None:
    with Stopwatch(server.url) as owner, Stopwatch(server.url) as watch:
        same, new = (
            asking(owner, watch, (keys["pricing"], owners), (listener, own), same=same) for same in (True, False)
        )
        assert_alike(f"prefix cache, {own}", same, new)


def test_the_cache_is_heard_by_whom_it_belongs_to(server: Server, listener: str) -> None:
    """Positive control: shows that the attack of the test above is sensitive enough."""
    with Stopwatch(server.url) as owner, Stopwatch(server.url) as watch:
        mine = (listener, "demo")
        same, new = (asking(owner, watch, mine, mine, same=same) for same in (True, False))
        found = told_apart(same, new, samples=100)
    print(f"\nprefix cache, one's own: {found}")  # noqa: T201
    assert found.auc < 0.5 - BOUND


def test_cached_tokens_are_ones_own(server: Server, keys: dict[str, str], listener: str) -> None:
    prompt = chance()
    with server.client(keys["pricing"]) as owner, server.client(listener) as own:

        def used() -> dict[str, int]:
            return dict(own.get("/v1/usage", params={"by": ""}).json()["total"])

        def cached_after(requests: int) -> int:
            until(lambda: used()["requests"] >= requests, 30)
            return used()["cached_tokens"]

        before = settled(used)
        assert owner.post("/v1/completions", json=body("demo", prompt)).status_code == 200
        assert own.post("/v1/completions", json=body("demo", prompt)).status_code == 200
        assert cached_after(before["requests"] + 1) == before["cached_tokens"]
        assert own.post("/v1/completions", json=body("demo", prompt)).status_code == 200
        assert cached_after(before["requests"] + 2) > before["cached_tokens"]


def settled(used: Callable[[], dict[str, int]]) -> dict[str, int]:
    """Return the usage once no records of earlier tests arrive any more, which takes about a second."""
    seen = [used()]

    def still() -> bool:
        seen.append(used())
        return len(seen) > 100 and seen[-100] == seen[-1]

    until(still, 60)
    return seen[-1]


def test_whether_anothers_adapter_is_warm(server: Server, keys: dict[str, str], trained_demo: Demo) -> None:
    """The owner uses one adapter all the time and the other never.

    To a stranger both look like absent names, in the same time.
    """
    assert server.publish("pricing", "wintery", trained_demo.adapters["pricing"]).status_code == 201
    stranger = server.tenant("stranger")
    with server.client(server.admin_key) as admin, Stopwatch(server.url) as owner, Stopwatch(server.url) as watch:
        for unit in ("pricing", "supply-chain"):
            warm(owner, keys[unit], unit)

        def ask(name: str) -> Callable[[], float]:
            def one() -> float:
                warm(owner, keys["pricing"], "pricing")
                return watch.seconds(
                    "POST", "/v1/completions", key=stranger, status=404, body={"model": name, "prompt": "x"}
                )

            return one

        warmed = in_slots(admin)
        assert "pricing/pricing@1" in warmed
        assert "pricing/wintery@1" not in warmed
        assert_alike("warm against cold", ask("pricing"), ask("wintery"))
        assert_alike("warm against absent", ask("pricing"), ask("nothing"))
        assert admin.delete("/admin/tenants/pricing/adapters/wintery", params={"force": True}).status_code == 202


def warm(watch: Stopwatch, key: str, model: str) -> None:
    watch.seconds("POST", "/v1/completions", key=key, status=200, body=body(model, [10, 11, 12]))


def in_slots(admin: httpx.Client) -> set[str]:
    return {one["name"] for one in admin.get("/admin/engine").json()["versions"]["data"] if one["tier"] == "slot"}
