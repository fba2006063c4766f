"""Batches over HTTP without an engine: OpenAI's shapes, errors and lists, and the platform's list."""

import json
import uuid
from typing import Any

import httpx
import openai
import pytest
from openai.types import Batch

from tests.support.batch_admission import CHAT, jsonl, line
from tests.support.batch_calls import ABSENT_BATCH, create, validated
from tests.support.file_calls import create as create_file
from tests.support.serving import PeftFiles
from tests.support.site import Site, Unit, make_unit, parts

UNFINISHED = {"in_progress", "finalizing", "completed"}


def test_the_published_sdk_creates_shows_lists_and_cancels(site: Site, unit: Unit) -> None:
    with openai.OpenAI(base_url=f"{site.url}/v1", api_key=unit.key, max_retries=0) as sdk, site.client(unit.key) as own:
        file = sdk.files.create(file=("in.jsonl", jsonl([line(1), line(2)])), purpose="batch")
        batch = sdk.batches.create(
            input_file_id=file.id,
            endpoint="/v1/chat/completions",
            completion_window="24h",
            metadata={"table": "prices"},
            output_expires_after={"anchor": "created_at", "seconds": 3600},
            extra_body={"tenora": {"width": 8}},
        )
        assert (batch.status, batch.metadata, batch.input_file_id) == ("validating", {"table": "prices"}, file.id)
        assert batch.expires_at is not None
        assert batch.expires_at - batch.created_at == 86400
        shown = validated(own, batch.id)
        assert shown["status"] in UNFINISHED
        found = sdk.batches.retrieve(batch.id)
        assert found.request_counts is not None
        assert found.request_counts.total == 2
        assert found.usage is not None
        assert found.usage.total_tokens == 0
        quote = shown["tenora"]["quote"]
        assert (quote["lines"], quote["most_output_tokens"], quote["most_cost"]) == (2, 8, "0")
        assert (shown["tenora"]["width"], shown["tenora"]["warnings"]) == (8, [])
        others = [
            sdk.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h").id
            for _ in range(2)
        ]
        assert [one.id for one in sdk.batches.list(limit=1)] == [*reversed(others), batch.id]
        assert sdk.batches.cancel(others[1]).status in {"cancelling", "cancelled"}
        # All that OpenAI documents has its type.
        assert Batch.model_validate(shown, strict=True).object == "batch"


def test_a_failed_batch_lists_its_problems(site: Site, unit: Unit) -> None:
    with site.client(unit.key) as own:
        batch = validated(own, create(own, [line(1), line(1), line(2, temperature=3)])["id"])
    assert batch["status"] == "failed"
    assert batch["failed_at"] >= batch["created_at"]
    assert batch["errors"]["object"] == "list"
    assert [(row["line"], row["code"], row["param"]) for row in batch["errors"]["data"]] == [
        (2, "duplicate_custom_id", "custom_id"), (3, "invalid_value", "body.temperature"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({"completion_window": "1y"}, 400, "completion_window"),
        ({"endpoint": "/v1/embeddings"}, 400, "endpoint"),
        ({"input_file_id": f"file-{'0' * 32}"}, 404, "input_file_id"),
        ({"input_file_id": "\0"}, 404, "input_file_id"),
        ({"metadata": {"k": 1}}, 422, "metadata.k"),
        ({"metadata": {"k": "v" * 513}}, 400, "metadata"),
        ({"tenora": {"model": "nothing"}}, 404, "tenora.model"),
        ({"tenora": {"width": "1"}}, 422, "tenora.width"),
        ({"tenora": {"wdith": 1}}, 422, "tenora.wdith"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 1}}, 400, "output_expires_after.seconds"),
        ({"output_expires_after": {"anchor": "now", "seconds": 3600}}, 422, "output_expires_after.anchor"),
        ({"more": 1}, 422, "more"),
    ],
)
def test_fields_that_are_refused(site: Site, unit: Unit, fields: dict[str, Any], status: int, param: str) -> None:
    with site.client(unit.key) as own:
        body = {"input_file_id": create_file(own)["id"], "endpoint": CHAT, "completion_window": "24h"}
        answer = own.post("/v1/batches", json=body | fields)
        assert (answer.status_code, answer.json()["error"]["param"]) == (status, param), answer.text
        assert own.get("/v1/batches").json() == {
            "object": "list", "data": [], "first_id": None, "last_id": None, "has_more": False,
        }  # fmt: skip


def test_repeated_posts_with_an_idempotency_key_create_one_batch(site: Site, unit: Unit) -> None:
    with site.client(unit.key) as own:
        body = {"input_file_id": create_file(own)["id"], "endpoint": CHAT, "completion_window": "24h"}
        headers = {"idempotency-key": uuid.uuid4().hex}
        first, second = [own.post("/v1/batches", json=body, headers=headers).json() for _ in range(2)]
        assert first["id"] == second["id"]
        assert len(own.get("/v1/batches").json()["data"]) == 1


