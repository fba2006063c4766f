"""Sealed audit trail on both databases: an untouched trail verifies, and later changes are found."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import delete, insert, select, update

from app.database.tables import audit, audit_seals
from app.domain.audit import problems
from app.services.access.audit import AuditService
from app.services.access.peppers import Peppers
from tests.support.audit_trail import SETTLED_S, a_day, change, service
from tests.support.registry import Node

pytest_plugins = ("tests.support.registry_fixtures",)


@pytest.fixture
async def sealed(node: Node, tmp_path: Path) -> AuditService:
    """Trail of twelve sealed rows and one row that is not sealed yet."""
    made = service(node, tmp_path)
    rows = await a_day(node)
    node.clock.advance(SETTLED_S)
    assert await made.seal() == rows
    await node.tenants.create("fresh", actor="cli")
    return made


async def test_what_happened_verifies(node: Node, sealed: AuditService) -> None:
    assert await sealed.seal() == 0, "the newest row is not settled"
    verdict = await sealed.verify()
    assert (verdict.sealed, verdict.fresh, verdict.problems) == (12, 1, ())
    node.clock.advance(SETTLED_S)
    assert await sealed.seal() == 1
    verdict = await sealed.verify()
    assert (verdict.sealed, verdict.fresh, verdict.problems) == (13, 0, ())


async def test_an_empty_trail_verifies(node: Node, tmp_path: Path) -> None:
    empty = service(node, tmp_path)
    assert await empty.seal() == 0
    assert await empty.verify() == (await empty.verify())
    assert (await empty.verify()).problems == ()


@pytest.mark.parametrize(
    "values",
    [
        {"actor": "mallory"},
        {"action": "tenant.delete"},
        {"tenant": None},
        {"subject": "another"},
        {"before": {"disabled": True}},
        {"after": None},
        {"at": None},
    ],
    ids=lambda values: next(iter(values)),
)
async def test_a_changed_row_is_found(node: Node, sealed: AuditService, values: dict[str, object]) -> None:
    values = {"at": node.clock()} if "at" in values else values
    await change(node, update(audit).where(audit.c.id == 5).values(values))
    assert (await sealed.verify()).problems == ("Row 5 or its seal was changed.",)


async def test_a_row_that_is_gone_is_found(node: Node, sealed: AuditService) -> None:
    await change(node, delete(audit).where(audit.c.id.in_([1, 7])))
    assert (await sealed.verify()).problems == ("Row 1 is missing.", "Row 7 is missing.")


async def test_a_row_that_is_gone_with_its_seal_is_found(node: Node, sealed: AuditService) -> None:
    await change(node, delete(audit).where(audit.c.id == 7), delete(audit_seals).where(audit_seals.c.row_id == 7))
    assert (await sealed.verify()).problems == ("Row 8 or its seal was changed.",)


async def test_a_row_that_was_put_in_later_is_found(node: Node, sealed: AuditService) -> None:
    row = {"id": 100, "at": node.clock(), "actor": "cli", "action": "tenant.create", "subject": "x"}
    await change(node, update(audit).where(audit.c.id == 13).values(id=101))
    node.clock.advance(SETTLED_S)
    await sealed.seal()
    await change(node, insert(audit).values(row))
    assert (await sealed.verify()).problems == ("Row 100 was inserted later, or its seal is missing.",)


async def test_a_row_with_a_seal_that_another_made_is_found(node: Node, sealed: AuditService, tmp_path: Path) -> None:
    """The attacker has the database and this source code, but not the server's secret."""
    await change(node, delete(audit).where(audit.c.id == 12), delete(audit_seals))
    forger = service(node, tmp_path / "forger", Peppers(b"another secret of 32 bytes or so"))
    (tmp_path / "forger").mkdir()
    node.clock.advance(SETTLED_S)
    await forger.seal()
    assert (await forger.verify()).problems == ()
    assert len((await sealed.verify()).problems) == 12 + 1  # each row, and the seal that this server saw


