"""The library's methods against a live server."""

from datetime import UTC, datetime
from itertools import islice
from pathlib import Path

import pytest

from tenora_client import AsyncClient, Client, Conflict, NotFound, PermissionDenied, Progress, UploadRejected
from tenora_client._sync import connection
from tests.support.bad_adapters import BAD
from tests.support.bad_configs import config
from tests.support.peft_folders import new_adapter
from tests.support.site import Site, Unit


def test_a_folder_becomes_a_version(tenora: Client, unit: Unit, folder: Path) -> None:
    seen: list[Progress] = []
    version = tenora.adapters.publish("quotes", folder, labels={"run": "17"}, card="first", on_progress=seen.append)
    assert (version.adapter, version.number, version.state) == ("quotes", 1, "ready")
    assert version.labels == {"run": "17"}
    assert version.created_at.tzinfo is not None
    assert version.to_dict()["version"] == 1
    phases = list(dict.fromkeys(progress.phase for progress in seen))
    assert phases == ["reading", "sending", "checking"]
    assert seen[-1].fraction == 1
    adapter = tenora.adapters.show("quotes")
    assert (adapter.tenant, adapter.versions, adapter.aliases) == (unit.slug, [1], {"default": {"1": 100}})


def test_the_key_and_the_server_are_described(tenora: Client, platform: Client, unit: Unit) -> None:
    key, server = tenora.key(), tenora.server()
    assert (key.tenant, platform.key().tenant) == (unit.slug, None)
    assert "inference" in key.scopes
    assert (server.version, server.base.name) == (tenora.server_version(), "tiny-llama")
    assert server.uploads.max_lora_rank > 0
    assert "validate" in server.features


def test_an_archive_or_a_parent_folder_is_found(tenora: Client, tmp_path: Path, folder: Path) -> None:
    assert tenora.adapters.publish("quotes", folder.parent, alias=None).aliases == []
    assert tenora.adapters.publish("quotes", str(folder)).aliases == ["default"]


def test_the_same_files_are_the_same_version(tenora: Client, folder: Path) -> None:
    first = tenora.adapters.publish("quotes", folder)
    again = tenora.adapters.publish("quotes", folder, alias="canary", labels={"run": "2"})
    assert (again.number, sorted(again.aliases), again.labels) == (1, ["canary", "default"], {"run": "2"})
    assert again.digest == first.digest


def test_a_refused_adapter_has_every_reason(tenora: Client, folder: Path) -> None:
    config(r=1, use_dora=True)(folder)
    with pytest.raises(UploadRejected) as refused:
        tenora.adapters.publish("quotes", folder)
    assert refused.value.status == 422
    assert refused.value.code == "adapter_rejected"
    assert {reason["code"] for reason in refused.value.reasons} >= {"unsupported_feature", "rank_mismatch"}
    assert str(refused.value.request_id) in str(refused.value)


def test_aliases_move_split_and_return(tenora: Client, tmp_path: Path) -> None:
    for name in ("one", "two"):
        tenora.adapters.publish("quotes", new_adapter(tmp_path / name))
    promoted = tenora.adapters.promote("quotes", 1)
    assert promoted.weights == {"1": 100}
    assert tenora.adapters.split("quotes", {1: 95, 2: 5}).weights == {"1": 95, "2": 5}
    assert tenora.adapters.rollback("quotes").weights == {"1": 100}
    with pytest.raises(Conflict) as refused:
        tenora.adapters.promote("quotes", 2, if_revision=promoted.revision)
    assert refused.value.code == "precondition_failed"
    tenora.adapters.promote("quotes", 2, "canary")
    assert {alias.name for alias in tenora.adapters.aliases("quotes")} == {"canary", "default"}
    tenora.adapters.delete_alias("quotes", "canary")
    actions = [change.action for change in tenora.adapters.history("quotes")]
    assert actions[:3] == ["rollback", "split", "move"]


def test_a_canary_starts_and_is_cancelled(tenora: Client, tmp_path: Path) -> None:
    for name in ("one", "two"):
        tenora.adapters.publish("quotes", new_adapter(tmp_path / name), alias="default" if name == "one" else None)
    canary = tenora.adapters.start_canary("quotes", 2, steps=[(5, 600), (50, 600)], policy={"min_requests": 1})
    assert (canary.state, canary.candidate.version, canary.policy.min_requests) == ("running", 2, 1)
    assert tenora.adapters.alias("quotes").canary is not None
    assert tenora.adapters.cancel_canary("quotes").state == "cancelled"
    assert tenora.adapters.canary("quotes").state == "cancelled"


