"""Usage over HTTP: a tenant's own and every tenant's, as JSON and CSV."""

import csv
import io

import httpx
import pytest

from app.domain.access import Scope
from tests.support.site import Site, Unit, make_unit
from tests.support.stored_usage import RANGE, use

ONE = {
    "requests": 1, "failed": 0, "prompt_tokens": 10, "cached_tokens": 4, "output_tokens": 3, "cold_loads": 0,
    "load_s": 0.0, "cost": "0", "slot_s": 0.0,
}  # fmt: skip


def test_a_tenant_sees_its_own_and_nothing_else(site: Site, admin: httpx.Client, unit: Unit) -> None:
    other = make_unit(admin)
    with site.client(unit.key) as own:
        before = own.get("/v1/usage", params=RANGE)
        use(site, admin, other)
        assert own.get("/v1/usage", params=RANGE).content == before.content
        assert before.json() == {
            "start": "2026-03-01T00:00:00Z", "end": "2026-03-02T00:00:00Z", "data": [],
            "total": dict.fromkeys(ONE, 0) | {"cost": "0"}, "currency": "USD",
        }  # fmt: skip
        use(site, admin, unit)
        seen = own.get("/v1/usage", params=RANGE | {"by": "key,hour"}).json()
    shown = {"tenant": None, "key": unit.key.split("_")[1], "adapter": None, "start": "2026-03-01T12:00:00Z"}
    assert seen["data"] == [ONE | shown]
    assert seen["total"] == ONE


def test_the_platform_sees_everyones(site: Site, admin: httpx.Client, unit: Unit) -> None:
    other = make_unit(admin)
    for one in (unit, other, other):
        use(site, admin, one, status=499)
    seen = admin.get("/admin/usage", params=RANGE).json()["data"]
    requests = {group["tenant"]: (group["requests"], group["failed"]) for group in seen}
    assert (requests[unit.slug], requests[other.slug]) == ((1, 1), (2, 2))
    only = admin.get("/admin/usage", params=RANGE | {"tenant": other.slug, "by": ""}).json()
    assert only["total"]["requests"] == 2
    assert admin.get("/admin/usage", params={"tenant": "unknown"}).status_code == 404


def test_csv_has_the_same_figures(site: Site, admin: httpx.Client, unit: Unit) -> None:
    use(site, admin, unit)
    with site.client(unit.key) as own:
        answer = own.get("/v1/usage", params=RANGE | {"by": "version,day", "format": "csv"})
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    (row,) = csv.DictReader(io.StringIO(answer.text))
    assert row == {"adapter": "", "start": "2026-03-01T00:00:00+00:00"} | {k: str(v) for k, v in ONE.items()} | {
        "currency": "USD"
    }


@pytest.mark.parametrize(
    ("params", "param"),
    [
        ({"by": "tenant"}, "by"),
        ({"by": "key,nothing"}, "by"),
        ({"by": "x" * 101}, "by"),
        ({"from": "yesterday"}, "from"),
        ({"from": "2026-03-01T00:00:00"}, "from"),
        ({"from": "2026-03-03T00:00:00Z", "to": "2026-03-01T00:00:00Z"}, "from"),
        ({"format": "xml"}, "format"),
    ],
)
def test_what_makes_no_sense_is_named(site: Site, unit: Unit, params: dict[str, str], param: str) -> None:
    with site.client(unit.key) as own:
        answer = own.get("/v1/usage", params=params)
    assert answer.status_code in {400, 422}
    assert answer.json()["error"]["param"].endswith(param)


def test_scopes(site: Site, admin: httpx.Client, unit: Unit) -> None:
    def status(scope: Scope, path: str) -> int:
        made = admin.post(f"/admin/tenants/{unit.slug}/keys", json={"name": "x", "scopes": [scope]}).json()
        with site.client(made["key"]) as client:
            return client.get(path).status_code

    tenants_scopes = [scope for scope in Scope if scope not in {Scope.ADMIN, Scope.METRICS}]
    assert [status(scope, "/v1/usage") for scope in tenants_scopes] == [
        200 if scope is Scope.USAGE_READ else 403 for scope in tenants_scopes
    ]
    assert {status(scope, "/admin/usage") for scope in tenants_scopes} == {403}
    assert admin.get("/v1/usage").status_code == 403
    with site.client(None) as anonymous:
        assert anonymous.get("/v1/usage").status_code == 401