def test_the_scope_batch_is_required(site: Site, admin: httpx.Client, unit: Unit) -> None:
    def key_with(*scopes: str) -> str:
        body = {"name": "test", "scopes": list(scopes)}
        return str(admin.post(f"/admin/tenants/{unit.slug}/keys", json=body).json()["key"])

    with site.client(key_with("inference")) as client:
        for method, path in (
            ("GET", ""),
            ("POST", ""),
            ("GET", f"/{ABSENT_BATCH}"),
            ("POST", f"/{ABSENT_BATCH}/cancel"),
        ):
            body = {"input_file_id": "x", "endpoint": CHAT, "completion_window": "24h"} if path == "" else {}
            answer = client.request(method, f"/v1/batches{path}", json=body)
            assert answer.status_code == 403
            assert answer.json()["error"]["message"] == "The key lacks the scope batch."
    with site.client(key_with("batch")) as client:
        body = {"input_file_id": create_file(client)["id"], "endpoint": CHAT, "completion_window": "24h"}
        answer = client.post("/v1/batches", json=body)
        assert answer.status_code == 403
        assert "lacks the scope inference" in answer.text
        assert client.get("/v1/batches").status_code == 200
    # Keys get it only on request.
    new = admin.post(f"/admin/tenants/{unit.slug}/keys", json={"name": "test"}).json()
    assert new["scopes"] == ["inference"]


def test_the_platform_lists_all_batches_without_texts(
    site: Site, admin: httpx.Client, unit: Unit, files: PeftFiles
) -> None:
    with site.client(unit.key) as own:
        assert own.post("/v1/adapters/prices/versions", files=parts(files)).status_code == 201
        content = {"role": "user", "content": "a secret question"}
        good = create(own, [line(1, messages=[content], model="prices")], metadata={"secret": "yes"})
        bad = create(own, [line(1, messages=[content], temperature="secret")])
        for batch in (good, bad):
            validated(own, batch["id"])
        assert own.get("/admin/batches").status_code == 403
    listed = admin.get("/admin/batches", params={"tenant": unit.slug}).json()
    assert [(row["id"], row["tenant"], row["problems"]) for row in listed["data"]] == [
        (bad["id"], unit.slug, 1), (good["id"], unit.slug, 0),
    ]  # fmt: skip
    assert "secret" not in str(listed)
    failed = admin.get("/admin/batches", params={"tenant": unit.slug, "state": "failed"}).json()
    assert [row["id"] for row in failed["data"]] == [bad["id"]]
    pages = []
    after: dict[str, str] = {}
    while True:
        page = admin.get("/admin/batches", params={"tenant": unit.slug, "limit": 1, **after}).json()
        pages += [row["id"] for row in page["data"]]
        if not page["has_more"]:
            break
        after = {"after": page["last_id"]}
    assert pages == [bad["id"], good["id"]]
    assert admin.get("/admin/batches", params={"tenant": "unknown"}).status_code == 404
    assert admin.get("/admin/batches", params={"state": "lost"}).status_code == 422
    assert admin.get("/admin/batches", params={"after": ABSENT_BATCH}).status_code == 404


def events_until(client: httpx.Client, path: str, last: str, **only: str) -> list[dict[str, Any]]:
    """Read the feed from its start to the first event of this type."""
    events: list[dict[str, Any]] = []
    with client.stream("GET", path, params={"after": 0, **only}) as feed:
        for text in feed.iter_lines():
            if text.startswith("data: "):
                events.append(json.loads(text.removeprefix("data: ")))
                if events[-1]["type"] == last:
                    break
    return events


def test_states_are_events_for_the_tenant_and_the_platform(site: Site, admin: httpx.Client, unit: Unit) -> None:
    other = make_unit(admin)
    with site.client(unit.key) as own, site.client(other.key) as foreign:
        batch = validated(own, create(own, [line(1), line(1)])["id"])
        create(foreign, [line(1), line(1)])
        states = [("batch.create", "validating"), ("batch.failed", "failed")]
        events = events_until(own, "/v1/events", "batch.failed")
        own_events = [event for event in events if event["subject"] == batch["id"]]
        assert [(event["type"], event["after"]["status"]) for event in own_events] == states
        assert batch["id"] not in str(events_until(foreign, "/v1/events", "batch.failed"))
        body = {"input_file_id": batch["input_file_id"], "endpoint": CHAT, "completion_window": "24h"}
        answer = own.post("/v1/batches", json=body)
        own.post(f"/v1/batches/{answer.json()['id']}/cancel")
        types = {event["type"] for event in events_until(admin, "/admin/events", "batch.cancel", tenant=unit.slug)}
        assert {"batch.create", "batch.failed", "batch.cancel"} <= types
