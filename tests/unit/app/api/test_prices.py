"""Prices over HTTP: the platform sets them, and a tenant's money budget enforces them."""

import httpx
import pytest

from tests.support.serving import PeftFiles
from tests.support.site import Site, Unit, parts

PRICE = {"prompt": "0.15", "cached": "0.075", "output": "0.60"}
SHOWN = PRICE | {"output": "0.6", "batch": "1"}


def test_prices_are_set_listed_and_taken_away(site: Site, admin: httpx.Client, unit: Unit, files: PeftFiles) -> None:
    model = f"{unit.slug}/prices"
    with site.client(unit.key) as own:
        assert own.post("/v1/adapters/prices/versions", files=parts(files)).status_code == 201
        assert own.put(f"/admin/prices/{model}", json=PRICE).status_code == 403
        assert own.get("/admin/prices").status_code == 403
    assert admin.put(f"/admin/prices/{model}", json=PRICE).json() == SHOWN | {"model": model}
    assert admin.put("/admin/prices/base", json={"prompt": "1", "output": "2"}).json()["cached"] == "1"
    halved = admin.put(f"/admin/prices/{model}", json=PRICE | {"batch": "0.50"}).json()
    assert halved == SHOWN | {"model": model, "batch": "0.5"}
    listed = admin.get("/admin/prices").json()
    assert listed["currency"] == "USD"
    assert [one["model"] for one in listed["data"]] == ["base", model]
    for path in (model, "base"):
        assert admin.delete(f"/admin/prices/{path}").status_code == 204
        assert admin.delete(f"/admin/prices/{path}").status_code == 404
    assert admin.get("/admin/prices").json()["data"] == []


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        (PRICE | {"prompt": "free"}, 400, "prompt"),
        (PRICE | {"output": 0.6}, 422, "output"),
        (PRICE | {"batch": "-1"}, 400, "batch"),
        (PRICE | {"batch": "11"}, 400, "batch"),
        (PRICE | {"batch": "0.1234567"}, 400, "batch"),
        (PRICE | {"batch": 0.5}, 422, "batch"),
        (PRICE | {"currency": "EUR"}, 422, "currency"),
        ({"prompt": "1"}, 422, "output"),
    ],
)
def test_what_is_no_price_is_named(admin: httpx.Client, body: object, status: int, param: str) -> None:
    answer = admin.put("/admin/prices/default", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (status, param)


def test_a_budget_of_money_is_told_like_one_of_tokens(site: Site, admin: httpx.Client, unit: Unit) -> None:
    path = f"/admin/tenants/{unit.slug}"
    assert admin.patch(path, json={"limits": {"cost_per_day": "0.00010"}}).json()["limits"]["cost_per_day"] == "0.0001"
    assert admin.put("/admin/prices/base", json=PRICE).status_code == 200
    body = {"prompt": [5] * 14, "max_tokens": 50, "n": 4}
    try:
        with site.client(unit.key) as own:
            refused = own.post("/v1/completions", json=body)
            error = refused.json()["error"]
            assert refused.status_code == 400
            said = "cost_per_day would be 0.0001221 with this request; the limit of this tenant is 0.0001."
            assert error["message"].startswith(said)
            admin.patch(path, json={"limits": {"cost_per_day": "0.0001221"}})
            assert own.post("/v1/completions", json=body).status_code == 503
    finally:
        admin.delete("/admin/prices/base")
