"""Sessions of the console in the registry; only the HMAC of a session's token is stored."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, bindparam, delete, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from app.database.keys import CREDENTIAL, WITH_TENANT, WORKS, Credential, credential_of
from app.database.tables import keys, sessions

_IS_OPEN = (
    sessions.c.expires_at > bindparam("now", type_=sessions.c.expires_at.type),
    sessions.c.seen_at > bindparam("idle_since", type_=sessions.c.seen_at.type),
)
_FIND = (
    select(sessions.c.hmac.label("session"), sessions.c.key_id, sessions.c.seen_at, *CREDENTIAL)
    .select_from(WITH_TENANT.join(sessions, sessions.c.key_id == keys.c.id))
    .where(sessions.c.hmac.in_(bindparam("hmacs", expanding=True)), *_IS_OPEN, *WORKS)
)


@dataclass(frozen=True, slots=True)
class StoredSession:
    """An open session and the key that it was opened with, which works.

    Attributes:
        hmac: HMAC of the token.
        seen_at: time of a recent request.
    """

    hmac: str
    key_id: str
    seen_at: datetime
    credential: Credential


def find_session(
    connection: Connection, hmacs: Sequence[str], *, now: datetime, idle_since: datetime
) -> StoredSession | None:
    """Find the open session with one of these HMACs, whose key works. For ``Database.lookup``."""
    row = connection.execute(_FIND, {"hmacs": hmacs, "now": now, "idle_since": idle_since}).one_or_none()
    return None if row is None else StoredSession(row.session, row.key_id, row.seen_at, credential_of(row))


async def open_sessions(
    connection: AsyncConnection, hmacs: Collection[str], *, now: datetime, idle_since: datetime
) -> set[str]:
    """Return those of the sessions that are open."""
    statement = select(sessions.c.hmac).where(sessions.c.hmac.in_(hmacs), *_IS_OPEN)
    return set((await connection.scalars(statement, {"now": now, "idle_since": idle_since})).all())


async def times_of(connection: AsyncConnection, hmac: str) -> tuple[datetime, datetime] | None:
    """Return the times at which a session was opened and will expire."""
    statement = select(sessions.c.created_at, sessions.c.expires_at).where(sessions.c.hmac == hmac)
    row = (await connection.execute(statement)).one_or_none()
    return None if row is None else (row.created_at, row.expires_at)


async def insert_session(
    connection: AsyncConnection, hmac: str, *, key_id: str, at: datetime, expires_at: datetime, most: int
) -> None:
    """Add a session of a key, whose row is locked, and remove its oldest sessions beyond ``most``."""
    values = {"hmac": hmac, "key_id": key_id, "created_at": at, "seen_at": at, "expires_at": expires_at}
    await connection.execute(insert(sessions).values(values))
    newest = select(sessions.c.hmac).where(sessions.c.key_id == key_id)
    newest = newest.order_by(sessions.c.created_at.desc(), sessions.c.hmac).limit(most)
    kept = (await connection.scalars(newest)).all()
    await connection.execute(delete(sessions).where(sessions.c.key_id == key_id, sessions.c.hmac.not_in(kept)))


async def set_seen(connection: AsyncConnection, hmac: str, at: datetime) -> None:
    """Store the time of a request, unless a later one is stored."""
    earlier = (sessions.c.hmac == hmac, sessions.c.seen_at < at)
    await connection.execute(update(sessions).where(*earlier).values(seen_at=at))


async def remove_session(connection: AsyncConnection, hmacs: Collection[str]) -> str | None:
    """Remove the session with one of these HMACs. Return the id of its key; None if there was none."""
    statement = delete(sessions).where(sessions.c.hmac.in_(hmacs)).returning(sessions.c.key_id)
    key_id: str | None = await connection.scalar(statement)
    return key_id


async def remove_of_key(connection: AsyncConnection, key_id: str) -> None:
    """Remove the sessions of a key."""
    await connection.execute(delete(sessions).where(sessions.c.key_id == key_id))


async def remove_of_tenant(connection: AsyncConnection, tenant_id: int) -> None:
    """Remove the sessions of all keys of a tenant."""
    of_tenant = select(keys.c.id).where(keys.c.tenant_id == tenant_id)
    await connection.execute(delete(sessions).where(sessions.c.key_id.in_(of_tenant)))


async def remove_ended(connection: AsyncConnection, *, now: datetime, idle_since: datetime) -> None:
    """Remove sessions that have expired or were idle for too long."""
    ended = (sessions.c.expires_at <= now) | (sessions.c.seen_at <= idle_since)
    await connection.execute(delete(sessions).where(ended))
