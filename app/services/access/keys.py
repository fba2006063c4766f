"""API keys: create, restrict, rotate, revoke, list and authenticate them."""

import difflib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from types import MappingProxyType

from sqlalchemy.ext.asyncio import AsyncConnection

from app.database import audit, keys
from app.database.session import Database
from app.domain.access import Caller, Key, Scope
from app.domain.clock import Clock, is_past, utc_now
from app.domain.errors import Conflict, InvalidRequest, NotFound, RegistryUnavailable, Unauthenticated
from app.domain.pages import Page
from app.domain.restrictions import UNRESTRICTED, Restrictions
from app.services.access.caller_cache import CallerCache
from app.services.access.key_format import KEY_ID, KeyHasher, mint_key, parse_key
from app.services.access.restrictions import changed
from app.services.common.batch_states import cancel_of_key
from app.services.common.lookups import tenant_or_404
from app.services.common.validation import (
    DEFAULT_LIMIT,
    checked_limit,
    checked_name,
    checked_seconds,
    page_of,
    read_cursor,
)
from app.support.single_flight import SingleFlight

logger = logging.getLogger(__name__)

DEFAULT_GRACE_S = 3600
_MAX_GRACE_S = 30 * 86400
_MAX_LIFETIME_S = 10 * 366 * 86400
#: Scopes of platform keys. Metrics are among them because they cover all tenants.
_PLATFORM_SCOPES = frozenset({Scope.ADMIN, Scope.METRICS})
_TENANT_SCOPES = frozenset(Scope) - _PLATFORM_SCOPES
#: Characters of a wrong scope that are compared with the right ones.
_MAX_SCOPE = 40
_REFUSED = "Missing or invalid API key. Send the header Authorization: Bearer tnr_... or x-api-key."


@dataclass(frozen=True, slots=True)
class NewKey:
    """A new key with its text, which cannot be retrieved later."""

    key: Key
    text: str = field(repr=False)


