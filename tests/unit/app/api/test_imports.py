"""Imports over HTTP, from a hub and from S3 on the loopback interface."""

import asyncio
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import select

from app.database.session import Database
from app.database.tables import versions
from app.database.urls import database_url
from tests.support.hubserver import COMMIT, FakeHub, hub_server
from tests.support.s3server import s3_client, s3_server
from tests.support.serving import PeftFiles
from tests.support.site import Site, Unit, make_unit, running_site

BUCKET = "training-runs"


@pytest.fixture(scope="module")
def fake_hub() -> Iterator[FakeHub]:
    with hub_server(FakeHub(token="hf_secret", large=True)) as hub:
        yield hub


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    with s3_server() as url:
        s3_client(url).create_bucket(Bucket=BUCKET)
        yield url


@pytest.fixture(scope="module")
def open_site(base: Path, tmp_path_factory: pytest.TempPathFactory, fake_hub: FakeHub, s3: str) -> Iterator[Site]:
    """A server with imports enabled."""
    imports = {
        "hf": True,
        "hf_endpoint": fake_hub.url,
        "hf_token": "hf_secret",
        "hf_owners": ["org"],
        "s3_prefixes": [f"s3://{BUCKET}/shared/"],
    }
    home = tmp_path_factory.mktemp("open")
    with running_site(home, base, imports=imports, s3_endpoint_url=s3, limits={"weights_bytes": 2**20}) as site:
        yield site


@pytest.fixture
def admin(open_site: Site) -> Iterator[httpx.Client]:
    with open_site.client(open_site.admin_key) as client:
        yield client


@pytest.fixture
def unit(admin: httpx.Client) -> Unit:
    return make_unit(admin)


def _post(client: httpx.Client, path: str, source: str, **options: object) -> httpx.Response:
    return client.post(f"{path}/pricing/imports", json={"source": source, "options": options})


def _path(unit: Unit) -> str:
    return f"/admin/tenants/{unit.slug}/adapters"


def _put(s3: str, prefix: str, files: PeftFiles) -> None:
    client = s3_client(s3)
    client.put_object(Bucket=BUCKET, Key=f"{prefix}adapter_config.json", Body=files.config)
    client.put_object(Bucket=BUCKET, Key=f"{prefix}adapter_model.safetensors", Body=files.weights)


def _hold(hub: FakeHub, files: PeftFiles) -> str:
    """Put the files into a new folder of the fake hub and return the folder's name."""
    folder = uuid.uuid4().hex
    hub.files[f"{folder}/adapter_config.json"] = files.config
    hub.files[f"{folder}/adapter_model.safetensors"] = files.weights
    return folder


async def _source_of(site: Site, digest: str) -> dict[str, Any]:
    database = Database(database_url(site.settings))
    query = select(versions.c.source).where(versions.c.digest == digest.removeprefix("sha256:"))
    async with database.read() as connection:
        source: Any = await connection.scalar(query)
    await database.close()
    return dict(source)


def test_from_the_hub(open_site: Site, admin: httpx.Client, unit: Unit, fake_hub: FakeHub, files: PeftFiles) -> None:
    source = f"hf://org/repo@{COMMIT}/{_hold(fake_hub, files)}"
    answer = _post(admin, _path(unit), source, labels={"from": "hub"})
    assert answer.status_code == 201, answer.text
    assert answer.headers["location"] == f"{_path(unit)}/pricing/versions/1"
    told = asyncio.run(_source_of(open_site, answer.json()["digest"]))
    assert (told["kind"], told["from"], told["commit"]) == ("import", source, COMMIT)
    assert "hf_secret" not in answer.text
    assert not list(open_site.spool.glob("*/*"))
    again = _post(admin, _path(unit), source)
    assert (again.status_code, again.json()["digest"]) == (200, answer.json()["digest"])


def test_a_tenant_s_own_key(open_site: Site, unit: Unit, fake_hub: FakeHub, files: PeftFiles) -> None:
    source = f"hf://org/repo@{COMMIT}/{_hold(fake_hub, files)}"
    with open_site.client(unit.key) as client:
        assert _post(client, "/v1/adapters", source).status_code == 201
        assert client.get("/v1/adapters/pricing").json()["versions"] == [1]


def test_another_tenant_s_name_is_not_found(open_site: Site, admin: httpx.Client, unit: Unit) -> None:
    other = make_unit(admin)
    with open_site.client(unit.key) as client:
        foreign = _post(client, _path(other), f"hf://org/repo@{COMMIT}")
        absent = _post(client, "/admin/tenants/absent/adapters", f"hf://org/repo@{COMMIT}")
    assert foreign.status_code == absent.status_code == 404
    assert foreign.json()["error"]["code"] == absent.json()["error"]["code"]


def test_from_s3(open_site: Site, admin: httpx.Client, unit: Unit, s3: str, files: PeftFiles) -> None:
    prefix = f"shared/{uuid.uuid4().hex}/"
    _put(s3, prefix, files)
    answer = _post(admin, _path(unit), f"s3://{BUCKET}/{prefix}")
    assert answer.status_code == 201, answer.text
    told = asyncio.run(_source_of(open_site, answer.json()["digest"]))
    assert (told["kind"], told["from"]) == ("import", f"s3://{BUCKET}/{prefix}")
    assert not list(open_site.spool.glob("*/*"))