def test_versions_are_described_retired_and_deleted(tenora: Client, tmp_path: Path) -> None:
    for name in ("one", "two"):
        tenora.adapters.publish(
            "quotes", new_adapter(tmp_path / name), labels={"name": name}, training_run="https://run"
        )
    described = tenora.adapters.describe("quotes", 1, card="text", training_run="")
    assert (described.card, described.provenance.training_run, described.labels) == ("text", None, {"name": "one"})
    assert [version.number for version in tenora.adapters.versions("quotes", labels={"name": "two"})] == [2]
    assert tenora.adapters.retire("quotes", 1, "old").state == "retired"
    assert tenora.adapters.restore("quotes", 1).state == "ready"
    with pytest.raises(Conflict):
        tenora.adapters.delete_version("quotes", 2)
    deletion = tenora.adapters.delete_version("quotes", 2, force=True)
    assert tenora.deletion(deletion.id).subject == "quotes@2"
    tenora.adapters.delete("quotes", force=True)
    assert {report.subject for report in tenora.deletions()} == {"quotes@2", "quotes"}
    assert list(tenora.adapters.list()) == []


def test_wait_returns_a_version_that_was_not_waited_for(tenora: Client, site: Site, folder: Path) -> None:
    site.engine.may_smoke.clear()
    try:
        version = tenora.adapters.publish("quotes", folder, wait=False)
        assert version.state == "validating"
    finally:
        site.engine.may_smoke.set()
    assert tenora.adapters.wait("quotes", version.number).state == "ready"


def test_an_export_is_what_was_published(tenora: Client, folder: Path, tmp_path: Path) -> None:
    tenora.adapters.publish("quotes", folder)
    out = tenora.adapters.export("quotes", 1, tmp_path / "out")
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        assert (out / name).read_bytes() == (folder / name).read_bytes()
    with pytest.raises(FileExistsError, match="not empty"):
        tenora.adapters.export("quotes", 1, folder)


def test_listings_fetch_a_page_when_it_is_needed(platform: Client, unit: Unit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "_PAGE", 2)
    made = {platform.keys.create(f"key-{number}", tenant=unit.slug).id for number in range(5)}
    sent: list[str] = []
    send = connection.Connection.send

    def counted(self, *arguments, **options):
        sent.append(arguments[1])
        return send(self, *arguments, **options)

    monkeypatch.setattr(connection.Connection, "send", counted)
    assert len(list(islice(platform.keys.list(unit.slug), 2))) == 2
    assert len(sent) == 1
    assert made <= {key.id for key in platform.keys.list(unit.slug)}
    assert len(sent) == 4


def test_tenants_and_keys_are_managed(platform: Client, site: Site, unit: Unit) -> None:
    slug = f"{unit.slug}-b"
    assert platform.tenants.create(slug, name="B", weight=2.0).weight == 2
    changed = platform.tenants.update(slug, quota={"adapters": 3}, limits={"requests_per_minute": 5})
    assert (changed.quota.adapters, changed.limits.requests_per_minute, changed.name) == (3, 5, "B")
    assert platform.tenants.show(slug).used.adapters == 0
    assert slug in {tenant.slug for tenant in platform.tenants.list()}
    scopes = ["inference", "adapters:read"]
    made = platform.keys.create("app", tenant=slug, scopes=scopes, adapters=["quotes"], owner="Ada")
    assert (made.tenant, made.scopes, made.adapters, made.owner) == (slug, scopes, ["quotes"], "Ada")
    assert platform.keys.restrict(made.id, {"owner": "Grace"}, tenant=slug).owner == "Grace"
    assert platform.keys.restrict(made.id, {"adapters": None}, tenant=slug).adapters is None
    rotated = platform.keys.rotate(made.id, tenant=slug)
    with Client(site.url, rotated.key) as other:
        assert other.limits().tenant[0].limit == "requests_per_minute"
    platform.keys.revoke(rotated.id, tenant=slug)
    platform.tenants.delete(slug)


def test_a_tenants_key_manages_the_keys_of_its_tenant(platform: Client, site: Site, unit: Unit) -> None:
    with Client(site.url, unit.key) as own:
        made = own.keys.create("nightly", scopes=["inference"])
        assert made.tenant == unit.slug
        assert made.id in {key.id for key in own.keys.list()}
        assert {key.tenant for key in own.keys.list()} == {unit.slug}
        own.keys.revoke(made.id)
    (revoked,) = [key for key in platform.keys.list(unit.slug) if key.id == made.id]
    assert revoked.revoked_at is not None


def test_shares_pins_and_limits_of_an_adapter(tenora: Client, platform: Client, unit: Unit, folder: Path) -> None:
    slug = f"{unit.slug}-b"
    platform.tenants.create(slug)
    tenora.adapters.publish("quotes", folder)
    assert tenora.adapters.share("quotes", slug).recipient == slug
    assert len(list(tenora.adapters.shares("quotes"))) == 1
    assert [shared.name for shared in platform.shared(tenant=slug)] == [f"{unit.slug}/quotes"]
    tenora.adapters.unshare("quotes", slug)
    assert tenora.adapters.set_limits("quotes", {"concurrent_requests": 2}).limits.concurrent_requests == 2
    platform.tenants.update(unit.slug, quota={"pinned_slots": 1})
    tenora.adapters.pin("quotes", 1)
    tenora.adapters.unpin("quotes", 1)


