"""``Idempotency-Key``: a request that is sent again gets the answer of the first, and does nothing twice.

One key's life::

    reserve --> the route runs, the reservation is touched --> keep --> replayed for 24 h --> swept
       |                          +-- refused (4xx, 5xx): release
       +-- reserved already: in progress; its holder not seen for a minute: taken over

A refused request has changed nothing, so sent again it is judged again. For one API key the newest answers are kept, up
to a number and a size: who sends more drops the oldest of their own.

An answer may hold a new API key in clear. It is encrypted under a key that takes both the server's pepper and the
text of the ``Idempotency-Key``, of which only an HMAC is stored: a stolen database shows neither, and a stolen
pepper with it shows only answers whose ``Idempotency-Key`` can be guessed. Answers belong to the API key that asked:
the same text sent with another one is another thing.
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
#: A holder that was not seen for this long is gone.
STALE_AFTER = timedelta(seconds=60)
_TOUCHED_EVERY_S = 15.0
_MAX_KEY = 255
_ATTEMPTS = 3
_NONCE_BYTES = 12
_RETRY_AFTER_S = 5

#: Of one API key: its answers that are kept and its requests under way, together, and the bytes of those answers.
MOST_ROWS = 1000
MOST_BYTES = 16 * 2**20

_FIRST_REFUSAL = 400
_IN_PROGRESS = f"{HEADER}: the first request with this key is not answered yet; send it again later"


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer as it was first given."""

    status: int
    headers: Sequence[tuple[str, str]]
    body: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Reservation:
    """The right to answer the first request with a key.

    Attributes:
        actor: the API key's id.
        name: what stands for the text of the ``Idempotency-Key`` in the database.
        token: tells this reservation from one that took its place.
        secret: what its answer is encrypted with.
        naming: what its names, and its requests', are made with.
    """

    actor: str
    name: str
    token: str
    secret: bytes = field(repr=False)
    naming: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Kept:
    """An earlier request with the key, and its answer.

    Attributes:
        request: its fingerprint, made with ``naming``.
    """

    request: str
    naming: bytes = field(repr=False)
    answer: Answer


class IdempotencyService:
    """The rules of ``Idempotency-Key``."""

    def __init__(self, database: Database, peppers: Peppers, *, clock: Clock = utc_now) -> None:
        self._database, self._clock = database, clock
        self._secrets = tuple(zip(peppers.every, peppers.derived("idempotency", "names"), strict=True))

    async def reserve(self, actor: str, key: str) -> Reservation | Kept:
        """Begin a request, unless one with this key was answered in the last 24 hours.

        Args:
            actor: id of an API key that works.
            key: the header's value.

        Raises:
            InvalidRequest: the key is not 1 to 255 printable ASCII characters.
            TooManyOpen: the API key has as many such requests under way as it may.
            IdempotencyInProgress, RegistryUnavailable
        """
        if not 1 <= len(key) <= _MAX_KEY or not key.isascii() or not key.isprintable():
            allowed = f"1 to {_MAX_KEY} printable ASCII characters"
            raise InvalidRequest(f"{HEADER}: found {key[:80]!a}, allowed {allowed}", param=HEADER)
        reservations = self._reservations(actor, key)
        for _ in range(_ATTEMPTS):
            # The insertion fails where another request with the key came in between; its row is then found.
            with contextlib.suppress(IntegrityError):
                return await self._reserve(reservations)
        raise IdempotencyInProgress(_IN_PROGRESS, param=HEADER)

    def check(self, kept: Kept, request: str) -> None:
        """Whether a request (its SHA-256, hex) is the one that was answered.

        Raises:
            IdempotencyConflict
        """
        if not hmac.compare_digest(kept.request, _hash(kept.naming, "request", request)):
            message = f"{HEADER}: found a key of a request with another path, query or body, allowed a new key"
            raise IdempotencyConflict(message, param=HEADER)

    @asynccontextmanager
    async def holding(self, reservation: Reservation) -> AsyncGenerator[None]:
        """Show, while the block lasts, that the reservation's holder lives."""
        touching = asyncio.create_task(self._touch(reservation))
        try:
            yield
        finally:
            touching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await touching

    async def settle(self, reservation: Reservation, request: str | None, answer: Answer) -> None:
        """Keep the answer under the reservation, or give that up if the answer is a refusal.

        What cannot be written now is lost with a line in the log: the request itself is done.

        Args:
            request: its SHA-256 (hex); None: it was refused before all of it was read.
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
            logger.warning("an answer to the API key %s could not be kept for its repetition", reservation.actor)

    async def release(self, reservation: Reservation) -> None:
        """Let the next request with the key be a first one; if that fails now, then in a minute."""
        try:
            async with self._database.write() as connection:
                await idempotency.release(connection, reservation.actor, reservation.name, reservation.token)
        except RegistryUnavailable as error:
            logger.warning("a reservation of the API key %s was left behind: %s", reservation.actor, error)

    async def sweep(self) -> None:
        """Drop what is older than 24 hours.

        Raises:
            RegistryUnavailable
        """
        async with self._database.write() as connection:
            await idempotency.forget(connection, before=self._clock() - KEPT_FOR)

    def _reservations(self, actor: str, key: str) -> list[Reservation]:
        """What a request with this key may be kept as, under the current pepper first."""
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
            entries = [await idempotency.find(connection, actor, one.name) for one in reservations]
            for reservation, found in zip(reservations, entries, strict=True):
                if found and now < found.at + (STALE_AFTER if found.status is None else KEPT_FOR):
                    return _kept(reservation, found)
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
                logger.warning("a reservation of the API key %s was not touched: %s", reservation.actor, error)


async def _drop_oldest(connection: AsyncConnection, actor: str, *, more_rows: int) -> None:
    """Make an API key's rows fit its caps.

    Args:
        more_rows: that are about to be added.

    Raises:
        TooManyOpen: its requests under way alone are too many.
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
            f"{MOST_ROWS} requests of this API key with {HEADER} are under way. Wait until some have their answer."
        )
        raise TooManyOpen(message, param=HEADER, retry_after=_RETRY_AFTER_S)
    if dropped:
        await idempotency.drop(connection, actor, dropped)


def _kept(reservation: Reservation, found: Entry) -> Kept:
    if found.status is None:
        raise IdempotencyInProgress(_IN_PROGRESS, param=HEADER)
    return Kept(found.request, reservation.naming, _decrypted(reservation, found, found.status))


def _hash(naming: bytes, *words: str) -> str:
    return hmac.new(naming, "\0".join(words).encode(), hashlib.sha256).hexdigest()


def _encrypted(reservation: Reservation, answer: Answer) -> bytes:
    """AES-256-GCM: the nonce, then the sealed body. Status and headers are readable, but cannot be changed."""
    nonce = secrets.token_bytes(_NONCE_BYTES)
    return nonce + AESGCM(reservation.secret).encrypt(nonce, answer.body, _bound(answer.status, answer.headers))


def _decrypted(reservation: Reservation, entry: Entry, status: int) -> Answer:
    nonce, sealed = entry.body[:_NONCE_BYTES], entry.body[_NONCE_BYTES:]
    body = AESGCM(reservation.secret).decrypt(nonce, sealed, _bound(status, entry.headers))
    return Answer(status, entry.headers, body)


def _bound(status: int, headers: Sequence[tuple[str, str]]) -> bytes:
    return json.dumps([status, [list(header) for header in headers]]).encode()
