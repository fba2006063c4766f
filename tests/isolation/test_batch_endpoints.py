"""Every endpoint of files, uploads and batches: attacks by another tenant that has learned all ids."""

import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import httpx
import pytest

from tests.support.batch_admission import CHAT, jsonl, line
from tests.support.batch_calls import ABSENT_BATCH
from tests.support.file_calls import ABSENT_FILE, ABSENT_PART, ABSENT_UPLOAD, add_part, begin, content, form
from tests.support.file_calls import create as create_file
from tests.support.foreign_ids import disguises, masked
from tests.support.site import Site, Unit, make_unit
from tests.support.timing import Stopwatch, assert_alike

PREFIXES = ("/v1/files", "/v1/uploads", "/v1/batches", "/admin/batches")


@dataclass(frozen=True)
class Ids:
    """Ids of one tenant's objects, or of objects that do not exist."""

    tenant: str
    file: str
    upload: str
    part: str
    batch: str


ABSENT = Ids("no-such-tenant", ABSENT_FILE, ABSENT_UPLOAD, ABSENT_PART, ABSENT_BATCH)
#: How an attacker names another tenant.
OVERRIDES: tuple[Callable[[str], dict[str, Any]], ...] = (
    lambda tenant: {"headers": {"x-tenant": tenant, "x-tenora-tenant": tenant, "openai-organization": tenant}},
    lambda tenant: {"params": {"tenant": tenant, "tenant_id": tenant}},
)


@dataclass(frozen=True)
class Attack:
    """One call of an endpoint, with other ids each time.

    Attributes:
        path: path with the ids.
        options: body, parameters or headers of the call with the ids.
    """

    method: str
    path: Callable[[Ids], str]
    options: Callable[[Ids], dict[str, Any]] = lambda _: {}

    def __call__(self, client: httpx.Client, ids: Ids) -> httpx.Response:
        return client.request(self.method, self.path(ids), **self.options(ids))


def by_id(method: str, path: str, options: Callable[[Ids], dict[str, Any]] = lambda _: {}) -> list[Attack]:
    """Return attacks on an endpoint with an id in its path: the id, its disguises, and the owner's name."""

    def disguised(number: int) -> Callable[[Ids], str]:
        def filled(ids: Ids) -> str:
            upload, file, batch = (list(disguises(one))[number] for one in (ids.upload, ids.file, ids.batch))
            return path.format(upload_id=upload, file_id=file, batch_id=batch)

        return filled

    plain = disguised(0)
    attacks = [Attack(method, disguised(number), options) for number in range(len(list(disguises(ABSENT_FILE))))]
    return attacks + [Attack(method, plain, named(options, override)) for override in OVERRIDES]


def named(options: Callable[[Ids], dict[str, Any]], override: Callable[[str], dict[str, Any]]) -> Any:
    """Return the options of a call that also names the tenant."""
    return lambda ids: options(ids) | override(ids.tenant)


def of_list(path: str, foreign: Callable[[Ids], str]) -> list[Attack]:
    """Return attacks on a list: a foreign id as the place to go on, also with the owner's name."""
    cursor = Attack("GET", lambda _: path, lambda ids: {"params": {"after": foreign(ids)}})
    named = Attack("GET", lambda _: path, lambda ids: {"params": {"after": foreign(ids), "tenant": ids.tenant}})
    return [cursor, named]


def new_batch(ids: Ids, **fields: Any) -> dict[str, Any]:
    return {"json": {"input_file_id": ids.file, "endpoint": CHAT, "completion_window": "24h", **fields}}


def whole(ids: Ids) -> dict[str, Any]:
    return {"json": {"part_ids": [ids.part]}}


