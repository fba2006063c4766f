"""Backup and restore as docs/operations.md describes them: database, bucket and secrets, into a fresh HOME."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.demo.train import Demo
from tests.support.postgres import Postgres, postgres_server
from tests.support.s3server import s3_client, s3_server
from tests.support.server import TENORA, Server, environment, serving, set_up, until
from tests.support.server_fixtures import SLOTS

pytestmark = pytest.mark.slow

BODY = {"prompt": "[INST] Can you explain sugar? [/INST]", "max_tokens": 12, "temperature": 0, "ignore_eos": True}


@dataclass(frozen=True)
class Place:
    """Database, bucket and HOME of a server."""

    postgres: Postgres
    endpoint: str
    bucket: str
    home: Path
    base: Path

    @property
    def settings(self) -> dict[str, Any]:
        return SLOTS | {
            "TENORA_DATABASE_URL": self.postgres.url,
            "TENORA_STORE_URL": f"s3://{self.bucket}/adapters",
            "TENORA_S3_ENDPOINT_URL": self.endpoint,
        }

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        variables = environment(self.home, self.base, **self.settings)
        return subprocess.run([TENORA, "server", *arguments], env=variables, capture_output=True, text=True, check=True)


@pytest.fixture
def places(trained_demo: Demo, tmp_path: Path) -> Iterator[list[Place]]:
    """Two separate places: one that is backed up, and an empty one to restore to."""
    with ExitStack() as stack:
        endpoint = stack.enter_context(s3_server())
        made = []
        for name in ("first", "second"):
            s3_client(endpoint).create_bucket(Bucket=name)
            (tmp_path / name).mkdir()
            database = stack.enter_context(postgres_server())
            made.append(Place(database, endpoint, name, tmp_path / name, trained_demo.base))
        yield made


def back_up(place: Place, folder: Path) -> None:
    place.postgres.tool("pg_dump", "--format=custom", "--no-owner", f"--file={folder / 'dump'}", "postgres")
    s3 = s3_client(place.endpoint)
    for item in s3.list_objects_v2(Bucket=place.bucket)["Contents"]:
        target = folder / "bucket" / item["Key"]
        target.parent.mkdir(parents=True, exist_ok=True)
        s3.download_file(place.bucket, item["Key"], str(target))
    shutil.copytree(place.home / "secrets", folder / "secrets")


def restore(place: Place, folder: Path) -> None:
    place.postgres.tool("pg_restore", "--no-owner", "--exit-on-error", "--dbname=postgres", str(folder / "dump"))
    s3 = s3_client(place.endpoint)
    for path in (folder / "bucket").rglob("*"):
        if path.is_file():
            s3.upload_file(str(path), place.bucket, str(path.relative_to(folder / "bucket")))
    shutil.copytree(folder / "secrets", place.home / "secrets")


def answer(client: httpx.Client, model: str) -> str:
    done = client.post("/v1/completions", json=BODY | {"model": model})
    assert done.status_code == 200, done.text
    return str(done.json()["choices"][0]["text"])


def requests_of(server: Server, tenant: str) -> int:
    with server.client(server.admin_key) as admin:
        found = admin.get("/admin/usage", params={"tenant": tenant})
        assert found.status_code == 200, found.text
        return sum(row["requests"] for row in found.json()["data"])


def test_a_backup_is_served_from_a_fresh_home(places: list[Place], trained_demo: Demo, tmp_path: Path) -> None:
    first, second = places
    folder = tmp_path / "backup"
    folder.mkdir()
    admin_key = set_up(first.home, first.base, **first.settings)
    with serving(first.home, first.base, admin_key, **first.settings) as server:
        key = server.tenant("unit")
        assert server.publish("unit", "quotes", trained_demo.adapters["pricing"]).status_code == 201
        with server.client(key) as client:
            before = answer(client, "quotes")
        until(lambda: requests_of(server, "unit") == 1, 30)
        until(lambda: sealed(first) > 0, 30)
        # The server runs meanwhile, as in production.
        back_up(first, folder)
        assert server.publish("unit", "late", trained_demo.adapters["pricing"]).status_code == 201

    restore(second, folder)
    second.run("migrate", "--check")
    assert sealed(second) > 0
    with serving(second.home, second.base, admin_key, **second.settings) as server:
        with server.client(key) as client:
            assert answer(client, "quotes") == before
            assert client.post("/v1/completions", json=BODY | {"model": "late"}).status_code == 404
        until(lambda: requests_of(server, "unit") == 2, 30)
        assert json.loads(second.run("gc", "--dry-run", "--json").stdout)["dangling"] == []
        assert sealed(second) > 0


def sealed(place: Place) -> int:
    """Verify the audit trail, and return the number of its sealed rows."""
    verdict = json.loads(place.run("audit", "verify", "--json").stdout)
    assert verdict["problems"] == []
    return int(verdict["sealed"])
