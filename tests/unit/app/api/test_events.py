"""Event feed over HTTP: visibility of events, and resumption after a disconnect."""

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from queue import Empty, Queue
from typing import Any

import httpx
import pytest

from app.engine.port import EngineEvent
from app.services.operations.events import MOST_OF_TENANT
from tests.support.serving import PeftFiles
from tests.support.site import Site, Unit, make_unit, parts


@dataclass
class Heard:
    """The events of one listener, read in a separate thread."""

    response: httpx.Response
    events: "Queue[dict[str, Any]]" = field(default_factory=Queue)
    raw: list[str] = field(default_factory=list)

    def read(self) -> None:
        fields: dict[str, str] = {}
        try:
            for line in self.response.iter_lines():
                self.raw.append(line)
                name, _, value = line.partition(": ")
                if line:
                    fields[name] = value
                elif "data" in fields:
                    event = json.loads(fields["data"])
                    self.events.put(event | {"sse_id": fields.get("id"), "sse_type": fields["event"]})
                    fields = {}
        except (httpx.StreamClosed, httpx.ReadError, httpx.RemoteProtocolError, OSError):
            return

    def until(self, wanted: Callable[[dict[str, Any]], bool]) -> list[dict[str, Any]]:
        """Return all events up to and including the first wanted one."""
        heard = []
        while True:
            try:
                heard.append(self.events.get(timeout=30))
            except Empty:
                raise AssertionError(f"heard only {heard}") from None
            if wanted(heard[-1]):
                return heard


@contextmanager
def listening(client: httpx.Client, path: str, **arguments: Any) -> Iterator[Heard]:
    with client.stream("GET", path, **arguments) as response:
        assert response.status_code == 200, response.read()
        assert response.headers["content-type"].startswith("text/event-stream")
        heard = Heard(response)
        thread = threading.Thread(target=heard.read, daemon=True)
        thread.start()
        try:
            yield heard
        finally:
            # Closing the response does not wake a thread that is blocked in a read.
            response.extensions["network_stream"].get_extra_info("socket").shutdown(socket.SHUT_RDWR)
            thread.join()


@pytest.fixture
def own(site: Site, unit: Unit) -> Iterator[httpx.Client]:
    with site.client(unit.key) as client:
        yield client


def types(events: list[dict[str, Any]]) -> list[str]:
    return [event["type"] for event in events]


def test_an_admin_gets_events_of_every_kind(site: Site, admin: httpx.Client, unit: Unit, files: PeftFiles) -> None:
    path = f"/admin/tenants/{unit.slug}/adapters/pricing"
    with (
        site.client(site.admin_key) as listener,
        listening(listener, "/admin/events", params={"tenant": unit.slug}) as heard,
    ):
        assert admin.post(f"{path}/versions", files=parts(files)).status_code == 201
        published = heard.until(lambda event: event["type"] == "version.ready")
        assert types(published)[:1] == ["version.publish"]
        assert {event["tenant"] for event in published} == {unit.slug}
        assert published[0]["subject"] == "pricing@1"
        assert published[0]["actor"] == site.admin_key.split("_")[1]
        assert published[0]["sse_id"] == str(published[0]["id"])
        assert published[0]["sse_type"] == "version.publish"
        version_id = site.engine.smoked[-1]
        site.engine.tell(EngineEvent("evict", version_id))
        (*_, evicted) = heard.until(lambda event: event["type"] == "engine.evict")
        assert (evicted["tenant"], evicted["subject"], evicted["sse_id"]) == (unit.slug, "pricing@1", None)
        assert len(evicted["node"]) == 32
        assert admin.delete(path, params={"force": "true"}).status_code == 202
        deleted = heard.until(lambda event: event["type"] == "deletion.finish")
        assert "adapter.delete" in types(deleted)


def test_a_tenant_hears_of_itself_only_and_nothing_of_keys(
    site: Site, admin: httpx.Client, unit: Unit, own: httpx.Client, files: PeftFiles, other_files: PeftFiles
) -> None:
    other = make_unit(admin)
    with (
        site.client(site.admin_key) as everyone,
        listening(everyone, "/admin/events") as all_heard,
        listening(own, "/v1/events") as heard,
    ):
        with site.client(other.key) as stranger:
            assert stranger.post("/v1/adapters/secret/versions", files=parts(other_files)).status_code == 201
        theirs = site.engine.smoked[-1]
        site.engine.tell(EngineEvent("load", theirs, 0.1))
        site.engine.tell(EngineEvent("load", 2**31 - 1, 0.1))
        admin.post(f"/admin/tenants/{unit.slug}/keys", json={"name": "another"})
        with site.client(unit.key) as writer:
            assert writer.post("/v1/adapters/pricing/versions", files=parts(files)).status_code == 201
        wanted = {(other.slug, "version.ready"), (unit.slug, "key.create"), (None, "engine.load")}
        all_heard.until(lambda event: wanted.discard((event["tenant"], event["type"])) or not wanted)
        # This event follows all events of other tenants, so the tenant has received everything that it will receive.
        site.engine.tell(EngineEvent("evict", site.engine.smoked[-1]))
        mine = heard.until(lambda event: event["type"] == "engine.evict")
        assert {"version.publish", "version.ready", "engine.evict"} <= {event["type"] for event in mine}
        assert {event["tenant"] for event in mine} == {unit.slug}
        assert not any("secret" in json.dumps(event) or other.slug in json.dumps(event) for event in mine)
        assert not any(event["type"].startswith(("key.", "tenant.")) for event in mine)


