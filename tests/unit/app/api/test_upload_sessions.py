"""Resumable uploads over HTTP, to a local store and to S3: parts, refusals, visibility, completion."""

import asyncio
import base64
import hashlib
import io
import json
import tarfile
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import select, update

from adapters.stores import open_store
from app.database.session import Database
from app.database.tables import audit, uploads
from app.database.urls import database_url
from app.services.publishing.uploads.sweeper import UploadSweeper
from app.settings import LimitSettings
from tests.support.s3server import s3_client, s3_server
from tests.support.serving import PeftFiles
from tests.support.site import Site, Unit, make_unit, parts, running_site

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


@dataclass(frozen=True)
class Place:
    """A server, and the S3 endpoint and bucket of its store, if the store is S3."""

    site: Site
    endpoint: str | None = None
    bucket: str = ""

    def staged(self) -> list[str]:
        """List the entries of the staging area."""
        if self.endpoint is None:
            root = self.site.settings.home / "blobs" / "uploads"
            return [path.name for path in root.iterdir()] if root.is_dir() else []
        client = s3_client(self.endpoint)
        multiparts = client.list_multipart_uploads(Bucket=self.bucket).get("Uploads", [])
        objects = client.list_objects_v2(Bucket=self.bucket, Prefix="p/uploads/").get("Contents", [])
        return [entry["Key"] for entry in (*multiparts, *objects)]

    def blobs(self) -> set[str]:
        if self.endpoint is None:
            return self.site.blobs
        listed = s3_client(self.endpoint).list_objects_v2(Bucket=self.bucket, Prefix="p/sha256/")
        return {entry["Key"].rpartition("/")[2] for entry in listed.get("Contents", [])}


