"""Idempotency keys: replay the first answer to a repeated request instead of processing the request again.

Life cycle of an ``Idempotency-Key``::

    reserve --> the route runs, the reservation is touched --> keep --> replayed for 24 h --> swept
       |                          +-- error answer (4xx, 5xx): release
       +-- already reserved: in progress; its holder not seen for a minute: taken over

A request that was refused has changed nothing, so a retry is processed from the start. Each API key keeps its newest
answers, up to a count and a size. A new answer evicts the oldest answers of the same API key.

An answer may hold a new API key in clear text. It is encrypted under a key derived from the server's pepper (its
master secret) and the text of the ``Idempotency-Key``. The database stores only an HMAC of that text, so a stolen
database reveals neither. A stolen pepper in addition reveals only answers whose ``Idempotency-Key`` can be guessed.
Answers belong to the API key that made the request: the same text under another API key is independent.
"""

import asyncio
import contextlib
import hashlib
import hmac
import json
import logging
import secrets
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta

from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from app.database import idempotency
from app.database.idempotency import Entry
from app.database.session import Database
from app.domain.clock import Clock, utc_now
from app.domain.errors import (
    IdempotencyConflict,
    IdempotencyInProgress,
    InvalidRequest,
    RegistryUnavailable,
    TooManyOpen,
)
from app.services.access.peppers import Peppers, derive

logger = logging.getLogger(__name__)

HEADER = "Idempotency-Key"
SWEEP_EVERY_S = 600.0

KEPT_FOR = timedelta(hours=24)
#: A reservation whose holder was not seen for this long is abandoned.
STALE_AFTER = timedelta(seconds=60)
_TOUCHED_EVERY_S = 15.0
_MAX_KEY = 255
_ATTEMPTS = 3
_NONCE_BYTES = 12
_RETRY_AFTER_S = 5

#: Caps for one API key: stored answers plus requests in progress, and the bytes of the stored answers.
MOST_ROWS = 1000
MOST_BYTES = 16 * 2**20

_FIRST_REFUSAL = 400
_IN_PROGRESS = f"The first request with this {HEADER} is still running. Try again later."


@dataclass(frozen=True, slots=True)
class Answer:
    """Copy of the first answer."""

    status: int
    headers: Sequence[tuple[str, str]]
    body: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Reservation:
    """Exclusive claim to answer the first request with a key.

    Attributes:
        actor: id of the API key.
        name: HMAC of the ``Idempotency-Key``, which identifies it in the database.
        token: random text that distinguishes this reservation from a later takeover.
        secret: encryption key of the answer.
        naming: HMAC key of ``name`` and of request fingerprints.
    """

    actor: str
    name: str
    token: str
    secret: bytes = field(repr=False)
    naming: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Kept:
    """Stored answer to an earlier request with the key.

    Attributes:
        request: fingerprint of that request, an HMAC under ``naming``.
    """

    request: str
    naming: bytes = field(repr=False)
    answer: Answer