#: Attacks that must fail as they do for objects that do not exist.
ATTACKS: dict[tuple[str, str], list[Attack]] = {
    ("get", "/v1/files"): of_list("/v1/files", lambda ids: ids.file),
    ("get", "/v1/files/{file_id}"): by_id("GET", "/v1/files/{file_id}"),
    ("delete", "/v1/files/{file_id}"): by_id("DELETE", "/v1/files/{file_id}"),
    ("get", "/v1/files/{file_id}/content"): by_id("GET", "/v1/files/{file_id}/content"),
    ("post", "/v1/uploads/{upload_id}/parts"): by_id(
        "POST", "/v1/uploads/{upload_id}/parts", lambda _: {"files": {"data": ("x", b"x")}}
    ),
    ("post", "/v1/uploads/{upload_id}/complete"): by_id("POST", "/v1/uploads/{upload_id}/complete", whole),
    ("post", "/v1/uploads/{upload_id}/cancel"): by_id("POST", "/v1/uploads/{upload_id}/cancel"),
    ("get", "/v1/batches"): of_list("/v1/batches", lambda ids: ids.batch),
    ("post", "/v1/batches"): [
        Attack("POST", lambda _: "/v1/batches", new_batch),
        *(Attack("POST", lambda _: "/v1/batches", named(new_batch, override)) for override in OVERRIDES),
    ],
    ("get", "/v1/batches/{batch_id}"): by_id("GET", "/v1/batches/{batch_id}"),
    ("post", "/v1/batches/{batch_id}/cancel"): by_id("POST", "/v1/batches/{batch_id}/cancel"),
    ("get", "/admin/batches"): [
        Attack("GET", lambda _: "/admin/batches"),
        Attack("GET", lambda _: "/admin/batches", lambda ids: {"params": {"tenant": ids.tenant}}),
        Attack("GET", lambda _: "/admin/batches", lambda ids: {"params": {"after": ids.batch}}),
    ],
}
#: Endpoints that create something: the attacks are in the tests below.
CREATING = {("post", "/v1/files"), ("post", "/v1/uploads"), ("post", "/v1/batches")}


@pytest.fixture(scope="module")
def victim(admin: httpx.Client) -> Unit:
    return make_unit(admin)


@pytest.fixture(scope="module")
def owner(site: Site, victim: Unit) -> Iterator[httpx.Client]:
    with site.client(victim.key) as client:
        yield client


@pytest.fixture(scope="module")
def attacking(admin: httpx.Client) -> Unit:
    return make_unit(admin)


@pytest.fixture(scope="module")
def attacker(site: Site, attacking: Unit) -> Iterator[httpx.Client]:
    with site.client(attacking.key) as client:
        yield client


@pytest.fixture(scope="module")
def owned(owner: httpx.Client, victim: Unit) -> Ids:
    file = create_file(owner, jsonl([line(1)]), name="secret.jsonl")["id"]
    free = create_file(owner, jsonl([line(1)]), name="secret-too.jsonl")["id"]
    upload = begin(owner, 4)["id"]
    batch = owner.post("/v1/batches", **new_batch(replace(ABSENT, file=file), metadata={"secret": "yes"})).json()["id"]
    return Ids(victim.slug, free, upload, add_part(owner, upload, b"part"), batch)


def test_every_endpoint_is_attacked_twice(site: Site) -> None:
    with site.client(None) as client:
        paths = client.get("/openapi.json").json()["paths"]
    endpoints = {(method, path) for path, methods in paths.items() if path.startswith(PREFIXES) for method in methods}
    assert endpoints == set(ATTACKS) | CREATING
    assert min(map(len, ATTACKS.values())) >= 2


@pytest.mark.parametrize("endpoint", ATTACKS, ids=" ".join)
def test_foreign_objects_are_like_absent_ones(
    attacker: httpx.Client, owner: httpx.Client, owned: Ids, endpoint: tuple[str, str]
) -> None:
    before = state(owner, owned)
    for number, attack in enumerate(ATTACKS[endpoint]):
        answer = attack(attacker, owned)
        assert answer.status_code in {400, 403, 404}, (number, answer.text)
        assert masked(answer) == masked(attack(attacker, ABSENT)), number
        assert "secret" not in answer.text
    assert state(owner, owned) == before


def state(owner: httpx.Client, ids: Ids) -> list[Any]:
    """Return what the owner sees of its objects."""
    batch = owner.get(f"/v1/batches/{ids.batch}").json()
    return [owner.get(f"/v1/files/{ids.file}").json(), content(owner, ids.file), batch["cancelling_at"]]


