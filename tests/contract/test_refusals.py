"""Reasons of refused uploads on both databases: what is kept, for how long, and for whom."""

from datetime import timedelta

import pytest
from sqlalchemy import select

from adapters.errors import AdapterRejected, Reason
from app.database.tables import sessions, upload_refusals
from app.domain.errors import NotFound
from app.services.publishing import refusals
from app.services.publishing.refusals import KEPT, MOST_REASONS, RefusalService
from tests.support.registry import Node

pytest_plugins = ("tests.support.registry_fixtures",)


@pytest.fixture
async def service(node: Node) -> RefusalService:
    for slug in ("pricing", "retail"):
        await node.tenants.create(slug, actor="cli")
    return RefusalService(node.database, clock=node.clock)


def rejected(count: int = 1) -> AdapterRejected:
    return AdapterRejected(tuple(Reason("rank_too_large", f"field {n}", "64", "up to 16") for n in range(count)))


async def refuse(service: RefusalService, tenant: str, adapter: str, *, count: int = 1, actor: str = "key") -> None:
    with pytest.raises(AdapterRejected):
        async with service.recording(tenant, adapter, actor=actor):
            raise rejected(count)


async def listed(service: RefusalService, tenant: str, **options: str) -> list[str]:
    return [refusal.adapter for refusal in (await service.list(tenant, **options)).data]  # type: ignore[arg-type]


async def test_a_refusal_is_kept_with_its_first_reasons(node: Node, service: RefusalService) -> None:
    made = await node.keys.create("pricing", name="ci", owner="Ada", actor="cli")
    await refuse(service, "pricing", "quotes", count=MOST_REASONS + 7, actor=made.key.id)
    (found,) = (await service.list("pricing")).data
    assert (found.adapter, found.at, found.digest, found.key_id) == ("quotes", node.clock.now, None, made.key.id)
    assert (len(found.reasons), found.reason_count, found.key_name) == (MOST_REASONS, MOST_REASONS + 7, "Ada")
    assert found.reasons == rejected(MOST_REASONS).reasons


async def test_a_list_has_one_tenants_newest_first(service: RefusalService) -> None:
    for adapter in ("one", "two", "one"):
        await refuse(service, "pricing", adapter)
    await refuse(service, "retail", "theirs")
    assert await listed(service, "pricing") == ["one", "two", "one"]
    assert await listed(service, "pricing", adapter="two") == ["two"]
    assert await listed(service, "pricing", adapter="theirs") == []
    page = await service.list("pricing", limit=2)
    assert [one.adapter for one in (await service.list("pricing", cursor=page.next_cursor)).data] == ["one"]
    with pytest.raises(NotFound):
        await service.list("absent")


async def test_refusals_are_kept_for_thirty_days(node: Node, service: RefusalService) -> None:
    await refuse(service, "pricing", "old")
    node.clock.advance(KEPT.total_seconds())
    await refuse(service, "pricing", "new")
    await service.sweep()
    assert await listed(service, "pricing") == ["new", "old"]
    node.clock.advance(1)
    assert await listed(service, "pricing") == ["new"]
    await service.sweep()
    node.clock.now -= timedelta(days=1)
    assert await listed(service, "pricing") == ["new"]


async def test_a_tenant_keeps_a_bounded_number(service: RefusalService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refusals, "MOST_OF_TENANT", 3)
    await refuse(service, "retail", "theirs")
    for number in range(5):
        await refuse(service, "pricing", f"a{number}")
    assert await listed(service, "pricing") == ["a4", "a3", "a2"]
    assert await listed(service, "retail") == ["theirs"]


async def test_another_error_or_a_deleted_tenant_leaves_nothing(node: Node, service: RefusalService) -> None:
    with pytest.raises(ValueError, match="other"):
        async with service.recording("pricing", "quotes", actor="key"):
            raise ValueError("other")
    await node.tenants.delete("retail", actor="cli")
    await refuse(service, "retail", "quotes")
    await node.tenants.create("retail", actor="cli")
    assert await listed(service, "retail") == await listed(service, "pricing") == []


async def test_a_refusal_is_answered_also_without_a_registry(node: Node, service: RefusalService) -> None:
    await node.database.close()
    broken = RefusalService(type(node.database)("sqlite+aiosqlite:////nowhere/tenora.db"), clock=node.clock)
    await refuse(broken, "pricing", "quotes")


async def test_a_deleted_tenant_leaves_no_refusals_or_sessions(node: Node, service: RefusalService) -> None:
    for tenant in ("pricing", "retail"):
        await refuse(service, tenant, "quotes")
        made = await node.keys.create(tenant, name="console", actor="cli")
        await node.sessions.begin(await node.keys.authenticate(made.text))
    await node.tenants.delete("pricing", actor="cli")
    async with node.database.read() as connection:
        owners = (await connection.scalars(select(upload_refusals.c.tenant_id))).all()
        keys_of_sessions = (await connection.scalars(select(sessions.c.key_id))).all()
    assert owners == [(await node.tenants.get("retail")).id]
    assert keys_of_sessions == [made.key.id]