@pytest.fixture(scope="module")
def s3_place(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with s3_server() as endpoint:
        bucket = f"tests-{uuid.uuid4().hex}"
        s3_client(endpoint).create_bucket(Bucket=bucket)
        home = tmp_path_factory.mktemp("s3-home")
        with running_site(
            home, base, store_url=f"s3://{bucket}/p", s3_endpoint_url=endpoint, s3_region="us-east-1"
        ) as site:
            yield Place(site, endpoint, bucket)


@pytest.fixture(params=["local", "s3"])
def place(request: pytest.FixtureRequest, site: Site) -> Place:
    return Place(site) if request.param == "local" else request.getfixturevalue("s3_place")


@pytest.fixture
def admin(place: Place) -> Iterator[httpx.Client]:
    with place.site.client(place.site.admin_key) as client:
        yield client


@pytest.fixture
def unit(admin: httpx.Client) -> Unit:
    return make_unit(admin)


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def announced(**files: bytes) -> dict[str, Any]:
    return {"files": {name: {"size": len(data), "sha256": sha256(data)} for name, data in files.items()}}


def both(files: PeftFiles) -> dict[str, bytes]:
    return {CONFIG: files.config, WEIGHTS: files.weights}


@dataclass
class Sender:
    """One client's upload to one adapter."""

    http: httpx.Client
    files: dict[str, bytes]
    path: str
    upload: dict[str, Any]

    @classmethod
    def begin(cls, http: httpx.Client, unit: Unit, files: dict[str, bytes], **body: Any) -> "Sender":
        path = f"/admin/tenants/{unit.slug}/adapters/pricing/uploads"
        answer = http.post(path, json=announced(**files) | body)
        assert answer.status_code == 201, answer.text
        upload = answer.json()
        assert answer.headers["location"] == f"{path}/{upload['id']}"
        return cls(http, files, f"{path}/{upload['id']}", upload)

    def cut(self, name: str, number: int) -> bytes:
        size = self.upload["files"][name]["part_bytes"]
        return self.files[name][(number - 1) * size : number * size]

    def put(self, name: str, number: int, data: bytes | None = None, digest: str | None = None) -> httpx.Response:
        """Send a part through the server, with either kind of store."""
        data = self.cut(name, number) if data is None else data
        value = base64.b64encode(hashlib.sha256(data).digest()).decode()
        headers = {"content-digest": f"sha-256=:{value}:" if digest is None else digest}
        return self.http.put(f"{self.path}/files/{name}/parts/{number}", content=data, headers=headers)

    def put_direct(self, name: str, number: int) -> httpx.Response:
        data = self.cut(name, number)
        wanted = {"parts": [{"number": number, "sha256": sha256(data)}]}
        answer = self.http.post(f"{self.path}/files/{name}/urls", json=wanted)
        assert answer.status_code == 200, answer.text
        [leave] = answer.json()["urls"]
        with httpx.Client(trust_env=False) as bucket:
            for _ in range(3):
                answer = bucket.put(leave["url"], content=data, headers=leave["headers"])
                # Retry as S3 clients do: moto occasionally answers 500 to concurrent parts.
                if not answer.is_server_error:
                    break
            return answer

    def send(self, name: str, number: int) -> None:
        direct = self.upload["files"][name]["direct"]
        answer = self.put_direct(name, number) if direct else self.put(name, number)
        assert answer.is_success, answer.text

    def send_all(self) -> "Sender":
        for name, file in self.upload["files"].items():
            for number in range(1, file["parts"] + 1):
                self.send(name, number)
        return self

    def finish(self) -> httpx.Response:
        return self.http.post(f"{self.path}/finish")

    def show(self) -> dict[str, Any]:
        answer = self.http.get(self.path)
        assert answer.status_code == 200, answer.text
        return answer.json()


def in_registry(place: Place, work: Callable[[Any], Any]) -> Any:
    """Run statements on the server's database."""

    async def run() -> Any:
        database = Database(database_url(place.site.settings))
        try:
            async with database.write() as connection:
                return await work(connection)
        finally:
            await database.close()

    return asyncio.run(run())


def change_row(place: Place, upload: str, **values: Any) -> None:
    in_registry(
        place, lambda connection: connection.execute(update(uploads).where(uploads.c.id == upload).values(**values))
    )


def actions(place: Place, tenant: str) -> list[str]:
    async def read(connection: Any) -> list[str]:
        rows = await connection.scalars(select(audit.c.action).where(audit.c.tenant == tenant).order_by(audit.c.id))
        return [action for action in rows if action.startswith("upload.")]

    return in_registry(place, read)


def sweep(place: Place, *, later: timedelta) -> None:
    settings = place.site.settings
    database = Database(database_url(settings))
    url = settings.store_url or (settings.home / "blobs").as_uri()
    store = open_store(url, endpoint_url=place.endpoint, region="us-east-1")
    sweeper = UploadSweeper(database, store, LimitSettings(), clock=lambda: datetime.now(UTC) + later)

    async def run() -> None:
        await sweeper.sweep()
        await database.close()

    asyncio.run(run())


def test_an_upload_from_beginning_to_end(place: Place, admin: httpx.Client, unit: Unit, files: PeftFiles) -> None:
    sender = Sender.begin(admin, unit, both(files), options={"labels": {"team": "pricing"}, "card": "from a test"})
    assert sender.upload["state"] == "open"
    assert sender.upload["files"][WEIGHTS]["direct"] is (place.endpoint is not None)
    assert sender.upload["files"][WEIGHTS]["received"] == []
    sender.send_all()
    shown = sender.show()
    assert {name: file["received"] for name, file in shown["files"].items()} == {CONFIG: [1], WEIGHTS: [1]}
    answer = sender.finish()
    assert answer.status_code == 201, answer.text
    version = answer.json()
    assert (version["version"], version["state"], version["card"]) == (1, "ready", "from a test")
    assert version["labels"] == {"team": "pricing"}
    assert admin.get(answer.headers["location"]).json() == version
    assert {sha256(files.config), sha256(files.weights)} <= place.blobs()
    assert not [name for name in place.staged() if sender.upload["id"] in name]
    assert (sender.show()["state"], sender.show()["version"]) == ("done", 1)
    assert actions(place, unit.slug) == ["upload.begin", "upload.done"]


def test_the_same_call_again_has_the_same_answer(admin: httpx.Client, unit: Unit, files: PeftFiles) -> None:
    sender = Sender.begin(admin, unit, both(files)).send_all()
    first, second = sender.finish(), sender.finish()
    assert (first.status_code, second.status_code) == (201, 200)
    assert first.json() == second.json()
    assert first.headers["location"] == second.headers["location"]


def test_what_is_a_version_already_is_not_sent_again(
    place: Place, admin: httpx.Client, unit: Unit, files: PeftFiles
) -> None:
    published = admin.post(f"/admin/tenants/{unit.slug}/adapters/pricing/versions", files=parts(files))
    sender = Sender.begin(admin, unit, both(files))
    assert {name: file["received"] for name, file in sender.upload["files"].items()} == {CONFIG: [1], WEIGHTS: [1]}
    assert sender.put(WEIGHTS, 1).status_code == 409
    answer = sender.finish()
    assert answer.status_code == 200
    assert answer.json() == published.json()
    # The response to another tenant does not reveal that the bytes are stored.
    stranger = Sender.begin(admin, make_unit(admin), both(files))
    assert stranger.upload["files"][WEIGHTS]["received"] == []


def test_an_archive_is_unpacked(admin: httpx.Client, unit: Unit, files: PeftFiles) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, data in both(files).items():
            member = tarfile.TarInfo(f"pricing/{name}")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    answer = Sender.begin(admin, unit, {"archive": packed.getvalue()}).send_all().finish()
    assert answer.status_code == 201, answer.text
    assert answer.json()["provenance"]["source"]["kind"] == "archive"


def test_parts_in_any_order_at_once_and_again(place: Place, admin: httpx.Client, unit: Unit) -> None:
    data = bytes(range(256)) * 2**14 if place.endpoint is None else bytes(11 * 2**20)
    part_bytes = 2**18 if place.endpoint is None else 5 * 2**20
    sender = Sender.begin(admin, unit, {CONFIG: b"{}", WEIGHTS: data}, part_bytes=part_bytes)
    numbers = list(range(sender.upload["files"][WEIGHTS]["parts"], 0, -1))
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda number: sender.send(WEIGHTS, number), numbers[:-1] * 2))
    received = sender.show()["files"][WEIGHTS]["received"]
    assert received == sorted(numbers[:-1])
    refused = sender.finish()
    assert refused.status_code == 409
    assert f"1 of {len(numbers)} parts of {WEIGHTS} (1)" in refused.json()["error"]["message"]
    assert sender.show()["state"] == "open"
    assert sender.show()["files"][WEIGHTS]["received"] == received


