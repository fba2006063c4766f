"""Facts about the server, which any valid key may read."""

from dataclasses import replace

import httpx
import pytest

from app.support.release import RELEASE
from tests.support.serving import EMPTY, MAX_RANK
from tests.support.site import Site, Unit


def test_the_facts_are_those_of_the_settings(site: Site, unit: Unit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site.engine, "shown", replace(EMPTY, status=replace(EMPTY.status, device="cpu")))
    limits = site.settings.limits
    with site.client(unit.key) as client:
        facts = client.get("/v1/server").json()
    assert facts.pop("base").pop("digest").startswith("sha256:")
    assert facts == {
        "version": RELEASE,
        "device": "cpu",
        "context": 64,
        "uploads": {
            "config_bytes": limits.config_bytes,
            "weights_bytes": limits.weights_bytes,
            "header_bytes": 2**20,
            "part_bytes": 64 * 2**20,
            "open_uploads": limits.open_uploads,
            "max_lora_rank": MAX_RANK,
        },
        "features": ["chat", "validate"],
        "currency": "USD",
    }


def test_every_kind_of_key_gets_the_same_facts(site: Site, admin: httpx.Client, unit: Unit) -> None:
    made = [
        admin.post("/admin/keys", json={"name": "metrics", "scopes": ["metrics"]}),
        admin.post(f"/admin/tenants/{unit.slug}/keys", json={"name": "usage", "scopes": ["usage:read"]}),
    ]
    shown = []
    for key in (site.admin_key, unit.key, *(answer.json()["key"] for answer in made)):
        with site.client(key) as client:
            answer = client.get("/v1/server")
        assert answer.status_code == 200, answer.text
        shown.append(answer.json())
    assert shown == [shown[0]] * 4


def test_the_description_has_the_release(site: Site) -> None:
    with site.client(None) as client:
        assert client.get("/openapi.json").json()["info"]["version"] == RELEASE
