"""Aliases and canaries over HTTP: ETags, permissions and refusals."""

import threading
from typing import Any

import httpx
import pytest

from tests.support.serving import PeftFiles
from tests.support.site import Site, Unit, make_unit, parts


@pytest.fixture
def path(admin: httpx.Client, unit: Unit, files: PeftFiles, other_files: PeftFiles) -> str:
    """Path of an adapter with versions 1 and 2."""
    path = f"/admin/tenants/{unit.slug}/adapters/pricing"
    for uploaded in (files, other_files):
        assert admin.post(f"{path}/versions", files=parts(uploaded)).status_code == 201
    return path


def error(answer: httpx.Response) -> dict[str, Any]:
    found: dict[str, Any] = answer.json()["error"]
    return found


def test_an_alias_is_made_moved_split_rolled_back_and_deleted(admin: httpx.Client, path: str) -> None:
    made = admin.put(f"{path}/aliases/stable", json={"version": 1})
    assert made.status_code == 201, made.text
    shown = made.json()
    assert shown | {"updated_at": None, "revision": 0} == {
        "name": "stable",
        "model": "pricing:stable",
        "weights": {"1": 100},
        "revision": 0,
        "updated_at": None,
        "canary": None,
    }
    assert made.headers["etag"] == f'"{shown["revision"]}"'
    split = admin.put(f"{path}/aliases/stable", json={"weights": {"1": 95, "2": 5}})
    assert (split.status_code, split.json()["weights"]) == (200, {"1": 95, "2": 5})
    assert split.json()["revision"] > shown["revision"]
    read = admin.get(f"{path}/aliases/stable")
    assert (read.json(), read.headers["etag"]) == (split.json(), split.headers["etag"])
    assert admin.get(path).json()["aliases"] == {"default": {"2": 100}, "stable": {"1": 95, "2": 5}}
    back = admin.post(f"{path}/aliases/stable/rollback")
    assert (back.status_code, back.json()["weights"]) == (200, {"1": 100})
    assert back.headers["etag"] == f'"{back.json()["revision"]}"'
    listed = admin.get(f"{path}/aliases").json()["data"]
    assert [(alias["name"], alias["weights"]) for alias in listed] == [
        ("default", {"2": 100}),
        ("stable", {"1": 100}),
    ]
    assert admin.delete(f"{path}/aliases/stable").status_code == 204
    assert admin.get(f"{path}/aliases/stable").status_code == 404
    history = admin.get(f"{path}/aliases/stable/history").json()["data"]
    assert [(change["action"], change["weights"]) for change in history] == [
        ("remove", None),
        ("rollback", {"1": 100}),
        ("split", {"2": 5, "1": 95}),
        ("move", {"1": 100}),
    ]


def test_an_admin_who_read_before_another_one_wrote_is_told(admin: httpx.Client, path: str) -> None:
    etag = admin.put(f"{path}/aliases/stable", json={"version": 1}).headers["etag"]
    newer = admin.put(f"{path}/aliases/stable", json={"version": 2}, headers={"if-match": etag}).headers["etag"]
    for method, suffix, body in (
        ("PUT", "", {"version": 1}),
        ("POST", "/rollback", None),
        ("DELETE", "", None),
        ("PUT", "/canary", {"version": 1}),
        ("DELETE", "/canary", None),
    ):
        stale = admin.request(method, f"{path}/aliases/stable{suffix}", json=body, headers={"if-match": etag})
        assert (stale.status_code, error(stale)["code"]) == (412, "precondition_failed"), stale.text
        assert newer in error(stale)["message"]
    assert admin.get(f"{path}/aliases/stable").json()["weights"] == {"2": 100}
    weak = admin.delete(f"{path}/aliases/stable", headers={"if-match": f"W/{newer}"})
    assert weak.status_code == 412
    assert admin.delete(f"{path}/aliases/stable", headers={"if-match": f'"0", {newer}'}).status_code == 204
    absent = admin.put(f"{path}/aliases/stable", json={"version": 1}, headers={"if-match": newer})
    assert (absent.status_code, error(absent)["param"]) == (412, "if-match")


def test_an_alias_can_be_created_only(admin: httpx.Client, path: str) -> None:
    only_new = {"if-none-match": "*"}
    assert admin.put(f"{path}/aliases/stable", json={"version": 1}, headers=only_new).status_code == 201
    assert admin.put(f"{path}/aliases/stable", json={"version": 2}, headers=only_new).status_code == 412
    assert admin.put(f"{path}/aliases/stable", json={"version": 2}, headers={"if-match": "*"}).status_code == 200
    nonsense = admin.put(f"{path}/aliases/stable", json={"version": 2}, headers={"if-match": "17"})
    assert (nonsense.status_code, error(nonsense)["param"]) == (400, "if-match")


