"""Limit accounts that several servers share, and reservations of requests in flight. PostgreSQL only."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Any, cast

from sqlalchemy import ColumnElement, Table, delete, func, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from app.database.tables import limit_accounts, limit_grants, limit_reclaimed
from app.domain.limits.account import Account
from app.domain.limits.limiter import Reservation, Subject

#: Key of the PostgreSQL advisory lock between reclaiming reservations and writing records, unique in this database.
_LOCK = 0x6C617465


async def moment(connection: AsyncConnection) -> datetime:
    """Return the database's current time, the common clock of all servers."""
    now: datetime = (await connection.execute(select(func.clock_timestamp()))).scalar_one()
    return now.astimezone(UTC)


async def lock(connection: AsyncConnection, subjects: Collection[Subject]) -> dict[Subject, Account | None]:
    """Lock accounts until the transaction ends; None for a new account.

    Rows are locked in the order of their names, so that two servers cannot deadlock.
    """
    names = sorted(_name(subject) for subject in subjects)
    if not names:
        return {}
    new = insert(limit_accounts).values([{"subject": name, "account": {}} for name in names])
    await connection.execute(new.on_conflict_do_nothing())
    statement = select(limit_accounts).where(limit_accounts.c.subject.in_(names)).order_by(limit_accounts.c.subject)
    rows = (await connection.execute(statement.with_for_update())).all()
    return {_subject(row.subject): Account.of(row.account) if row.account else None for row in rows}


async def read(connection: AsyncConnection, subjects: Collection[Subject]) -> dict[Subject, Account]:
    """Read the existing accounts without locks."""
    names = [_name(subject) for subject in subjects]
    rows = await connection.execute(select(limit_accounts).where(limit_accounts.c.subject.in_(names)))
    return {_subject(row.subject): Account.of(row.account) for row in rows if row.account}


async def save(connection: AsyncConnection, accounts: Mapping[Subject, Account], locked: Iterable[Subject]) -> None:
    """Write accounts back; delete locked accounts that are not among them."""
    rows = [{"subject": _name(subject), "account": account.stored} for subject, account in accounts.items()]
    if rows:
        statement = insert(limit_accounts).values(rows)
        values = {"account": statement.excluded.account}
        await connection.execute(statement.on_conflict_do_update(index_elements=["subject"], set_=values))
    if removed := [_name(subject) for subject in locked if subject not in accounts]:
        await connection.execute(delete(limit_accounts).where(limit_accounts.c.subject.in_(removed)))


async def add_reservations(
    connection: AsyncConnection, reservations: Mapping[str, Reservation], *, node_id: str, expires_at: datetime
) -> None:
    """Store the reservations of requests, by request id."""
    if reservations:
        rows = [
            {"request_id": request_id, "node_id": node_id, "taken": _taken(reservation), "expires_at": expires_at}
            for request_id, reservation in reservations.items()
        ]
        await connection.execute(insert(limit_grants).values(rows))


async def take_reservations(connection: AsyncConnection, request_ids: Collection[str]) -> dict[str, Reservation]:
    """Delete and return the reservations of these requests; reclaimed ones are absent."""
    if not request_ids:
        return {}
    return await _removed(connection, limit_grants, limit_grants.c.request_id.in_(list(request_ids)))


async def take_expired(connection: AsyncConnection, at: datetime, *, limit: int) -> dict[str, Reservation]:
    """Delete and return expired reservations, which their servers no longer renew.

    Rows that another server has locked are skipped.
    """
    expired = (
        select(limit_grants.c.request_id)
        .where(limit_grants.c.expires_at < at)
        .limit(limit)
        .with_for_update(skip_locked=True)
    )
    return await _removed(connection, limit_grants, limit_grants.c.request_id.in_(expired))


async def renew(connection: AsyncConnection, node_id: str, expires_at: datetime) -> None:
    """Renew the lease on a server's reservations."""
    await connection.execute(
        update(limit_grants).where(limit_grants.c.node_id == node_id).values(expires_at=expires_at)
    )


async def expire(connection: AsyncConnection, node_id: str, at: datetime) -> None:
    """Expire a server's reservations: those of an earlier process."""
    ended = at - timedelta(seconds=1)
    await connection.execute(update(limit_grants).where(limit_grants.c.node_id == node_id).values(expires_at=ended))


async def lock_reclaimed(connection: AsyncConnection, *, alone: bool) -> None:
    """Lock reclaiming against the writing of records until the transaction ends.

    Without the lock, a reclaimer could miss a new record while its writer misses what was reclaimed.

    Args:
        alone: True for the exclusive lock of a reclaimer; False for the shared lock of a writer.
    """
    lock = func.pg_advisory_xact_lock if alone else func.pg_advisory_xact_lock_shared
    await connection.execute(select(lock(_LOCK)))


async def add_reclaimed(connection: AsyncConnection, reservations: Mapping[str, Reservation], at: datetime) -> None:
    """Store what was reclaimed from requests without a record."""
    if reservations:
        rows = [
            {"request_id": request_id, "taken": _taken(reservation), "at": at}
            for request_id, reservation in reservations.items()
        ]
        await connection.execute(insert(limit_reclaimed).values(rows))


async def take_reclaimed(connection: AsyncConnection, request_ids: Collection[str]) -> dict[str, Reservation]:
    """Delete and return what was reclaimed from these requests."""
    return await _removed(connection, limit_reclaimed, limit_reclaimed.c.request_id.in_(list(request_ids)))


async def forget_reclaimed(connection: AsyncConnection, before: datetime) -> None:
    """Delete old entries, whose records will not arrive any more."""
    await connection.execute(delete(limit_reclaimed).where(limit_reclaimed.c.at < before))


async def _removed(connection: AsyncConnection, table: Table, which: ColumnElement[bool]) -> dict[str, Reservation]:
    rows = await connection.execute(delete(table).where(which).returning(table.c.request_id, table.c.taken))
    return {row.request_id: _reservation(row.taken) for row in rows}


def _taken(reservation: Reservation) -> dict[str, Any]:
    """JSON representation; a server of the release before knows no ``rated``, which is stored only if it is False."""
    values = asdict(reservation)
    if reservation.rated:
        del values["rated"]
    return values


def _reservation(taken: Mapping[str, Any]) -> Reservation:
    subjects = tuple((kind, identity) for kind, identity in taken["subjects"])
    return Reservation(**{**taken, "subjects": subjects})


def _name(subject: Subject) -> str:
    return ":".join(subject)


def _subject(name: str) -> Subject:
    kind, _, identity = name.partition(":")
    return cast("Subject", (kind, identity))
