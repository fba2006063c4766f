"""/metrics of a live server: the components around the engine."""

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.file_calls import content, create
from tests.support.fresh_metrics import fresh_metrics
from tests.support.site import Site, Unit, running_site

Found = dict[tuple[str, str], float]


def metrics(site: Site) -> Found:
    """Return all Tenora samples, keyed by name and the value of the first label ("" without labels)."""
    with site.client(site.admin_key) as client:
        families = text_string_to_metric_families(fresh_metrics(client))
    own = [sample for family in families if family.name.startswith("tenora_") for sample in family.samples]
    return {(sample.name, next(iter(sample.labels.values()), "")): sample.value for sample in own}


@pytest.fixture(scope="module")
def ailing(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A server whose engine fails its health check."""
    with running_site(tmp_path_factory.mktemp("ailing"), base, queue={"requests": 77, "seconds": 30.0}) as site:
        site.engine.works = False
        yield site


def test_a_refusal_is_counted_by_its_limit(site: Site, admin: httpx.Client, unit: Unit) -> None:
    before = metrics(site)
    assert admin.patch(f"/admin/tenants/{unit.slug}", json={"limits": {"requests_per_minute": 0}}).status_code == 200
    with site.client(unit.key) as client:
        assert client.post("/v1/completions", json={"prompt": "x"}).status_code == 429
    after = metrics(site)
    grown = {name: after[name] - before[name] for name in after if name[0].startswith(("tenora_limit_", "tenora_err"))}
    assert {name: by for name, by in grown.items() if by} == {
        ("tenora_limit_refusals_total", "requests_per_minute"): 1,
        ("tenora_errors_total", "rate_limit_exceeded"): 1,
    }


def test_the_parts_that_answer_and_the_works_that_end_well(site: Site, ailing: Site) -> None:
    started, deadline = time.time() - 600, time.monotonic() + 60
    parts = [("tenora_ready", part) for part in ("engine", "database", "store")]
    works = [("tenora_work_succeeded_timestamp_seconds", work) for work in ("usage", "audit seals", "readiness")]
    while True:
        found, ill = metrics(site), metrics(ailing)
        ready = [found[part] for part in parts] == [1, 1, 1] and [ill[part] for part in parts] == [0, 1, 1]
        if ready and all(found[work] > started for work in works):
            break
        assert time.monotonic() < deadline, (found, ill)
        time.sleep(0.1)


def test_the_disk_the_queue_and_the_trail(ailing: Site) -> None:
    found, disk = metrics(ailing), shutil.disk_usage(ailing.settings.home)
    assert found["tenora_home_size_bytes", ""] == disk.total
    assert 0 < found["tenora_home_free_bytes", ""] < disk.total
    assert (found["tenora_queue_limit_requests", ""], found["tenora_queue_limit_seconds", ""]) == (77, 30)
    assert found["tenora_audit_intact", ""] == 1
    assert found["tenora_engine_up", ""] == 0


def test_files_and_their_local_copies(site: Site, unit: Unit) -> None:
    with site.client(unit.key) as client:
        # More than the copies of all other tests, which may be deleted meanwhile.
        file = create(client, b"x" * 5_000_000)
        assert metrics(site)["tenora_file_copies_bytes", ""] < 5_000_000
        content(client, file["id"])
    found = metrics(site)
    assert found["tenora_file_copies_bytes", ""] >= 5_000_000
    assert {name[1] for name in found if name[0] == "tenora_files"} == {"batch", "batch_output"}
    assert {name[1] for name in found if name[0] == "tenora_file_bytes"} == {"batch", "batch_output"}
    assert {name[1] for name in found if name[0] == "tenora_files_without_bytes"} == {"missing", "damaged"}


def test_open_batches_are_counted_by_state(site: Site) -> None:
    states = {name[1] for name in metrics(site) if name[0] == "tenora_batches_open"}
    assert states == {"validating", "in_progress", "finalizing", "cancelling"}
