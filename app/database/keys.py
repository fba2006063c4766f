"""API keys in the registry; only their HMAC is stored."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, and_, bindparam, func, insert, not_, select, tuple_, update
from sqlalchemy.ext.asyncio import AsyncConnection

from app.database.filters import named
from app.database.tables import keys, tenants
from app.domain.access import Caller, Key, KeyFilter, Scope
from app.domain.limits.limits import Limits
from app.domain.restrictions import Restrictions
from app.domain.searches import Search

_SHOWN = (
    keys.c.id,
    tenants.c.slug.label("tenant"),
    keys.c.name,
    keys.c.scopes,
    keys.c.lifetime_s,
    keys.c.created_at,
    keys.c.expires_at,
    keys.c.revoked_at,
    keys.c.restrictions,
    keys.c.owner,
    keys.c.last_used_at,
)
#: Keys with their tenants, if they have one.
WITH_TENANT = keys.outerjoin(tenants, keys.c.tenant_id == tenants.c.id)

#: Name of a key for people: its owner, or else its name.
DISPLAY_NAME = func.coalesce(keys.c.owner, keys.c.name)

#: Conditions of a key that works at the time ``now``.
WORKS = (
    keys.c.revoked_at.is_(None),
    keys.c.expires_at.is_(None) | (keys.c.expires_at > bindparam("now", type_=keys.c.expires_at.type)),
    keys.c.tenant_id.is_(None) | (tenants.c.disabled.is_(False) & tenants.c.deleted_at.is_(None)),
)

#: Columns of :class:`Credential`.
CREDENTIAL = (
    keys.c.hmac,
    keys.c.scopes,
    keys.c.expires_at,
    keys.c.tenant_id,
    tenants.c.slug,
    tenants.c.salt,
    tenants.c.weight,
    keys.c.restrictions,
    tenants.c.limits,
)
_FIND = (
    select(*CREDENTIAL)
    .select_from(WITH_TENANT)
    .where(
        keys.c.id == bindparam("key_id"),
        # A timing leak of matching digits is harmless: without the pepper, an attacker cannot choose digits of an HMAC.
        keys.c.hmac.in_(bindparam("hmacs", expanding=True)),
        *WORKS,
    )
)


@dataclass(frozen=True, slots=True)
class Credential:
    """Data for authentication: a valid key and its tenant.

    Attributes:
        hmac: the stored HMAC that matched.
        weight: weight of the tenant; 1 for a platform key.
        limits: limits of the tenant.
    """

    hmac: str
    scopes: frozenset[Scope]
    expires_at: datetime | None
    tenant_id: int | None
    tenant_slug: str | None
    salt: str = field(repr=False)
    weight: float
    limits: Limits
    restrictions: Restrictions


def find_credential(connection: Connection, key_id: str, hmacs: Sequence[str], now: datetime) -> Credential | None:
    """Find the valid key with this id and one of these HMACs. For ``Database.lookup``.

    A key is not found if it is unknown, revoked or expired, if the secret is wrong, or if its tenant is disabled or
    deleted. All these cases take the same time, because none of them reads a row.
    """
    row = connection.execute(_FIND, {"key_id": key_id, "hmacs": hmacs, "now": now}).one_or_none()
    return None if row is None else credential_of(row)


def credential_of(row: Row[*tuple[Any, ...]]) -> Credential:
    """Build a credential from a row with the columns of ``CREDENTIAL``."""
    return Credential(
        hmac=row.hmac,
        scopes=frozenset(Scope(scope) for scope in row.scopes),
        expires_at=row.expires_at,
        tenant_id=row.tenant_id,
        tenant_slug=row.slug,
        salt=row.salt or "",
        weight=1.0 if row.weight is None else row.weight,
        limits=Limits.of(row.limits or {}),
        restrictions=Restrictions.of(row.restrictions),
    )


@dataclass(frozen=True, slots=True)
class KeyOwner:
    """A key as the creator of something that outlives a request.

    Attributes:
        caller: caller of the key, also of one that has expired or was revoked.
        disabled, deleted: state of its tenant.
    """

    caller: Caller
    revoked: bool
    disabled: bool
    deleted: bool


def is_key_of(key_id: ColumnElement[Any], tenant_id: ColumnElement[Any]) -> ColumnElement[bool]:
    """Condition to join a key by its id if its tenant is this one. Names of other keys are hidden from tenants."""
    return (keys.c.id == key_id) & (keys.c.tenant_id == tenant_id)


async def find_owner(connection: AsyncConnection, key_id: str) -> KeyOwner | None:
    """Find a tenant's key by its id, in any state; None for a platform key."""
    tenant = (tenants.c.slug, tenants.c.salt, tenants.c.weight, tenants.c.limits, tenants.c.disabled)
    key = (keys.c.scopes, keys.c.tenant_id, keys.c.restrictions, keys.c.revoked_at)
    statement = select(*key, *tenant, tenants.c.deleted_at).join_from(keys, tenants, keys.c.tenant_id == tenants.c.id)
    row = (await connection.execute(statement.where(keys.c.id == key_id))).one_or_none()
    if row is None:
        return None
    caller = Caller(
        key_id,
        row.tenant_id,
        row.slug,
        frozenset(Scope(scope) for scope in row.scopes),
        row.salt,
        weight=row.weight,
        limits=Limits.of(row.limits or {}),
        restrictions=Restrictions.of(row.restrictions),
    )
    return KeyOwner(caller, row.revoked_at is not None, row.disabled, row.deleted_at is not None)


