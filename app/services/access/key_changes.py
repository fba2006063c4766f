"""Parts of a change of API keys: check scopes and labels, issue a key, find the key of an owner, audit the change."""

import difflib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from sqlalchemy.ext.asyncio import AsyncConnection

from app.database import audit, keys
from app.domain.access import Key, Scope
from app.domain.errors import InvalidRequest, NotFound
from app.services.access.key_format import KEY_ID, KeyHasher, mint_key
from app.services.common.lookups import tenant_or_404
from app.services.common.validation import checked_name, checked_seconds

_MAX_LIFETIME_S = 10 * 366 * 86400
#: Scopes of platform keys. Metrics are among them because they cover all tenants.
_PLATFORM_SCOPES = frozenset({Scope.ADMIN, Scope.METRICS})
_TENANT_SCOPES = frozenset(Scope) - _PLATFORM_SCOPES
#: Characters of a wrong scope that are compared with the right ones.
_MAX_SCOPE = 40


@dataclass(frozen=True, slots=True)
class NewKey:
    """A new key with its text, which cannot be retrieved later."""

    key: Key
    text: str = field(repr=False)


def checked_scopes(tenant: str | None, scopes: Sequence[str] | None) -> tuple[Scope, ...]:
    """Check the scopes of a new key; None gives the default of its kind.

    Raises:
        InvalidRequest
    """
    allowed = _PLATFORM_SCOPES if tenant is None else _TENANT_SCOPES
    if scopes is None:
        return (Scope.ADMIN,) if tenant is None else (Scope.INFERENCE,)
    if not scopes or not allowed.issuperset(scopes):
        words = [scope.value for scope in Scope if scope in allowed]
        wrong = next((scope for scope in scopes if scope not in allowed), "")
        nearest = difflib.get_close_matches(wrong[:_MAX_SCOPE], words, n=1)
        advice = f" Did you mean {nearest[0]}?" if nearest else ""
        message = f"scopes is {list(scopes)!r:.200}; it must be a list of one or more of {', '.join(words)}.{advice}"
        raise InvalidRequest(message, param="scopes")
    return tuple(scope for scope in Scope if scope in scopes)


def checked_owner(owner: object) -> str | None:
    """Check the label of a key's owner: 1 to 100 printable characters, or None.

    Raises:
        InvalidRequest
    """
    return None if owner is None else checked_name(str(owner), field="owner")


def checked_lifetime(seconds: int | None) -> int | None:
    """Check the seconds until a key expires; None: never.

    Raises:
        InvalidRequest
    """
    return None if seconds is None else checked_seconds("expires_in_s", seconds, least=1, most=_MAX_LIFETIME_S)


async def issue(connection: AsyncConnection, hasher: KeyHasher, template: Key, *, actor: str) -> NewKey:
    """Insert a new key like ``template``, with an id, a secret and an expiry by its lifetime.

    Raises:
        NotFound: the tenant does not exist.
    """
    owner = await owner_id(connection, template.tenant)
    minted, now = mint_key(), template.created_at
    end = None if template.lifetime_s is None else now + timedelta(seconds=template.lifetime_s)
    key = replace(template, id=minted.id, expires_at=end, revoked_at=None)
    await keys.insert_key(connection, key, tenant_id=owner, hmac=hasher.hash(minted.text))
    await record(connection, now, actor, "key.create", None, key)
    return NewKey(key, minted.text)


async def owner_id(connection: AsyncConnection, tenant: str | None) -> int | None:
    """Return the row id of a tenant; None for the platform.

    Raises:
        NotFound
    """
    return None if tenant is None else (await tenant_or_404(connection, tenant)).id


async def owned_key(connection: AsyncConnection, tenant: str | None, key_id: str, *, lock: bool = True) -> Key:
    """Return a key of a tenant, or of the platform, and lock its row unless ``lock`` is False.

    Raises:
        NotFound
    """
    owner = await owner_id(connection, tenant)
    valid = KEY_ID.fullmatch(key_id)
    key = await keys.find_key(connection, key_id, tenant_id=owner, lock=lock) if valid else None
    if key is None:
        raise NotFound(f"There is no key {key_id[:80]!r}.", param="key_id")
    return key


async def record(
    connection: AsyncConnection, at: datetime, actor: str, action: str, before: Key | None, after: Key
) -> None:
    """Write the audit row of a change."""
    await audit.record(
        connection,
        at=at,
        actor=actor,
        action=action,
        tenant=after.tenant,
        subject=after.id,
        before=None if before is None else _snapshot(before),
        after=_snapshot(after),
    )


def _snapshot(key: Key) -> dict[str, object]:
    shown: dict[str, object] = {
        "name": key.name,
        "scopes": [scope.value for scope in key.scopes],
        "expires_at": key.expires_at.isoformat() if key.expires_at else None,
        "revoked_at": key.revoked_at.isoformat() if key.revoked_at else None,
    }
    shown |= {"owner": key.owner} if key.owner else {}
    return shown | ({"restrictions": key.restrictions.stored} if key.restrictions.stored else {})