def test_an_upload_survives_the_attacks(attacker: httpx.Client, owner: httpx.Client) -> None:
    upload = begin(owner, 4)["id"]
    ids = replace(ABSENT, upload=upload, part=add_part(owner, upload, b"part"))
    for endpoint, attacks in ATTACKS.items():
        if endpoint[1].startswith("/v1/uploads"):
            for attack in attacks:
                assert attack(attacker, ids).status_code == 404
    answer = owner.post(f"/v1/uploads/{upload}/complete", json={"part_ids": [ids.part]})
    assert answer.status_code == 200, answer.text
    assert content(owner, answer.json()["file"]["id"]) == b"part"


@pytest.mark.parametrize("path", ["/v1/files", "/v1/uploads", "/v1/batches"])
def test_the_idempotency_key_of_another_tenant_gives_nothing(
    attacker: httpx.Client, owner: httpx.Client, path: str
) -> None:
    def call(client: httpx.Client) -> httpx.Response:
        return client.post(path, headers={"idempotency-key": chosen}, **creating(path, client))

    chosen = uuid.uuid4().hex
    theirs, own = call(owner), call(attacker)
    assert (theirs.status_code, own.status_code) == (200, 200)
    assert theirs.json()["id"] not in own.text
    assert owner.get(f"/v1/files/{own.json()['id']}").status_code == 404


def creating(path: str, client: httpx.Client) -> dict[str, Any]:
    """Return the body of a call that creates something."""
    if path == "/v1/files":
        return form()
    if path == "/v1/uploads":
        body = {"bytes": 4, "filename": "in.jsonl", "mime_type": "application/jsonl", "purpose": "batch"}
        return {"json": body}
    return new_batch(replace(ABSENT, file=create_file(client, jsonl([line(1)]))["id"]))


@pytest.mark.parametrize("path", ["/v1/files", "/v1/uploads", "/v1/batches"])
@pytest.mark.parametrize("override", OVERRIDES, ids=["headers", "parameters"])
def test_nothing_can_be_created_for_another_tenant(
    attacker: httpx.Client, owner: httpx.Client, victim: Unit, path: str, override: Callable[[str], dict[str, Any]]
) -> None:
    def owners() -> list[str]:
        lists = [owner.get(path, params={"limit": 100}).json() for path in ("/v1/files", "/v1/batches")]
        return [row["id"] for listed in lists for row in listed["data"]]

    options, before = creating(path, attacker), owners()
    answer = attacker.post(path, **options | override(victim.slug))
    assert answer.status_code in {200, 400, 422}
    assert owners() == before
    if path == "/v1/uploads" and answer.status_code == 200:
        assert owner.post(f"/v1/uploads/{answer.json()['id']}/cancel").status_code == 404


@pytest.mark.parametrize("field", ["tenant", "tenant_id", "created_by", "owner"])
def test_no_field_names_another_tenant(attacker: httpx.Client, victim: Unit, field: str) -> None:
    for path in ("/v1/uploads", "/v1/batches"):
        body = creating(path, attacker)["json"] | {field: victim.slug}
        assert attacker.post(path, json=body).status_code == 422


def test_the_platforms_list_needs_a_platform_key(
    site: Site, attacker: httpx.Client, owned: Ids, admin: httpx.Client
) -> None:
    assert owned.batch in admin.get("/admin/batches", params={"tenant": owned.tenant}).text
    refused = attacker.get("/admin/batches", params={"tenant": owned.tenant})
    assert refused.status_code == 403
    assert owned.batch not in refused.text
    with site.client(None) as nobody:
        assert nobody.get("/admin/batches", params={"tenant": owned.tenant}).status_code == 401


@pytest.mark.slow
@pytest.mark.parametrize(("method", "path"), [("GET", ""), ("POST", "/cancel")])
def test_foreign_and_absent_batches_take_the_same_time(
    site: Site, attacking: Unit, owned: Ids, method: str, path: str
) -> None:
    with Stopwatch(site.url) as watch:

        def ask(batch: str) -> Callable[[], float]:
            return lambda: watch.seconds(method, f"/v1/batches/{batch}{path}", key=attacking.key, status=404)

        assert_alike(f"{method} {path}", ask(owned.batch), ask(ABSENT_BATCH))