def test_keys_are_exact(admin: httpx.Client, unit: Unit, s3: str, files: PeftFiles) -> None:
    """Files in a deeper folder, or under longer names, do not belong to the prefix."""
    name = uuid.uuid4().hex
    _put(s3, f"shared/{name}-longer/", files)
    _put(s3, f"shared/{name}/deeper/", files)
    _put(s3, f"shared/{name}/old_", files)
    answer = _post(admin, _path(unit), f"s3://{BUCKET}/shared/{name}/")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "source")
    assert "adapter_config.json" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("source", "setting"),
    [
        (f"s3://{BUCKET}/", "TENORA_IMPORTS__S3_PREFIXES"),
        (f"s3://{BUCKET}/shared2/x/", "TENORA_IMPORTS__S3_PREFIXES"),
        (f"s3://{BUCKET}/private/", "TENORA_IMPORTS__S3_PREFIXES"),
        ("s3://another/shared/", "TENORA_IMPORTS__S3_PREFIXES"),
        (f"hf://stranger/repo@{COMMIT}", "TENORA_IMPORTS__HF_OWNERS"),
        (f"hf://Org/repo@{COMMIT}", "TENORA_IMPORTS__HF_OWNERS"),
        ("hf://org/repo@main", "40 hex digits"),
        ("file:///etc", "hf://"),
    ],
)
def test_sources_that_are_not_allowed(
    admin: httpx.Client, unit: Unit, fake_hub: FakeHub, source: str, setting: str
) -> None:
    asked = len(fake_hub.asked)
    answer = _post(admin, _path(unit), source)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "source")
    assert setting in answer.json()["error"]["message"]
    assert len(fake_hub.asked) == asked


def test_nothing_is_imported_unless_the_settings_say_so(site: Site) -> None:
    with site.client(site.admin_key) as admin:
        path = _path(make_unit(admin))
        for source, setting in (
            (f"hf://org/repo@{COMMIT}", "TENORA_IMPORTS__HF of"),
            (f"s3://{BUCKET}/shared/", "TENORA_IMPORTS__S3_PREFIXES"),
        ):
            answer = _post(admin, path, source)
            assert answer.status_code == 400
            assert setting in answer.json()["error"]["message"]


def test_what_the_gate_refuses(
    open_site: Site, admin: httpx.Client, unit: Unit, fake_hub: FakeHub, files: PeftFiles
) -> None:
    folder = _hold(fake_hub, PeftFiles(files.config, files.weights[:-1]))
    answer = _post(admin, _path(unit), f"hf://org/repo@{COMMIT}/{folder}")
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "adapter_rejected")
    assert not list(open_site.spool.glob("*/*"))


def test_a_pickle_alone_gets_the_way_to_convert_it(
    open_site: Site, admin: httpx.Client, unit: Unit, fake_hub: FakeHub, s3: str, files: PeftFiles
) -> None:
    folder = uuid.uuid4().hex
    held = {"adapter_config.json": files.config, "adapter_model.bin": b"PK"}
    fake_hub.files |= {f"{folder}/{name}": data for name, data in held.items()}
    for name, data in held.items():
        s3_client(s3).put_object(Bucket=BUCKET, Key=f"shared/{folder}/{name}", Body=data)
    for source in (f"hf://org/repo@{COMMIT}/{folder}", f"s3://{BUCKET}/shared/{folder}/"):
        answer = _post(admin, _path(unit), source)
        assert answer.status_code == 422, answer.text
        (reason,) = answer.json()["error"]["reasons"]
        assert (reason["code"], reason["field"]) == ("pickle_format", "adapter_model.bin")
        assert "weights_only=True" in reason["message"]
    assert not list(open_site.spool.glob("*/*"))


def test_a_pickle_beside_safetensors_is_passed_over(
    open_site: Site, admin: httpx.Client, unit: Unit, fake_hub: FakeHub, files: PeftFiles
) -> None:
    folder = _hold(fake_hub, files)
    fake_hub.files[f"{folder}/adapter_model.bin"] = b"PK"
    fake_hub.asked.clear()
    assert _post(admin, _path(unit), f"hf://org/repo@{COMMIT}/{folder}").status_code == 201
    assert not any(path.endswith(".bin") for path, _ in fake_hub.asked)


def test_a_file_beyond_its_cap(
    open_site: Site, admin: httpx.Client, unit: Unit, fake_hub: FakeHub, s3: str, files: PeftFiles
) -> None:
    large = PeftFiles(files.config, bytes(2**20 + 1))
    prefix = f"shared/{uuid.uuid4().hex}/"
    _put(s3, prefix, large)
    for source in (f"hf://org/repo@{COMMIT}/{_hold(fake_hub, large)}", f"s3://{BUCKET}/{prefix}"):
        answer = _post(admin, _path(unit), source)
        assert (answer.status_code, answer.json()["error"]["param"]) == (413, "adapter_model.safetensors")
    assert not list(open_site.spool.glob("*/*"))


def test_options_and_names_are_checked_before_a_fetch(admin: httpx.Client, unit: Unit, fake_hub: FakeHub) -> None:
    asked = len(fake_hub.asked)
    source = f"hf://org/repo@{COMMIT}"
    assert _post(admin, _path(unit), source, surprise=1).status_code == 400
    answer = admin.post(f"{_path(unit)}/Bad Name/imports", json={"source": source})
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "invalid_name")
    for body in ({}, {"source": 1}, {"source": source, "token": "hf_other"}):
        assert admin.post(f"{_path(unit)}/pricing/imports", json=body).status_code == 422
    assert len(fake_hub.asked) == asked


def test_a_hub_that_fails(open_site: Site, admin: httpx.Client, unit: Unit, fake_hub: FakeHub) -> None:
    folder = uuid.uuid4().hex
    fake_hub.overrides[fake_hub.path(f"{folder}/adapter_config.json")] = 500, {}, b"a secret of the hub"
    answer = _post(admin, _path(unit), f"hf://org/repo@{COMMIT}/{folder}")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "source_unavailable")
    assert "secret" not in answer.text
    assert "retry-after" in answer.headers
