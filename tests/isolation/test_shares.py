"""Shares grant exactly the named version to the named recipient, and end on time."""

import json
import uuid
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.support.foreign_names import calls, without
from tests.support.serving import PeftFiles
from tests.support.site import Site, Unit, make_unit, parts

#: Routes that need the base's tokenizer and no engine.
TOKENIZING = frozenset({"/v1/messages/count_tokens", "/v1/tokenize", "/v1/detokenize"})


@pytest.fixture
def owner(site: Site, admin: httpx.Client, files: PeftFiles) -> Unit:
    """Tenant that shares ``prices@1`` with ``recipient`` and keeps ``secret@1`` private."""
    unit = make_unit(admin)
    with site.client(unit.key) as own:
        for adapter in ("prices", "secret"):
            assert own.post(f"/v1/adapters/{adapter}/versions", files=parts(files)).status_code == 201
    return unit


@pytest.fixture
def recipient(site: Site, admin: httpx.Client, owner: Unit) -> Unit:
    unit = make_unit(admin)
    with site.client(owner.key) as own:
        assert own.put(f"/v1/adapters/prices/shares/{unit.slug}").status_code == 201
    return unit


@pytest.fixture
def theirs(site: Site, recipient: Unit) -> Iterator[httpx.Client]:
    with site.client(recipient.key) as client:
        yield client


def is_resolved(path: str, answer: httpx.Response) -> bool:
    """Return whether the name was permitted: there is neither an engine nor a tokenizer here, which is found later."""
    if path in TOKENIZING:
        return answer.status_code == 400 and "cannot load the tokenizer" in answer.text
    return answer.status_code == 503


def refused_everywhere(client: httpx.Client, name: str) -> None:
    for path, body in calls(name):
        assert client.post(path, json=body).status_code == 404, (name, path)
    assert client.get(f"/v1/models/{name}").status_code == 404


@pytest.mark.parametrize("form", ["{}/prices", "{}/prices:default", "{}/prices@1"])
def test_a_revoked_share_is_like_one_that_never_was(
    site: Site, theirs: httpx.Client, owner: Unit, recipient: Unit, form: str
) -> None:
    name, absent = form.format(owner.slug), form.format(owner.slug).replace("prices", "nothing")
    for path, body in calls(name):
        assert is_resolved(path, theirs.post(path, json=body)), path
    with site.client(owner.key) as own:
        assert own.delete(f"/v1/adapters/prices/shares/{recipient.slug}").status_code == 204
    # The very next request, on every route.
    for (path, body), (_, twin) in zip(calls(name), calls(absent), strict=True):
        refused, never = theirs.post(path, json=body), theirs.post(path, json=twin)
        assert refused.status_code == 404
        assert without("", refused)[1].replace("prices", "nothing") == without("", never)[1]
        assert without("", refused)[2] == without("", never)[2]
    assert theirs.get(f"/v1/models/{name}").status_code == 404
    assert owner.slug not in theirs.get("/v1/models").text
    for path in ("", "/versions", "/versions/1"):
        assert theirs.get(f"/v1/shared/{owner.slug}/prices{path}").status_code == 404


def test_what_is_not_shared_is_like_what_does_not_exist(theirs: httpx.Client, owner: Unit) -> None:
    for form in ("{}", "{}:default", "{}@1"):
        foreign, absent = (f"{owner.slug}/{form.format(adapter)}" for adapter in ("secret", "absent"))
        for (path, body), (_, twin) in zip(calls(foreign), calls(absent), strict=True):
            refused, never = theirs.post(path, json=body), theirs.post(path, json=twin)
            assert refused.status_code == 404
            assert refused.text.replace("secret", "absent") == never.text
    for path in ("", "/versions", "/versions/1"):
        refused = theirs.get(f"/v1/shared/{owner.slug}/secret{path}")
        never = theirs.get(f"/v1/shared/{owner.slug}/absent{path}")
        missing = theirs.get(f"/v1/shared/nosuch/absent{path}")
        assert refused.status_code == 404
        assert refused.text.replace("secret", "absent") == never.text
        assert never.text.replace(owner.slug, "nosuch") == missing.text


