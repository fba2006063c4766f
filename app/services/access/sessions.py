"""Sessions of the console: a person signs in with an API key, and the browser keeps an opaque token in a cookie.

The session acts as the key: the same tenant, scopes and restrictions. It ends by sign-out, after an hour without
requests, after twelve hours, and with the key. Requests in progress end with it.
"""

import itertools
import logging
import re
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from cachetools import TTLCache

from app.database import audit, keys, sessions
from app.database.session import Database
from app.domain.access import Caller
from app.domain.clock import Clock, utc_now
from app.domain.errors import NotFound, RegistryUnavailable, TooManyOpen, Unauthenticated
from app.services.access.caller_cache import CallerCache
from app.services.access.key_format import KeyHasher
from app.services.access.key_uses import KeyUses
from app.support.single_flight import SingleFlight

logger = logging.getLogger(__name__)

#: Seconds between two sweeps of ended sessions.
EVERY_S = 300.0
#: Longest time without a request, and longest life.
IDLE = timedelta(hours=1)
LIFETIME = timedelta(hours=12)
#: Maximum sessions of one key; the oldest ends.
MOST_OF_KEY = 50
#: Maximum sign-ins of one key on one server within this time, in seconds.
SIGN_INS, SIGN_INS_S = 60, 60
_COUNTED_KEYS = 10_000
#: A request is stored only if the stored one is older, so that a busy session writes once a minute.
_SEEN_EVERY = timedelta(minutes=1)
#: 256 random bits in base64.
_TOKEN_BYTES = 32
_TOKEN = re.compile("tns_[0-9A-Za-z_-]{43}", re.ASCII)
_ENDED = "The session has ended. Sign in again."


@dataclass(frozen=True, slots=True)
class Session:
    """A session. ``token`` is known only when it begins.

    Attributes:
        expires_at: latest end.
    """

    created_at: datetime
    expires_at: datetime
    token: str | None = field(default=None, repr=False)


class SessionService:
    """Sessions of one registry.

    Args:
        cache: cache of authenticated callers, which changes of keys clear.
        uses: record of the uses of keys.

    Raises (every method):
        RegistryUnavailable
    """

    def __init__(
        self,
        database: Database,
        hasher: KeyHasher,
        cache: CallerCache,
        uses: KeyUses,
        *,
        clock: Clock = utc_now,
    ) -> None:
        self._database, self._hasher, self._cache, self._uses, self._clock = database, hasher, cache, uses, clock
        self._look_ups = SingleFlight[Caller]()
        #: Sign-ins by key id, each counted for a minute from the first.
        self._sign_ins = TTLCache[str, Iterator[int]](_COUNTED_KEYS, ttl=SIGN_INS_S)

    async def begin(self, caller: Caller, *, replaced: str | None = None) -> Session:
        """Open a session of the caller, who has just sent the key itself.

        Args:
            replaced: token of an earlier session in the same browser, which ends.

        Raises:
            Unauthenticated: the key has ended meanwhile.
            TooManyOpen: the key has signed in too often.
        """
        self._count_sign_in(caller.key_id)
        token = f"tns_{secrets.token_urlsafe(_TOKEN_BYTES)}"
        async with self._database.write() as connection:
            now = self._clock()
            key = await keys.find_key(connection, caller.key_id, tenant_id=caller.tenant_id)
            if key is None or key.revoked_at is not None:
                raise Unauthenticated(_ENDED)
            gone = self._hasher.hashes(replaced) if replaced is not None and _TOKEN.fullmatch(replaced) else []
            await sessions.remove_session(connection, gone)
            end = min(now + LIFETIME, key.expires_at or now + LIFETIME)
            hmac = self._hasher.hash(token)
            await sessions.insert_session(connection, hmac, key_id=key.id, at=now, expires_at=end, most=MOST_OF_KEY)
            after = {"expires_at": end.isoformat()}
            await audit.record(
                connection,
                at=now,
                actor=key.id,
                action="session.begin",
                tenant=key.tenant,
                subject=key.id,
                after=after,
            )
        for earlier in gone:
            self._cache.forget_session(earlier)
        return Session(now, end, token)

    async def authenticate(self, token: str) -> Caller:
        """Return the caller of an open session.

        Raises:
            Unauthenticated: the token is malformed or unknown, the session has ended, or its key does not work.
        """
        if not _TOKEN.fullmatch(token):
            raise Unauthenticated(_ENDED)
        # Under its hash alone, a cached session would also answer to its token in the place of a key.
        name = f"session:{self._hasher.hash(token)}"
        cached = self._cache.get(name, self._clock())
        if cached is not None:
            return cached
        generation, _ = self._cache.begin()
        return await self._look_ups.run((generation, name), lambda: self._look_up(name, token))

    async def show(self, caller: Caller) -> Session:
        """Return the caller's session.

        Raises:
            NotFound: the caller sent a key.
            Unauthenticated: the session has ended meanwhile.
        """
        if caller.session is None:
            raise NotFound("This request has no session, but an API key.")
        async with self._database.read() as connection:
            times = await sessions.times_of(connection, caller.session)
        if times is None:
            raise Unauthenticated(_ENDED)
        return Session(*times)

    async def end(self, caller: Caller) -> None:
        """End the caller's session.

        Raises:
            NotFound: the caller sent a key.
        """
        if caller.session is None:
            raise NotFound("This request has no session, but an API key.")
        async with self._database.write() as connection:
            if await sessions.remove_session(connection, [caller.session]) is not None:
                await audit.record(
                    connection,
                    at=self._clock(),
                    actor=caller.key_id,
                    action="session.end",
                    tenant=caller.tenant_slug,
                    subject=caller.key_id,
                )
        self._cache.forget_session(caller.session)

    async def sweep(self) -> None:
        """Remove ended sessions."""
        now = self._clock()
        async with self._database.write() as connection:
            await sessions.remove_ended(connection, now=now, idle_since=now - IDLE)

    async def _look_up(self, name: str, token: str) -> Caller:
        begun, now = self._cache.begin(), self._clock()
        hmacs = self._hasher.hashes(token)
        found = await self._database.lookup(
            lambda connection: sessions.find_session(connection, hmacs, now=now, idle_since=now - IDLE)
        )
        if found is None:
            raise Unauthenticated(_ENDED)
        if now - found.seen_at > _SEEN_EVERY:
            await self._note_seen(found.hmac, now)
        self._uses.note(found.key_id, now)
        credential = found.credential
        caller = Caller(
            found.key_id,
            credential.tenant_id,
            credential.tenant_slug,
            credential.scopes,
            credential.salt,
            weight=credential.weight,
            limits=credential.limits,
            restrictions=credential.restrictions,
            session=found.hmac,
        )
        self._cache.put(begun, name, caller, credential.expires_at)
        return caller

    def _count_sign_in(self, key_id: str) -> None:
        """Count a sign-in. Each writes to the audit trail, which nothing removes, so no key may repeat it endlessly."""
        count = self._sign_ins.setdefault(key_id, itertools.count(1))
        if next(count) > SIGN_INS:
            raise TooManyOpen(
                f"The key has signed in {SIGN_INS} times within a minute; the limit is {SIGN_INS}. Wait a minute.",
                retry_after=SIGN_INS_S,
            )

    async def _note_seen(self, hmac: str, now: datetime) -> None:
        try:
            async with self._database.write() as connection:
                await sessions.set_seen(connection, hmac, now)
        except RegistryUnavailable as error:
            logger.warning("A session stays idle in the registry until its next request: %s", error)
