"""Usage reports for tenants and for the platform."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from app.database import usage
from app.database.session import Database
from app.domain.clock import Clock, utc_now
from app.domain.errors import InvalidRequest
from app.domain.usage import Group, Grouping, Used, hour_of, start_of
from app.services.common.lookups import tenant_or_404
from app.services.usage.times import checked_times
from app.services.usage.turns import UsageTurns

#: Most groups in one report.
MAX_GROUPS = 10_000
_DEFAULT_DAYS = 30


@dataclass(frozen=True, slots=True)
class Report:
    """Usage totals over whole hours.

    Attributes:
        start, end: beginning of the first hour and end of the last one.
        currency: currency of the costs.
    """

    start: datetime
    end: datetime
    groups: tuple[Group, ...]
    total: Used
    currency: str


class UsageService:
    """Use cases of keys with the scope ``usage:read``, and of the platform.

    A request appears in a report about a second after it has ended.
    """

    def __init__(self, database: Database, turns: UsageTurns, *, currency: str = "", clock: Clock = utc_now) -> None:
        self._database, self._turns, self._currency, self._clock = database, turns, currency, clock

    async def report(
        self, tenant: str | None, *, start: datetime | None, end: datetime | None, by: Sequence[Grouping]
    ) -> Report:
        """Sum the usage of one tenant, or of all tenants with None, over the hours that contain these times.

        Args:
            start: first moment; default: thirty days before the end.
            end: last moment; default: now.
            by: dimensions of the groups; one of ``adapter`` and ``version``, and one of ``hour`` and ``day``.

        Raises:
            InvalidRequest, NotFound, Busy, RegistryUnavailable
        """
        _check_groupings(by)
        hours = _hours(start, end, self._clock())
        async with self._turns.turn(tenant), self._database.read() as connection:
            owner = None if tenant is None else (await tenant_or_404(connection, tenant)).id
            groups = await usage.totals(connection, tenant_id=owner, hours=hours, by=by, limit=MAX_GROUPS + 1)
        if len(groups) > MAX_GROUPS:
            raise InvalidRequest(
                f"The report has more than {MAX_GROUPS} groups. Ask for fewer hours, or group by less.",
                param="by",
            )
        total = sum((group.used for group in groups), Used())
        return Report(start_of(hours.start), start_of(hours.stop), tuple(groups), total, self._currency)


def _check_groupings(by: Sequence[Grouping]) -> None:
    for pair in ({Grouping.ADAPTER, Grouping.VERSION}, {Grouping.HOUR, Grouping.DAY}):
        if pair.issubset(by):
            raise InvalidRequest(f"by has {' and '.join(sorted(pair))}. Send only one of them.", param="by")
    if len(set(by)) != len(by):
        raise InvalidRequest(f"by is {','.join(by)!r}; each name may appear only once.", param="by")


def _hours(start: datetime | None, end: datetime | None, now: datetime) -> range:
    start, end = checked_times(start, end, now, default=timedelta(days=_DEFAULT_DAYS))
    return range(hour_of(start), hour_of(end - timedelta(microseconds=1)) + 1)
