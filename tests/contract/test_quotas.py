"""Quotas on both databases: their usage counts, and concurrent uploads that cannot exceed them together."""

import asyncio

import pytest

from app.database import quotas
from app.database.adapters import ensure_adapter
from app.database.tables import pins
from app.database.tenants import find_tenant
from app.database.versions import insert_version, mark_versions_deleted, settle_version
from app.domain.adapters import Version, VersionState
from app.domain.errors import InvalidRequest, NotFound, QuotaExceeded
from app.domain.quotas import UNLIMITED, Quota, Usage
from app.services.common.quotas import check_room, enforce_quota
from tests.support.registry import Node, new_version

pytest_plugins = ("tests.support.registry_fixtures",)


async def publish(node: Node, tenant: str, adapter: str, content: str) -> Version:
    """Run the transaction of an upload, including the quota check."""
    new = new_version(content, node.clock())
    async with node.database.write() as connection:
        owner = await find_tenant(connection, tenant, lock=True)
        assert owner is not None
        adapter_id = await ensure_adapter(connection, owner, adapter, at=node.clock())
        size = new.config_bytes + new.weights_bytes
        await enforce_quota(connection, owner, adapter_id, size=size, rank=new.rank)
        return await insert_version(connection, adapter_id, new)


async def used(node: Node, tenant: str) -> Usage:
    return (await node.tenants.usage(tenant))[1]


async def test_a_quota_is_kept_shown_changed_and_lifted(node: Node) -> None:
    assert (await node.tenants.create("pricing", actor="cli")).quota == UNLIMITED
    both = {"adapters": 3, "bytes": 2**40}
    assert (await node.tenants.update("pricing", quota=both, actor="cli")).quota == Quota(adapters=3, bytes=2**40)
    assert (await node.tenants.update("pricing", name="Pricing", actor="cli")).quota.bytes == 2**40
    await node.tenants.update("pricing", quota={"adapters": None, "rank": 16}, actor="cli")
    assert (await node.tenants.get("pricing")).quota == Quota(bytes=2**40, rank=16)
    assert [tenant.quota for tenant in (await node.tenants.list()).data] == [Quota(bytes=2**40, rank=16)]
    with pytest.raises(InvalidRequest):
        await node.tenants.update("pricing", quota={"rank": -1}, actor="cli")
    assert (await node.tenants.update("pricing", quota=None, actor="cli")).quota == UNLIMITED
    with pytest.raises(NotFound):
        await node.tenants.usage("unknown")


async def test_what_is_counted(node: Node) -> None:
    for slug in ("pricing", "supply-chain"):
        await node.tenants.create(slug, actor="cli")
    await publish(node, "supply-chain", "prices", "of another tenant")
    assert await used(node, "pricing") == Usage()
    uploads = (("a", "1"), ("a", "2"), ("b", "3"))
    made = [await publish(node, "pricing", adapter, content) for adapter, content in uploads]
    size = made[0].key.size
    assert await used(node, "pricing") == Usage(adapters=2, versions=3, bytes=3 * size, rank=8)
    async with node.database.write() as connection:
        row = {"version_id": made[2].key.version_id, "created_at": node.clock(), "created_by": "cli"}
        await connection.execute(pins.insert().values(**row))
    assert (await used(node, "pricing")).pinned_slots == 1
    async with node.database.write() as connection:
        await settle_version(connection, made[0].key.version_id, VersionState.REJECTED, "no effect")
        owner = await find_tenant(connection, "pricing")
        assert owner is not None
        line = await ensure_adapter(connection, owner, "a", at=node.clock())
        await mark_versions_deleted(connection, line, 2)
    # The adapter still exists, although its only versions are rejected and deleted.
    assert await used(node, "pricing") == Usage(adapters=2, versions=1, bytes=size, rank=8, pinned_slots=1)


@pytest.mark.parametrize(("field", "limit"), [("adapters", 4), ("versions", 4), ("bytes", 150)])
async def test_parallel_uploads_stop_exactly_at_the_limit(node: Node, other_node: Node, field: str, limit: int) -> None:
    await node.tenants.create("pricing", actor="cli")
    await node.tenants.update("pricing", quota={field: limit}, actor="cli")
    size = new_version("0", node.clock())
    each = {"adapters": 1, "versions": 1, "bytes": size.config_bytes + size.weights_bytes}[field]
    adapters = [f"a{number}" if field == "adapters" else "prices" for number in range(10)]
    made = await asyncio.gather(
        *(publish((node, other_node)[n % 2], "pricing", name, str(n)) for n, name in enumerate(adapters)),
        return_exceptions=True,
    )
    refused = [result for result in made if isinstance(result, QuotaExceeded)]
    assert len(made) - len(refused) == limit // each
    assert sum(isinstance(result, Version) for result in made) == limit // each
    assert all(error.param == field and f"(limit {limit})" in error.message for error in refused)
    assert getattr(await used(node, "pricing"), field) == limit // each * each
    # A refused upload left no adapter behind.
    assert (await used(node, "pricing")).adapters == len((await node.adapters.list_adapters("pricing")).data)


async def test_a_rank_is_each_versions_own(node: Node) -> None:
    await node.tenants.create("pricing", actor="cli")
    await node.tenants.update("pricing", quota={"rank": 8}, actor="cli")
    await publish(node, "pricing", "prices", "1")
    await publish(node, "pricing", "prices", "2")
    await node.tenants.update("pricing", quota={"rank": 4}, actor="cli")
    with pytest.raises(QuotaExceeded, match=r"rank would be 8 \(limit 4\)"):
        await publish(node, "pricing", "prices", "3")


async def test_before_the_bytes_only_what_is_certain_is_refused(node: Node) -> None:
    await node.tenants.create("pricing", actor="cli")
    await publish(node, "pricing", "prices", "1")
    await node.tenants.update("pricing", quota={"versions": 1}, actor="cli")
    tenant = await node.tenants.get("pricing")
    async with node.database.read() as connection:
        await check_room(connection, tenant, "prices")
        with pytest.raises(QuotaExceeded, match=r"versions would be 2 \(limit 1\)"):
            await check_room(connection, tenant, "more")
        used_by_it = await quotas.usage(connection, tenant.id)
    assert used_by_it.versions == 1
    with pytest.raises(QuotaExceeded):
        await publish(node, "pricing", "prices", "2")
