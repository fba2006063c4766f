"""Usage on both databases: each record counted once, and sums equal to the records."""

import asyncio
import itertools
import random
from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from sqlalchemy import event, select

from app.database import usage as usage_repo
from app.database.session import Database
from app.database.tables import usage
from app.domain.errors import InvalidRequest, NotFound
from app.domain.usage import Grouping, UsageEntry, UsageRecord, Used
from app.services.usage.journal import Journal
from app.services.usage.ledger import Ledger
from app.services.usage.turns import UsageTurns
from app.services.usage.usage import UsageService
from tests.support.registry import Node
from tests.support.usage_records import NOON, added, record, sums

pytest_plugins = ("tests.support.registry_fixtures",)


async def test_batches_of_all_sizes_are_written_by_a_few_statements(node: Node) -> None:
    """Connections cache every statement, and a busy server writes batches of all sizes."""
    statements = set[str]()
    numbers = itertools.count(1)
    async with node.database.write() as connection:
        event.listen(connection.sync_connection, "before_cursor_execute", lambda *said: statements.add(said[2]))
        for size in (*range(1, 100), 250, 400):
            batch = [record(next(numbers)) for _ in range(size)]
            assert await usage_repo.add(connection, batch) == batch
    assert len(statements) < 40


async def test_a_record_is_kept_as_it_is(node: Node) -> None:
    cold = record(
        1,
        version_id=2,
        load_s=1.5,
        slot_s=2.25,
        status=499,
        finish_reason=None,
        ttft_s=None,
        at=NOON.replace(minute=59),
    )
    assert await added(node.database, [cold]) == 1
    async with node.database.read() as connection:
        (row,) = (await connection.execute(select(usage))).mappings()
    assert UsageRecord(**row) == cold


async def test_what_comes_twice_is_counted_once(node: Node) -> None:
    await node.tenants.create("pricing", actor="cli")
    records = [record(number) for number in range(10)]
    assert await added(node.database, [*records[:6], records[0]]) == 6
    assert await added(node.database, records[:6]) == 0
    assert await added(node.database, records) == 4
    assert await added(node.database, []) == 0
    assert await sums(node) == {(): Used(10, 0, 100, 40, 30, 0, 0.0)}


async def test_servers_that_write_the_same_hours_at_once_lose_nothing(node: Node, other_node: Node) -> None:
    tenants = [(await node.tenants.create(f"unit-{number}", actor="cli")).id for number in range(5)]
    chance = random.Random(1)
    records = [
        record(n, chance.choice(tenants), at=NOON + timedelta(hours=chance.randrange(3)), output_tokens=n)
        for n in range(300)
    ]
    work = [list(records) for _ in range(6)]
    for own in work:
        chance.shuffle(own)
    batches = [
        (nodes, own[i : i + 50])
        for nodes, own in zip([node, other_node] * 3, work, strict=True)
        for i in range(0, 300, 50)
    ]
    new = await asyncio.gather(*(added(one.database, batch) for one, batch in batches))
    assert sum(new) == 300
    assert (await sums(node))[()].output_tokens == sum(range(300))


async def test_sums_are_kept_apart_as_asked(node: Node) -> None:
    pricing, retail = [(await node.tenants.create(slug, actor="cli")).id for slug in ("pricing", "retail")]
    first = (await node.publish("pricing", "prices", "1")).key.version_id
    second = (await node.publish("pricing", "prices", "2")).key.version_id
    day, hour = timedelta(days=1), timedelta(hours=1)
    await added(
        node.database,
        [
            record(1, pricing, version_id=first, load_s=0.5, slot_s=1.25),
            record(2, pricing, version_id=second, at=NOON + hour, key_id="b" * 16),
            record(3, pricing, at=NOON + day, status=503),
            # A shared adapter.
            record(4, retail, version_id=second, at=NOON + hour),
        ],
    )
    one = Used(1, 0, 10, 4, 3, 0, 0.0)
    cold, failed = replace(one, cold_loads=1, load_s=0.5, slot_s=1.25), replace(one, failed=1)
    assert await sums(node, Grouping.TENANT) == {("pricing",): cold + one + failed, ("retail",): one}
    assert await sums(node, Grouping.TENANT, tenant="retail") == {("retail",): one}
    assert await sums(node, Grouping.ADAPTER, tenant="pricing") == {("",): failed, ("pricing/prices",): cold + one}
    assert await sums(node, Grouping.VERSION) == {
        ("",): failed,
        ("pricing/prices@1",): cold,
        ("pricing/prices@2",): one + one,
    }
    assert await sums(node, Grouping.KEY, tenant="pricing") == {("a" * 16,): cold + failed, ("b" * 16,): one}
    assert await sums(node, Grouping.HOUR) == {(NOON,): cold, (NOON + hour,): one + one, (NOON + day,): failed}
    midnight = NOON.replace(hour=0)
    assert await sums(node, Grouping.TENANT, Grouping.DAY) == {
        ("pricing", midnight): cold + one,
        ("pricing", midnight + day): failed,
        ("retail", midnight): one,
    }