async def test_a_trail_that_was_cut_off_is_found(node: Node, sealed: AuditService, tmp_path: Path) -> None:
    await change(node, delete(audit).where(audit.c.id > 8), delete(audit_seals).where(audit_seals.c.row_id > 8))
    (problem,) = (await sealed.verify()).problems
    assert problem == "The end of the trail was cut off: this server saw row 12 sealed, but the seal is missing."
    # A server that never saw the end cannot detect the cut.
    assert (await service(node, tmp_path / "elsewhere").verify()).problems == ()


@pytest.mark.parametrize("kept", [0, 8])
async def test_what_was_unsealed_to_be_changed_is_not_sealed_again(
    node: Node, sealed: AuditService, kept: int, caplog: pytest.LogCaptureFixture
) -> None:
    """An attacker with database access must not get the server to sign a changed trail."""
    await change(
        node,
        delete(audit_seals).where(audit_seals.c.row_id > kept),
        update(audit).where(audit.c.id == 10).values(actor="mallory"),
    )
    assert sealed.intact
    for _ in range(3):
        node.clock.advance(SETTLED_S)
        assert await sealed.seal() == 0
    assert not sealed.intact
    assert "The audit trail was tampered with" in caplog.text
    (problem,) = (await sealed.verify()).problems
    assert "this server saw row 12 sealed" in problem


async def test_a_server_that_seals_nothing_itself_is_a_witness_too(
    node: Node, sealed: AuditService, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    other = service(node, tmp_path / "other")
    assert await other.seal() == 0
    await change(node, delete(audit_seals).where(audit_seals.c.row_id > 8))
    node.clock.advance(SETTLED_S)
    assert await other.seal() == 0
    assert len((await other.verify()).problems) == 1


async def test_servers_that_seal_at_once_make_one_chain(node: Node, other_node: Node, tmp_path: Path) -> None:
    folders = [tmp_path / name for name in "ab"]
    for folder in folders:
        folder.mkdir()
    services = [service(one, folder) for one, folder in zip((node, other_node), folders, strict=True)]
    rows = 0
    for _ in range(5):
        rows += await a_day(node, tenants=2)
        node.clock.advance(SETTLED_S)
        sealed = await asyncio.gather(*(one.seal() for one in services * 2))
        assert sum(sealed) == 6
    for one in services:
        verdict = await one.verify()
        assert (verdict.sealed, verdict.problems) == (rows, ())


async def test_a_long_trail_is_read_in_pieces(node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.services.access.audit.BATCH", 3)
    rows, long = await a_day(node, tenants=5), service(node, tmp_path)
    node.clock.advance(SETTLED_S)
    assert await long.seal() == rows
    assert (await long.verify()).sealed == rows
    await change(node, update(audit).where(audit.c.id.in_([3, 4, 10])).values(actor="mallory"))
    assert [problem.split()[1] for problem in (await long.verify()).problems] == ["3", "4", "10"]
    async with node.database.read() as connection:
        assert len((await connection.execute(select(audit_seals))).all()) == rows


async def test_a_verification_keeps_the_first_problems(
    node: Node, sealed: AuditService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.services.access.audit.BATCH", 5)
    monkeypatch.setattr("app.services.access.audit.MOST_PROBLEMS", 7)
    await change(node, update(audit).values(actor="mallory"))
    found = await sealed.verify_once()
    assert [problem.split()[1] for problem in found.problems] == [str(number) for number in range(1, 8)]
    assert found.problem_count == 12
    every = await sealed.verify()
    assert len(every.problems) == every.problem_count == 12


async def test_seals_are_computed_outside_the_event_loop(
    node: Node, sealed: AuditService, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = list[threading.Thread]()

    def noted(*parts: Any) -> list[str]:
        threads.append(threading.current_thread())
        return problems(*parts)

    monkeypatch.setattr("app.services.access.audit.problems", noted)
    assert (await sealed.verify()).problem_count == 0
    node.clock.advance(SETTLED_S)
    assert await sealed.trim(node.clock())
    assert len(threads) == 2
    assert threading.current_thread() not in threads