def test_a_part_with_a_wrong_digest_or_size_changes_nothing(admin: httpx.Client, unit: Unit, files: PeftFiles) -> None:
    sender = Sender.begin(admin, unit, both(files))
    assert sender.put(CONFIG, 1).status_code == 204
    other = base64.b64encode(bytes(32)).decode()
    for data, digest, status in [
        (files.config, f"sha-256=:{other}:", 400),
        (files.config, "", 400),
        (files.config, "sha-256=:short:", 400),
        (files.config, f"md5=:{other}:", 400),
        (files.config[:-1], None, 400),
        (files.config + b" ", None, 413),
        (b"", None, 400),
    ]:
        assert sender.put(CONFIG, 1, data, digest).status_code == status, digest
        assert sender.put(WEIGHTS, 1, data, digest).status_code in (400, 413)
    received = {name: file["received"] for name, file in sender.show()["files"].items()}
    assert received == {CONFIG: [1], WEIGHTS: []}
    several = f"sha-512=:abc:, sha-256=:{base64.b64encode(hashlib.sha256(files.weights).digest()).decode()}:"
    assert sender.put(WEIGHTS, 1, digest=several).status_code == 204
    assert sender.finish().status_code == 201


@pytest.mark.parametrize("number", ["0", "2", "-1", "10001", "x", "1.5"])
def test_numbers_that_are_no_parts(admin: httpx.Client, unit: Unit, files: PeftFiles, number: str) -> None:
    sender = Sender.begin(admin, unit, both(files))
    digest = {"content-digest": f"sha-256=:{base64.b64encode(bytes(32)).decode()}:"}
    answer = admin.put(f"{sender.path}/files/{WEIGHTS}/parts/{number}", content=b"?", headers=digest)
    assert answer.status_code in (400, 422)
    assert sender.put("archive", 1, b"?").status_code == 404