class KeyService:
    """API key service.

    ``tenant`` is a slug, or None for platform keys. ``actor`` is a key's id or ``cli``.

    Raises (every method):
        RegistryUnavailable
    """

    def __init__(
        self,
        database: Database,
        hasher: KeyHasher,
        cache: CallerCache,
        *,
        base_name: str = "",
        clock: Clock = utc_now,
    ) -> None:
        self._database, self._hasher, self._cache, self._clock = database, hasher, cache, clock
        self._base_name = base_name
        self._look_ups = SingleFlight[Caller]()

    async def authenticate(self, text: str | None) -> Caller:
        """Authenticate a key and return its caller.

        Raises:
            Unauthenticated: the key is missing, malformed, unknown, revoked or expired, or its tenant is disabled or
                deleted. The message is the same in every case.
        """
        hash_ = self._hasher.hash(text or "")
        cached = self._cache.get(hash_, self._clock())
        if cached is not None:
            return cached
        key_id = parse_key(text or "")
        if text is None or key_id is None:
            raise Unauthenticated(_REFUSED)
        # A request that arrives after a change on this node must not join a lookup from before it.
        generation, _ = self._cache.begin()
        return await self._look_ups.run((generation, hash_), lambda: self._look_up(key_id, text))

    async def _look_up(self, key_id: str, text: str) -> Caller:
        begun = self._cache.begin()
        now, hashes = self._clock(), self._hasher.hashes(text)
        credential = await self._database.lookup(
            lambda connection: keys.find_credential(connection, key_id, hashes, now)
        )
        if credential is None:
            raise Unauthenticated(_REFUSED)
        if credential.hmac != hashes[0]:
            await self._move(key_id, credential.hmac, hashes[0])
        caller = Caller(
            key_id,
            credential.tenant_id,
            credential.tenant_slug,
            credential.scopes,
            credential.salt,
            weight=credential.weight,
            limits=credential.limits,
            restrictions=credential.restrictions,
        )
        self._cache.put(begun, hashes[0], caller, credential.expires_at)
        return caller

    async def _move(self, key_id: str, old: str, new: str) -> None:
        """Rehash a key under the current pepper. Only a request has the key's text, so this happens on use."""
        try:
            async with self._database.write() as connection:
                await keys.set_hmac(connection, key_id, old=old, new=new)
        except RegistryUnavailable as error:
            logger.warning("The key %s stays under an earlier pepper until its next use: %s", key_id, error)

    async def create(
        self,
        tenant: str | None,
        *,
        name: str,
        scopes: Sequence[str] | None = None,
        expires_in_s: int | None = None,
        restrictions: Mapping[str, object] = MappingProxyType({}),
        actor: str,
    ) -> NewKey:
        """Create a key. Without ``scopes``, a tenant's key may infer and a platform key is an administrator's.

        Args:
            restrictions: JSON merge patch, see :func:`app.services.access.restrictions.changed`.

        Raises:
            NotFound, InvalidRequest
        """
        granted, checked = _checked_scopes(tenant, scopes), self._restricted(UNRESTRICTED, restrictions)
        checked_name(name)
        if expires_in_s is not None:
            checked_seconds("expires_in_s", expires_in_s, least=1, most=_MAX_LIFETIME_S)
        async with self._database.write() as connection:
            return await self._insert(connection, tenant, name, granted, expires_in_s, checked, actor)

    async def restrict(self, tenant: str | None, key_id: str, patch: Mapping[str, object], *, actor: str) -> Key:
        """Set or lift restrictions of a key, even of one that has ended.

        Args:
            patch: JSON merge patch, see :func:`app.services.access.restrictions.changed`.

        Raises:
            NotFound, InvalidRequest
        """
        async with self._database.write() as connection:
            old = await self._owned_key(connection, tenant, key_id)
            new = replace(old, restrictions=self._restricted(old.restrictions, patch))
            if new != old:
                await keys.set_restrictions(connection, key_id, new.restrictions)
                await _record(connection, self._clock(), actor, "key.restrict", old, new)
        self._cache.clear()
        return new

    async def list(self, tenant: str | None, *, limit: int = DEFAULT_LIMIT, cursor: str | None = None) -> Page[Key]:
        """List keys by id, including revoked and expired ones.

        Raises:
            NotFound, InvalidRequest
        """
        checked_limit(limit)
        after = read_cursor(cursor, KEY_ID) or ""
        async with self._database.read() as connection:
            owner = await _owner_id(connection, tenant)
            page_keys = await keys.list_keys(connection, tenant_id=owner, after=after, limit=limit + 1)
        return page_of(page_keys, limit, lambda key: key.id)

    async def own(self, caller: Caller) -> Key:
        """Return the caller's own key.

        Raises:
            Unauthenticated: the key ended after it was authenticated.
        """
        async with self._database.read() as connection:
            key = await keys.find_key(connection, caller.key_id, tenant_id=caller.tenant_id, lock=False)
        if key is None or key.revoked_at is not None:
            raise Unauthenticated(_REFUSED)
        return key

    async def revoke(self, tenant: str | None, key_id: str, *, actor: str) -> None:
        """Revoke a key now, and cancel the batches that it created. Revoking it again changes nothing.

        Raises:
            NotFound
        """
        async with self._database.write() as connection:
            key = await self._owned_key(connection, tenant, key_id)
            now = self._clock()
            if key.revoked_at is None:
                await keys.set_revoked(connection, key_id, now)
                await _record(connection, now, actor, "key.revoke", key, replace(key, revoked_at=now))
                if key.tenant is not None:
                    await cancel_of_key(connection, key_id, tenant=key.tenant, at=now, actor=actor)
        self._cache.clear()

    async def rotate(self, tenant: str | None, key_id: str, *, grace_s: int = DEFAULT_GRACE_S, actor: str) -> NewKey:
        """Rotate a key: create a successor, and expire the old key after the grace period.

        The successor has the same name, scopes, lifetime and restrictions.

        Raises:
            NotFound, InvalidRequest
            Conflict: the key has already ended.
        """
        checked_seconds("grace_s", grace_s, least=0, most=_MAX_GRACE_S)
        async with self._database.write() as connection:
            old = await self._owned_key(connection, tenant, key_id)
            now = self._clock()
            if old.revoked_at is not None or is_past(old.expires_at, now):
                raise Conflict(f"The key {key_id!r} has ended: it was revoked or has expired. Create a new key.")
            end = now + timedelta(seconds=grace_s)
            if old.expires_at is not None:
                end = min(end, old.expires_at)
            await keys.set_expiry(connection, key_id, end)
            await _record(connection, now, actor, "key.rotate", old, replace(old, expires_at=end))
            new = await self._insert(connection, tenant, old.name, old.scopes, old.lifetime_s, old.restrictions, actor)
        self._cache.clear()
        return new

    async def _insert(
        self,
        connection: AsyncConnection,
        tenant: str | None,
        name: str,
        scopes: tuple[Scope, ...],
        lifetime_s: int | None,
        restrictions: Restrictions,
        actor: str,
    ) -> NewKey:
        owner = await _owner_id(connection, tenant)
        minted, now = mint_key(), self._clock()
        end = None if lifetime_s is None else now + timedelta(seconds=lifetime_s)
        key = Key(minted.id, tenant, name, scopes, lifetime_s, now, end, None, restrictions)
        await keys.insert_key(connection, key, tenant_id=owner, hmac=self._hasher.hash(minted.text))
        await _record(connection, now, actor, "key.create", None, key)
        return NewKey(key, minted.text)

    def _restricted(self, old: Restrictions, patch: Mapping[str, object]) -> Restrictions:
        return changed(old, patch, base_name=self._base_name)

    async def _owned_key(self, connection: AsyncConnection, tenant: str | None, key_id: str) -> Key:
        owner = await _owner_id(connection, tenant)
        key = await keys.find_key(connection, key_id, tenant_id=owner) if KEY_ID.fullmatch(key_id) else None
        if key is None:
            raise NotFound(f"There is no key {key_id[:80]!r}.", param="key_id")
        return key


async def _owner_id(connection: AsyncConnection, tenant: str | None) -> int | None:
    return None if tenant is None else (await tenant_or_404(connection, tenant)).id


def _checked_scopes(tenant: str | None, scopes: Sequence[str] | None) -> tuple[Scope, ...]:
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


async def _record(
    connection: AsyncConnection, at: datetime, actor: str, action: str, before: Key | None, after: Key
) -> None:
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
    return shown | ({"restrictions": key.restrictions.stored} if key.restrictions.stored else {})
