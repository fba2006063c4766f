"""Common schema definitions: names of constraints, times in UTC, amounts of money."""

from datetime import UTC, datetime

from sqlalchemy import DateTime, Dialect, MetaData, String, TypeDecorator

from app.domain.money import amount_text, parse_amount

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)


class UtcDateTime(TypeDecorator[datetime]):
    """An aware datetime in UTC; SQLite stores no zone, so it is restored on read."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"The timestamp {value.isoformat()} has no time zone. Pass an aware datetime.")
        utc = value.astimezone(UTC)
        return utc.replace(tzinfo=None) if dialect.name == "sqlite" else utc

    def process_result_value(self, value: datetime | None, _dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class Amount(TypeDecorator[int]):
    """Picos of money (see :mod:`app.domain.money`), stored as decimal text: exact in both databases and readable."""

    impl = String(40)
    cache_ok = True

    def process_bind_param(self, value: int | None, _dialect: Dialect) -> str | None:
        return None if value is None else amount_text(value)

    def process_result_value(self, value: str | None, _dialect: Dialect) -> int | None:
        return None if value is None else parse_amount(value)