def test_reports_are_for_either_kind_of_key(tenora: Client, platform: Client, unit: Unit) -> None:
    assert tenora.usage(by=("adapter", "day")).total.requests == 0
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    assert platform.usage("tenant", tenant=unit.slug, start=begin).start == begin
    with pytest.raises(ValueError, match="no time zone"):
        tenora.usage(start=begin.replace(tzinfo=None))
    assert tenora.quota().used.adapters == 0
    assert [model.owner for model in tenora.models()] == ["tenora"]


def test_requests_and_series_are_for_either_kind_of_key(tenora: Client, platform: Client, unit: Unit) -> None:
    assert list(tenora.requests(failed=False, cold=True, status=200)) == []
    assert list(platform.requests(tenant=unit.slug, key=tenora.key().id)) == []
    series = tenora.usage_series("1d", start="2026-11-01T00:00:00Z", end="2026-11-03T00:00:00Z")
    assert series.step == "1d"
    assert platform.usage_series("1h", tenant=unit.slug).step == "1h"
    with pytest.raises(ValueError, match="no time zone"):
        tenora.usage_series(start=datetime(2026, 11, 1))  # noqa: DTZ001


def test_running_canaries_are_searched(tenora: Client, platform: Client, unit: Unit, tmp_path: Path) -> None:
    for name in ("one", "two"):
        tenora.adapters.publish("quotes", new_adapter(tmp_path / name), alias="default" if name == "one" else None)
    tenora.adapters.start_canary("quotes", 2)
    assert [canary.adapter for canary in tenora.canaries(search="QUOTES:")] == ["quotes"]
    assert [canary.tenant for canary in platform.canaries(tenant=unit.slug, sort="-name")] == [unit.slug]
    assert list(tenora.canaries(search="labels")) == []


def test_reasons_of_refused_uploads_are_kept(tenora: Client, platform: Client, unit: Unit, folder: Path) -> None:
    BAD["NaN"].change(folder)
    with pytest.raises(UploadRejected):
        tenora.adapters.publish("quotes", folder)
    for refusals in (tenora.refusals("quotes"), platform.refusals(tenant=unit.slug)):
        (refusal,) = refusals
        assert (refusal.adapter, [reason.code for reason in refusal.reasons]) == ("quotes", ["non_finite"])
    assert list(tenora.refusals("labels")) == []


def test_the_audit_trail_is_read_and_verified(platform: Client, tenora: Client, unit: Unit) -> None:
    (row,) = platform.audit(tenant=unit.slug, action="tenant.")
    assert (row.action, row.subject) == ("tenant.create", unit.slug)
    verification = platform.verify_audit()
    assert verification.intact
    assert verification.problems == []
    with pytest.raises(PermissionDenied):
        list(tenora.audit())


def test_a_platform_key_names_the_tenant(platform: Client, unit: Unit, folder: Path) -> None:
    version = platform.adapters.publish("quotes", folder, tenant=unit.slug)
    assert platform.adapters.version("quotes", version.number, tenant=unit.slug) == version
    assert [adapter.name for adapter in platform.adapters.list(tenant=unit.slug)] == ["quotes"]


def test_events_resume_after_the_last_one(tenora: Client, folder: Path) -> None:
    tenora.adapters.publish("quotes", folder)
    tenora.adapters.promote("quotes", 1, "canary")
    events = list(islice((event for event in tenora.events(after=0) if event.id), 3))
    assert "version.ready" in {event.type for event in events}
    rest = next(event for event in tenora.events(after=events[-1].id))
    assert rest.id is None or rest.id > events[-1].id


async def test_the_asynchronous_client_does_the_same(site: Site, unit: Unit, tmp_path: Path) -> None:
    async with AsyncClient(site.url, unit.key) as tenora:
        seen: list[Progress] = []
        folder = new_adapter(tmp_path / "one")
        version = await tenora.adapters.publish("quotes", folder, on_progress=seen.append)
        assert [progress.phase for progress in seen][-1] == "checking"
        await tenora.adapters.promote("quotes", version.number, "canary")
        assert {alias.name async for alias in tenora.adapters.aliases("quotes")} == {"canary", "default"}
        assert await tenora.adapters.version("quotes", 1) == await tenora.adapters.wait("quotes", 1)
        assert (await tenora.usage()).total.requests == 0
        out = await tenora.adapters.export("quotes", 1, tmp_path / "out")
        assert (out / "adapter_config.json").is_file()
        assert [event.type async for event in _first(tenora, 2)]
        with pytest.raises(NotFound):
            await tenora.adapters.show("nothing")


async def _first(tenora: AsyncClient, count: int):
    async for event in tenora.events(after=0):
        yield event
        count -= 1
        if not count:
            return
