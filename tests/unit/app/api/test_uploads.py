"""Uploads over HTTP: refusals, and no files left behind by a refused upload."""

import asyncio
import json
import resource
import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from sqlalchemy import func, select

from app.database.session import Database
from app.database.tables import audit, versions
from app.database.urls import database_url
from app.services.catalog.adapters import AdapterService
from tests.support.serving import PeftFiles
from tests.support.site import Site, Unit, make_unit, parts, running_site

BOUNDARY = "the-boundary"


@pytest.fixture(scope="module")
def narrow(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A server that takes one small upload at a time and aborts an idle one after two seconds."""
    limits = {"config_bytes": 4096, "weights_bytes": 2**17, "uploads": 1, "upload_idle_seconds": 2}
    with running_site(tmp_path_factory.mktemp("narrow"), base, limits=limits) as site:
        yield site


def _versions(unit: Unit) -> str:
    return f"/admin/tenants/{unit.slug}/adapters/pricing/versions"


def _form(*named: tuple[str, bytes], closed: bool = True) -> bytes:
    """Build a multipart body by hand, so that it can be malformed."""
    body = b"".join(
        f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n'.encode() + content + b"\r\n"
        for name, content in named
    )
    return body + (f"--{BOUNDARY}--\r\n".encode() if closed else b"")


def _post_form(client: httpx.Client, unit: Unit, body: bytes) -> httpx.Response:
    headers = {"content-type": f"multipart/form-data; boundary={BOUNDARY}"}
    return client.post(_versions(unit), content=body, headers=headers)


def _reasons(answer: httpx.Response) -> list[tuple[str, str]]:
    assert answer.status_code == 422, answer.text
    return [(reason["code"], reason["field"]) for reason in answer.json()["error"]["reasons"]]


def _is_clean(site: Site) -> bool:
    return not list(site.spool.glob("*/*"))


async def _newest_rejection(site: Site) -> tuple[str, list[str]]:
    """Return the subject of the newest rejection and the codes of its reasons."""
    database = Database(database_url(site.settings))
    rejections = select(audit.c.subject, audit.c.after).where(audit.c.action == "version.rejected")
    async with database.read() as connection:
        row = (await connection.execute(rejections.order_by(audit.c.id.desc()).limit(1))).one()
    await database.close()
    return row.subject, row.after["reasons"]


def _request_head(unit: Unit, key: str, length: int) -> bytes:
    return (
        f"POST {_versions(unit)} HTTP/1.1\r\nhost: test\r\nauthorization: Bearer {key}\r\n"
        f"content-type: multipart/form-data; boundary={BOUNDARY}\r\ncontent-length: {length}\r\n"
        "expect: 100-continue\r\n\r\n"
    ).encode()


def _connect(site: Site) -> socket.socket:
    parsed = urlsplit(site.url)
    return socket.create_connection((str(parsed.hostname), int(parsed.port or 0)), timeout=30)


def test_the_same_bytes_are_the_same_version(admin: httpx.Client, unit: Unit, files: PeftFiles) -> None:
    first = admin.post(_versions(unit), files=parts(files))
    second = admin.post(_versions(unit), files=parts(files))
    assert (first.status_code, second.status_code) == (201, 200)
    assert first.json() == second.json()
    assert first.headers["location"] == second.headers["location"]


def test_new_bytes_are_a_new_version_and_the_default(
    admin: httpx.Client, unit: Unit, files: PeftFiles, other_files: PeftFiles
) -> None:
    admin.post(_versions(unit), files=parts(files))
    second = admin.post(_versions(unit), files=parts(other_files)).json()
    assert (second["version"], second["aliases"]) == (2, ["default"])
    assert [v["version"] for v in admin.get(_versions(unit)).json()["data"]] == [2, 1]
    assert admin.get(f"{_versions(unit)}/1").json()["aliases"] == []


def test_names_in_the_form_are_never_paths(site: Site, admin: httpx.Client, unit: Unit, files: PeftFiles) -> None:
    evil = {
        "adapter_config.json": ("../../../evil.json", files.config),
        "adapter_model.safetensors": ("/evil.safetensors", files.weights),
    }
    assert admin.post(_versions(unit), files=evil).status_code == 201
    assert _is_clean(site)


def test_an_unservable_adapter_is_refused_with_every_reason(
    site: Site, admin: httpx.Client, unit: Unit, files: PeftFiles
) -> None:
    config = json.loads(files.config) | {"peft_type": "IA3", "r": 8}
    blobs = site.blobs
    answer = admin.post(_versions(unit), files=parts(PeftFiles(json.dumps(config).encode(), files.weights)))
    assert "unsupported_peft_type" in [code for code, _ in _reasons(answer)]
    error = answer.json()["error"]
    assert (error["type"], error["code"]) == ("invalid_request_error", "adapter_rejected")
    keys = {"code", "field", "found", "allowed", "message", "count", "examples"}
    assert all(set(reason) == keys for reason in error["reasons"])
    assert error["message"].startswith(error["reasons"][0]["message"])
    assert admin.get(_versions(unit)).status_code == 404
    assert site.blobs == blobs
    assert _is_clean(site)
    codes = [code for code, _ in _reasons(answer)]
    assert asyncio.run(_newest_rejection(site)) == ("pricing", codes)


def test_everything_wrong_with_a_form_is_said_at_once(site: Site, admin: httpx.Client, unit: Unit) -> None:
    body = _form(
        ("adapter_config.json", b"{}"), ("surprise", b"?"), ("adapter_config.json", b"{}"), ("", b"."), closed=False
    )
    assert _reasons(_post_form(admin, unit, body)) == [
        ("unknown_part", "body"),
        ("duplicate_part", "adapter_config.json"),
        ("malformed_multipart", "body"),
        ("missing_part", "adapter_model.safetensors"),
    ]
    assert _is_clean(site)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "malformed_multipart"),
        (b"no boundary anywhere", "malformed_multipart"),
        (f"--{BOUNDARY}\r\nbad header\x00: x\r\n\r\n".encode(), "malformed_multipart"),
        (f"--{BOUNDARY}--\r\n".encode(), "missing_part"),
        (_form(*[("surprise", b"")] * 100), "too_many_parts"),
    ],
)
def test_malformed_forms(admin: httpx.Client, unit: Unit, body: bytes, code: str) -> None:
    assert code in [found for found, _ in _reasons(_post_form(admin, unit, body))]


@pytest.mark.parametrize(
    "content_type",
    [
        "application/json",
        "multipart/form-data",
        "multipart/form-data; boundary=",
        f"multipart/form-data; boundary={'b' * 300}",
        f"multipart/mixed; boundary={BOUNDARY}",
    ],
)
def test_other_content_types(admin: httpx.Client, unit: Unit, content_type: str) -> None:
    answer = admin.post(_versions(unit), content=b"{}", headers={"content-type": content_type})
    assert _reasons(answer) == [("not_multipart", "content-type")]


@pytest.mark.parametrize("name", ["Pricing", "text", "tiny-llama", "a" * 64, ".hidden", "pricing@3"])
def test_names_are_checked_before_any_byte_is_read(site: Site, admin: httpx.Client, unit: Unit, name: str) -> None:
    path = f"/admin/tenants/{unit.slug}/adapters/{name}/versions"
    answer = admin.post(path, content=b"", headers={"content-type": "text/plain"})
    assert answer.status_code == 422
    assert answer.json()["error"]["code"] == "invalid_name"


def test_an_absent_tenant_is_found_out_before_any_byte_is_read(admin: httpx.Client) -> None:
    answer = admin.post("/admin/tenants/absent/adapters/pricing/versions", content=b"")
    assert (answer.status_code, answer.json()["error"]["param"]) == (404, "tenant")


def test_the_bytes_of_a_quarantined_version_are_refused(
    site: Site, admin: httpx.Client, unit: Unit, files: PeftFiles
) -> None:
    assert admin.post(_versions(unit), files=parts(files)).status_code == 201
    asyncio.run(_quarantine_newest(site))
    answer = admin.post(_versions(unit), files=parts(files))
    assert answer.status_code == 409
    assert answer.json()["error"]["code"] == "adapter_quarantined"
    assert answer.headers["x-should-retry"] == "false"


async def _quarantine_newest(site: Site) -> None:
    """Quarantine the newest version, as another node does when the version fails to load there."""
    database = Database(database_url(site.settings))
    async with database.read() as connection:
        version_id = await connection.scalar(select(func.max(versions.c.id)))
    assert await AdapterService(database, base_name="base", base_digest="b" * 64).quarantine(
        version_id, "it did not load"
    )
    await database.close()


def test_files_beyond_their_caps(narrow: Site) -> None:
    with narrow.client(narrow.admin_key) as admin:
        unit = make_unit(admin)
        for name, size in (("adapter_config.json", 4097), ("adapter_model.safetensors", 2**17 + 1)):
            answer = _post_form(admin, unit, _form((name, b" " * size)))
            assert (answer.status_code, answer.json()["error"]["param"]) == (413, name)
        announced = _post_form(admin, unit, _form(("surprise", b" " * 2**20)))
        assert (announced.status_code, announced.json()["error"]["param"]) == (413, "body")
        chunks = iter([_form(("surprise", b" " * 2**17), closed=False), b" " * 2**20])
        headers = {"content-type": f"multipart/form-data; boundary={BOUNDARY}"}
        chunked = admin.post(_versions(unit), content=chunks, headers=headers)
        assert (chunked.status_code, chunked.json()["error"]["param"]) == (413, "body")
    assert _is_clean(narrow)


def test_an_upload_cut_half_way_leaves_nothing(narrow: Site, files: PeftFiles) -> None:
    body = _form(("adapter_config.json", files.config), ("adapter_model.safetensors", files.weights))
    with narrow.client(narrow.admin_key) as admin:
        unit = make_unit(admin)
        with _connect(narrow) as connection:
            connection.sendall(_request_head(unit, narrow.admin_key, len(body)))
            # The server sends 100 Continue once it reads the body, so this upload holds the only slot.
            assert connection.recv(64).startswith(b"HTTP/1.1 100 ")
            assert list(narrow.spool.glob("*/*"))
            connection.sendall(body[: len(body) // 2])
        # This upload gets the slot after all files of the other one are gone.
        answer = _post_form(admin, unit, body)
        assert answer.status_code == 201
        assert answer.json()["version"] == 1
    assert _is_clean(narrow)


def test_an_upload_that_stands_still_is_ended(narrow: Site) -> None:
    with narrow.client(narrow.admin_key) as admin:
        unit = make_unit(admin)
    with _connect(narrow) as connection:
        connection.sendall(_request_head(unit, narrow.admin_key, 1000))
        assert connection.recv(64).startswith(b"HTTP/1.1 100 ")
        assert connection.recv(4096).startswith(b"HTTP/1.1 400 ")
    assert _is_clean(narrow)


def test_a_full_disk(site: Site, admin: httpx.Client, unit: Unit, files: PeftFiles) -> None:
    size = 64 * 2**20
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        answer = admin.post(_versions(unit), files=parts(PeftFiles(files.config, bytes(size + 2**20))))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "disk_full"
    assert "retry-after" in answer.headers
    assert _is_clean(site)
    assert admin.post(_versions(unit), files=parts(files)).status_code == 201


DORA = b'{"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj"], "use_dora": true}'


def _first_parts(config: bytes) -> bytes:
    """Return the whole config part and the beginning of the weights part."""
    head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="adapter_model.safetensors"\r\n\r\n'
    return _form(("adapter_config.json", config), closed=False) + head.encode() + b"w"


def test_a_config_is_refused_before_the_weights_are_read(site: Site, admin: httpx.Client, unit: Unit) -> None:
    """Announce a large body, but send only its beginning."""
    sent = _first_parts(DORA)
    with _connect(site) as connection:
        connection.sendall(_request_head(unit, site.admin_key, 2**28) + sent)
        answer = b""
        while chunk := connection.recv(65536):
            answer += chunk
    head, _, body = answer.removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n").partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 422 ")
    assert b"connection: close" in head.lower()
    assert [reason["field"] for reason in json.loads(body)["error"]["reasons"]] == ["use_dora"]
    assert _is_clean(site)


def test_a_small_upload_gets_the_reasons_of_both_files(admin: httpx.Client, unit: Unit, files: PeftFiles) -> None:
    config = json.dumps(json.loads(files.config) | {"use_dora": True, "r": 8}).encode()
    answer = admin.post(_versions(unit), files=parts(PeftFiles(config, files.weights)))
    assert [code for code, _ in _reasons(answer)] == ["unsupported_feature", "rank_mismatch"]
    mismatch = answer.json()["error"]["reasons"][1]
    assert (mismatch["count"], len(mismatch["examples"])) == (6, 3)


def test_a_large_upload_with_a_good_config_goes_on(admin: httpx.Client, unit: Unit, files: PeftFiles) -> None:
    weights = files.weights + bytes(5 * 2**20)
    answer = admin.post(_versions(unit), files=parts(PeftFiles(files.config, weights)))
    assert _reasons(answer) == [("data_layout", "adapter_model.safetensors")]


def test_a_pickle_as_a_part_gets_the_way_to_convert_it(admin: httpx.Client, unit: Unit, files: PeftFiles) -> None:
    body = _form(("adapter_config.json", files.config), ("adapter_model.bin", b"PK"))
    answer = _post_form(admin, unit, body)
    assert _reasons(answer) == [("pickle_format", "adapter_model.bin")]
    assert "--convert" in answer.json()["error"]["message"]
    announced = {
        "adapter_config.json": {"size": 1, "sha256": "0" * 64},
        "adapter_model.bin": {"size": 1, "sha256": "0" * 64},
    }
    begun = admin.post(f"/admin/tenants/{unit.slug}/adapters/pricing/uploads", json={"files": announced})
    assert begun.status_code == 400
    assert "--convert" in begun.json()["error"]["message"]


@pytest.mark.parametrize(
    ("trained_on", "warned"),
    [
        ("meta-llama/Llama-3.1-8B", True),
        ("someone/Tiny_Llama", False),
        ("/srv/tiny-llama/", False),
        (None, False),
        ("", False),
    ],
)
def test_a_base_of_another_name_is_a_warning(
    admin: httpx.Client, unit: Unit, files: PeftFiles, trained_on: str | None, warned: bool
) -> None:
    config = json.dumps(json.loads(files.config) | {"base_model_name_or_path": trained_on}).encode()
    published = admin.post(_versions(unit), files=parts(PeftFiles(config, files.weights)))
    assert published.status_code == 201, published.text
    warnings = published.json()["warnings"]
    assert len(warnings) == warned
    assert all(str(trained_on) in warning and "this server's base is tiny-llama" in warning for warning in warnings)
    assert admin.get(f"{_versions(unit)}/1").json()["warnings"] == warnings
    assert admin.get(_versions(unit)).json()["data"][0]["warnings"] == warnings


def test_a_share_does_not_reveal_its_training_base(admin: httpx.Client, unit: Unit, files: PeftFiles) -> None:
    config = json.dumps(json.loads(files.config) | {"base_model_name_or_path": "/home/ada/secret-base"}).encode()
    assert admin.post(_versions(unit), files=parts(PeftFiles(config, files.weights))).status_code == 201
    other = make_unit(admin)
    assert admin.put(f"/admin/tenants/{unit.slug}/adapters/pricing/shares/{other.slug}").status_code == 201
    path = f"/v1/shared/{unit.slug}/pricing/versions/1"
    shown = admin.get(path, headers={"authorization": f"Bearer {other.key}"})
    assert shown.status_code == 200, shown.text
    assert "secret-base" not in shown.text