def test_a_tenant_without_shares_looks_nonexistent(
    site: Site, admin: httpx.Client, theirs: httpx.Client, files: PeftFiles
) -> None:
    silent = make_unit(admin)
    with site.client(silent.key) as own:
        own.post("/v1/adapters/prices/versions", files=parts(files))
    unused = f"unit-{uuid.uuid4().hex[:8]}"
    for form in ("{}/prices", "{}/prices@1", "{}/prices:default"):
        for (path, body), (_, twin) in zip(calls(form.format(silent.slug)), calls(form.format(unused)), strict=True):
            refused, never = theirs.post(path, json=body), theirs.post(path, json=twin)
            assert refused.status_code == 404
            assert without("", refused)[1].replace(silent.slug, unused) == without("", never)[1]
            assert without("", refused)[2] == without("", never)[2]


def test_other_spellings_of_a_shared_name(theirs: httpx.Client, owner: Unit, recipient: Unit) -> None:
    slug, digest = owner.slug, theirs.get(f"/v1/shared/{owner.slug}/prices/versions/1").json()["digest"]
    names = [
        "prices",
        "prices@1",
        f"{recipient.slug}/prices",
        f"/{slug}/prices",
        f"{slug}//prices",
        f"{slug}/../{slug}/secret",
        f"{slug}/prices/../secret",
        f"{slug}\\prices",
        f"{slug}%2Fprices",
        f"{slug.upper()}/prices",
        f"{slug}/PRICES",
        f"{slug}/prices ",
        f" {slug}/prices",
        f"{slug}/pr\u0456ces",
        f"{slug}/prices\u200b",
        f"{slug}\uff0fprices",
        f"{slug}/prices\x00",
        f"{slug}/prices@01",
        f"{slug}/prices@0",
        f"{slug}/prices@2",
        f"{slug}/prices@1:default",
        f"{slug}/prices:default@1",
        f"{slug}/prices:nothing",
        f"{slug}/{digest}",
        f"{slug}/{digest.removeprefix('sha256:')}",
        f"{slug}@1/prices",
        f"{slug}/",
        "/prices",
        "*/prices",
    ]
    for name in names:
        for path, body in calls(name):
            assert theirs.post(path, json=body).status_code == 404, (name, path)


def test_a_third_tenant_has_no_part_in_it(
    site: Site, admin: httpx.Client, owner: Unit, recipient: Unit, theirs: httpx.Client
) -> None:
    assert f"{owner.slug}/prices" in {model["id"] for model in theirs.get("/v1/models").json()["data"]}
    with site.client(make_unit(admin).key) as third:
        assert owner.slug not in third.get("/v1/models").text
        assert third.get("/v1/shared").json() == {"data": [], "next_cursor": None}
        for name in (f"{owner.slug}/prices", f"{owner.slug}/prices@1", f"{recipient.slug}/prices"):
            refused_everywhere(third, name)
        # A third tenant gains nothing by asking as the recipient or by sharing an adapter that it does not own.
        assert third.get(f"/admin/tenants/{recipient.slug}/shared").status_code == 404


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/prices/versions", None),
        ("POST", "/prices/uploads", {"files": {}}),
        ("GET", "/prices/uploads", None),
        ("PATCH", "/prices/versions/1", {"card": "x"}),
        ("DELETE", "/prices/versions/1", None),
        ("POST", "/prices/versions/1/retire", {"reason": "x"}),
        ("GET", "/prices/versions/1/files/adapter_model.safetensors", None),
        ("PUT", "/prices/versions/1/pin", None),
        ("DELETE", "/prices", None),
        ("GET", "", None),
        ("GET", "/prices", None),
        ("GET", "/prices/versions", None),
        ("GET", "/prices/versions/1", None),
        ("GET", "/prices/shares", None),
        ("PUT", "/prices/shares/another", None),
        ("DELETE", "/prices/shares/{}", None),
        ("GET", "/prices/aliases", None),
        ("GET", "/prices/aliases/default", None),
        ("PUT", "/prices/aliases/default", {"version": 1}),
        ("PUT", "/prices/aliases/mine", {"version": 1}),
        ("DELETE", "/prices/aliases/default", None),
    ],
)
def test_the_recipient_changes_nothing_and_reads_nothing_else(
    admin: httpx.Client,
    theirs: httpx.Client,
    owner: Unit,
    recipient: Unit,
    method: str,
    path: str,
    body: dict[str, Any] | None,
) -> None:
    place = f"/admin/tenants/{owner.slug}/adapters"
    before = json.dumps([admin.get(f"{place}/prices{suffix}").json() for suffix in ("", "/versions", "/shares")])
    suffix = path.format(recipient.slug)
    answers = [theirs.request(method, f"{place}{suffix}", json=body)]
    if suffix not in {"", "/prices/versions", "/prices/uploads"}:  # its own, where it is the owner
        answers.append(theirs.request(method, f"/v1/adapters{suffix}", json=body))
    assert [answer.status_code for answer in answers] == [404] * len(answers), [answer.text for answer in answers]
    after = json.dumps([admin.get(f"{place}/prices{suffix}").json() for suffix in ("", "/versions", "/shares")])
    assert after == before