def test_of_admins_who_move_at_once_with_one_etag_one_does(site: Site, admin: httpx.Client, path: str) -> None:
    etag = admin.put(f"{path}/aliases/stable", json={"version": 1}).headers["etag"]
    start, statuses = threading.Barrier(6), []

    def move(weight: int) -> None:
        with site.client(site.admin_key) as client:
            start.wait()
            body = {"weights": {"1": weight, "2": 1}}
            statuses.append(client.put(f"{path}/aliases/stable", json=body, headers={"if-match": etag}).status_code)

    threads = [threading.Thread(target=move, args=(weight,)) for weight in range(1, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(statuses) == [200] + [412] * 5


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({}, 400, "version"),
        ({"version": 1, "weights": {"1": 1}}, 400, "version"),
        ({"version": 9}, 404, "version"),
        ({"version": 0}, 404, "version"),
        ({"version": 10**30}, 404, "version"),
        ({"version": "1"}, 422, "version"),
        ({"version": True}, 422, "version"),
        ({"weights": {}}, 400, "weights"),
        ({"weights": {"1": 0}}, 400, "weights"),
        ({"weights": {"1": 10_001}}, 400, "weights"),
        ({"weights": {"1": 0.5}}, 422, "weights.1"),
        ({"weights": {"01": 1}}, 400, "weights"),
        ({"weights": {"-1": 1}}, 400, "weights"),
        ({"weights": {"1\0": 1}}, 400, "weights"),
        ({"weights": {str(number): 1 for number in range(1, 12)}}, 400, "weights"),
        ({"weight": {"1": 1}}, 422, "weight"),
        ([], 422, "body"),
    ],
)
def test_targets_that_make_no_sense_are_refused_by_name(
    admin: httpx.Client, path: str, body: Any, status: int, param: str
) -> None:
    answer = admin.put(f"{path}/aliases/stable", json=body)
    assert (answer.status_code, error(answer)["param"]) == (status, param), answer.text
    assert admin.get(f"{path}/aliases/stable").status_code == 404


@pytest.mark.parametrize("name", ["Stable", "a@1", "a%00b", "a%2Fb", "x" * 64, "%F0%9F%92%A9", "-"])
def test_names_outside_the_grammar_are_no_aliases(admin: httpx.Client, path: str, name: str) -> None:
    assert admin.put(f"{path}/aliases/{name}", json={"version": 1}).status_code in {404, 422}
    for suffix in ("", "/history", "/canary"):
        assert admin.get(f"{path}/aliases/{name}{suffix}").status_code == 404
    assert [alias["name"] for alias in admin.get(f"{path}/aliases").json()["data"]] == ["default"]


def test_default_cannot_be_deleted_while_a_version_is_ready(admin: httpx.Client, path: str) -> None:
    answer = admin.delete(f"{path}/aliases/default")
    assert (answer.status_code, answer.headers["x-should-retry"]) == (409, "false")
    assert admin.post(f"{path}/aliases/default/rollback").json()["weights"] == {"1": 100}


