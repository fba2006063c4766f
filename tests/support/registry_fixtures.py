"""Registry fixtures: each test runs on SQLite and on PostgreSQL, with a separate database.

A test module loads them with ``pytest_plugins``.
"""

import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from sqlalchemy import make_url

from app.database.migrate import upgrade
from app.database.session import Database
from tests.support.migrated import create_registry
from tests.support.postgres import running_postgres
from tests.support.registry import Node, SettableClock, run_on_server


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """Return the URL of a running server's maintenance database."""
    with running_postgres() as url:
        yield url


@pytest.fixture(scope="session")
def migrated_postgres_url(postgres_url: str) -> str:
    url = _create_database(postgres_url, "template0")
    upgrade(url)
    return url


@pytest.fixture(params=["sqlite", "postgresql"])
def database_kind(request: pytest.FixtureRequest) -> str:
    kind: str = request.param
    return kind


@pytest.fixture
def empty_url(database_kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Create a database without tables."""
    if database_kind == "sqlite":
        yield f"sqlite+aiosqlite:///{tmp_path / 'registry.db'}"
        return
    server: str = request.getfixturevalue("postgres_url")
    url = _create_database(server, "template0")
    yield url
    _drop_database(server, url)


@pytest.fixture
def registry_url(database_kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Create an empty registry at the head revision."""
    if database_kind == "sqlite":
        path = tmp_path / "registry.db"
        create_registry(path)
        yield f"sqlite+aiosqlite:///{path}"
        return
    server: str = request.getfixturevalue("postgres_url")
    url = _create_database(server, str(make_url(request.getfixturevalue("migrated_postgres_url")).database))
    yield url
    _drop_database(server, url)


@pytest.fixture
def clock() -> SettableClock:
    return SettableClock()


@pytest.fixture
async def node(registry_url: str, clock: SettableClock) -> AsyncIterator[Node]:
    """One Tenora process."""
    database = Database(registry_url)
    yield Node(database, clock)
    await database.close()


@pytest.fixture
async def other_node(registry_url: str, clock: SettableClock) -> AsyncIterator[Node]:
    """Another Tenora process on the same registry."""
    database = Database(registry_url)
    yield Node(database, clock)
    await database.close()


def _create_database(server: str, template: str) -> str:
    name = f"t{uuid.uuid4().hex}"
    # Copying the template's files takes half the time of copying its pages through the log.
    run_on_server(server, f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY FILE_COPY")
    return make_url(server).set(database=name).render_as_string(hide_password=False)


def _drop_database(server: str, url: str) -> None:
    run_on_server(server, f"DROP DATABASE {make_url(url).database} WITH (FORCE)")
