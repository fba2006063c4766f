"""Guarantees of the registry on both databases: transactions, concurrency, identities, isolation."""

import asyncio
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
from sqlalchemy import insert, make_url, select, text
from sqlalchemy.exc import IntegrityError, StatementError

from adapters.identity import ModelName, content_digest
from app.database.adapters import ensure_adapter
from app.database.migrate import downgrade, head_revision
from app.database.session import Database
from app.database.tables import audit, tenants, versions
from app.database.tenants import find_tenant
from app.database.versions import find_version_by_digest, insert_version
from app.domain.errors import Conflict, NotFound, RegistryUnavailable
from tests.support.registry import Node, new_version, recorded_statements, run_on_server

pytest_plugins = ("tests.support.registry_fixtures",)


async def test_constructing_a_database_does_not_connect(tmp_path: Path) -> None:
    database = Database(f"sqlite+aiosqlite:///{tmp_path / 'absent.db'}")
    assert not (tmp_path / "absent.db").exists()
    await database.close()


async def test_what_readers_of_sqlite_keep_is_bounded(tmp_path: Path) -> None:
    database = Database(f"sqlite+aiosqlite:///{tmp_path / 'registry.db'}")
    async with database.write() as connection:
        await connection.execute(text("CREATE TABLE one (number INTEGER)"))
    kept = text("PRAGMA cache_size")  # negative: KiB
    async with database.read() as connection:
        read = await connection.scalar(kept)
    looked_up = await database.lookup(lambda connection: connection.scalar(kept))
    await database.close()
    assert (read, looked_up) == (-128, -128)


async def test_check_passes_at_head_and_fails_behind_it(node: Node, registry_url: str) -> None:
    await node.database.check()
    await asyncio.to_thread(downgrade, registry_url)
    with pytest.raises(RegistryUnavailable, match=f"schema does not exist yet; this release needs {head_revision()}"):
        await node.database.check()


async def test_a_running_server_survives_a_newer_migration(node: Node, registry_url: str) -> None:
    await node.database.check_serving()
    async with node.database.write() as connection:
        await connection.execute(text("UPDATE alembic_version SET version_num = 'next'"))
    await node.database.check_serving()
    assert await node.database.check() == "next", "and one that crashed starts again"
    async with node.database.write() as connection:
        await connection.execute(text("UPDATE alembic_version SET version_num = '0001'"))
    with pytest.raises(RegistryUnavailable, match="older than this release"):
        await node.database.check_serving()
    async with node.database.write() as connection:
        await connection.execute(text("DROP TABLE alembic_version"))
    with pytest.raises(RegistryUnavailable, match="older than this release"):
        await node.database.check_serving()


async def test_check_fails_on_a_database_without_a_schema(empty_url: str) -> None:
    database = Database(empty_url)
    with pytest.raises(RegistryUnavailable):
        await database.check()
    await database.close()


@pytest.mark.parametrize("url", ["sqlite+aiosqlite:///{}/none/registry.db", "postgresql+psycopg://postgres@/x?host={}"])
async def test_a_database_that_does_not_answer_is_unavailable(url: str, tmp_path: Path) -> None:
    database = Database(url.format(tmp_path))
    with pytest.raises(RegistryUnavailable, match="does not answer"):
        await database.check()
    with pytest.raises(RegistryUnavailable, match="does not answer"):
        async with database.write() as connection:
            await connection.execute(text("SELECT 1"))
    await database.close()


@pytest.mark.parametrize("url", ["nonsense", "sqlite+aiosqlite://", "mysql://me:secret@host/db", "sqlite:///file.db"])
def test_refusals_of_databases_hide_the_password(url: str) -> None:
    with pytest.raises(
        ValueError, match=r"^TENORA_DATABASE_URL is .*Use sqlite[+]aiosqlite:///FILE or postgresql://"
    ) as caught:
        Database(url)
    assert "secret" not in str(caught.value)


async def test_connections_that_the_server_dropped_are_replaced(
    node: Node, registry_url: str, request: pytest.FixtureRequest
) -> None:
    await node.tenants.create("pricing", actor="cli")
    url = make_url(registry_url)
    if url.get_backend_name() == "postgresql":
        drop = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = %s"
        run_on_server(request.getfixturevalue("postgres_url"), drop, url.database)
    assert (await node.tenants.get("pricing")).slug == "pricing"
    await node.tenants.create("supply-chain", actor="cli")