def test_a_reader_goes_on_where_it_was_cut_off(
    site: Site, admin: httpx.Client, own: httpx.Client, unit: Unit, files: PeftFiles, other_files: PeftFiles
) -> None:
    with site.client(unit.key) as writer:
        with listening(own, "/v1/events") as heard:
            writer.post("/v1/adapters/pricing/versions", files=parts(files))
            first = heard.until(lambda event: event["type"] == "version.publish")[-1]
        writer.post("/v1/adapters/pricing/versions", files=parts(other_files))
        for arguments in (
            {"headers": {"last-event-id": str(first["id"])}},
            {"params": {"after": first["id"]}},
            {"headers": {"last-event-id": str(first["id"])}, "params": {"after": 2**31 - 1}},
        ):
            with listening(own, "/v1/events", **arguments) as heard:
                missed = heard.until(lambda event: (event["type"], event["subject"]) == ("version.ready", "pricing@2"))
            assert [(event["type"], event["subject"]) for event in missed if event["id"]] == [
                ("version.ready", "pricing@1"),
                ("version.publish", "pricing@2"),
                ("version.ready", "pricing@2"),
            ]
        with listening(own, "/v1/events", params={"after": 0}) as heard:
            everything = heard.until(lambda event: event["subject"] == "pricing@2")
        assert {event["tenant"] for event in everything} == {unit.slug}


@pytest.mark.parametrize("value", ["-1", "x", "1e3", "99999999999", "٣"])
def test_a_place_that_can_be_none_is_refused(own: httpx.Client, value: str) -> None:
    by_header = own.get("/v1/events", headers=[(b"last-event-id", value.encode())])
    by_query = own.get("/v1/events", params={"after": value})
    assert (by_header.status_code, by_query.status_code) in {(400, 422), (400, 400)}


def test_a_revoked_key_ends_its_feed(site: Site, admin: httpx.Client, unit: Unit) -> None:
    made = admin.post(f"/admin/tenants/{unit.slug}/keys", json={"name": "leaver", "scopes": ["adapters:read"]}).json()
    with site.client(made["key"]) as leaver, listening(leaver, "/v1/events") as heard:
        began = time.monotonic()
        assert admin.delete(f"/admin/tenants/{unit.slug}/keys/{made['id']}").status_code == 204
        (end,) = heard.until(lambda event: event["sse_type"] == "end")
        assert "key" in end["reason"]
        assert time.monotonic() - began < 10


def test_feeds_belong_to_platform_and_tenant_keys(admin: httpx.Client, own: httpx.Client) -> None:
    assert own.get("/admin/events").status_code == 403
    assert admin.get("/v1/events").status_code == 403
    assert admin.get("/admin/events", params={"tenant": "unknown"}).status_code == 404


def test_a_tenants_open_feeds_close_no_other_tenants(
    site: Site, admin: httpx.Client, own: httpx.Client, unit: Unit
) -> None:
    """A tenant reaches its feed limit with one key or with several, and other tenants keep their feeds."""
    path = f"/admin/tenants/{unit.slug}/keys"
    made = admin.post(path, json={"name": "second", "scopes": ["adapters:read"]}).json()
    with ExitStack() as open_feeds:
        for number in range(MOST_OF_TENANT):
            client = own if number % 2 else open_feeds.enter_context(site.client(made["key"]))
            open_feeds.enter_context(listening(client, "/v1/events"))
        for refused in (own, open_feeds.enter_context(site.client(made["key"]))):
            answer = refused.get("/v1/events")
            assert (answer.status_code, answer.json()["error"]["code"]) == (429, "too_many_open")
            assert int(answer.headers["retry-after"]) > 0
        neighbour = open_feeds.enter_context(site.client(make_unit(admin).key))
        open_feeds.enter_context(listening(neighbour, "/v1/events"))
        open_feeds.enter_context(listening(admin, "/admin/events"))
        open_feeds.enter_context(listening(admin, "/admin/events", params={"tenant": unit.slug}))
