"""Retention: expired rows are deleted and no others; sums stay, and a trimmed trail still verifies."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import delete, func, insert, select, update

from app.database import usage as usage_rows
from app.database.tables import audit, audit_anchors, audit_seals, usage, usage_latencies
from app.domain.audit import Seal, anchored
from app.domain.usage import hour_of
from app.services.access.audit import AuditService
from app.services.operations import retention
from app.services.operations.retention import RetentionService
from tests.support.audit_trail import SETTLED_S, a_day, change, service
from tests.support.registry import Node
from tests.support.usage_records import NOON, added, record, sums

pytest_plugins = ("tests.support.registry_fixtures",)

DAY_S = 86400


def sweeper(node: Node, trail: AuditService, **days: int) -> RetentionService:
    wanted = {"usage_days": 0, "audit_days": 0} | days
    return RetentionService(node.database, trail, clock=node.clock, **wanted)


async def count(node: Node, table: object) -> int:
    async with node.database.read() as connection:
        return int(await connection.scalar(select(func.count()).select_from(table)) or 0)  # type: ignore[arg-type]


@pytest.fixture
async def trail(node: Node, tmp_path: Path) -> AuditService:
    """Twelve sealed rows on each of three days, the third of which is today."""
    made = service(node, tmp_path)
    for day in range(3):
        node.clock.advance(DAY_S if day else 0)
        await a_day(node)
        node.clock.advance(SETTLED_S)
        assert await made.seal() == 12
    return made


async def test_records_go_and_sums_stay(node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "BATCH", 3)
    tenant = (await node.tenants.create("pricing", actor="cli")).id
    node.clock.now = NOON
    records = [record(n, tenant, at=NOON - timedelta(days=n), cost=n) for n in range(9)]
    await added(node.database, records)
    before = await sums(node)
    await sweeper(node, service(node, tmp_path)).sweep()
    assert await count(node, usage) == 9
    await sweeper(node, service(node, tmp_path), usage_days=2).sweep()
    async with node.database.read() as connection:
        left = set((await connection.execute(select(usage.c.request_id))).scalars())
    assert left == {one.request_id for one in records[:3]}
    assert await sums(node) == before


async def test_latencies_go_in_small_batches(node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "BATCH", 3)
    tenant = (await node.tenants.create("pricing", actor="cli")).id
    node.clock.now = NOON
    at = [NOON - timedelta(days=3 if n < 4 else 2 if n < 8 else 1, hours=n % 4) for n in range(10)]
    await added(node.database, [record(n, tenant, at=at[n], version_id=n) for n in range(10)])
    rows = await count(node, usage_latencies)
    deleted, forget = list[int](), usage_rows.forget_latencies

    async def noted(*parts: Any, **options: Any) -> int:
        deleted.append(await forget(*parts, **options))
        return deleted[-1]

    monkeypatch.setattr(usage_rows, "forget_latencies", noted)
    await sweeper(node, service(node, tmp_path), usage_days=2).sweep()
    async with node.database.read() as connection:
        hours = set((await connection.execute(select(usage_latencies.c.hour))).scalars())
    assert min(hours) == hour_of(NOON - timedelta(days=2))
    assert max(deleted) == 3
    assert sum(deleted) == rows - await count(node, usage_latencies) > 9


async def test_a_trimmed_trail_verifies_from_its_anchor(
    node: Node, trail: AuditService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.services.access.audit.BATCH", 5)
    await sweeper(node, trail, audit_days=1).sweep()
    verdict = await trail.verify()
    # The second day's rows are a day and some seconds old.
    assert (verdict.sealed, verdict.problems, verdict.trimmed) == (12, (), 24)
    assert (await count(node, audit), await count(node, audit_seals), await count(node, audit_anchors)) == (12, 13, 1)
    assert await trail.seal() == 0
    await a_day(node)
    node.clock.advance(2 * DAY_S)
    assert await trail.seal() == 12
    await sweeper(node, trail, audit_days=1).sweep()
    verdict = await trail.verify()
    assert (verdict.sealed, verdict.problems, verdict.trimmed) == (0, (), 48)
    assert (await trail.verify()).fresh == 0
    await a_day(node)
    node.clock.advance(SETTLED_S)
    assert await trail.seal() == 12
    assert (await trail.verify()).problems == ()


async def test_a_server_that_was_away_meanwhile_is_no_accuser(node: Node, trail: AuditService, tmp_path: Path) -> None:
    (tmp_path / "away").mkdir()
    away = service(node, tmp_path / "away")
    (tmp_path / "away" / "audit-seal").write_text((tmp_path / "audit-seal").read_text())
    await a_day(node)
    node.clock.advance(2 * DAY_S)
    await trail.seal()
    await sweeper(node, trail, audit_days=1).sweep()
    assert (await away.verify()).problems == ()
    await a_day(node)
    node.clock.advance(SETTLED_S)
    assert await away.seal() == 12


@pytest.mark.parametrize(
    ("done", "said"),
    [
        ([update(audit).where(audit.c.id == 30).values(actor="mallory")], "Row 30 or its seal was changed."),
        (
            [delete(audit).where(audit.c.id <= 25), delete(audit_seals).where(audit_seals.c.row_id <= 25)],
            "The rows up to 24 were removed, and the record of the removal is not valid.",
        ),
        (
            [
                delete(audit).where(audit.c.id <= 30),
                delete(audit_seals).where(audit_seals.c.row_id < 30),
                update(audit_anchors).values(row_id=30),
            ],
            "The rows up to 30 were removed, and the record of the removal is not valid.",
        ),
        ([delete(audit_anchors)], "Row 24 is missing."),
        (
            [insert(audit).values(id=3, at=NOON, actor="cli", action="tenant.create", subject="x")],
            "Row 3 was inserted later, before the start of the trail.",
        ),
    ],
    ids=["row", "start", "anchor", "no anchor", "before"],
)
async def test_what_is_done_to_a_trimmed_trail_is_found(node: Node, trail: AuditService, done, said, caplog) -> None:
    await sweeper(node, trail, audit_days=1).sweep()
    await change(node, *done)
    assert said in (await trail.verify()).problems
    if said.startswith("Row 3 "):
        return
    # Tampered rows are not trimmed together with their proof.
    left = await count(node, audit)
    node.clock.advance(2 * DAY_S)
    await sweeper(node, trail, audit_days=1).sweep()
    assert await count(node, audit) == left
    assert "trimming has stopped" in caplog.text


async def test_a_forged_anchor_gets_nothing_sealed_again(node: Node, trail: AuditService, caplog) -> None:
    await change(
        node,
        delete(audit_seals).where(audit_seals.c.row_id > 8),
        insert(audit_anchors).values(row_id=36, mac="f" * 64),
    )
    node.clock.advance(SETTLED_S)
    assert await trail.seal() == 0
    assert "sealing has stopped" in caplog.text


async def test_what_is_not_sealed_is_not_trimmed(node: Node, tmp_path: Path) -> None:
    trail = service(node, tmp_path)
    rows = await a_day(node)
    node.clock.advance(9 * DAY_S)
    await sweeper(node, trail, audit_days=1).sweep()
    assert await count(node, audit) == rows


def test_an_anchor_is_not_a_seal() -> None:
    seal = Seal(1, "a" * 64)
    assert anchored(b"key", seal) != anchored(b"other", seal) != seal
