"""Limits over HTTP: set by the platform, enforced per key, reported in the headers that OpenAI's clients read."""

import httpx
import openai
import pytest

from app.engine.status import EngineState
from tests.support.limit_names import NAMES
from tests.support.serving import PeftFiles
from tests.support.site import Site, Unit, make_unit, parts

BODY = {"prompt": "x"}


def ask(site: Site, unit: Unit, path: str = "/v1/completions") -> httpx.Response:
    with site.client(unit.key) as client:
        return client.post(path, json=BODY if path.startswith("/v1") else {"inputs": "x"})


def limited(admin: httpx.Client, unit: Unit, **limits: int | str | None) -> dict[str, int | None]:
    answer = admin.patch(f"/admin/tenants/{unit.slug}", json={"limits": limits})
    assert answer.status_code == 200, answer.text
    shown: dict[str, int | None] = answer.json()["limits"]
    return shown


def test_a_tenants_limits_are_set_shown_and_lifted(admin: httpx.Client, unit: Unit) -> None:
    none = dict.fromkeys(NAMES)
    assert limited(admin, unit, requests_per_minute=60, tokens_per_day=5) == none | {
        "requests_per_minute": 60,
        "tokens_per_day": 5,
    }
    assert limited(admin, unit, requests_per_minute=None) == none | {"tokens_per_day": 5}
    assert admin.get(f"/admin/tenants/{unit.slug}").json()["limits"] == none | {"tokens_per_day": 5}
    assert admin.patch(f"/admin/tenants/{unit.slug}", json={"limits": None}).json()["limits"] == none


def test_a_keys_limits_are_set_shown_and_lifted(admin: httpx.Client, unit: Unit) -> None:
    keys = f"/admin/tenants/{unit.slug}/keys"
    made = admin.post(keys, json={"name": "app", "limits": {"concurrent_requests": 3}}).json()
    none = dict.fromkeys(NAMES)
    assert made["limits"] == none | {"concurrent_requests": 3}
    path = f"{keys}/{made['id']}"
    assert admin.patch(path, json={"limits": {"tokens_per_minute": 7}}).json()["limits"] == none | {
        "concurrent_requests": 3,
        "tokens_per_minute": 7,
    }
    rotated = admin.post(f"{path}/rotate", json={}).json()
    assert rotated["limits"]["tokens_per_minute"] == 7
    assert admin.patch(path, json={"limits": None}).json()["limits"] == none
    assert admin.patch(f"{keys}/unknown", json={"limits": {}}).status_code == 404


@pytest.mark.parametrize(
    ("limits", "param"),
    [
        ({"requests": 1}, "limits.requests"),
        ({"tokens_per_day": -1}, "limits.tokens_per_day"),
        ({"tokens_per_day": 1.5}, "limits.tokens_per_day"),
        ("none", "limits"),
    ],
)
def test_what_makes_no_sense_is_named(admin: httpx.Client, unit: Unit, limits: object, param: str) -> None:
    path = f"/admin/tenants/{unit.slug}"
    for answer in (
        admin.patch(path, json={"limits": limits}),
        admin.post(f"{path}/keys", json={"name": "app", "limits": limits}),
    ):
        assert answer.status_code in {400, 422}
        assert answer.json()["error"]["param"] == param


@pytest.mark.parametrize("path", ["/v1/completions", "/generate"])
def test_who_is_beyond_a_limit_is_told_when_to_come_again(
    site: Site, admin: httpx.Client, unit: Unit, path: str
) -> None:
    limited(admin, unit, requests_per_minute=2)
    # No engine runs here. A request that it refuses still counts.
    assert [ask(site, unit, path).status_code for _ in range(3)] == [503, 503, 429]
    refused = ask(site, unit, path)
    assert 0 < int(refused.headers["retry-after"]) <= 61
    assert refused.headers["x-ratelimit-limit-requests"] == "2"
    assert refused.headers["x-ratelimit-remaining-requests"] == "0"
    assert 0 < float(refused.headers["x-ratelimit-reset-requests"].removesuffix("s")) <= 60.2
    assert "x-ratelimit-limit-tokens" not in refused.headers
    error = refused.json()["error"]
    if path.startswith("/v1"):
        assert (error["type"], error["code"], error["param"]) == (
            "rate_limit_error", "rate_limit_exceeded", "requests_per_minute",
        )  # fmt: skip
        error = error["message"]
    assert error == (
        "requests_per_minute would be 3 with this request; the limit of this tenant is 2. "
        "Wait for the time in Retry-After."
    )


def test_the_sdk_raises_what_its_users_catch(site: Site, admin: httpx.Client, unit: Unit) -> None:
    for most in (1, 0):
        limited(admin, unit, requests_per_minute=most)
        ask(site, unit)
        with (
            openai.OpenAI(base_url=f"{site.url}/v1", api_key=unit.key, max_retries=0) as sdk,
            pytest.raises(openai.RateLimitError) as raised,
        ):
            sdk.completions.create(model="tiny-llama", prompt="x")
        assert raised.value.code == "rate_limit_exceeded"


def test_a_budget_that_is_used_up_says_so(site: Site, admin: httpx.Client, unit: Unit) -> None:
    limited(admin, unit, tokens_per_month=100)
    with site.client(unit.key) as client:
        body = {"prompt": [5] * 21, "max_tokens": 39}
        # No engine runs here, so nothing is used and each reservation is returned.
        assert [client.post("/v1/completions", json=body).status_code for _ in range(3)] == [503] * 3
        refused = client.post("/v1/completions", json=body | {"max_tokens": 40, "n": 2})
    assert refused.status_code == 400
    assert (
        "tokens_per_month would be 101 with this request; the limit of this tenant is 100."
        in refused.json()["error"]["message"]
    )