def test_bytes_that_are_not_those_announced_are_refused(
    place: Place, admin: httpx.Client, unit: Unit, files: PeftFiles
) -> None:
    other = files.weights[:-1] + bytes([files.weights[-1] ^ 1])
    sender = Sender.begin(admin, unit, both(files))
    sender.files[WEIGHTS] = other
    answer = sender.send_all().finish()
    assert answer.status_code == 422
    assert [reason["code"] for reason in answer.json()["error"]["reasons"]] == ["digest_mismatch"]
    shown = sender.show()
    assert (shown["state"], [reason["code"] for reason in shown["reasons"]]) == ("failed", ["digest_mismatch"])
    assert not {sha256(other), sha256(files.weights)} & place.blobs()
    assert not [name for name in place.staged() if sender.upload["id"] in name]


def test_an_unservable_adapter_is_refused_with_every_reason(
    place: Place, admin: httpx.Client, unit: Unit, files: PeftFiles
) -> None:
    config = json.dumps(json.loads(files.config) | {"use_dora": True, "bias": "all"}).encode()
    sender = Sender.begin(admin, unit, {CONFIG: config, WEIGHTS: files.weights}).send_all()
    first = sender.finish()
    assert first.status_code == 422
    fields = {reason["field"] for reason in first.json()["error"]["reasons"]}
    assert {"use_dora", "bias"} <= fields
    again = sender.finish()
    assert (again.status_code, again.json()["error"]["reasons"]) == (422, first.json()["error"]["reasons"])
    assert actions(place, unit.slug) == ["upload.begin", "upload.failed"]
    assert sender.put(CONFIG, 1).status_code == 409


def test_an_upload_given_up_is_gone(place: Place, admin: httpx.Client, unit: Unit, files: PeftFiles) -> None:
    sender = Sender.begin(admin, unit, both(files)).send_all()
    assert admin.delete(sender.path).status_code == 204
    assert admin.delete(sender.path).status_code == 204
    assert not [name for name in place.staged() if sender.upload["id"] in name]
    assert sender.put(CONFIG, 1).status_code == 409
    assert sender.finish().status_code == 409
    assert (sender.show()["state"], sender.show()["files"][CONFIG]["received"]) == ("aborted", [])
    assert actions(place, unit.slug) == ["upload.begin", "upload.aborted"]


def test_only_the_owner_sees_an_upload(place: Place, admin: httpx.Client, unit: Unit, files: PeftFiles) -> None:
    sender, stranger = Sender.begin(admin, unit, both(files)).send_all(), make_unit(admin)
    upload, absent = sender.upload["id"], uuid.uuid4().hex
    digest = {"content-digest": f"sha-256=:{base64.b64encode(hashlib.sha256(files.config).digest()).decode()}:"}
    wanted = {"parts": [{"number": 1, "sha256": sha256(files.config)}]}

    def calls(client: httpx.Client, path: str) -> list[httpx.Response]:
        return [
            client.get(path),
            client.put(f"{path}/files/{CONFIG}/parts/1", content=files.config, headers=digest),
            client.post(f"{path}/finish"),
            client.delete(path),
        ] + ([client.post(f"{path}/files/{CONFIG}/urls", json=wanted)] if place.endpoint else [])

    with place.site.client(stranger.key) as http:
        for path in ("/v1/adapters/pricing/uploads", f"/admin/tenants/{stranger.slug}/adapters/pricing/uploads"):
            foreign, none = calls(http, f"{path}/{upload}"), calls(http, f"{path}/{absent}")
            assert {answer.status_code for answer in (*foreign, *none)} == {404}
            for one, other in zip(foreign, none, strict=True):
                assert one.text.replace(upload, absent) == other.text
            assert http.get(path).json() == {"data": []}
        own = f"/admin/tenants/{unit.slug}/adapters/pricing/uploads/{upload}"
        assert {answer.status_code for answer in calls(http, own)} == {404}
    # The upload is not found under another adapter.
    assert admin.get(f"/admin/tenants/{unit.slug}/adapters/other/uploads/{upload}").status_code == 404
    with place.site.client(unit.key) as http:
        assert [found["id"] for found in http.get("/v1/adapters/pricing/uploads").json()["data"]] == [upload]
        answer = http.post(f"/v1/adapters/pricing/uploads/{upload}/finish")
        assert (answer.status_code, answer.headers["location"]) == (201, "/v1/adapters/pricing/versions/1")
        assert http.get("/v1/adapters/pricing/uploads").json() == {"data": []}