def test_a_canary_is_started_shown_and_cancelled(admin: httpx.Client, path: str) -> None:
    made = admin.put(f"{path}/aliases/stable", json={"version": 1})
    assert admin.get(f"{path}/aliases/stable/canary").status_code == 404
    policy = {"steps": [{"weight": 5, "seconds": 3600}, {"weight": 100, "seconds": 60}], "max_ttft_ratio": None}
    started = admin.put(
        f"{path}/aliases/stable/canary",
        json={"version": 2, "policy": policy},
        headers={"if-match": made.headers["etag"]},
    )
    assert started.status_code == 201, started.text
    shown = started.json()
    assert (shown["state"], shown["verdict"], shown["step"]) == ("running", "wait", 0)
    assert shown["policy"] == policy | {"min_requests": 20, "max_error_rate": 0.02, "max_empty_rate": 0.02}
    assert (shown["baseline"]["version"], shown["candidate"]["version"]) == (1, 2)
    assert "of 3600 s, 0 of 20 requests" in shown["reason"]
    alias = admin.get(f"{path}/aliases/stable").json()
    assert alias["weights"] == {"1": 95, "2": 5}
    assert alias["canary"]["state"] == "running"
    assert admin.put(f"{path}/aliases/stable/canary", json={"version": 2}).status_code == 409
    ended = admin.delete(f"{path}/aliases/stable/canary").json()
    assert (ended["state"], ended["verdict"], ended["details"]["code"]) == ("cancelled", None, "cancelled")
    alias = admin.get(f"{path}/aliases/stable").json()
    assert (alias["weights"], alias["canary"]["reason"]) == ({"1": 100}, "The canary was cancelled.")
    assert admin.delete(f"{path}/aliases/stable/canary").status_code == 409


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({}, 422, "version"),
        ({"version": 9}, 404, "version"),
        ({"version": 1, "policy": {"steps": []}}, 400, "policy.steps"),
        ({"version": 1, "policy": {"steps": [{"weight": 101, "seconds": 1}]}}, 400, "policy.steps[0].weight"),
        ({"version": 1, "policy": {"steps": [{"weight": 5, "seconds": 0}]}}, 400, "policy.steps[0].seconds"),
        ({"version": 1, "policy": {"max_error_rate": -1}}, 400, "policy.max_error_rate"),
        ({"version": 1, "policy": {"min_requests": 0}}, 400, "policy.min_requests"),
        ({"version": 1, "policy": {"window": 60}}, 422, "policy.window"),
    ],
)
def test_policies_that_make_no_sense_are_refused_by_name(
    admin: httpx.Client, path: str, body: Any, status: int, param: str
) -> None:
    answer = admin.put(f"{path}/aliases/default/canary", json=body)
    assert (answer.status_code, error(answer)["param"]) == (status, param), answer.text


ROUTES = (
    ("GET", "", None),
    ("GET", "/stable", None),
    ("PUT", "/stable", {"version": 1}),
    ("DELETE", "/stable", None),
    ("POST", "/stable/rollback", None),
    ("GET", "/stable/history", None),
    ("PUT", "/stable/canary", {"version": 2}),
    ("GET", "/stable/canary", None),
    ("DELETE", "/stable/canary", None),
)


@pytest.mark.parametrize(("method", "suffix", "body"), ROUTES)
def test_foreign_aliases_look_nonexistent(
    site: Site, admin: httpx.Client, unit: Unit, path: str, method: str, suffix: str, body: Any
) -> None:
    admin.put(f"{path}/aliases/stable", json={"version": 1})
    before = admin.get(f"{path}/aliases").json()
    absent = f"absent{unit.slug[6:]}"
    with site.client(make_unit(admin).key) as stranger:
        theirs = stranger.request(method, f"{path}/aliases{suffix}", json=body)
        unknowns = stranger.request(method, f"{path.replace(unit.slug, absent)}/aliases{suffix}", json=body)
        assert theirs.status_code == unknowns.status_code == 404
        assert theirs.text.replace(unit.slug, "X") == unknowns.text.replace(absent, "X")
        own = stranger.request(method, f"/v1/adapters/pricing/aliases{suffix}", json=body)
        assert (own.status_code, error(own)["param"]) == (404, "adapter")
    assert admin.get(f"{path}/aliases").json() == before


@pytest.mark.parametrize(("method", "suffix", "body"), ROUTES)
def test_a_missing_scope_is_named(
    site: Site, admin: httpx.Client, unit: Unit, method: str, suffix: str, body: Any
) -> None:
    needed, other = ("read", "write") if method == "GET" else ("write", "read")
    scopes = ["inference", f"adapters:{other}"]
    key = admin.post(f"/admin/tenants/{unit.slug}/keys", json={"name": "narrow", "scopes": scopes}).json()["key"]
    with site.client(key) as narrow:
        answer = narrow.request(method, f"/v1/adapters/pricing/aliases{suffix}", json=body)
    assert answer.status_code == 403
    assert f"adapters:{needed}" in error(answer)["message"]


def test_a_tenants_key_moves_aliases_and_is_in_the_history(site: Site, unit: Unit, path: str) -> None:
    with site.client(unit.key) as own:
        assert own.put("/v1/adapters/pricing/aliases/stable", json={"version": 1}).status_code == 201
        assert own.get("/v1/adapters/pricing/aliases/stable").json() == own.get(f"{path}/aliases/stable").json()
        (change,) = own.get("/v1/adapters/pricing/aliases/stable/history").json()["data"]
    assert change["actor"] == unit.key.split("_")[1]
