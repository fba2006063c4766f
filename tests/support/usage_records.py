"""Usage records, and their sums in the registry."""

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from app.database import usage as usage_repo
from app.database.session import Database
from app.domain.usage import Grouping, UsageRecord, Used
from app.services.usage.turns import UsageTurns
from app.services.usage.usage import UsageService
from tests.support.registry import Node

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def record(number: int, tenant_id: int = 1, **values: Any) -> UsageRecord:
    plain = UsageRecord(f"{number:032x}", NOON, tenant_id, "a" * 16, None, 10, 4, 3, 0.1, 0.5, None, "stop", 200)
    return replace(plain, **values)


async def added(database: Database, records: Iterable[UsageRecord]) -> int:
    async with database.write() as connection:
        return len(await usage_repo.add(connection, list(records)))


async def sums(node: Node, *by: Grouping, tenant: str | None = None) -> dict[tuple[object, ...], Used]:
    report = await UsageService(node.database, UsageTurns()).report(
        tenant, start=NOON - timedelta(days=9), end=NOON + timedelta(days=9), by=by
    )
    assert report.total == sum((group.used for group in report.groups), Used())
    names = {Grouping.VERSION: "adapter", Grouping.HOUR: "start", Grouping.DAY: "start"}
    return {tuple(getattr(group, names.get(one, one)) for one in by): group.used for group in report.groups}