def test_a_key_without_the_scope_is_refused(place: Place, admin: httpx.Client, unit: Unit, files: PeftFiles) -> None:
    made = admin.post(f"/admin/tenants/{unit.slug}/keys", json={"name": "reader", "scopes": ["adapters:read"]})
    with place.site.client(made.json()["key"]) as http:
        assert http.post("/v1/adapters/pricing/uploads", json=announced(**both(files))).status_code == 403
        assert http.get("/v1/adapters/pricing/uploads").status_code == 403
    with place.site.client(None) as http:
        assert http.get("/v1/adapters/pricing/uploads").status_code == 401


SHA = "a" * 64


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({}, 422),
        ({"files": {}}, 400),
        ({"files": {WEIGHTS: {"size": 1, "sha256": SHA}}}, 400),
        ({"files": {"archive": {"size": 1, "sha256": SHA}, CONFIG: {"size": 1, "sha256": SHA}}}, 400),
        ({"files": {"../evil": {"size": 1, "sha256": SHA}}}, 400),
        ({"files": {"archive": {"size": 0, "sha256": SHA}}}, 400),
        ({"files": {"archive": {"size": -5, "sha256": SHA}}}, 400),
        ({"files": {"archive": {"size": 2**40, "sha256": SHA}}}, 413),
        ({"files": {"archive": {"size": 1, "sha256": SHA.upper()}}}, 400),
        ({"files": {"archive": {"size": 1, "sha256": "../../x"}}}, 400),
        ({"files": {"archive": {"size": True, "sha256": SHA}}}, 422),
        ({"files": {"archive": {"size": 1, "sha256": SHA, "path": "/etc"}}}, 422),
        ({"files": {"archive": {"size": 1, "sha256": SHA}}, "part_bytes": 1}, 400),
        ({"files": {"archive": {"size": 1, "sha256": SHA}}, "part_bytes": 2**30}, 400),
        ({"files": {"archive": {"size": 2**32, "sha256": SHA}}, "part_bytes": 2**18}, 400),
        ({"files": {"archive": {"size": 1, "sha256": SHA}}, "options": {"nonsense": 1}}, 400),
        ({"files": {"archive": {"size": 1, "sha256": SHA}}, "options": {"alias": "../x"}}, 422),
        ({"files": {"archive": {"size": 1, "sha256": SHA}}, "extra": 1}, 422),
    ],
)
def test_beginnings_that_are_refused(place: Place, admin: httpx.Client, unit: Unit, body: Any, status: int) -> None:
    before = place.staged()
    answer = admin.post(f"/admin/tenants/{unit.slug}/adapters/pricing/uploads", json=body)
    assert answer.status_code == status, answer.text
    assert place.staged() == before


def test_names_are_checked_at_the_beginning(admin: httpx.Client, unit: Unit, files: PeftFiles) -> None:
    body = announced(**both(files))
    assert admin.post(f"/admin/tenants/{unit.slug}/adapters/tiny-llama/uploads", json=body).status_code == 422
    assert admin.post("/admin/tenants/absent/adapters/pricing/uploads", json=body).status_code == 404


def test_a_tenant_may_have_so_many_under_way(place: Place, admin: httpx.Client, unit: Unit, files: PeftFiles) -> None:
    most = place.site.settings.limits.open_uploads
    senders = [Sender.begin(admin, unit, both(files)) for _ in range(most)]
    path = f"/admin/tenants/{unit.slug}/adapters/another/uploads"
    refused = admin.post(path, json=announced(**both(files)))
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "busy")
    Sender.begin(admin, make_unit(admin), both(files))
    admin.delete(senders[0].path)
    assert admin.post(path, json=announced(**both(files))).status_code == 201


def test_two_finish_at_once(admin: httpx.Client, unit: Unit, files: PeftFiles) -> None:
    sender = Sender.begin(admin, unit, both(files)).send_all()
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: sender.finish(), range(4)))
    assert {answer.status_code for answer in answers} <= {200, 201, 409}
    assert [answer.status_code for answer in answers].count(201) == 1
    assert sender.finish().json()["version"] == 1
    versions = admin.get(f"/admin/tenants/{unit.slug}/adapters/pricing/versions").json()["data"]
    assert [version["version"] for version in versions] == [1]


