"""Benchmark of the limits' overhead: every limit is set on a real server."""

import dataclasses
from pathlib import Path

from app.domain.limits.limits import Limits
from app.lab.bench import limits_overhead
from app.lab.bench.publishing import TENANT
from app.lab.bench.servers import Server
from tests.support.serving import save_base
from tests.support.site import running_site


def test_every_limit_is_set_and_is_far_away(tmp_path: Path) -> None:
    with running_site(tmp_path / "home", save_base(tmp_path / "base")) as site, site.client(site.admin_key) as admin:
        assert admin.post("/admin/tenants", json={"slug": TENANT}).status_code == 201
        key = admin.post(f"/admin/tenants/{TENANT}/keys", json={"name": "bench"}).json()["key"]
        port = int(site.url.rpartition(":")[2])
        limits_overhead._limit(Server("guarded", port, 0, admin_headers={"authorization": f"Bearer {site.admin_key}"}))
        with site.client(key) as client:
            left = client.get("/v1/limits").json()
    names = {field.name for field in dataclasses.fields(Limits)}
    for whose in ("tenant", "key"):
        assert {one["limit"] for one in left[whose]} == names
        assert all(float(one["remaining"]) >= 10**6 for one in left[whose])