@pytest.mark.parametrize("form", ["{}/prices@1", "prices@1"])
def test_what_is_shared_cannot_be_merged_into_ones_own(theirs: httpx.Client, owner: Unit, form: str) -> None:
    """A merge would be a copy that outlives the share."""
    source = {"version": form.format(owner.slug), "weight": 0.5}
    answer = theirs.post("/v1/adapters/mine/merges", json={"sources": [source, source], "method": "linear"})
    assert answer.status_code in {400, 404, 422}, answer.text
    assert theirs.get("/v1/adapters").json()["data"] == []


@pytest.mark.parametrize("method", ["PUT", "POST", "PATCH", "DELETE"])
@pytest.mark.parametrize("path", ["", "/versions", "/versions/1", "/shares/x", "/aliases/default"])
def test_nothing_under_shared_can_be_written(theirs: httpx.Client, owner: Unit, method: str, path: str) -> None:
    answer = theirs.request(method, f"/v1/shared/{owner.slug}/prices{path}", json={})
    assert answer.status_code in {404, 405}


def test_the_owners_keys_and_quota_stay_its_own(theirs: httpx.Client, owner: Unit) -> None:
    for path in ("", "/keys", "/adapters", "/shared"):
        assert theirs.get(f"/admin/tenants/{owner.slug}{path}").status_code in {403, 404}
    assert owner.slug not in theirs.get("/v1/quota").text


def test_sharing_tells_no_tenant_which_tenants_exist(site: Site, admin: httpx.Client, owner: Unit) -> None:
    existing, unused = make_unit(admin).slug, f"unit-{uuid.uuid4().hex[:8]}"

    def seen(answer: httpx.Response, slug: str) -> tuple[int, Any]:
        body = answer.json() if answer.content else None
        if isinstance(body, dict):
            body.pop("created_at", None)
        return answer.status_code, json.loads(json.dumps(body).replace(slug, "SLUG"))

    with site.client(owner.key) as own:
        for method in ("PUT", "PUT", "DELETE", "DELETE"):
            answers = [
                seen(own.request(method, f"/v1/adapters/prices/shares/{slug}"), slug) for slug in (existing, unused)
            ]
            assert answers[0] == answers[1]
            listed = own.get("/v1/adapters/prices/shares").json()["data"]
            assert [share["recipient"] for share in listed] == (sorted([existing, unused]) if method == "PUT" else [])


def test_a_deleted_share_does_not_return_with_its_name(
    site: Site, theirs: httpx.Client, owner: Unit, files: PeftFiles
) -> None:
    with site.client(owner.key) as own:
        assert own.delete("/v1/adapters/prices", params={"force": True}).status_code == 202
        refused_everywhere(theirs, f"{owner.slug}/prices")
        assert own.post("/v1/adapters/prices/versions", files=parts(files)).status_code == 201
    refused_everywhere(theirs, f"{owner.slug}/prices")
    assert theirs.get("/v1/shared").json()["data"] == []


def test_a_disabled_owner_shares_nothing(admin: httpx.Client, theirs: httpx.Client, owner: Unit) -> None:
    admin.patch(f"/admin/tenants/{owner.slug}", json={"disabled": True})
    refused_everywhere(theirs, f"{owner.slug}/prices")
    assert owner.slug not in theirs.get("/v1/models").text
    admin.patch(f"/admin/tenants/{owner.slug}", json={"disabled": False})
    for path, body in calls(f"{owner.slug}/prices"):
        assert is_resolved(path, theirs.post(path, json=body)), path
