"""Lists and series of requests on both databases, against the same computed in Python."""

import asyncio
import random
from collections import defaultdict
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from app.database.tables import tenants
from app.domain.errors import InvalidRequest, NotFound
from app.domain.histogram import LatencyHistogram
from app.domain.request_log import SeriesStep
from app.domain.usage import UsageRecord, Used
from app.services.access.audit import AuditService
from app.services.operations.retention import RetentionService
from app.services.usage.request_log import RequestLogService, Selection
from app.services.usage.turns import UsageTurns
from app.services.usage.usage import UsageService
from tests.support.registry import PEPPERS, Node
from tests.support.usage_records import NOON, added, record

pytest_plugins = ("tests.support.registry_fixtures",)

LATER = NOON + timedelta(days=1)
STEPS = pytest.mark.parametrize("step", SeriesStep)


@pytest.fixture
async def log(node: Node) -> RequestLogService:
    """Two tenants, an adapter with two versions, and a clock a day after the records."""
    for slug in ("pricing", "retail"):
        await node.tenants.create(slug, actor="cli")
    for content in ("one", "two"):
        await node.publish("pricing", "quotes", content)
    node.clock.now = LATER
    return RequestLogService(node.database, UsageTurns(), base_name="llama", clock=node.clock)


async def ids(log: RequestLogService, **chosen: Any) -> list[int]:
    selection = replace(Selection("pricing", NOON - timedelta(days=1)), **chosen)
    return [int(found.record.request_id, 16) for found in (await log.list(selection)).data]


async def test_a_request_is_shown_with_names(node: Node, log: RequestLogService) -> None:
    made = await node.keys.create("pricing", name="till", owner="Ada", actor="cli")
    whole = record(1, key_id=made.key.id, version_id=2, load_s=0.5, slot_s=1.0, cost=7)
    await added(node.database, [whole, record(2)])
    base, found = (await log.list(Selection("pricing"))).data
    assert (found.record, found.tenant, found.adapter, found.key_name) == (whole, "pricing", "pricing/quotes@2", "Ada")
    assert (base.adapter, base.key_name) == ("", None)


async def test_pages_lose_and_repeat_nothing(node: Node, log: RequestLogService) -> None:
    """Many requests arrive in the same microsecond, others a microsecond apart."""
    chance = random.Random(7)
    records = [record(n, at=NOON + timedelta(microseconds=chance.randrange(4))) for n in range(1, 40)]
    await added(node.database, records)
    seen: list[UsageRecord] = []
    cursor = None
    while True:
        page = await log.list(Selection("pricing"), limit=7, cursor=cursor)
        seen += [found.record for found in page.data]
        cursor = page.next_cursor
        if cursor is None:
            break
    assert seen == sorted(records, key=lambda one: (one.at, one.request_id), reverse=True)


async def test_filters_keep_what_has_all_properties(node: Node, log: RequestLogService) -> None:
    await added(
        node.database,
        [
            record(1),
            record(2, version_id=1),
            record(3, version_id=2, load_s=0.5),
            record(4, version_id=2, status=499, at=NOON + timedelta(hours=1)),
            record(5, key_id="b" * 16),
            record(6, tenant_id=2, version_id=1),
        ],
    )
    assert await ids(log) == [4, 5, 3, 2, 1]
    assert await ids(log, adapter="quotes") == await ids(log, adapter="pricing/quotes") == [4, 3, 2]
    assert await ids(log, adapter="quotes@2") == [4, 3]
    assert await ids(log, adapter="llama") == [5, 1]
    assert await ids(log, adapter="nothing") == await ids(log, adapter="quotes@9") == []
    assert await ids(log, key_id="b" * 16) == [5]
    assert await ids(log, status=499) == await ids(log, failed=True) == [4]
    assert await ids(log, failed=False, adapter="quotes@2") == await ids(log, cold=True) == [3]
    assert await ids(log, cold=False) == [4, 5, 2, 1]
    assert await ids(log, start=NOON + timedelta(hours=1)) == [4]
    assert await ids(log, end=NOON + timedelta(hours=1)) == [5, 3, 2, 1]
    assert await ids(log, tenant="retail", adapter="pricing/quotes") == [6]
    assert await ids(log, tenant=None, adapter="pricing/quotes") == [4, 6, 3, 2]


