"""Download of a version's files over HTTP, as they were uploaded."""

import asyncio
import base64
import hashlib
import json
import socket
import time
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from adapters.cache import Lease
from adapters.identity import content_digest
from app.api.version_files import answer_of
from app.services.publishing.export import ExportedFile
from tests.support.odd_adapters import ODD
from tests.support.serving import PeftFiles
from tests.support.site import Site, Unit, make_unit, parts

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


def _version(unit: Unit, number: int = 1) -> str:
    return f"/admin/tenants/{unit.slug}/adapters/pricing/versions/{number}"


def _publish(admin: httpx.Client, unit: Unit, files: PeftFiles) -> None:
    answer = admin.post(f"/admin/tenants/{unit.slug}/adapters/pricing/versions", files=parts(files))
    assert answer.status_code == 201, answer.text


@pytest.mark.parametrize("name", [CONFIG, WEIGHTS])
def test_the_bytes_that_were_uploaded(admin: httpx.Client, unit: Unit, files: PeftFiles, name: str) -> None:
    _publish(admin, unit, files)
    expected = {CONFIG: files.config, WEIGHTS: files.weights}[name]
    answer = admin.get(f"{_version(unit)}/files/{name}")
    assert (answer.status_code, answer.content) == (200, expected)
    digest = hashlib.sha256(expected)
    assert answer.headers["content-length"] == str(len(expected))
    assert answer.headers["etag"] == f'"{digest.hexdigest()}"'
    assert answer.headers["repr-digest"] == f"sha-256=:{base64.b64encode(digest.digest()).decode()}:"
    assert answer.headers["content-disposition"] == f'attachment; filename="{name}"'
    assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("name", [CONFIG, WEIGHTS])
def test_the_uploaded_bytes_where_the_engine_reads_others(
    admin: httpx.Client, unit: Unit, files: PeftFiles, tmp_path: Path, name: str
) -> None:
    (tmp_path / CONFIG).write_bytes(files.config)
    (tmp_path / WEIGHTS).write_bytes(files.weights)
    ODD["no prefix, and expressions"].change(tmp_path)
    odd = PeftFiles((tmp_path / CONFIG).read_bytes(), (tmp_path / WEIGHTS).read_bytes())
    answer = admin.post(f"/admin/tenants/{unit.slug}/adapters/pricing/versions", files=parts(odd))
    assert answer.status_code == 201, answer.text
    digests = [hashlib.sha256(content).hexdigest() for content in (odd.config, odd.weights)]
    assert answer.json()["digest"] == f"sha256:{content_digest(*digests)}"
    assert answer.json()["size_bytes"] == len(odd.config) + len(odd.weights)
    assert answer.json()["manifest"] == json.loads(odd.config)
    assert admin.get(f"{_version(unit)}/files/{name}").content == {CONFIG: odd.config, WEIGHTS: odd.weights}[name]
    again = admin.post(f"/admin/tenants/{unit.slug}/adapters/pricing/versions", files=parts(odd))
    assert (again.status_code, again.json()["version"]) == (200, 1)


def test_a_tenant_reads_its_own_only(site: Site, admin: httpx.Client, unit: Unit, files: PeftFiles) -> None:
    _publish(admin, unit, files)
    other = make_unit(admin)
    with site.client(unit.key) as own, site.client(other.key) as stranger:
        assert own.get(f"/v1/adapters/pricing/versions/1/files/{CONFIG}").content == files.config
        assert own.get(f"{_version(unit)}/files/{CONFIG}").content == files.config
        foreign = stranger.get(f"{_version(unit)}/files/{CONFIG}")
        absent = stranger.get(f"/admin/tenants/absent/adapters/pricing/versions/1/files/{CONFIG}")
        assert (foreign.status_code, absent.status_code) == (404, 404)
        assert foreign.json()["error"]["code"] == absent.json()["error"]["code"]
        assert stranger.get(f"/v1/adapters/pricing/versions/1/files/{CONFIG}").status_code == 404