@pytest.mark.parametrize("database_kind", ["postgresql"])
async def test_a_server_that_only_reads_is_left_for_the_next_one(
    node: Node, registry_url: str, request: pytest.FixtureRequest
) -> None:
    """As after a failover: a connection to the former primary cannot write."""
    server, name = request.getfixturevalue("postgres_url"), make_url(registry_url).database
    run_on_server(server, f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    with pytest.raises(RegistryUnavailable, match="is read-only"):
        await node.tenants.create("pricing", actor="cli")
    run_on_server(server, f"ALTER DATABASE {name} SET default_transaction_read_only = off")
    await node.tenants.create("pricing", actor="cli")


@pytest.mark.parametrize("database_kind", ["postgresql"])
async def test_a_lookup_without_an_answer_is_given_up(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.database.session._LOOKUP_S", 0.1)
    with pytest.raises(RegistryUnavailable, match="does not answer"):
        await node.database.lookup(lambda connection: connection.execute(text("SELECT pg_sleep(60)")))
    monkeypatch.setattr("app.database.session._LOOKUP_S", 60)
    assert await node.database.lookup(lambda connection: connection.scalar(text("SELECT 1"))) == 1


async def test_a_transaction_that_fails_leaves_nothing(node: Node) -> None:
    async def fail() -> None:
        async with node.database.write() as connection:
            await connection.execute(insert(tenants).values(tenant_row("pricing")))
            raise RuntimeError("on the way")

    with pytest.raises(RuntimeError, match="on the way"):
        await fail()
    with pytest.raises(NotFound):
        await node.tenants.get("pricing")


async def test_a_cancelled_writer_leaves_nothing_behind(node: Node) -> None:
    inserted = asyncio.Event()

    async def write() -> None:
        async with node.database.write() as connection:
            await connection.execute(insert(tenants).values(tenant_row("pricing")))
            inserted.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(write())
    await inserted.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await node.tenants.create("pricing", actor="cli")).slug == "pricing"


async def test_readers_neither_wait_for_nor_see_an_open_write(node: Node) -> None:
    async with node.database.write() as connection:
        await connection.execute(insert(tenants).values(tenant_row("pricing")))
        with pytest.raises(NotFound):
            await node.tenants.get("pricing")
    assert (await node.tenants.get("pricing")).slug == "pricing"


async def test_a_reader_cannot_write_on_sqlite(node: Node, registry_url: str) -> None:
    if make_url(registry_url).get_backend_name() == "sqlite":
        with pytest.raises(RegistryUnavailable):
            async with node.database.read() as connection:
                await connection.execute(insert(tenants).values(tenant_row("pricing")))
    async with node.database.read() as connection:
        assert (await connection.scalars(select(tenants.c.id))).all() == []


async def test_moments_come_back_as_they_went_in_utc(node: Node) -> None:
    moment = datetime(2026, 7, 1, 1, 30, 0, 123456, tzinfo=timezone(timedelta(hours=5, minutes=30)))
    async with node.database.write() as connection:
        await connection.execute(insert(tenants).values(tenant_row("pricing", created_at=moment)))
        stored = await connection.scalar(select(tenants.c.created_at))
    assert stored == moment
    assert stored.tzinfo is UTC


async def test_a_moment_without_a_zone_is_refused(node: Node) -> None:
    with pytest.raises(StatementError, match="has no time zone"):
        async with node.database.write() as connection:
            await connection.execute(insert(tenants).values(tenant_row("pricing", created_at=datetime(2026, 7, 1))))  # noqa: DTZ001 - the point


async def test_rows_must_refer_to_rows_that_exist(node: Node) -> None:
    with pytest.raises(IntegrityError):
        async with node.database.write() as connection:
            await insert_version(connection, 999, new_version("a", node.clock()))


async def test_a_version_state_outside_the_list_is_refused(node: Node) -> None:
    await node.tenants.create("pricing", actor="cli")
    await node.publish("pricing", "prices", "a")
    with pytest.raises(IntegrityError, match="ck_versions_state"):
        async with node.database.write() as connection:
            await connection.execute(versions.update().values(state="splendid"))


async def test_one_of_two_tenants_with_one_slug_is_a_conflict(node: Node, other_node: Node) -> None:
    made = await asyncio.gather(
        *(place.tenants.create("pricing", actor="cli") for place in (node, other_node) * 3), return_exceptions=True
    )
    assert sorted(type(result).__name__ for result in made) == ["Conflict"] * 5 + ["Tenant"]
    assert await audited(node, "tenant.create") == [("cli", "pricing")]


async def test_versions_inserted_at_once_get_consecutive_numbers(node: Node, other_node: Node) -> None:
    await node.tenants.create("pricing", actor="cli")
    places = (node, other_node) * 6
    made = await asyncio.gather(*(place.publish("pricing", "prices", str(n)) for n, place in enumerate(places)))
    assert sorted(version.number for version in made) == list(range(1, 13))
    adapter = await node.adapters.get_adapter("pricing", "prices")
    assert adapter.versions == tuple(range(12, 0, -1))
    assert adapter.aliases == {"default": {12: 100}}


async def test_the_same_bytes_uploaded_at_once_are_one_version(node: Node, other_node: Node) -> None:
    await node.tenants.create("pricing", actor="cli")

    async def publish_once(place: Node) -> int:
        new = new_version("same", place.clock())
        digest = content_digest(new.config_digest, new.weights_digest)
        async with place.database.write() as connection:
            owner = await find_tenant(connection, "pricing", lock=True)
            assert owner is not None
            adapter_id = await ensure_adapter(connection, owner, "prices", at=place.clock())
            known = await find_version_by_digest(connection, adapter_id, digest)
            version = known or await insert_version(connection, adapter_id, new)
        return version.key.version_id

    made = await asyncio.gather(*(publish_once(place) for place in (node, other_node) * 4))
    assert len(set(made)) == 1


async def test_an_upload_and_the_end_of_its_tenant_exclude_each_other(node: Node, other_node: Node) -> None:
    for round_ in range(5):
        slug = f"tenant-{round_}"
        await node.tenants.create(slug, actor="cli")
        deleted, published = await asyncio.gather(
            node.tenants.delete(slug, actor="cli"), other_node.publish(slug, "prices", "a"), return_exceptions=True
        )
        if deleted is None:
            assert isinstance(published, AssertionError)
        else:
            assert isinstance(deleted, Conflict)
            assert (await node.adapters.get_adapter(slug, "prices")).versions == (1,)


async def test_ids_and_numbers_are_never_used_again(node: Node) -> None:
    first = await node.tenants.create("pricing", actor="cli")
    old = await node.publish("pricing", "prices", "a")
    await node.deletions.delete_version("pricing", "prices", 1, force=True, actor="cli")
    again = await node.publish("pricing", "prices", "a")
    assert (again.number, again.key.version_id) == (2, old.key.version_id + 1)
    await node.deletions.delete_adapter("pricing", "prices", force=True, actor="cli")
    anew = await node.publish("pricing", "prices", "a")
    assert (anew.number, anew.key.version_id) == (1, old.key.version_id + 2)
    await node.deletions.delete_adapter("pricing", "prices", force=True, actor="cli")
    await node.tenants.delete("pricing", actor="cli")
    assert (await node.tenants.create("pricing", actor="cli")).id == first.id + 1


async def test_ids_are_not_used_again_even_when_the_row_itself_is_gone(node: Node) -> None:
    await node.tenants.create("pricing", actor="cli")
    first = await node.publish("pricing", "prices", "a")
    async with node.database.write() as connection:
        await connection.execute(text("DELETE FROM alias_targets"))
        await connection.execute(versions.delete())
    assert (await node.publish("pricing", "prices", "b")).key.version_id > first.key.version_id


@pytest.mark.parametrize(
    "name",
    [
        ModelName("prices"),
        ModelName("prices", alias="canary"),
        ModelName("prices", alias=None, number=1),
        ModelName("prices", alias=None, number=2),
        ModelName("nothing"),
    ],
)
async def test_another_tenants_adapter_is_like_one_that_never_was(
    node: Node, name: ModelName, registry_url: str
) -> None:
    owner = await node.tenants.create("pricing", actor="cli")
    stranger = await node.tenants.create("supply-chain", actor="cli")
    await node.publish("pricing", "prices", "a")
    with recorded_statements(registry_url) as of_foreign, pytest.raises(NotFound) as foreign:
        await node.adapters.resolve(stranger.id, name)
    await node.deletions.delete_adapter("pricing", "prices", force=True, actor="cli")
    with recorded_statements(registry_url) as of_absent, pytest.raises(NotFound) as absent:
        await node.adapters.resolve(owner.id, name)
    assert (foreign.value.message, foreign.value.param) == (absent.value.message, absent.value.param)
    assert of_foreign == of_absent
    assert len(of_foreign) == 1


async def test_a_hit_and_a_miss_run_the_same_single_query(node: Node, registry_url: str) -> None:
    tenant = await node.tenants.create("pricing", actor="cli")
    await node.publish("pricing", "prices", "a")
    with recorded_statements(registry_url) as of_hit:
        await node.adapters.resolve(tenant.id, ModelName("prices"))
    with recorded_statements(registry_url) as of_miss, pytest.raises(NotFound):
        await node.adapters.resolve(tenant.id, ModelName("nothing"))
    assert of_hit == of_miss
    assert len(of_hit) == 1


def tenant_row(slug: str, **changes: object) -> dict[str, object]:
    made = datetime(2026, 1, 1, tzinfo=UTC)
    return {"slug": slug, "name": slug, "disabled": False, "salt": "0" * 64, "created_at": made} | changes


async def audited(node: Node, action: str) -> list[tuple[str, str]]:
    statement = select(audit.c.actor, audit.c.subject).where(audit.c.action == action).order_by(audit.c.id)
    async with node.database.read() as connection:
        return [(row.actor, row.subject) for row in await connection.execute(statement)]