def test_a_finish_whose_server_died_is_taken_over(
    place: Place, admin: httpx.Client, unit: Unit, files: PeftFiles
) -> None:
    sender = Sender.begin(admin, unit, both(files)).send_all()
    change_row(place, sender.upload["id"], state="finishing", updated_at=datetime.now(UTC))
    busy = sender.finish()
    assert (busy.status_code, sender.show()["state"]) == (409, "finishing")
    assert admin.delete(sender.path).status_code == 409
    change_row(place, sender.upload["id"], updated_at=datetime.now(UTC) - timedelta(minutes=2))
    assert sender.finish().status_code == 201


def test_a_store_or_engine_that_does_not_answer_leaves_it_open(
    place: Place, admin: httpx.Client, unit: Unit, files: PeftFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    from app.domain.errors import EngineUnavailable

    sender = Sender.begin(admin, unit, both(files)).send_all()
    with monkeypatch.context() as patch:
        patch.setattr(place.site.engine, "smoke_result", EngineUnavailable("it restarts"))
        assert sender.finish().status_code == 503
    shown = sender.show()
    assert shown["state"] == "open"
    # The parts have been assembled into files: no part is missing or sent again.
    assert {name: file["received"] for name, file in shown["files"].items()} == {CONFIG: [1], WEIGHTS: [1]}
    assert sender.finish().status_code in (200, 201)


def test_an_expired_upload_takes_nothing_and_is_swept(
    place: Place, admin: httpx.Client, unit: Unit, files: PeftFiles
) -> None:
    sender, other = Sender.begin(admin, unit, both(files)), Sender.begin(admin, unit, both(files))
    sender.send(CONFIG, 1)
    other.send_all()
    change_row(place, sender.upload["id"], expires_at=datetime.now(UTC) - timedelta(seconds=1))
    assert sender.put(WEIGHTS, 1).status_code == 409
    assert sender.finish().status_code == 409
    sweep(place, later=timedelta(0))
    assert sender.show()["state"] == "aborted"
    assert not [name for name in place.staged() if sender.upload["id"] in name]
    assert other.finish().status_code == 201


def test_what_a_crash_left_in_the_store_is_swept(
    place: Place, admin: httpx.Client, unit: Unit, files: PeftFiles
) -> None:
    kept, lost = Sender.begin(admin, unit, both(files)), Sender.begin(admin, unit, both(files)).send_all()
    in_registry(place, lambda connection: connection.execute(uploads.delete().where(uploads.c.id == lost.upload["id"])))
    change_row(place, kept.upload["id"], expires_at=datetime.now(UTC) + timedelta(days=60))
    sweep(place, later=timedelta(hours=25))
    assert not [name for name in place.staged() if lost.upload["id"] in name]
    assert kept.send_all().finish().status_code == 201


def test_urls_are_for_stores_that_have_them(place: Place, admin: httpx.Client, unit: Unit, files: PeftFiles) -> None:
    sender = Sender.begin(admin, unit, both(files))
    path = f"{sender.path}/files/{WEIGHTS}/urls"
    one = {"number": 1, "sha256": SHA}
    if place.endpoint is None:
        assert admin.post(path, json={"parts": [one]}).status_code == 409
        return
    answer = admin.post(path, json={"parts": [one]})
    assert answer.status_code == 200
    [leave] = answer.json()["urls"]
    assert leave["headers"]["content-length"] == str(len(files.weights))
    for body, status in [
        ({"parts": []}, 422),
        ({"parts": [one] * 101}, 422),
        ({"parts": [{"number": 2, "sha256": SHA}]}, 400),
        ({"parts": [{"number": 0, "sha256": SHA}]}, 400),
        ({"parts": [{"number": 1, "sha256": "x"}]}, 400),
    ]:
        assert admin.post(path, json=body).status_code == status, body
    assert admin.post(f"{sender.path}/files/archive/urls", json={"parts": [one]}).status_code == 404


def test_no_wait_answers_before_the_smoke_check(
    place: Place, admin: httpx.Client, unit: Unit, files: PeftFiles
) -> None:
    sender = Sender.begin(admin, unit, both(files), options={"wait": False}).send_all()
    place.site.engine.may_smoke.clear()
    try:
        answer = sender.finish()
        assert (answer.status_code, answer.json()["state"]) == (202, "validating")
        assert sender.show()["state"] == "done"
    finally:
        place.site.engine.may_smoke.set()
