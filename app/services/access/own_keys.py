"""A tenant's own keys: a key with ``keys:write`` lists, creates and revokes keys with no more rights than its own."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from sqlalchemy.ext.asyncio import AsyncConnection

from app.database import keys
from app.database.session import Database
from app.domain.access import Caller, Key, Scope
from app.domain.clock import Clock, is_past, utc_now
from app.domain.errors import Conflict, Forbidden, InvalidRequest, Unauthenticated
from app.domain.limits.limits import UNLIMITED
from app.services.access.key_changes import NewKey, checked_lifetime, checked_owner, checked_scopes, issue, owned_key
from app.services.access.keys import KeyService
from app.services.access.restrictions import changed
from app.services.common.lookups import tenant_or_404
from app.services.common.validation import checked_name

#: Maximum of a tenant's keys that are live or new, for keys that it creates by itself.
MOST_KEYS = 1000
#: Time for which a key counts as new, so that a loop of create and revoke cannot fill the database.
_NEW = timedelta(days=1)


class OwnKeyService:
    """Keys that keys of the same tenant create and revoke.

    A key cannot give away more than it has: scopes, adapters, networks and lifetime of a new key are within those of
    its maker. A key with limits creates none, because each new key would have the same limits once more.

    Raises (every method):
        RegistryUnavailable
    """

    def __init__(self, database: Database, all_keys: KeyService, *, clock: Clock = utc_now) -> None:
        self._database, self._keys, self._clock = database, all_keys, clock

    async def create(
        self,
        maker: Caller,
        *,
        name: str,
        scopes: Sequence[str] | None = None,
        expires_in_s: int | None = None,
        restrictions: Mapping[str, object],
        owner: str | None = None,
    ) -> NewKey:
        """Create a key of the maker's tenant. Scopes default to ``inference``, restrictions to those of the maker.

        Args:
            restrictions: JSON merge patch on the maker's restrictions.

        Raises:
            InvalidRequest
            Forbidden: the key would have more rights than its maker, or the maker has limits.
            Conflict: the tenant has too many keys.
            Unauthenticated: the maker has ended meanwhile.
        """
        tenant, hasher = _tenant_of(maker), self._keys.hasher
        granted, name, owner = checked_scopes(tenant, scopes), checked_name(name), checked_owner(owner)
        lifetime_s = checked_lifetime(expires_in_s)
        async with self._database.write() as connection:
            # Serialises makers of the same tenant, so that none exceeds the maximum.
            tenant_row = await tenant_or_404(connection, tenant, lock=True)
            # The lock keeps the maker from being revoked or restricted before the new key is stored.
            own = await self._own(connection, maker, lock=True)
            now = self._clock()
            if own.restrictions.limits != UNLIMITED:
                raise Forbidden(
                    "This key has limits, so it cannot create keys. Ask an administrator, or use a key without limits."
                )
            wanted = changed(own.restrictions, restrictions, base_name=self._keys.base_name)
            template = Key("", tenant, name, granted, _lifetime(own, lifetime_s, now), now, None, None, wanted, owner)
            _check_within(own, template)
            count = await keys.count_live_or_new(connection, tenant_id=tenant_row.id, now=now, new_since=now - _NEW)
            if count >= MOST_KEYS:
                raise Conflict(
                    f"The tenant has {count} keys that work or were created within the last day; the limit is "
                    f"{MOST_KEYS}. Revoke keys that are not used, or wait until the new ones are a day old."
                )
            return await issue(connection, hasher, template, actor=maker.key_id)

    async def revoke(self, maker: Caller, key_id: str) -> None:
        """Revoke the caller's key, or another one of its tenant that has no more rights.

        Raises:
            NotFound
            Forbidden: the key has more rights than the caller's.
            Unauthenticated: the caller's key has ended meanwhile.
        """
        tenant = _tenant_of(maker)
        async with self._database.read() as connection:
            key = await owned_key(connection, tenant, key_id, lock=False)
            if key.id != maker.key_id:
                _check_within(await self._own(connection, maker), key)
        await self._keys.revoke(tenant, key_id, actor=maker.key_id)

    async def _own(self, connection: AsyncConnection, maker: Caller, *, lock: bool = False) -> Key:
        own = await keys.find_key(connection, maker.key_id, tenant_id=maker.tenant_id, lock=lock)
        if own is None or own.revoked_at is not None or is_past(own.expires_at, self._clock()):
            raise Unauthenticated("The API key is no longer valid. Send the request again with a valid key.")
        return own


def _tenant_of(maker: Caller) -> str:
    if maker.tenant_slug is None:
        raise Forbidden("This is a platform key; this route needs a tenant's key.")
    return maker.tenant_slug


def _check_within(own: Key, other: Key) -> None:
    """Check that a key has no more rights than its maker.

    Raises:
        Forbidden
    """
    lacking = [scope.value for scope in Scope if scope in other.scopes and scope not in own.scopes]
    if lacking:
        raise Forbidden(
            f"This key lacks {', '.join(lacking)}, so it can neither give it to a key nor revoke a key that has it. "
            "Ask an administrator."
        )
    if (wider := other.restrictions.wider_than(own.restrictions)) is not None:
        raise Forbidden(
            f"{wider} would allow more than this key may do. Stay within the key's {wider}, or ask an administrator."
        )


def _lifetime(own: Key, lifetime_s: int | None, now: datetime) -> int | None:
    """Return the lifetime of a new key: at most what is left of its maker's.

    Raises:
        InvalidRequest
    """
    if own.expires_at is None:
        return lifetime_s
    left_s = max(int((own.expires_at - now).total_seconds()), 1)
    if lifetime_s is not None and lifetime_s > left_s:
        raise InvalidRequest(
            f"expires_in_s is {lifetime_s}; this key expires in {left_s} s, and no key that it creates outlives it.",
            param="expires_in_s",
        )
    return lifetime_s or left_s