async def test_a_tenant_sees_no_names_of_keys_of_others(node: Node, log: RequestLogService) -> None:
    operator = await node.keys.create(None, name="night shift", actor="cli")
    await added(node.database, [record(1, key_id=operator.key.id)])
    (own,) = (await log.list(Selection("pricing"))).data
    (whole,) = (await log.list(Selection(None))).data
    assert (own.key_name, whole.key_name) == (None, "night shift")


async def test_a_new_tenant_of_an_old_name_has_no_requests(node: Node, log: RequestLogService) -> None:
    await added(node.database, [record(1, tenant_id=2)])
    await node.tenants.delete("retail", actor="cli")
    await node.tenants.create("retail", actor="cli")
    assert (await log.list(Selection("retail"))).data == ()
    assert (await log.series(Selection("retail"), SeriesStep.HOUR)).points == ()
    (left,) = (await log.list(Selection(None))).data
    assert left.record.tenant_id == 2


def random_records(chance: random.Random) -> list[UsageRecord]:
    return [
        record(
            number,
            at=NOON - timedelta(seconds=chance.randrange(7200), microseconds=chance.randrange(10**6)),
            version_id=chance.choice([None, 1, 2]),
            ttft_s=chance.choice([None, chance.expovariate(3), 0.001, 200.0]),
            duration_s=chance.expovariate(1),
            load_s=chance.choice([None, 0.25]),
            status=chance.choice([200, 200, 503]),
            cost=chance.randrange(10**13),
        )
        for number in range(300)
    ]


@STEPS
@pytest.mark.parametrize("adapter", [None, "quotes", "quotes@1", "llama"])
async def test_a_series_is_what_the_records_sum_up_to(
    node: Node, log: RequestLogService, step: SeriesStep, adapter: str | None
) -> None:
    records = random_records(random.Random(3))
    await added(node.database, [*records, record(999, tenant_id=2)])
    wanted = {None: {None, 1, 2}, "quotes": {1, 2}, "quotes@1": {1}, "llama": {None}}[adapter]
    groups: dict[datetime, list[UsageRecord]] = defaultdict(list)
    for one in records:
        if one.version_id in wanted:
            seconds = int(one.at.timestamp()) // step.seconds * step.seconds
            groups[datetime.fromtimestamp(seconds, UTC)].append(one)
    chosen = Selection("pricing", NOON - timedelta(hours=3), NOON, adapter=adapter)
    series = await log.series(chosen, step)
    assert [point.start for point in series.points] == sorted(groups)
    for point in series.points:
        group = groups[point.start]
        used = Used.of(group)
        assert (point.used.load_s, point.used.slot_s) == pytest.approx((used.load_s, used.slot_s))
        for name in ("requests", "failed", "prompt_tokens", "cached_tokens", "output_tokens", "cold_loads"):
            assert getattr(point.used, name) == getattr(used, name)
        assert point.used.cost == (used.cost if series.costs else 0)
        ttft = LatencyHistogram.of([one.ttft_s for one in group if one.ttft_s is not None])
        whole = LatencyHistogram.of([one.duration_s for one in group if one.status == 200])
        for found, expected in ((point.ttft, ttft), (point.duration, whole)):
            assert (found.p50, found.p95, found.p99) == tuple(expected.percentile(p) for p in (0.5, 0.95, 0.99))
    assert series.costs == (step in {SeriesStep.HOUR, SeriesStep.DAY})


