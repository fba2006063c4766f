"""Database role of engine replicas, on PostgreSQL: a replica works under it, and the rest is refused."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from psycopg import sql
from psycopg.errors import InsufficientPrivilege
from sqlalchemy import make_url
from typer.testing import CliRunner

from adapters.cache import DiskCache
from adapters.errors import BlobNotFound
from adapters.identity import VersionKey
from app.database.prefetching import ready_keys
from app.database.replica_role import WITHHELD, WITHHELD_COLUMNS, grant, grant_statements
from app.database.tables import metadata
from app.domain.errors import AdapterLoadFailed
from app.domain.node_snapshots import NodeRole
from app.engine.status import EngineState
from app.ray.replica import replica_settings
from app.services.deletion.version_guard import VersionGuard
from app.settings import Settings
from app.wiring.engine_node import EngineNode
from app.wiring.lifecycle import running_node
from app.wiring.resources import Resources
from tenora_client.cli.root import app as command
from tests.support.serving import NoEngine, PeftFiles, peft_files, save_base
from tests.support.site import Site, Unit, make_unit, parts, running_site

pytest_plugins = ("tests.support.registry_fixtures",)
pytestmark = pytest.mark.parametrize("database_kind", ["postgresql"])

ROLE = "tenora_replica"


class CachedEngine(NoEngine):
    """Fake engine that reads the bytes of a version, as a real one does.

    Attributes:
        broken: ids of versions that it cannot load.
    """

    cache: DiskCache

    def __init__(self) -> None:
        super().__init__()
        self.broken: set[int] = set()
        self.state = EngineState.READY

    async def start(self) -> None:
        pass

    async def pin(self, key: VersionKey) -> None:
        await self._fetch(key)
        await super().pin(key)

    async def preload(self, key: VersionKey) -> None:
        await self._fetch(key)
        await super().preload(key)

    async def _fetch(self, key: VersionKey) -> None:
        if key.version_id in self.broken:
            raise AdapterLoadFailed("The weights are damaged.", version_id=key.version_id)
        async with await self.cache.lease(key):
            pass


@dataclass
class Place:
    """A server with all rights, and the registry's URL under the role."""

    site: Site
    role_url: str

    def settings(self, **changes: Any) -> Settings:
        ray = self.site.settings.ray.model_copy(update={"database_url": self.role_url})
        server = self.site.settings.model_copy(update={"ray": ray, **changes})
        home = server.home / "engines" / "1"
        home.mkdir(parents=True, exist_ok=True)
        return replica_settings(server, home)

    @asynccontextmanager
    async def replica(self, **changes: Any) -> AsyncIterator[tuple[EngineNode, CachedEngine]]:
        resources, engine = Resources(self.settings(**changes)), CachedEngine()
        guard = VersionGuard(resources.database)
        node = EngineNode(resources, engine=engine, in_flight=guard, role=NodeRole.REPLICA)
        engine.cache = node.cache
        async with running_node(node):
            yield node, engine


@pytest.fixture
def role_url(registry_url: str) -> str:
    _create_role(registry_url)
    grant(registry_url, ROLE)
    return make_url(registry_url).set(username=ROLE).render_as_string(hide_password=False)


def _create_role(registry_url: str) -> None:
    with psycopg.connect(registry_url.replace("+psycopg", ""), autocommit=True) as connection:
        if connection.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", (ROLE,)).fetchone() is None:
            connection.execute(f"CREATE ROLE {ROLE} LOGIN".encode())


@pytest.fixture
def place(role_url: str, registry_url: str, tmp_path: Path) -> Iterator[Place]:
    (tmp_path / "base").mkdir()
    with running_site(tmp_path / "home", save_base(tmp_path / "base"), database_url=registry_url) as site:
        yield Place(site, role_url)


@pytest.fixture
def admin(place: Place) -> Iterator[httpx.Client]:
    with place.site.client(place.site.admin_key) as client:
        yield client


@pytest.fixture
def unit(admin: httpx.Client) -> Unit:
    return make_unit(admin)


@pytest.fixture
def files(tmp_path: Path) -> Callable[[int], PeftFiles]:
    def make(seed: int) -> PeftFiles:
        folder = tmp_path / f"adapter-{seed}"
        folder.mkdir()
        return peft_files(folder, seed=seed)

    return make


def publish(place: Place, unit: Unit, files: PeftFiles) -> int:
    """Publish a version of ``prices`` and return its id."""
    with place.site.client(unit.key) as own:
        answer = own.post("/v1/adapters/prices/versions", files=parts(files))
    assert answer.status_code == 201, answer.text
    return place.site.engine.smoked[-1]


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(60):
        while not await asyncio.to_thread(condition):
            await asyncio.sleep(0.05)


async def test_a_replica_works_under_the_role(
    place: Place, admin: httpx.Client, unit: Unit, files: Callable[[int], PeftFiles]
) -> None:
    first, second, third = [await asyncio.to_thread(publish, place, unit, files(seed)) for seed in (1, 2, 3)]
    prices = f"/admin/tenants/{unit.slug}/adapters/prices"
    preload = (f"{unit.slug}/prices", f"{unit.slug}/prices@1", f"{unit.slug}/{unit.slug}/prices@1")
    async with place.replica(preload=preload) as (node, engine):
        assert [entry.problem for entry in node.placement.preloads] == [None] * 3
        assert engine.preloaded == [third, first, first]
        # A pin, and one that fails to load.
        engine.broken.add(second)
        for number in (1, 2):
            answer = await asyncio.to_thread(admin.put, f"{prices}/versions/{number}/pin")
            assert answer.status_code in (200, 201), answer.text
        await until(lambda: first in engine.pinned)
        await until(lambda: state_of(admin, prices, 2) == "quarantined")
        # The overview has the heartbeat and the snapshot.
        await until(lambda: any(shown["role"] == "replica" and shown["engine"] for shown in nodes_of(admin)))
        # A deletion that starts at the gateway ends, and the replica has confirmed it.
        deletion = await asyncio.to_thread(admin.delete, f"{prices}/versions/1", params={"force": True})
        assert deletion.status_code == 202, deletion.text
        report = f"/admin/deletions/{deletion.json()['id']}"
        await until(lambda: admin.get(report).json()["state"] == "finished")
        shown = await asyncio.to_thread(lambda: admin.get(report).json())
        assert all(confirmed["disk_gone_at"] for confirmed in shown["nodes"])
        assert len(shown["nodes"]) == 2
        assert first in engine.unloaded
        # The journal of aliases is followed.
        await asyncio.to_thread(admin.put, f"{prices}/aliases/beta", json={"version": 3})
        await node.prefetching.advance()


