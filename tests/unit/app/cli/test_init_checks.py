"""`init` with an unusable store or database: one error sentence that names it, and no files created."""

import asyncio
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import make_url

from app.cli.registry import works_for_platform
from app.settings import Settings
from tests.support.cli import Tenora
from tests.support.registry import run_on_server
from tests.support.s3server import s3_client, s3_server
from tests.support.serving import save_base

pytest_plugins = ("tests.support.registry_fixtures",)


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with s3_server() as url:
        yield url


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A local port that is bound but not listening, so that no other process can listen on it."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


def refused(alone: Tenora, *said: str, **environment: str) -> None:
    """Check that init fails with one error sentence that contains all of ``said``."""
    result = alone("init", exit_code=1, **environment)
    assert result.stdout == ""
    line = result.stderr.splitlines()[-1]
    assert line.startswith("error: ")
    for one in said:
        assert one in line


@pytest.mark.parametrize("scheme", ["postgresql", "postgres", "postgresql+psycopg"])
def test_a_database_where_nobody_listens(alone: Tenora, tmp_path: Path, closed_port: int, scheme: str) -> None:
    url = f"{scheme}://me:hunter2@127.0.0.1:{closed_port}/tenora"
    for command in (["init"], ["migrate"], ["migrate", "--check"], ["serve", "--port", "0"], ["audit", "verify"]):
        (line,) = alone(*command, exit_code=1, TENORA_DATABASE_URL=url).stderr.splitlines()
        assert f"database at 127.0.0.1:{closed_port} does not answer: " in line
        assert "refused" in line
        assert "hunter2" not in line


def test_a_database_that_does_not_exist(alone: Tenora, postgres_url: str) -> None:
    url = make_url(postgres_url).set(database="none_such").render_as_string(hide_password=False)
    place = make_url(postgres_url).query["host"]
    refused(alone, f"{place}:5432", 'database "none_such" does not exist', TENORA_DATABASE_URL=url)


def test_a_host_that_does_not_exist(alone: Tenora) -> None:
    refused(alone, "nowhere.invalid:5433", TENORA_DATABASE_URL="postgresql://me@nowhere.invalid:5433/tenora")


@pytest.mark.parametrize("scheme", ["postgresql", "postgres"])
def test_the_driver_may_be_left_out(alone: Tenora, postgres_url: str, tmp_path: Path, scheme: str) -> None:
    name = f"t{uuid.uuid4().hex}"
    run_on_server(postgres_url, f"CREATE DATABASE {name} TEMPLATE template0")
    url = make_url(postgres_url).set(drivername=scheme, database=name).render_as_string(hide_password=False)
    key = alone("init", TENORA_DATABASE_URL=url).stdout.strip()
    alone("migrate", "--check", TENORA_DATABASE_URL=url)
    settings = Settings(home=tmp_path / "home", database_url=url)
    assert asyncio.run(works_for_platform(settings, key))


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
def test_a_database_that_cannot_hold_every_text(alone: Tenora, postgres_url: str, encoding: str) -> None:
    name = f"t{uuid.uuid4().hex}"
    run_on_server(postgres_url, f"CREATE DATABASE {name} TEMPLATE template0 ENCODING '{encoding}' LOCALE 'C'")
    url = make_url(postgres_url).set(database=name).render_as_string(hide_password=False)
    said = (f"database {name} at", f"has the encoding {encoding}", f"CREATE DATABASE {name} ENCODING 'UTF8'")
    refused(alone, *said, TENORA_DATABASE_URL=url)
    assert "encoding" in alone("migrate", exit_code=1, TENORA_DATABASE_URL=url).stderr
    if encoding == "SQL_ASCII":
        # Serving checks the encoding too: the driver returns bytes instead of text from such a database.
        (line,) = alone("serve", "--port", "0", exit_code=1, TENORA_DATABASE_URL=url).stderr.splitlines()
        assert "has the encoding SQL_ASCII" in line


@pytest.mark.parametrize(
    "url",
    ["https://bucket/x", "s3://", "bucket", "file://relative/x", "s3://me:hunter2@bucket/x", "s3:/bucket", "S3 bucket"],
)
def test_a_store_url_that_is_none(alone: Tenora, tmp_path: Path, url: str) -> None:
    refused(alone, "store_url", "s3://bucket/prefix", TENORA_STORE_URL=url)
    assert not (tmp_path / "home/tenora.db").exists()
    result = alone("init", exit_code=1, TENORA_STORE_URL=url)
    assert "hunter2" not in result.stderr


def test_a_folder_that_cannot_be_made(alone: Tenora, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    url = f"file://{tmp_path}/file/blobs"
    refused(alone, f"The store {url} cannot be used: ", TENORA_STORE_URL=url)
    assert not (tmp_path / "home/tenora.db").exists()


def test_a_bucket_that_does_not_exist(alone: Tenora, endpoint: str) -> None:
    place = endpoint.removeprefix("http://")
    settings: dict[str, Any] = {"TENORA_STORE_URL": "s3://not-made-yet/x", "TENORA_S3_ENDPOINT_URL": endpoint}
    said = f"The store s3://not-made-yet/x at {place} cannot be used: there is no such bucket"
    refused(alone, said, TENORA_S3_REGION="us-east-1", **settings)
    s3_client(endpoint).create_bucket(Bucket="not-made-yet")
    alone("init", TENORA_S3_REGION="us-east-1", **settings)


def test_an_s3_server_where_nobody_listens(alone: Tenora, endpoint: str, closed_port: int) -> None:
    refused(
        alone,
        f"s3://bucket/x at 127.0.0.1:{closed_port} cannot be used: no server answers at this address, "
        "or its name is unknown",
        TENORA_STORE_URL="s3://bucket/x",
        TENORA_S3_ENDPOINT_URL=f"http://127.0.0.1:{closed_port}",
        TENORA_S3_REGION="us-east-1",
    )


def test_no_credentials(tmp_path: Path, endpoint: str) -> None:
    """Run in a separate process, without credentials of the tests or of the machine."""
    environment = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(tmp_path),
        "AWS_EC2_METADATA_DISABLED": "true",
        "TENORA_HOME": str(tmp_path / "home"),
        "TENORA_STORE_URL": "s3://bucket/x",
        "TENORA_S3_ENDPOINT_URL": endpoint,
        "TENORA_S3_REGION": "us-east-1",
    }
    program = [sys.executable, "-c", "from tenora_client.cli.root import main; main()", "server", "init"]
    done = subprocess.run(program, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert (
        f"s3://bucket/x at {endpoint.removeprefix('http://')} cannot be used: there are no credentials" in done.stderr
    )
    assert "Traceback" not in done.stderr


def test_a_patch_that_cannot_be_off_is_refused_at_start(alone: Tenora) -> None:
    result = alone("serve", "--port", "0", exit_code=1, TENORA_ENGINE__PATCHES="-kv_zeroing")
    (line,) = result.stderr.splitlines()
    assert "TENORA_ENGINE__PATCHES has -kv_zeroing" in line
    assert "-malloc_trim" in line


def test_serving_with_a_store_url_that_is_none_is_one_sentence(alone: Tenora, tmp_path: Path) -> None:
    alone("init")
    base = str(save_base(tmp_path / "tiny-llama"))
    result = alone("serve", "--port", "0", exit_code=1, TENORA_STORE_URL="bucket", TENORA_BASE_MODEL=base)
    (line,) = result.stderr.splitlines()
    assert "store_url" in line
