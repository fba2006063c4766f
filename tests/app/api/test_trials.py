"""Between the gate and ``ready``: the smoke check as whoever publishes sees it."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest

from app.engine.base import SmokeResult
from app.errors import AdapterLoadFailed, EngineUnavailable
from tests.app.api.conftest import Site, Unit, parts
from tests.app.serving import NoEngine, PeftFiles


@contextmanager
def finding(engine: NoEngine, result: SmokeResult | Exception) -> Iterator[None]:
    before, engine.smoke_result = engine.smoke_result, result
    try:
        yield
    finally:
        engine.smoke_result = before


@pytest.fixture
def client(site: Site, unit: Unit) -> Iterator[httpx.Client]:
    with site.client(unit.key) as client:
        yield client


def publish(client: httpx.Client, files: PeftFiles, **options: object) -> httpx.Response:
    form = parts(files) | {"options": ("options", json.dumps(options).encode())}
    return client.post("/v1/adapters/quotes/versions", files=form)


def version(client: httpx.Client, number: int) -> dict[str, object]:
    return client.get(f"/v1/adapters/quotes/versions/{number}").json()


def until_state(client: httpx.Client, number: int, state: str) -> None:
    deadline = time.monotonic() + 30
    while version(client, number)["state"] != state:
        assert time.monotonic() < deadline, version(client, number)
        time.sleep(0.02)


REFUSALS = {
    "non_finite_output": SmokeResult(finite=False, has_effect=True),
    "no_effect": SmokeResult(finite=True, has_effect=False),
    "load_failed": AdapterLoadFailed("the engine could not load this version", version_id=1),
}


@pytest.mark.parametrize("code", REFUSALS)
def test_a_version_that_fails_on_the_engine_is_rejected_and_says_why(
    site: Site, client: httpx.Client, files: PeftFiles, other_files: PeftFiles, code: str
) -> None:
    assert publish(client, other_files).status_code == 201
    with finding(site.engine, REFUSALS[code]):
        refused = publish(client, files)
    assert refused.status_code == 422
    assert [reason["code"] for reason in refused.json()["error"]["reasons"]] == [code]
    shown = version(client, 2)
    assert (shown["state"], shown["aliases"]) == ("rejected", [])
    assert shown["state_reason"] in refused.json()["error"]["message"]
    assert client.get("/v1/adapters/quotes").json()["aliases"] == {"default": {"1": 100}}
    asked = client.post("/v1/completions", json={"model": "quotes@2", "prompt": "a"})
    assert (asked.status_code, asked.json()["error"]["code"]) == (409, "adapter_not_ready")


def test_rejected_bytes_may_be_tried_again(site: Site, client: httpx.Client, files: PeftFiles) -> None:
    with finding(site.engine, REFUSALS["no_effect"]):
        assert publish(client, files).status_code == 422
        assert publish(client, files, allow_no_effect=True).status_code == 201
    assert client.get("/v1/adapters/quotes").json()["aliases"] == {"default": {"2": 100}}


def test_whoever_does_not_wait_sees_it_validating(site: Site, client: httpx.Client, files: PeftFiles) -> None:
    site.engine.may_smoke.clear()
    try:
        begun = publish(client, files, wait=False)
        assert (begun.status_code, begun.json()["state"]) == (202, "validating")
        asked = client.post("/v1/completions", json={"model": "quotes@1", "prompt": "a"})
        assert (asked.status_code, asked.json()["error"]["code"]) == (409, "adapter_not_ready")
        assert client.get("/v1/adapters/quotes").json()["aliases"] == {}
    finally:
        site.engine.may_smoke.set()
    until_state(client, 1, "ready")
    assert client.get("/v1/adapters/quotes").json()["aliases"] == {"default": {"1": 100}}


def test_an_engine_that_does_not_answer_leaves_it_validating(
    site: Site, client: httpx.Client, files: PeftFiles
) -> None:
    with finding(site.engine, EngineUnavailable("the engine is starting", retry_after=5)):
        assert publish(client, files).status_code == 503
    assert version(client, 1)["state"] == "validating"
    # The same upload again goes on where that one stopped.
    assert (publish(client, files).status_code, version(client, 1)["state"]) == (200, "ready")


def test_another_alias_is_moved_and_the_first_version_is_the_default_too(
    client: httpx.Client, files: PeftFiles, other_files: PeftFiles
) -> None:
    assert publish(client, files, alias="canary").json()["aliases"] == ["canary", "default"]
    assert publish(client, other_files, alias="canary").json()["aliases"] == ["canary"]
    assert client.get("/v1/adapters/quotes").json()["aliases"] == {"canary": {"2": 100}, "default": {"1": 100}}


def test_no_alias_is_moved(client: httpx.Client, files: PeftFiles, other_files: PeftFiles) -> None:
    assert publish(client, files).status_code == 201
    assert publish(client, other_files, alias=None).json()["aliases"] == []
    assert client.get("/v1/adapters/quotes").json()["aliases"] == {"default": {"1": 100}}