async def test_a_replica_reports_lost_bytes(
    place: Place, admin: httpx.Client, unit: Unit, files: Callable[[int], PeftFiles]
) -> None:
    version_id = await asyncio.to_thread(publish, place, unit, files(1))
    async with place.replica() as (node, engine):
        for blob in (place.site.settings.home / "blobs" / "sha256").glob("*/*"):
            blob.unlink()
        async with node.resources.database.read() as connection:
            keys = await ready_keys(connection, [version_id], node.resources.base.digest, head=False)
        with pytest.raises(BlobNotFound):
            await engine._fetch(keys[version_id])
        await node.lost_bytes.maintain()
        with psycopg.connect(str(place.site.settings.database_url).replace("+psycopg", "")) as connection:
            rows = connection.execute("SELECT action FROM audit WHERE actor = 'engine'").fetchall()
        assert len(rows) == 1


def state_of(admin: httpx.Client, prices: str, number: int) -> str:
    return str(admin.get(f"{prices}/versions/{number}").json()["state"])


def nodes_of(admin: httpx.Client) -> list[dict[str, Any]]:
    return list(admin.get("/admin/engine").json()["nodes"])


def test_postgresql_refuses_the_role_everything_else(role_url: str) -> None:
    columns = [(table, column) for table, names in WITHHELD_COLUMNS.items() for column in sorted(names)]
    statements = [
        *(sql.SQL("SELECT * FROM {}").format(sql.Identifier(table)) for table in sorted(WITHHELD)),
        *(sql.SQL("SELECT {1} FROM {0}").format(*map(sql.Identifier, pair)) for pair in columns),
        *(sql.SQL("DELETE FROM {}").format(sql.Identifier(table)) for table in sorted(metadata.tables)),
        sql.SQL("SELECT * FROM tenants"),
        sql.SQL("UPDATE versions SET digest = 'x'"),
        sql.SQL("UPDATE tenants SET disabled = true"),
        sql.SQL("UPDATE pins SET version_id = 1"),
        sql.SQL("UPDATE audit SET actor = 'x'"),
        sql.SQL("UPDATE deletions SET finished_at = NULL"),
        sql.SQL("INSERT INTO keys DEFAULT VALUES"),
        sql.SQL("INSERT INTO pins DEFAULT VALUES"),
        sql.SQL("INSERT INTO installation VALUES ('a', 'b')"),
        sql.SQL("CREATE TABLE own (id int)"),
    ]
    with psycopg.connect(role_url.replace("+psycopg", ""), autocommit=True) as connection:
        for statement in statements:
            with pytest.raises(InsufficientPrivilege):
                connection.execute(statement)


def test_earlier_rights_of_the_role_are_revoked(role_url: str, registry_url: str) -> None:
    with psycopg.connect(registry_url.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute(f"GRANT SELECT ON keys, usage TO {ROLE}; GRANT SELECT (salt) ON tenants TO {ROLE}".encode())
    grant(registry_url, ROLE)
    with psycopg.connect(role_url.replace("+psycopg", ""), autocommit=True) as connection:
        for statement in (b"SELECT * FROM keys", b"SELECT * FROM usage", b"SELECT salt FROM tenants"):
            with pytest.raises(InsufficientPrivilege):
                connection.execute(statement)


async def test_a_replica_reads_no_secret_of_the_server(place: Place) -> None:
    """Start a replica in a process that records each file that it opens."""
    code = "import sys; from tests.support.replica_secrets import main; main(*sys.argv[1:])"
    home, base = str(place.site.settings.home), str(place.site.settings.base_model)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, home, base, place.role_url, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    assert process.returncode == 0
    assert (Path(home) / "secrets" / "pepper").exists()
    assert output.decode().split() == ["started"]


def test_the_command_prints_and_applies_the_rights(
    registry_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _create_role(registry_url)
    monkeypatch.setenv("TENORA_HOME", str(tmp_path))
    monkeypatch.setenv("TENORA_DATABASE_URL", registry_url)
    printed = CliRunner().invoke(command, ["server", "database-role", ROLE])
    assert printed.output.split(";\n")[:-1] == grant_statements(ROLE)
    applied = CliRunner().invoke(command, ["server", "database-role", ROLE, "--apply"])
    assert (applied.exit_code, applied.output) == (0, f"The role {ROLE} has the rights of an engine replica.\n")
    missing = CliRunner().invoke(command, ["server", "database-role", "nobody_has_it", "--apply"])
    assert missing.exit_code == 1
    assert "CREATE ROLE nobody_has_it" in missing.output
    monkeypatch.setenv("TENORA_DATABASE_URL", f"sqlite+aiosqlite:///{tmp_path / 'registry.db'}")
    assert (
        "Only PostgreSQL has roles" in CliRunner().invoke(command, ["server", "database-role", "x", "--apply"]).output
    )
