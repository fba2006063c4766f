"""Residency leaks nothing: engine status shows a tenant no other tenant's names, requests or existence."""

from pathlib import Path

import httpx

from tests.support.foreign_names import without
from tests.support.overviews import overview, queue, residency
from tests.support.serving import PeftFiles, save_base
from tests.support.site import Site, Unit, make_unit, parts, running_site


def owner_of(site: Site, admin: httpx.Client, files: PeftFiles, adapter: str) -> tuple[Unit, int]:
    """Create a tenant and return the id of the one version of its adapter."""
    unit = make_unit(admin)
    with site.client(unit.key) as own:
        assert own.post(f"/v1/adapters/{adapter}/versions", files=parts(files)).status_code == 201
    return unit, site.engine.smoked[-1]


def seen_by(site: Site, unit: Unit) -> httpx.Response:
    with site.client(unit.key) as own:
        return own.get("/v1/engine")


def test_two_tenants_see_disjoint_things(site: Site, admin: httpx.Client, files: PeftFiles) -> None:
    (one, ones), (two, twos) = (owner_of(site, admin, files, name) for name in ("prices", "margins"))
    site.engine.shown = overview(
        residency(ones, running=1),
        residency(twos, "host", waiting=3),
        tenants=(queue(one.slug, running=1), queue(two.slug, waiting=3)),
    )
    assert seen_by(site, one).json() == {
        "running": 1, "waiting": 0, "total": 1,
        "data": [{"name": "prices@1", "tier": "slot", "running": 1, "waiting": 0}],
    }  # fmt: skip
    assert seen_by(site, two).json() == {
        "running": 0, "waiting": 3, "total": 1,
        "data": [{"name": "margins@1", "tier": "host", "running": 0, "waiting": 3}],
    }  # fmt: skip


def test_an_answer_does_not_change_with_others_load(site: Site, admin: httpx.Client, files: PeftFiles) -> None:
    (one, ones), (two, twos) = (owner_of(site, admin, files, name) for name in ("prices", "margins"))
    mine, own = residency(ones, running=1), queue(one.slug, running=1)
    answers = []
    for others in (
        overview(mine, tenants=(own,)),
        overview(residency(twos, running=40, waiting=500), mine, tenants=(queue(two.slug, running=40), own)),
        overview(mine, *(residency(twos + number, "loading") for number in range(1, 300)), tenants=(own,)),
    ):
        site.engine.shown = others
        answers.append(without(two.slug, seen_by(site, one)))
    assert answers[0] == answers[1] == answers[2]


def test_a_recipient_sees_tiers_but_no_requests_of_others(site: Site, admin: httpx.Client, files: PeftFiles) -> None:
    owner, shared = owner_of(site, admin, files, "prices")
    recipient, stranger = make_unit(admin), make_unit(admin)
    with site.client(owner.key) as own:
        assert own.put(f"/v1/adapters/prices/shares/{recipient.slug}").status_code == 201
    answers = []
    for busy in (0, 7):
        load = (queue(owner.slug, running=busy), queue(recipient.slug, running=1))
        site.engine.shown = overview(residency(shared, running=busy + 1, waiting=busy), tenants=load)
        answers.append([seen_by(site, unit).json() for unit in (owner, recipient, stranger)])
    assert answers[0][1:] == answers[1][1:]
    quiet, busy_owner = answers[0][0], answers[1][0]
    # The owner sees its own requests, over all its models.
    assert (quiet.pop("running"), busy_owner.pop("running")) == (0, 7)
    assert quiet == busy_owner
    assert answers[0][1]["data"] == [
        {"name": f"{owner.slug}/prices@1", "tier": "slot", "running": None, "waiting": None}
    ]
    assert answers[0][2] == {"running": 0, "waiting": 0, "total": 0, "data": []}


def test_a_tenants_weight_is_the_platforms_business(site: Site, admin: httpx.Client, files: PeftFiles) -> None:
    unit, _ = owner_of(site, admin, files, "prices")
    path = f"/admin/tenants/{unit.slug}"
    with site.client(unit.key) as own:
        assert own.patch(path, json={"weight": 1000}).status_code == 403
        assert own.get(path).status_code == 403
    assert admin.get(path).json()["weight"] == 1.0


def test_metrics_of_residency_name_no_tenant(tmp_path: Path, files: PeftFiles) -> None:
    base = tmp_path / "base"
    base.mkdir()
    with running_site(tmp_path / "home", save_base(base), metrics_residency=True) as site:
        with site.client(site.admin_key) as admin:
            unit, version_id = owner_of(site, admin, files, "secret-prices")
            site.engine.shown = overview(residency(version_id, waiting=1), tenants=(queue(unit.slug, waiting=1),))
            lines = admin.get("/metrics").text.splitlines()
        shown = [line for line in lines if line.startswith(("vllm:lora_requests_info{", "tenora_version_resident{"))]
        assert len(shown) == 2
        assert all(f'"{version_id}"' in line for line in shown)
        assert not any(name in line for line in shown for name in (unit.slug, "secret-prices"))
        with site.client(unit.key) as own:
            assert own.get("/metrics").status_code == 403