def test_a_limit_on_tokens_needs_no_engine(site: Site, admin: httpx.Client, unit: Unit) -> None:
    """The base has no tokenizer, so a text counts its bytes and three more."""
    assert site.engine.state is EngineState.STOPPED
    limited(admin, unit, tokens_per_request=20)
    with site.client(unit.key) as client:
        body = {"prompt": "x" * 13, "max_tokens": 4}
        assert client.post("/v1/completions", json=body).status_code == 503  # only the engine is missing
        refused = client.post("/v1/completions", json=body | {"max_tokens": 5})
    assert refused.status_code == 400
    assert refused.json()["error"]["message"].startswith("tokens_per_request would be 21 with this request")


def test_a_neighbour_feels_and_learns_nothing(site: Site, admin: httpx.Client, unit: Unit) -> None:
    other = make_unit(admin)
    limited(admin, unit, requests_per_minute=1)
    assert [ask(site, unit).status_code for _ in range(2)] == [503, 429]
    answer = ask(site, other)
    assert answer.status_code == 503
    assert not [name for name in answer.headers if name.startswith("x-ratelimit")]


def test_an_adapters_limits_are_its_tenants_to_set(
    site: Site, admin: httpx.Client, unit: Unit, files: PeftFiles
) -> None:
    other = make_unit(admin)
    none = dict.fromkeys(NAMES)
    with site.client(unit.key) as own, site.client(other.key) as theirs:
        assert own.post("/v1/adapters/prices/versions", files=parts(files)).status_code == 201
        assert own.put(f"/v1/adapters/prices/shares/{other.slug}").status_code == 201
        path = "/v1/adapters/prices"
        assert own.get(path).json()["limits"] == none
        body = {"limits": {"requests_per_minute": 2, "tokens_per_day": 9}}
        assert own.patch(path, json=body).json()["limits"] == none | body["limits"]
        by_platform = admin.patch(
            f"/admin/tenants/{unit.slug}/adapters/prices", json={"limits": {"tokens_per_day": None}}
        )
        assert by_platform.json()["limits"] == own.get(path).json()["limits"] == none | {"requests_per_minute": 2}
        assert theirs.patch(path, json=body).status_code == 404
        for wrong in ({}, {"limits": {"requests": 1}}, {"name": "x"}):
            assert own.patch(path, json=wrong).status_code == 422
        # The limit covers every name of the adapter, and does not cover the base model.
        names = ("prices", "prices:default")
        assert [own.post("/v1/completions", json=BODY | {"model": name}).status_code for name in names] == [503, 503]
        refused = own.post("/v1/completions", json=BODY | {"model": "prices@1"})
        assert refused.status_code == 429
        assert "would be 3 with this request; the limit of this adapter is 2." in refused.json()["error"]["message"]
        assert not [name for name in refused.headers if name.startswith("x-ratelimit")]
        assert own.post("/v1/completions", json=BODY).status_code == 503
        shared = theirs.post("/v1/completions", json=BODY | {"model": f"{unit.slug}/prices"})
        error = shared.json()["error"]
        assert error["message"] == (
            "requests_per_minute would be above the limit that the adapter's owner has set. "
            "Wait for the time in Retry-After."
        )
        assert shared.headers["retry-after"] == "60"
        assert own.patch(path, json={"limits": None}).json()["limits"] == none
        assert theirs.post("/v1/completions", json=BODY | {"model": f"{unit.slug}/prices"}).status_code == 503


def test_a_key_sees_what_is_left_to_it(site: Site, admin: httpx.Client, unit: Unit) -> None:
    keys = f"/admin/tenants/{unit.slug}/keys"
    body = {"name": "app", "scopes": ["inference"], "limits": {"requests_per_minute": 5, "concurrent_requests": 2}}
    made = admin.post(keys, json=body).json()
    limited(admin, unit, tokens_per_request=100, tokens_per_day=1000, cost_per_month="2.5", requests_per_minute=60)
    with site.client(made["key"]) as own:
        for _ in range(2):
            own.post("/v1/completions", json=BODY)
        seen = own.get("/v1/limits").json()
    left = {(whose, one.pop("limit")): one for whose in ("tenant", "key") for one in seen[whose]}
    resets = {name: one.pop("reset_s") for name, one in left.items()}
    assert left == {
        ("tenant", "requests_per_minute"): {"allowed": 60, "used": 2, "remaining": 58},
        ("tenant", "tokens_per_request"): {"allowed": 100, "used": None, "remaining": 100},
        ("tenant", "tokens_per_day"): {"allowed": 1000, "used": 0, "remaining": 1000},
        ("tenant", "cost_per_month"): {"allowed": "2.5", "used": "0", "remaining": "2.5"},
        ("key", "requests_per_minute"): {"allowed": 5, "used": 2, "remaining": 3},
        ("key", "concurrent_requests"): {"allowed": 2, "used": 0, "remaining": 2},
    }
    assert 0 < resets["key", "requests_per_minute"] <= 60.2
    assert 0 < resets["tenant", "tokens_per_day"] <= 86400
    assert (seen["currency"], resets["key", "concurrent_requests"]) == ("USD", None)
    assert admin.get("/v1/limits").status_code == 403


def test_no_tenants_key_changes_limits(site: Site, unit: Unit) -> None:
    key_id = unit.key.split("_")[1]
    with site.client(unit.key) as own:
        for path in (f"/admin/tenants/{unit.slug}", f"/admin/tenants/{unit.slug}/keys/{key_id}"):
            assert own.patch(path, json={"limits": {"requests_per_minute": 10**9}}).status_code == 403