class IdempotencyService:
    """Idempotent requests: reserve keys, store and replay answers, and expire them."""

    def __init__(self, database: Database, peppers: Peppers, *, clock: Clock = utc_now) -> None:
        self._database, self._clock = database, clock
        self._secrets = tuple(zip(peppers.every, peppers.derived("idempotency", "names"), strict=True))

    async def reserve(self, actor: str, key: str) -> Reservation | Kept:
        """Reserve a key, or return its answer of the last 24 hours.

        Args:
            actor: id of an authenticated API key.
            key: value of the header.

        Raises:
            InvalidRequest: the key is not 1 to 255 printable ASCII characters.
            TooManyOpen: the API key has the maximum number of such requests in progress.
            IdempotencyInProgress, RegistryUnavailable
        """
        if not 1 <= len(key) <= _MAX_KEY or not key.isascii() or not key.isprintable():
            allowed = f"1 to {_MAX_KEY} printable ASCII characters"
            raise InvalidRequest(f"{HEADER} is {key[:80]!a}; it must be {allowed}.", param=HEADER)
        reservations = self._reservations(actor, key)
        for _ in range(_ATTEMPTS):
            # The insert fails if another request inserted the key first. The next attempt finds its row.
            with contextlib.suppress(IntegrityError):
                return await self._reserve(reservations)
        raise IdempotencyInProgress(_IN_PROGRESS, param=HEADER)

    def check(self, kept: Kept, request: str) -> None:
        """Refuse a request that differs from the answered one.

        Args:
            request: SHA-256 of the request, in hex.

        Raises:
            IdempotencyConflict
        """
        if not hmac.compare_digest(kept.request, _hash(kept.naming, "request", request)):
            message = f"This {HEADER} was used for a request with another path, query or body. Use a new key."
            raise IdempotencyConflict(message, param=HEADER)

    @asynccontextmanager
    async def holding(self, reservation: Reservation) -> AsyncGenerator[None]:
        """Heartbeat: touch the reservation at intervals while the block runs."""
        touching = asyncio.create_task(self._touch(reservation))
        try:
            yield
        finally:
            touching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await touching

    async def settle(self, reservation: Reservation, request: str | None, answer: Answer) -> None:
        """Store the answer under the reservation, or release the reservation if the answer is an error.

        If the registry is unavailable, the answer is dropped with a warning in the log: the request itself succeeded.

        Args:
            request: SHA-256 of the request, in hex; None if it was refused before its body was read completely.
        """
        if request is None or answer.status >= _FIRST_REFUSAL:
            await self.release(reservation)
            return
        body = _encrypted(reservation, answer)
        entry = Entry(_hash(reservation.naming, "request", request), answer.status, body, answer.headers, self._clock())
        try:
            async with self._database.write() as connection:
                kept = await idempotency.keep(connection, reservation.actor, reservation.name, reservation.token, entry)
                await _drop_oldest(connection, reservation.actor, more_rows=0)
        except RegistryUnavailable:
            kept = False
        if not kept:
            logger.warning("An answer for the API key %s could not be stored for replay.", reservation.actor)

    async def release(self, reservation: Reservation) -> None:
        """Release a reservation, so that the next request with the key counts as the first.

        If the registry is unavailable, the reservation expires after a minute instead.
        """
        try:
            async with self._database.write() as connection:
                await idempotency.release(connection, reservation.actor, reservation.name, reservation.token)
        except RegistryUnavailable as error:
            logger.warning("A reservation of the API key %s was not released: %s", reservation.actor, error)

    async def sweep(self) -> None:
        """Delete entries older than 24 hours.

        Raises:
            RegistryUnavailable
        """
        async with self._database.write() as connection:
            await idempotency.forget(connection, before=self._clock() - KEPT_FOR)

    def _reservations(self, actor: str, key: str) -> list[Reservation]:
        """Return the possible reservations of a key, one for each pepper, the current pepper first."""
        token = secrets.token_hex(32)
        return [
            Reservation(
                actor,
                _hash(naming, "key", actor, key),
                token,
                derive(pepper, "idempotency", "answers", actor, key),
                naming,
            )
            for pepper, naming in self._secrets
        ]

    async def _reserve(self, reservations: Sequence[Reservation]) -> Reservation | Kept:
        now, current = self._clock(), reservations[0]
        actor, name, token = current.actor, current.name, current.token
        async with self._database.write() as connection:
            entries = [await idempotency.find(connection, actor, reservation.name) for reservation in reservations]
            for reservation, entry in zip(reservations, entries, strict=True):
                if entry and now < entry.at + (STALE_AFTER if entry.status is None else KEPT_FOR):
                    return _kept(reservation, entry)
            if entries[0] is None:
                await _drop_oldest(connection, actor, more_rows=1)
                await idempotency.reserve(connection, actor, name, token, at=now)
            else:
                await idempotency.take_over(connection, actor, name, token, at=now)
        return current

    async def _touch(self, reservation: Reservation) -> None:
        while True:
            await asyncio.sleep(_TOUCHED_EVERY_S)
            try:
                async with self._database.write() as connection:
                    await idempotency.touch(
                        connection, reservation.actor, reservation.name, reservation.token, at=self._clock()
                    )
            except RegistryUnavailable as error:
                logger.warning("A reservation of the API key %s was not renewed: %s", reservation.actor, error)


async def _drop_oldest(connection: AsyncConnection, actor: str, *, more_rows: int) -> None:
    """Evict the oldest answers of an API key until its rows fit the caps.

    Args:
        more_rows: number of rows about to be added.

    Raises:
        TooManyOpen: the API key's requests in progress alone exceed the cap.
    """
    rows, answers = await idempotency.count(connection, actor) + more_rows, await idempotency.answers(connection, actor)
    size = sum(answer_bytes for _, answer_bytes in answers)
    dropped: list[str] = []
    for key, answer_bytes in answers:
        if rows <= MOST_ROWS and size <= MOST_BYTES:
            break
        dropped.append(key)
        rows, size = rows - 1, size - answer_bytes
    if rows > MOST_ROWS:
        message = (
            f"This API key has {MOST_ROWS} requests with {HEADER} in progress, the maximum. "
            "Wait until some of them are answered."
        )
        raise TooManyOpen(message, param=HEADER, retry_after=_RETRY_AFTER_S)
    if dropped:
        await idempotency.drop(connection, actor, dropped)


def _kept(reservation: Reservation, entry: Entry) -> Kept:
    if entry.status is None:
        raise IdempotencyInProgress(_IN_PROGRESS, param=HEADER)
    return Kept(entry.request, reservation.naming, _decrypted(reservation, entry, entry.status))


def _hash(naming: bytes, *words: str) -> str:
    return hmac.new(naming, "\0".join(words).encode(), hashlib.sha256).hexdigest()


def _encrypted(reservation: Reservation, answer: Answer) -> bytes:
    """Encrypt with AES-256-GCM: the nonce, then the sealed body. Status and headers are only authenticated."""
    nonce = secrets.token_bytes(_NONCE_BYTES)
    return nonce + AESGCM(reservation.secret).encrypt(nonce, answer.body, _bound(answer.status, answer.headers))


def _decrypted(reservation: Reservation, entry: Entry, status: int) -> Answer:
    nonce, sealed = entry.body[:_NONCE_BYTES], entry.body[_NONCE_BYTES:]
    body = AESGCM(reservation.secret).decrypt(nonce, sealed, _bound(status, entry.headers))
    return Answer(status, entry.headers, body)


def _bound(status: int, headers: Sequence[tuple[str, str]]) -> bytes:
    return json.dumps([status, [list(header) for header in headers]]).encode()