def test_a_key_without_the_scope(site: Site, admin: httpx.Client, unit: Unit, files: PeftFiles) -> None:
    _publish(admin, unit, files)
    made = admin.post(f"/admin/tenants/{unit.slug}/keys", json={"name": "infers", "scopes": ["inference"]}).json()
    with site.client(made["key"]) as client:
        assert client.get(f"/v1/adapters/pricing/versions/1/files/{CONFIG}").status_code == 403


@pytest.mark.parametrize("name", ["README.md", "..%2f..%2fetc%2fpasswd", "adapter_config.json%00", "tmp"])
def test_other_names(admin: httpx.Client, unit: Unit, files: PeftFiles, name: str) -> None:
    _publish(admin, unit, files)
    assert admin.get(f"{_version(unit)}/files/{name}").status_code == 404


def test_versions_that_are_not_there(admin: httpx.Client, unit: Unit, files: PeftFiles) -> None:
    _publish(admin, unit, files)
    assert admin.get(f"{_version(unit, 2)}/files/{CONFIG}").status_code == 404
    deleted = admin.request("DELETE", _version(unit), params={"force": "true"})
    assert deleted.is_success, deleted.text
    assert admin.get(f"{_version(unit)}/files/{CONFIG}").status_code == 404


def _begin_download(site: Site, unit: Unit) -> socket.socket:
    """Request the weights and read only the first bytes of the response."""
    parsed = urlsplit(site.url)
    connection = socket.create_connection((str(parsed.hostname), int(parsed.port or 0)), timeout=30)
    path = f"/v1/adapters/pricing/versions/1/files/{WEIGHTS}"
    head = f"GET {path} HTTP/1.1\r\nhost: test\r\nauthorization: Bearer {unit.key}\r\n\r\n"
    connection.sendall(head.encode())
    assert connection.recv(16).startswith(b"HTTP/1.1 200 ")
    return connection


def test_a_reader_that_goes_away_gives_its_lease_back(
    site: Site, admin: httpx.Client, unit: Unit, files: PeftFiles
) -> None:
    """A deletion waits for readers, so it could not end if a lease leaked."""
    _publish(admin, unit, files)
    for _ in range(3):
        _begin_download(site, unit).close()
    deleted = admin.request("DELETE", _version(unit), params={"force": "true"})
    assert deleted.is_success, deleted.text
    cache = site.settings.home / "cache"
    digest = hashlib.sha256(files.weights).hexdigest()
    for _ in range(300):
        if not any(hashlib.sha256(p.read_bytes()).hexdigest() == digest for p in cache.glob(f"*/{WEIGHTS}")):
            return
        time.sleep(0.1)
    pytest.fail("the version is still on this disk")


class _Client:
    """ASGI client that accepts ``takes`` messages and then disconnects."""

    def __init__(self, takes: int) -> None:
        self._left = takes
        self._gone = asyncio.Event()

    async def receive(self) -> dict[str, object]:
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: object) -> None:
        if self._left == 0:
            self._gone.set()
            # The client has disconnected, so this send never completes.
            await asyncio.Event().wait()
        self._left -= 1


def _exported(path: Path, released: list[str]) -> ExportedFile:
    path.write_bytes(bytes(5 * 2**20))
    return ExportedFile(path, WEIGHTS, "0" * 64, 5 * 2**20, Lease(path.parent, lambda: released.append("released")))


@pytest.mark.parametrize("takes", [0, 1, 3])
async def test_the_lease_ends_with_a_client_that_goes_away(tmp_path: Path, takes: int) -> None:
    released: list[str] = []
    client = _Client(takes)
    await answer_of(_exported(tmp_path / WEIGHTS, released))({}, client.receive, client.send)
    assert released == ["released"]


async def test_the_lease_ends_with_a_file_that_is_gone(tmp_path: Path) -> None:
    released: list[str] = []
    client, file = _Client(9), _exported(tmp_path / WEIGHTS, released)
    file.path.unlink()
    with pytest.raises(FileNotFoundError):
        await answer_of(file)({}, client.receive, client.send)
    assert released == ["released"]
