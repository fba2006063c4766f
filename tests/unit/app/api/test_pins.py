"""Pins over HTTP, and server startup with a preload list."""

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from app.main import create_app
from app.settings import Settings
from tests.support.live_server import live_server
from tests.support.serving import NoEngine, PeftFiles, peft_files, save_base, set_up
from tests.support.site import Site, Unit, make_unit, parts, running_site

#: Default number of engine slots.
SLOTS = 4


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def client(site: Site, unit: Unit, files: PeftFiles) -> Iterator[httpx.Client]:
    """Client of a tenant that has one version of one adapter."""
    with site.client(unit.key) as client:
        assert client.post("/v1/adapters/quotes/versions", files=parts(files)).status_code == 201
        yield client


@pytest.fixture(autouse=True)
def nothing_pinned(admin: httpx.Client) -> Iterator[None]:
    """Remove all pins after each test, because all tests share the slots of one server."""
    yield
    for pin in admin.get("/admin/pins").json()["data"]:
        path = f"/admin/tenants/{pin['tenant']}/adapters/{pin['adapter']}/versions/{pin['version']}/pin"
        assert admin.delete(path).status_code == 204


def test_the_platform_pins_and_the_engine_follows(
    site: Site, admin: httpx.Client, unit: Unit, client: httpx.Client
) -> None:
    path = f"/admin/tenants/{unit.slug}/adapters/quotes/versions/1/pin"
    answer = admin.put(path)
    assert answer.status_code == 201
    made = answer.json()
    assert made | {"created_at": None, "held": None} == {
        "name": "quotes@1",
        "tenant": unit.slug,
        "adapter": "quotes",
        "version": 1,
        "created_at": None,
        "created_by": site.admin_key.split("_")[1],
        "held": None,
    }
    until(lambda: all(pin["held"] for pin in admin.get("/admin/pins").json()["data"]))
    assert len(site.engine.pinned) == 1
    again = admin.put(path)
    assert (again.status_code, again.json()) == (200, made | {"held": True})
    listed = admin.get("/admin/pins").json()
    assert listed == {"slots": SLOTS, "data": [made | {"held": True}], "preloads": []}
    assert admin.delete(path).status_code == 204
    until(lambda: not site.engine.pinned)
    assert admin.delete(path).status_code == 404


def test_a_tenants_key_pins_within_its_quota(
    admin: httpx.Client, unit: Unit, client: httpx.Client, other_files: PeftFiles
) -> None:
    path = "/v1/adapters/quotes/versions/1/pin"
    for refused in (client.put(path), client.delete(path)):
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "insufficient_scope")
    admin.patch(f"/admin/tenants/{unit.slug}", json={"quota": {"pinned_slots": 1}})
    assert client.put(path).status_code == 201
    second = client.post("/v1/adapters/quotes/versions", files=parts(other_files))
    assert second.status_code == 201
    refused = client.put("/v1/adapters/quotes/versions/2/pin")
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "quota_exceeded")
    assert "pinned_slots would be 2 (limit 1)" in refused.json()["error"]["message"]
    assert [version["pinned"] for version in client.get("/v1/adapters/quotes/versions").json()["data"]] == [False, True]
    assert client.get("/v1/adapters/quotes/versions/1").json()["pinned"]
    assert client.delete(path).status_code == 204
    assert not client.get("/v1/adapters/quotes/versions/1").json()["pinned"]


def test_one_slot_stays_free(site: Site, admin: httpx.Client, tmp_path: Path) -> None:
    unit = make_unit(admin)
    with site.client(unit.key) as client:
        for number in range(SLOTS):
            folder = tmp_path / f"{number}"
            assert (
                client.post("/v1/adapters/quotes/versions", files=parts(peft_files(folder, seed=number))).status_code
                == 201
            )
    path = f"/admin/tenants/{unit.slug}/adapters/quotes/versions"
    answers = [admin.put(f"{path}/{number}/pin") for number in range(1, SLOTS + 1)]
    assert [answer.status_code for answer in answers] == [201] * (SLOTS - 1) + [409]
    error = answers[-1].json()["error"]
    assert (error["code"], answers[-1].headers["x-should-retry"]) == ("conflict", "false")
    assert "3 of 4 slots are pinned; the limit is 3" in error["message"]


def test_anothers_version_and_none_at_all_look_the_same(site: Site, admin: httpx.Client, client: httpx.Client) -> None:
    stranger = make_unit(admin)
    admin.patch(f"/admin/tenants/{stranger.slug}", json={"quota": {"pinned_slots": 1}})
    owner = client.get("/v1/adapters/quotes").json()["tenant"]
    with site.client(stranger.key) as other:
        for method in ("PUT", "DELETE"):
            there = other.request(method, f"/admin/tenants/{owner}/adapters/quotes/versions/1/pin")
            nowhere = other.request(method, "/admin/tenants/nosuch/adapters/quotes/versions/1/pin")
            assert there.status_code == nowhere.status_code == 404
            assert there.json()["error"]["message"].replace(owner, "nosuch") == nowhere.json()["error"]["message"]
            assert other.request(method, "/v1/adapters/quotes/versions/1/pin").status_code == 404
        assert other.get("/admin/pins").status_code == 403
    assert client.get("/admin/pins").status_code == 403


@pytest.mark.parametrize("number", ["0", "x", "-1", "2147483648"])
def test_what_is_no_number_is_refused(client: httpx.Client, number: str) -> None:
    assert client.put(f"/v1/adapters/quotes/versions/{number}/pin").status_code == 422


def test_pins_and_preloads_are_loaded_before_the_server_is_ready(tmp_path: Path) -> None:
    base = save_base(tmp_path / "tiny-llama")
    home = tmp_path / "home"
    with running_site(home, base) as site, site.client(site.admin_key) as admin:
        unit = make_unit(admin)
        path = f"/admin/tenants/{unit.slug}/adapters/quotes/versions"
        for seed in (1, 2):
            assert admin.post(path, files=parts(peft_files(tmp_path / f"{seed}", seed=seed))).status_code == 201
        assert admin.put(f"{path}/1/pin").status_code == 201
    preload = (f"{unit.slug}/quotes", f"{unit.slug}/quotes:canary", "unknown/quotes")
    settings = Settings(home=home, base_model=str(base), engine={"max_lora_rank": 16, "max_loras": 4}, preload=preload)
    engine = NoEngine()
    key = asyncio.run(set_up(settings))
    with live_server(create_app(settings, engine=engine)) as url:
        # The first request that the server can answer.
        headers = {"authorization": f"Bearer {key}"}
        placement = httpx.get(f"{url}/admin/pins", headers=headers, trust_env=False).json()
        assert (len(engine.pinned), len(engine.preloaded)) == (1, 1)
        assert engine.loaded == {*engine.pinned, *engine.preloaded}
    assert [(pin["name"], pin["held"]) for pin in placement["data"]] == [("quotes@1", True)]
    assert [(preload["versions"], preload["problem"]) for preload in placement["preloads"]] == [
        ([f"{unit.slug}/quotes@2"], None),
        ([], "No version with this name is ready and can be served here."),
        ([], "There is no tenant 'unknown'."),
    ]


def test_the_setting_is_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENORA_PRELOAD", json.dumps(["pricing/quotes@3"]))
    assert Settings().preload == ("pricing/quotes@3",)