@STEPS
async def test_first_and_last_step_are_whole(node: Node, log: RequestLogService, step: SeriesStep) -> None:
    width = timedelta(seconds=step.seconds)
    start = datetime.fromtimestamp(int(NOON.timestamp()) // step.seconds * step.seconds, UTC)
    edge = start + width
    await added(
        node.database, [record(1, at=start), record(2, at=edge - timedelta(microseconds=1)), record(3, at=edge)]
    )
    series = await log.series(Selection("pricing", start + width / 3, start + width / 2), step)
    assert (series.start, series.end, [point.used.requests for point in series.points]) == (start, edge, [2])


async def test_hours_stay_when_records_are_gone(node: Node, log: RequestLogService, tmp_path: Path) -> None:
    await added(node.database, [record(1, cost=5)])
    retention = RetentionService(
        node.database,
        AuditService(node.database, PEPPERS, tmp_path / "witness"),
        usage_days=1,
        audit_days=0,
        clock=node.clock,
    )
    node.clock.advance(86400)
    await retention.sweep()
    (point,) = (await log.series(Selection("pricing"), SeriesStep.DAY)).points
    assert (point.used.requests, point.used.cost, point.ttft.p50) == (1, 5, None)
    assert (await log.series(Selection("pricing", NOON - timedelta(hours=1), NOON), SeriesStep.MINUTE)).points == ()


@pytest.mark.parametrize(
    ("chosen", "reason"),
    [
        ({"adapter": "quotes:canary"}, "recorded by version"),
        ({"adapter": "Quotes"}, "adapter is 'Quotes'"),
        ({"adapter": "quotes", "tenant": None}, "TENANT/ADAPTER"),
        ({"start": LATER, "end": NOON}, "must be before"),
        ({"start": NOON.replace(tzinfo=None)}, "time zone"),
    ],
)
async def test_wrong_selections_are_refused(log: RequestLogService, chosen: dict[str, Any], reason: str) -> None:
    selection = replace(Selection("pricing"), **chosen)
    with pytest.raises(InvalidRequest, match=reason):
        await log.list(selection)
    with pytest.raises(InvalidRequest, match=reason):
        await log.series(selection, SeriesStep.HOUR)


@pytest.mark.parametrize("cursor", ["x", "MTo=", "OTk5OTk5OTk5OTk5OTk5OTk5OmE="])
async def test_other_cursors_are_refused(log: RequestLogService, cursor: str) -> None:
    with pytest.raises(InvalidRequest, match="cursor"):
        await log.list(Selection("pricing"), cursor=cursor)


async def test_a_series_has_a_bounded_number_of_steps(log: RequestLogService) -> None:
    day = Selection("pricing", NOON - timedelta(days=1), NOON)
    assert (await log.series(day, SeriesStep.MINUTE)).points == ()
    with pytest.raises(InvalidRequest, match="2880 steps of 1m; the limit is 1500"):
        await log.series(Selection("pricing", NOON - timedelta(days=2), NOON), SeriesStep.MINUTE)
    with pytest.raises(NotFound, match="There is no tenant"):
        await log.series(Selection("absent"), SeriesStep.HOUR)


async def test_a_request_of_an_unknown_tenant_is_listed(node: Node, log: RequestLogService) -> None:
    await added(node.database, [record(1, tenant_id=77, version_id=1)])
    (found,) = (await log.list(Selection(None))).data
    assert (found.tenant, found.adapter) == (None, "pricing/quotes@1")
    async with node.database.write() as connection:
        await connection.execute(update(tenants).where(tenants.c.slug == "pricing").values(slug="renamed"))
    assert (await log.list(Selection(None))).data[0].adapter == "renamed/quotes@1"


@pytest.mark.parametrize("kind", ["list", "series", "report"])
async def test_long_queries_of_a_tenant_take_turns(node: Node, log: RequestLogService, kind: str) -> None:
    turns = UsageTurns()
    requests = RequestLogService(node.database, turns, base_name="llama", clock=node.clock)
    usage = UsageService(node.database, turns, clock=node.clock)

    async def ask(tenant: str) -> None:
        match kind:
            case "list":
                await requests.list(Selection(tenant))
            case "series":
                await requests.series(Selection(tenant), SeriesStep.HOUR)
            case _:
                await usage.report(tenant, start=None, end=None, by=())

    async with turns.turn("pricing"):
        waiting = asyncio.create_task(ask("pricing"))
        await ask("retail")
        assert not waiting.done()
    await waiting
