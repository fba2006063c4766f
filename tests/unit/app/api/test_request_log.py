"""``/v1/requests``, ``/v1/usage/series`` and ``/admin/audit`` over HTTP."""

from datetime import timedelta
from typing import Any

import httpx
import pytest

from tests.support.serving import PeftFiles
from tests.support.site import Site, Unit, make_unit, parts
from tests.support.stored_usage import AT, RANGE, use


def test_a_tenant_lists_its_requests(site: Site, admin: httpx.Client, unit: Unit, files: PeftFiles) -> None:
    with site.client(unit.key) as own:
        own.post("/v1/adapters/prices/versions", files=parts(files))
        use(site, admin, unit)
        use(site, admin, unit, at=AT + timedelta(seconds=1), status=503, ttft_s=None, load_s=0.5)
        page = own.get("/v1/requests", params=RANGE | {"limit": 1}).json()
        (newest,) = page["data"]
        assert newest | {"id": None} == {
            "id": None,
            "at": "2026-03-01T12:30:01Z",
            "tenant": unit.slug,
            "key": unit.key.split("_")[1],
            "key_name": "test",
            "adapter": "",
            "prompt_tokens": 10,
            "cached_tokens": 4,
            "output_tokens": 3,
            "ttft_s": None,
            "duration_s": 0.5,
            "load_s": 0.5,
            "slot_s": 0.0,
            "finish_reason": "stop",
            "status": 503,
            "cost": "0",
        }
        rest = own.get("/v1/requests", params=RANGE | {"cursor": page["next_cursor"]}).json()
        assert (len(rest["data"]), rest["next_cursor"]) == (1, None)
        for chosen, count in (({"failed": True}, 1), ({"cold": False}, 1), ({"status": 200}, 1), ({"key": "x"}, 0)):
            assert len(own.get("/v1/requests", params=RANGE | chosen).json()["data"]) == count
    seen = admin.get("/admin/requests", params=RANGE | {"tenant": unit.slug}).json()["data"]
    assert [request["id"] for request in seen] == [newest["id"], rest["data"][0]["id"]]


@pytest.mark.parametrize(("step", "points"), [("1m", 2), ("5m", 1), ("1h", 1), ("1d", 1)])
def test_a_series_has_points_with_percentiles(
    site: Site, admin: httpx.Client, unit: Unit, step: str, points: int
) -> None:
    for second in (0, 60):
        use(site, admin, unit, at=AT + timedelta(seconds=second))
    with site.client(unit.key) as own:
        series = own.get("/v1/usage/series", params=RANGE | {"step": step}).json()
    assert (series["step"], series["currency"], len(series["data"])) == (step, "USD", points)
    first = series["data"][0]
    assert first["requests"] == 2 / points
    assert 0.1 <= first["ttft"]["p95"] < 0.12
    assert 0.5 <= first["duration"]["p50"] < 0.6
    assert first["cost"] == ("0" if step in {"1h", "1d"} else None)
    assert admin.get("/admin/usage/series", params=RANGE | {"step": step, "tenant": unit.slug}).json() == series


@pytest.mark.parametrize(
    ("path", "params", "status"),
    [
        ("/v1/usage/series", {"step": "2h"}, 422),
        ("/v1/usage/series", {"step": "1m", **RANGE, "to": "2026-03-03T00:00:00Z"}, 400),
        ("/v1/requests", {"status": "ok"}, 422),
        ("/v1/requests", {"key": "a%00"}, 422),
        ("/v1/requests", {"adapter": "a:b"}, 400),
        ("/v1/requests", {"from": "2026-03-01T00:00:00"}, 400),
        ("/v1/requests", {"cursor": "x"}, 400),
    ],
)
def test_wrong_parameters_are_refused(site: Site, unit: Unit, path: str, params: dict[str, Any], status: int) -> None:
    with site.client(unit.key) as own:
        answer = own.get(path, params=params)
    assert answer.status_code == status, answer.text


def test_the_platform_reads_and_verifies_the_audit_trail(site: Site, admin: httpx.Client) -> None:
    unit = make_unit(admin)
    page = admin.get("/admin/audit", params={"tenant": unit.slug, "limit": 1}).json()
    (row,) = page["data"]
    assert (row["action"], row["tenant"], row["subject"]) == ("key.create", unit.slug, unit.key.split("_")[1])
    assert (row["actor"], row["after"]["name"], row["before"]) == (site.admin_key.split("_")[1], "test", None)
    assert isinstance(row["actor_name"], str)
    rest = admin.get("/admin/audit", params={"tenant": unit.slug, "cursor": page["next_cursor"]}).json()
    assert [one["action"] for one in rest["data"]] == ["tenant.create"]
    verified = admin.get("/admin/audit/verification").json()
    assert (verified["intact"], verified["problems"], verified["problem_count"]) == (True, [], 0)
    assert verified["sealed"] + verified["fresh"] > 0


@pytest.mark.parametrize("time", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"])
@pytest.mark.parametrize(
    "path", ["/admin/audit", "/admin/requests", "/admin/usage", "/admin/usage/series", "/v1/requests", "/v1/usage"]
)
def test_times_that_overflow_in_utc_are_refused(
    site: Site, admin: httpx.Client, unit: Unit, path: str, time: str
) -> None:
    with site.client(unit.key) as own:
        for name in ("from", "to"):
            answer = (admin if path.startswith("/admin") else own).get(path, params={"step": "1d", name: time})
            assert answer.status_code == 400, answer.text
            assert answer.json()["error"]["param"] == name


@pytest.mark.parametrize("params", [{"actor": "a\n"}, {"cursor": "x"}, {"from": "2026-03-01T00:00:00"}])
def test_wrong_filters_of_the_trail_are_refused(admin: httpx.Client, params: dict[str, str]) -> None:
    assert admin.get("/admin/audit", params=params).status_code == 400