async def test_a_range_is_of_whole_hours(node: Node) -> None:
    tenant = (await node.tenants.create("pricing", actor="cli")).id
    await added(node.database, [record(n, tenant, at=NOON + timedelta(minutes=20 * n)) for n in range(-3, 6)])
    service = UsageService(node.database, UsageTurns(), clock=lambda: NOON + timedelta(minutes=30))
    for start, end, requests in (
        (NOON, NOON + timedelta(hours=1), 3),
        (NOON + timedelta(minutes=59), NOON + timedelta(hours=1), 3),
        (NOON + timedelta(minutes=59), NOON + timedelta(hours=1, microseconds=1), 6),
        (None, None, 6),
    ):
        found = await service.report("pricing", start=start, end=end, by=[])
        assert found.total.requests == requests
        assert found.end - found.start >= timedelta(hours=1)


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ({"start": NOON, "end": NOON}, "from is 2026-03-01T12:00:00"),
        ({"start": datetime(2026, 3, 1)}, "from is 2026-03-01T00:00:00; it must be a time with its time zone"),  # noqa: DTZ001
        ({"end": NOON + timedelta(days=9999)}, "to is .*; it must be a time with its time zone"),
        ({"start": NOON.replace(year=1999)}, "from is 1999"),
        ({"by": [Grouping.ADAPTER, Grouping.VERSION]}, "by has adapter and version. Send only one of them"),
        ({"by": [Grouping.HOUR, Grouping.DAY]}, "by has day and hour"),
        ({"by": [Grouping.KEY, Grouping.KEY]}, "by is 'key,key'; each name may appear only once"),
    ],
)
async def test_a_question_that_makes_no_sense_is_refused(node: Node, wanted, said) -> None:
    service = UsageService(node.database, UsageTurns(), clock=lambda: NOON)
    with pytest.raises(InvalidRequest, match=said):
        await service.report(None, **{"start": None, "end": None, "by": [], **wanted})
    with pytest.raises(NotFound):
        await service.report("unknown", start=None, end=None, by=[])


async def test_too_many_groups_are_refused(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    tenant = (await node.tenants.create("pricing", actor="cli")).id
    await added(node.database, [record(number, tenant, key_id=str(number)) for number in range(6)])
    monkeypatch.setattr("app.services.usage.usage.MAX_GROUPS", 5)
    service = UsageService(node.database, UsageTurns(), clock=lambda: NOON)
    assert (await service.report(None, start=None, end=NOON + timedelta(hours=1), by=[])).total.requests == 6
    with pytest.raises(InvalidRequest, match="more than 5 groups"):
        await service.report(None, start=None, end=NOON + timedelta(hours=1), by=[Grouping.KEY])


async def test_records_of_the_journal_reach_the_database_once(node: Node, tmp_path, monkeypatch) -> None:
    ledger = Ledger(node.database, Journal(tmp_path / "usage"))
    await ledger.open()
    await node.tenants.create("pricing", actor="cli")
    await asyncio.gather(*(ledger.keep(UsageEntry(record(number))) for number in range(1200)))
    await ledger.ship()
    # A server that crashes before it deletes a journal file finds it again.
    monkeypatch.setattr("app.services.usage.ledger.forget", lambda path: None)
    await ledger.keep(UsageEntry(record(1200)))
    await ledger.ship()
    monkeypatch.undo()
    await ledger.ship()
    assert list((tmp_path / "usage").iterdir()) == []
    assert (await sums(node))[()].requests == 1201
    await ledger.close()


async def test_a_database_that_is_gone_costs_no_record(node: Node, tmp_path, caplog) -> None:
    gone = Database("postgresql+psycopg://unknown@127.0.0.1:1/none")
    ledger = Ledger(gone, Journal(tmp_path / "usage"))
    await ledger.open()
    for number in range(3):
        await ledger.keep(UsageEntry(record(number)))
    await ledger.close()
    assert "stay in the journal" in caplog.text
    await gone.close()
    await node.tenants.create("pricing", actor="cli")
    again = Ledger(node.database, Journal(tmp_path / "usage"))
    await again.open()
    await again.keep(UsageEntry(record(3)))
    await again.ship()
    assert (await sums(node))[()].requests == 4
    await again.close()


async def test_a_disk_that_is_full_costs_no_record(node: Node, tmp_path, monkeypatch) -> None:
    ledger = Ledger(node.database, Journal(tmp_path / "usage"))
    await ledger.open()
    await node.tenants.create("pricing", actor="cli")

    def full(*_: object) -> None:
        raise OSError(28, "no space left on device")

    with monkeypatch.context() as disk:
        disk.setattr("app.services.usage.journal.os.fdatasync", full)
        await asyncio.gather(*(ledger.keep(UsageEntry(record(number))) for number in range(5)))
    assert (await sums(node))[()].requests == 5
    await ledger.close()
    assert (await sums(node))[()].requests == 5
