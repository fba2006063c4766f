"""Pages of the audit trail on both databases: filters, names and seals."""

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from app.domain.audit import AuditFilter
from app.domain.errors import InvalidRequest
from app.services.access.audit import AuditService
from app.services.access.audit_log import AuditLogService
from tests.support.registry import PEPPERS, Node, SettableClock

pytest_plugins = ("tests.support.registry_fixtures",)


@pytest.fixture
def log(node: Node) -> AuditLogService:
    return AuditLogService(node.database, clock=node.clock)


async def shown(log: AuditLogService, **only: Any) -> list[tuple[str, str | None, str]]:
    return [
        (named.row.action, named.row.tenant, named.row.subject) for named in (await log.list(AuditFilter(**only))).data
    ]


async def test_filters_keep_what_has_all_properties(node: Node, log: AuditLogService, clock: SettableClock) -> None:
    await node.tenants.create("pricing", actor="cli")
    clock.advance(60)
    at = clock.now
    await node.tenants.create("retail", actor="admin-key")
    made = await node.keys.create("retail", name="till", actor="admin-key")
    create = [("key.create", "retail", made.key.id), ("tenant.create", "retail", "retail")]
    assert await shown(log) == [*create, ("tenant.create", "pricing", "pricing")]
    assert await shown(log, tenant="retail") == await shown(log, actor="admin-key") == create
    assert await shown(log, action="tenant.", actor="admin-key") == create[1:]
    assert await shown(log, action="key.create") == await shown(log, subject=made.key.id) == create[:1]
    assert await shown(log, action="key") == await shown(log, action="k%.") == await shown(log, tenant="%") == []
    assert await shown(log, start=at) == create
    assert await shown(log, end=at) == [("tenant.create", "pricing", "pricing")]
    assert await shown(log, start=at, end=at + timedelta(seconds=1), action="tenant.") == create[1:]


async def test_pages_go_back_in_time(node: Node, log: AuditLogService) -> None:
    for number in range(5):
        await node.tenants.create(f"t{number}", actor="cli")
    found, cursor = list[str](), None
    while True:
        page = await log.list(AuditFilter(), limit=2, cursor=cursor)
        found += [named.row.subject for named in page.data]
        cursor = page.next_cursor
        if cursor is None:
            break
    assert found == ["t4", "t3", "t2", "t1", "t0"]


async def test_rows_name_the_actor_and_have_their_seal(
    node: Node, log: AuditLogService, clock: SettableClock, tmp_path: Path
) -> None:
    operator = await node.keys.create(None, name="laptop", owner="Grace", actor="cli")
    await node.tenants.create("pricing", actor=operator.key.id)
    audits = AuditService(node.database, PEPPERS, tmp_path / "witness", clock=clock)
    clock.advance(60)
    await audits.seal()
    await node.tenants.create("retail", actor="cli")
    rows = (await log.list(AuditFilter())).data
    assert [(named.row.subject, named.actor_name, named.sealed) for named in rows] == [
        ("retail", None, False),
        ("pricing", "Grace", True),
        (operator.key.id, None, True),
    ]
    assert (await audits.verify_once()).problems == ()


@pytest.mark.parametrize("only", [{"actor": "a\0b"}, {"tenant": "\ud800"}, {"subject": "x" * 201}, {"action": "a\n"}])
async def test_texts_that_no_row_can_have_are_refused(log: AuditLogService, only: dict[str, str]) -> None:
    with pytest.raises(InvalidRequest, match="it must be up to 200 printable characters"):
        await log.list(AuditFilter(**only))  # type: ignore[arg-type]


@pytest.mark.parametrize("time", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "1999-12-31T00:00:00Z"])
async def test_times_that_no_row_can_have_are_refused(log: AuditLogService, time: str) -> None:
    moment = datetime.fromisoformat(time)
    for name, only in (("from", AuditFilter(start=moment)), ("to", AuditFilter(end=moment))):
        with pytest.raises(InvalidRequest, match=f"^{name} is .* from the year 2000 to one year from now"):
            await log.list(only)


async def test_times_need_a_zone_and_cursors_are_checked(log: AuditLogService, clock: SettableClock) -> None:
    with pytest.raises(InvalidRequest, match="time zone"):
        await log.list(AuditFilter(start=clock.now.replace(tzinfo=None)))
    with pytest.raises(InvalidRequest, match="cursor"):
        await log.list(AuditFilter(), cursor="LTE=")
