"""The smoke check between the gate and ``ready``, from the publisher's side."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest

from app.domain.errors import AdapterLoadFailed, EngineUnavailable
from app.engine.port import SmokeResult
from tests.support.publishing import publish, version
from tests.support.serving import NoEngine, PeftFiles
from tests.support.site import Site, Unit, make_unit


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


def until_state(client: httpx.Client, number: int, state: str) -> None:
    deadline = time.monotonic() + 30
    while version(client, number)["state"] != state:
        assert time.monotonic() < deadline, version(client, number)
        time.sleep(0.02)


REFUSALS: dict[str, SmokeResult | Exception] = {
    "non_finite_output": SmokeResult(finite=False, has_effect=True),
    "no_effect": SmokeResult(finite=True, has_effect=False),
    "load_failed": AdapterLoadFailed("the engine could not load this version", version_id=1),
}


@pytest.mark.parametrize("code", REFUSALS)
def test_a_version_that_fails_on_the_engine_is_rejected(
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
    # A second upload of the same bytes resumes where the first one stopped.
    assert (publish(client, files).status_code, version(client, 1)["state"]) == (200, "ready")


def test_publishing_moves_only_the_alias_that_it_names(
    client: httpx.Client, files: PeftFiles, other_files: PeftFiles
) -> None:
    assert publish(client, files, alias="candidate").json()["aliases"] == ["candidate"]
    assert publish(client, other_files, alias="candidate").json()["aliases"] == ["candidate"]
    assert client.get("/v1/adapters/quotes").json()["aliases"] == {"candidate": {"2": 100}}


@pytest.mark.parametrize(
    ("route", "body"),
    [
        ("/v1/completions", {"model": "quotes", "prompt": "a"}),
        ("/v1/chat/completions", {"model": "quotes", "messages": [{"role": "user", "content": "a"}]}),
        ("/v1/responses", {"model": "quotes", "input": "a"}),
        ("/v1/messages", {"model": "quotes", "messages": [{"role": "user", "content": "a"}], "max_tokens": 4}),
        ("/v1/tokenize", {"model": "quotes", "prompt": "a"}),
        ("/generate", {"inputs": "a", "parameters": {"adapter_id": "quotes"}}),
    ],
)
def test_without_a_default_callers_are_told_the_aliases(
    site: Site, client: httpx.Client, files: PeftFiles, route: str, body: dict[str, object]
) -> None:
    for alias in ("candidate", "next"):
        assert publish(client, files, alias=alias).status_code in (200, 201)
    asked = client.post(route, json=body)
    assert asked.status_code == 404
    assert "quotes:candidate, quotes:next" in asked.text
    with site.client(site.admin_key) as admin, site.client(make_unit(admin).key) as stranger:
        foreign = stranger.post(route, json=body)
        assert foreign.status_code == 404
        assert "candidate" not in foreign.text
    assert client.get("/v1/models/quotes:next").status_code == 200


def test_no_version_goes_live_by_being_restored(client: httpx.Client, files: PeftFiles, other_files: PeftFiles) -> None:
    publish(client, files, alias=None)
    publish(client, other_files, alias=None)
    for call in ("retire", "restore"):
        answer = client.post(f"/v1/adapters/quotes/versions/1/{call}", json={"reason": "x"} if call == "retire" else {})
        assert answer.status_code == 200, answer.text
    assert client.get("/v1/adapters/quotes").json()["aliases"] == {}


def test_restoring_a_version_returns_its_default(client: httpx.Client, files: PeftFiles) -> None:
    publish(client, files)
    assert client.post("/v1/adapters/quotes/versions/1/retire?force=true", json={"reason": "x"}).status_code == 200
    assert client.get("/v1/adapters/quotes").json()["aliases"] == {}
    assert client.post("/v1/adapters/quotes/versions/1/restore", json={}).status_code == 200
    assert client.get("/v1/adapters/quotes").json()["aliases"] == {"default": {"1": 100}}


def test_no_version_goes_live_by_a_deletion(client: httpx.Client, files: PeftFiles, other_files: PeftFiles) -> None:
    publish(client, files)
    publish(client, other_files, alias="candidate")
    assert client.delete("/v1/adapters/quotes/versions/1?force=true").is_success
    assert client.get("/v1/adapters/quotes").json()["aliases"] == {"candidate": {"2": 100}}


def test_no_alias_is_moved(client: httpx.Client, files: PeftFiles, other_files: PeftFiles) -> None:
    assert publish(client, files).status_code == 201
    assert publish(client, other_files, alias=None).json()["aliases"] == []
    assert client.get("/v1/adapters/quotes").json()["aliases"] == {"default": {"1": 100}}
