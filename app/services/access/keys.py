"""API keys: create, restrict, rotate, revoke, list and authenticate them."""

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from types import MappingProxyType

from app.database import keys, sessions
from app.database.session import Database
from app.domain.access import Caller, Key, KeyFilter
from app.domain.clock import Clock, is_past, utc_now
from app.domain.errors import Conflict, RegistryUnavailable, Unauthenticated
from app.domain.pages import Page
from app.domain.restrictions import UNRESTRICTED, Restrictions
from app.domain.searches import Search, Sort
from app.services.access.caller_cache import CallerCache
from app.services.access.key_changes import (
    NewKey,
    checked_lifetime,
    checked_owner,
    checked_scopes,
    issue,
    owned_key,
    owner_id,
    record,
)
from app.services.access.key_format import KeyHasher, parse_key
from app.services.access.key_uses import KeyUses
from app.services.access.restrictions import changed
from app.services.common.batch_states import cancel_of_key
from app.services.common.validation import (
    DEFAULT_LIMIT,
    checked_limit,
    checked_name,
    checked_search,
    checked_seconds,
    page_of,
    read_cursor,
    read_time_position,
    time_position,
)
from app.support.single_flight import SingleFlight

logger = logging.getLogger(__name__)

DEFAULT_GRACE_S = 3600
_MAX_GRACE_S = 30 * 86400
#: Filter that keeps every key of an owner.
_ALL = KeyFilter()
#: Id of a key, and its name or time of creation.
_CURSOR = re.compile(r"([0-9A-Za-z]{16}):([^\0\n]{1,200})", re.ASCII)
_REFUSED = "Missing or invalid API key. Send the header Authorization: Bearer tnr_... or x-api-key."


class KeyService:
    """API key service.

    ``tenant`` is a slug, or None for platform keys. ``actor`` is a key's id or ``cli``.

    Attributes:
        hasher: hash function of keys.
        base_name: name by which callers select the base model.
        uses: record of the times of use.

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
        self._database, self._cache, self._clock = database, cache, clock
        self.hasher, self.base_name = hasher, base_name
        self.uses = KeyUses(database)
        self._look_ups = SingleFlight[Caller]()

    async def authenticate(self, text: str | None) -> Caller:
        """Authenticate a key and return its caller.

        Raises:
            Unauthenticated: the key is missing, malformed, unknown, revoked or expired, or its tenant is disabled or
                deleted. The message is the same in every case.
        """
        hash_ = self.hasher.hash(text or "")
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
        now, hashes = self._clock(), self.hasher.hashes(text)
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
        self.uses.note(key_id, now)
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
        owner: str | None = None,
        actor: str,
    ) -> NewKey:
        """Create a key. Without ``scopes``, a tenant's key may infer and a platform key is an administrator's.

        Args:
            restrictions: JSON merge patch, see :func:`app.services.access.restrictions.changed`.
            owner: label of the person or application that will use the key.

        Raises:
            NotFound, InvalidRequest
        """
        granted, checked = checked_scopes(tenant, scopes), self._restricted(UNRESTRICTED, restrictions)
        name, owner, lifetime_s = checked_name(name), checked_owner(owner), checked_lifetime(expires_in_s)
        async with self._database.write() as connection:
            template = Key("", tenant, name, granted, lifetime_s, self._clock(), None, None, checked, owner)
            return await issue(connection, self.hasher, template, actor=actor)

    async def restrict(self, tenant: str | None, key_id: str, patch: Mapping[str, object], *, actor: str) -> Key:
        """Set or lift restrictions of a key, or change its owner, even of one that has ended.

        Args:
            patch: JSON merge patch of ``owner`` and restrictions, see
                :func:`app.services.access.restrictions.changed`.

        Raises:
            NotFound, InvalidRequest
        """
        async with self._database.write() as connection:
            old = await owned_key(connection, tenant, key_id)
            new = replace(
                old,
                restrictions=self._restricted(old.restrictions, patch),
                owner=checked_owner(patch["owner"]) if "owner" in patch else old.owner,
            )
            if new != old:
                await keys.update_key(connection, new)
                await record(connection, self._clock(), actor, "key.restrict", old, new)
        self._cache.clear()
        return new

    async def list(
        self,
        tenant: str | None,
        *,
        only: KeyFilter = _ALL,
        limit: int = DEFAULT_LIMIT,
        cursor: str | None = None,
    ) -> Page[Key]:
        """List keys, the oldest first unless the filter sorts them, including revoked and expired ones.

        Args:
            only: filter, whose owner is replaced by ``tenant`` unless it is for keys of all owners.

        Raises:
            NotFound, InvalidRequest
        """
        checked_limit(limit)
        checked_search(Search(only.text))
        after = _position(read_cursor(cursor, _CURSOR), only.sort)
        async with self._database.read() as connection:
            only = replace(only, tenant_id=await owner_id(connection, tenant))
            rows = await keys.list_keys(connection, only, after=after, limit=limit + 1, now=self._clock())
        return page_of(rows, limit, lambda key: f"{key.id}:{_place(key, only.sort)}")

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
            key = await owned_key(connection, tenant, key_id)
            now = self._clock()
            if key.revoked_at is None:
                await keys.set_revoked(connection, key_id, now)
                await sessions.remove_of_key(connection, key_id)
                await record(connection, now, actor, "key.revoke", key, replace(key, revoked_at=now))
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
            old = await owned_key(connection, tenant, key_id)
            now = self._clock()
            if old.revoked_at is not None or is_past(old.expires_at, now):
                raise Conflict(f"The key {key_id!r} has ended: it was revoked or has expired. Create a new key.")
            end = now + timedelta(seconds=grace_s)
            if old.expires_at is not None:
                end = min(end, old.expires_at)
            await keys.set_expiry(connection, key_id, end)
            await record(connection, now, actor, "key.rotate", old, replace(old, expires_at=end))
            new = await issue(connection, self.hasher, replace(old, created_at=now, last_used_at=None), actor=actor)
        self._cache.clear()
        return new

    def _restricted(self, old: Restrictions, patch: Mapping[str, object]) -> Restrictions:
        return changed(old, patch, base_name=self.base_name)


def _place(key: Key, sort: Sort) -> str:
    return key.name if sort.by_name else time_position(key.created_at)


def _position(cursor: str | None, sort: Sort) -> tuple[datetime | str, str] | None:
    if cursor is None:
        return None
    key_id, _, place = cursor.partition(":")
    if sort.by_name:
        return place, key_id
    return read_time_position(place), key_id