async def working_keys(connection: AsyncConnection, key_ids: Collection[str], *, now: datetime) -> set[str]:
    """Return the ids of those keys that are not revoked or expired, and whose tenant is not disabled or deleted."""
    statement = select(keys.c.id).select_from(WITH_TENANT).where(keys.c.id.in_(key_ids), *WORKS)
    return set((await connection.scalars(statement, {"now": now})).all())


async def insert_key(connection: AsyncConnection, key: Key, *, tenant_id: int | None, hmac: str) -> None:
    await connection.execute(
        insert(keys).values(
            id=key.id,
            tenant_id=tenant_id,
            name=key.name,
            scopes=[scope.value for scope in key.scopes],
            hmac=hmac,
            lifetime_s=key.lifetime_s,
            created_at=key.created_at,
            expires_at=key.expires_at,
            revoked_at=key.revoked_at,
            restrictions=key.restrictions.stored,
            owner=key.owner,
        )
    )


async def find_key(connection: AsyncConnection, key_id: str, *, tenant_id: int | None, lock: bool = True) -> Key | None:
    """Find a key of a tenant (None: a platform key).

    Args:
        lock: lock its row until the transaction ends.
    """
    statement = select(*_SHOWN).select_from(WITH_TENANT).where(keys.c.id == key_id, _owned_by(tenant_id))
    if lock:
        statement = statement.with_for_update(of=keys)
    row = (await connection.execute(statement)).one_or_none()
    return None if row is None else _key(row)


async def list_keys(
    connection: AsyncConnection,
    only: KeyFilter,
    *,
    after: tuple[datetime | str, str] | None,
    limit: int,
    now: datetime,
) -> list[Key]:
    """List keys in the order of the filter.

    Args:
        after: time of creation, or name, and id of the last key of the previous page.
    """
    conditions = named(Search(only.text), keys.c.id, keys.c.name, keys.c.owner)
    place = (keys.c.name if only.sort.by_name else keys.c.created_at, keys.c.id)
    if after is not None:
        position = tuple_(*after, types=[column.type for column in place])
        conditions.append(tuple_(*place) < position if only.sort.descending else tuple_(*place) > position)
    if only.all_owners:
        conditions.append(keys.c.tenant_id.is_(None) | tenants.c.deleted_at.is_(None))
    else:
        conditions.append(_owned_by(only.tenant_id))
    if only.working is not None:
        conditions.append(and_(*WORKS) if only.working else not_(and_(*WORKS)))
    order = [column.desc() if only.sort.descending else column for column in place]
    statement = select(*_SHOWN).select_from(WITH_TENANT).where(*conditions).order_by(*order).limit(limit)
    given = {} if only.working is None else {"now": now}
    return [_key(row) for row in await connection.execute(statement, given)]


async def set_hmac(connection: AsyncConnection, key_id: str, *, old: str, new: str) -> None:
    """Replace the HMAC of a key, unless another process has replaced it already."""
    await connection.execute(update(keys).where(keys.c.id == key_id, keys.c.hmac == old).values(hmac=new))


async def set_expiry(connection: AsyncConnection, key_id: str, at: datetime) -> None:
    await connection.execute(update(keys).where(keys.c.id == key_id).values(expires_at=at))


async def update_key(connection: AsyncConnection, key: Key) -> None:
    """Store the restrictions and the owner of a key."""
    values = {"restrictions": key.restrictions.stored, "owner": key.owner}
    await connection.execute(update(keys).where(keys.c.id == key.id).values(values))


async def set_used(connection: AsyncConnection, uses: Mapping[str, datetime]) -> None:
    """Store times of use of keys by id. A later time that another server has stored stays."""
    if not uses:
        return
    used = bindparam("used_at", type_=keys.c.last_used_at.type)
    older = keys.c.last_used_at.is_(None) | (keys.c.last_used_at < used)
    statement = update(keys).where(keys.c.id == bindparam("key_id"), older).values(last_used_at=used)
    # Sorted, so that two servers cannot deadlock.
    rows = [{"key_id": key_id, "used_at": used_at} for key_id, used_at in sorted(uses.items())]
    await connection.execute(statement, rows)


async def count_live_or_new(connection: AsyncConnection, *, tenant_id: int, now: datetime, new_since: datetime) -> int:
    """Count the keys of a tenant that are neither revoked nor expired, and those created since a moment."""
    live = keys.c.revoked_at.is_(None) & (keys.c.expires_at.is_(None) | (keys.c.expires_at > now))
    statement = select(func.count()).where(keys.c.tenant_id == tenant_id, live | (keys.c.created_at > new_since))
    return int(await connection.scalar(statement) or 0)


async def set_revoked(connection: AsyncConnection, key_id: str, at: datetime) -> None:
    await connection.execute(update(keys).where(keys.c.id == key_id).values(revoked_at=at))


def _owned_by(tenant_id: int | None) -> Any:
    return keys.c.tenant_id.is_(None) if tenant_id is None else keys.c.tenant_id == tenant_id


def _key(row: Row[*tuple[Any, ...]]) -> Key:
    return Key(
        id=row.id,
        tenant=row.tenant,
        name=row.name,
        scopes=tuple(Scope(scope) for scope in row.scopes),
        lifetime_s=row.lifetime_s,
        created_at=row.created_at,
        expires_at=row.expires_at,
        revoked_at=row.revoked_at,
        restrictions=Restrictions.of(row.restrictions),
        owner=row.owner,
        last_used_at=row.last_used_at,
    )
