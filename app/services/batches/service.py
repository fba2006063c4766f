"""Batches of a tenant: create, show, list and cancel them; and the list of all tenants for the platform."""

import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection

from app.database import audit, batches
from app.database.batches import Cursor
from app.database.session import Database
from app.domain.access import Caller, Scope
from app.domain.batches import Batch, BatchOptions, BatchState, BatchUsage
from app.domain.clock import Clock, is_past, utc_now
from app.domain.errors import Conflict, Forbidden, InvalidRequest, NotFound, TenoraError, TooManyOpen
from app.domain.files import MAX_LIFETIME_S, MIN_LIFETIME_S, Purpose, StoredFile
from app.services.batches.endpoints import checked_endpoint
from app.services.common.batch_states import cancel
from app.services.common.lookups import file_or_404, tenant_or_404
from app.services.serving.models import tenant_of
from app.services.serving.targets import Targets
from app.settings import BatchSettings

#: Limits of a page of OpenAI's lists.
MAX_LIMIT, DEFAULT_LIMIT = 100, 20
#: Most lines of one batch that run at once.
MAX_WIDTH = 4096

_WINDOW = re.compile("([1-9][0-9]{0,4})([mhd])", re.ASCII)
_UNIT_S = {"m": 60, "h": 3600, "d": 86400}
_SHORTEST_S, _LONGEST_S = 10 * 60, 7 * 86400
_MOST_PAIRS, _MOST_KEY, _MOST_VALUE = 16, 64, 512
_DAY_S = 86400
_RETRY_AFTER_S = 60
_ID_BYTES = 8
_ID = re.compile(f"batch_[0-9a-f]{{{2 * _ID_BYTES}}}", re.ASCII)


@dataclass(frozen=True, slots=True)
class NewBatch:
    """A batch as a caller asks for it.

    Attributes:
        output_lifetime_s: seconds from the creation of the output file to its expiry; None: the server's default.
    """

    input_file_id: str
    endpoint: str
    completion_window: str
    metadata: Mapping[str, str] | None = None
    output_lifetime_s: int | None = None
    options: BatchOptions = field(default_factory=BatchOptions)


@dataclass(frozen=True, slots=True)
class BatchPage:
    """A page of a list; ``has_more`` is true unless it is the last."""

    data: tuple[Batch, ...]
    has_more: bool


@dataclass(frozen=True, slots=True)
class PlatformPage:
    """A page of the list of all tenants' batches, each with the slug of its tenant."""

    data: tuple[tuple[str, Batch], ...]
    has_more: bool


class BatchService:
    """Use cases of a tenant's key with the scope ``batch``, and of platform keys.

    Another tenant's batch or file is a NotFound that equals that of an id which does not exist.

    Raises (every method):
        RegistryUnavailable
    """

    def __init__(
        self, database: Database, targets: Targets, settings: BatchSettings, *, clock: Clock = utc_now
    ) -> None:
        self._database, self._targets, self._settings, self._clock = database, targets, settings, clock

    async def create(self, caller: Caller, new: NewBatch) -> Batch:
        """Create a batch. Its lines are validated afterwards.

        Raises:
            InvalidRequest: of a field, of an expired file, or of one with another purpose.
            NotFound: there is no such file; or no such model, where the options name one.
            Forbidden: the key may not use the model, or lacks the scope ``inference``.
            TooManyOpen: the tenant has its maximum of unfinished batches or waiting lines.
        """
        tenant_id, slug = tenant_of(caller)
        if Scope.INFERENCE not in caller.scopes:
            raise Forbidden("The key lacks the scope inference, which the lines of a batch need.")
        window_s, lifetime_s = _checked(new, default_days=self._settings.file_days)
        await self._check_model(caller, new.options.model)
        now = self._clock()
        expires_at = now + timedelta(seconds=window_s)
        batch = _validating(caller, tenant_id, new, lifetime_s=lifetime_s, created_at=now, expires_at=expires_at)
        async with self._database.write() as connection:
            # The lock makes the check of the caps exact.
            tenant = await tenant_or_404(connection, slug, lock=True)
            self._check_file(await file_or_404(connection, tenant, new.input_file_id, lock=True, param="input_file_id"))
            self._check_caps(await batches.waiting_of(connection, tenant_id))
            await batches.insert_batch(connection, batch)
            shown = {
                "status": batch.state.value,
                "endpoint": batch.endpoint,
                "input_file_id": batch.input_file_id,
                "completion_window": batch.completion_window,
            }
            await audit.record(
                connection,
                at=now,
                actor=caller.key_id,
                action="batch.create",
                tenant=slug,
                subject=batch.id,
                after=shown,
            )
        return batch

    async def get(self, caller: Caller, batch_id: str) -> Batch:
        """Return a batch of the caller's tenant.

        Raises:
            NotFound
        """
        tenant_id, _ = tenant_of(caller)
        async with self._database.read() as connection:
            return await _find(connection, batch_id, tenant_id=tenant_id)

    async def list(self, caller: Caller, *, limit: int = DEFAULT_LIMIT, after: str | None = None) -> BatchPage:
        """List the tenant's batches, newest first.

        Args:
            after: id of the last batch of the previous page; retention may have removed it since.

        Raises:
            NotFound: there is no batch ``after``.
            InvalidRequest
        """
        tenant_id, _ = tenant_of(caller)
        _check_limit(limit)
        async with self._database.read() as connection:
            cursor = None
            if after is not None:
                cursor = await _position(connection, after, tenant_id=tenant_id)
            rows = await batches.list_batches(connection, tenant_id=tenant_id, after=cursor, limit=limit + 1)
        return BatchPage(tuple(batch for _, batch in rows[:limit]), has_more=len(rows) > limit)

    async def cancel(self, caller: Caller, batch_id: str) -> Batch:
        """Cancel a batch. Lines with an answer are kept and charged. Cancelling again changes nothing.

        Raises:
            NotFound
            Conflict: the batch has ended, or all its lines have.
        """
        tenant_id, slug = tenant_of(caller)
        async with self._database.write() as connection:
            batch = await _find(connection, batch_id, tenant_id=tenant_id, lock=True)
            if batch.state in (BatchState.CANCELLING, BatchState.CANCELLED):
                return batch
            if await cancel(connection, batch, tenant=slug, at=self._clock(), actor=caller.key_id) is None:
                raise Conflict(f"The batch {batch_id} is {batch.state.value} and cannot be cancelled.")
            return await _find(connection, batch_id)

    async def list_all(
        self,
        *,
        tenant: str | None = None,
        state: BatchState | None = None,
        limit: int = DEFAULT_LIMIT,
        after: str | None = None,
    ) -> PlatformPage:
        """List the batches of all tenants, newest first.

        Args:
            tenant: only batches of this tenant.
            state: only batches in this state.
            after: id of the last batch of the previous page; retention may have removed it since.

        Raises:
            NotFound: there is no such tenant, or no batch ``after``.
            InvalidRequest
        """
        _check_limit(limit)
        async with self._database.read() as connection:
            tenant_id = None if tenant is None else (await tenant_or_404(connection, tenant)).id
            cursor = None
            if after is not None:
                cursor = await _position(connection, after)
            states = () if state is None else (state,)
            rows = await batches.list_batches(
                connection, tenant_id=tenant_id, states=states, after=cursor, limit=limit + 1
            )
        return PlatformPage(tuple(rows[:limit]), has_more=len(rows) > limit)

    async def _check_model(self, caller: Caller, name: str | None) -> None:
        if name is None:
            return
        try:
            await self._targets.named(caller, name)
        except TenoraError as error:
            error.param = "tenora.model" if error.param == "model" else error.param
            raise

    def _check_file(self, file: StoredFile) -> None:
        if file.purpose is not Purpose.BATCH:
            raise InvalidRequest(
                f"The file {file.id} has the purpose {file.purpose.value}; it must be batch. Upload it again.",
                param="input_file_id",
            )
        if is_past(file.expires_at, self._clock()):
            raise InvalidRequest(
                f"The file {file.id} expired at {file.expires_at:%Y-%m-%d %H:%M:%S} UTC. Upload it again.",
                param="input_file_id",
            )

    def _check_caps(self, waiting: batches.Waiting) -> None:
        most_batches, most_lines = self._settings.open_batches, self._settings.waiting_lines
        if waiting.batches >= most_batches:
            raise TooManyOpen(
                f"The tenant has {waiting.batches} unfinished batches; the limit is {most_batches}. Wait until one "
                "ends, or cancel one.",
                retry_after=_RETRY_AFTER_S,
            )
        if waiting.lines >= most_lines:
            raise TooManyOpen(
                f"The tenant's unfinished batches have {waiting.lines} waiting lines; the limit is {most_lines}. Wait "
                "until some have run, or cancel a batch.",
                retry_after=_RETRY_AFTER_S,
            )


def _validating(
    caller: Caller, tenant_id: int, new: NewBatch, *, lifetime_s: int, created_at: datetime, expires_at: datetime
) -> Batch:
    """Build a batch whose lines are not validated."""
    return Batch(
        id=f"batch_{secrets.token_hex(_ID_BYTES)}",
        tenant_id=tenant_id,
        state=BatchState.VALIDATING,
        endpoint=new.endpoint,
        input_file_id=new.input_file_id,
        output_file_id=None,
        error_file_id=None,
        completion_window=new.completion_window,
        options=new.options,
        metadata=new.metadata,
        output_lifetime_s=lifetime_s,
        errors=None,
        quote=None,
        blocked=None,
        reason=None,
        total=0,
        completed=0,
        failed=0,
        usage=BatchUsage(),
        node=None,
        leased_until=None,
        created_at=created_at,
        created_by=caller.key_id,
        expires_at=expires_at,
        times={},
    )


async def _find(
    connection: AsyncConnection,
    batch_id: str,
    *,
    tenant_id: int | None = None,
    lock: bool = False,
) -> Batch:
    # No database is asked for an id that none can have: PostgreSQL refuses some texts.
    batch = None
    if _ID.fullmatch(batch_id):
        batch = await batches.find_batch(connection, batch_id, tenant_id=tenant_id, lock=lock)
    if batch is None:
        raise _absent(batch_id, param="batch_id")
    return batch


async def _position(connection: AsyncConnection, after: str, *, tenant_id: int | None = None) -> Cursor:
    """Return the position of a batch in a list, also of one that retention has removed lately."""
    cursor = await batches.find_cursor(connection, after, tenant_id=tenant_id) if _ID.fullmatch(after) else None
    if cursor is None:
        raise _absent(after, param="after")
    return cursor


def _absent(batch_id: str, *, param: str) -> NotFound:
    return NotFound(f"There is no batch {batch_id[:80]!r}.", param=param)


def _checked(new: NewBatch, *, default_days: float) -> tuple[int, int]:
    """Check the fields of a new batch, and return its window and the lifetime of its output, in seconds."""
    checked_endpoint(new.endpoint)
    _check_metadata(new.metadata)
    width, lifetime_s = new.options.width, new.output_lifetime_s
    if width is not None and not 1 <= width <= MAX_WIDTH:
        raise InvalidRequest(f"tenora.width is {width}; it must be 1 to {MAX_WIDTH}.", param="tenora.width")
    if lifetime_s is not None and not MIN_LIFETIME_S <= lifetime_s <= MAX_LIFETIME_S:
        raise InvalidRequest(
            f"output_expires_after.seconds is {lifetime_s}; it must be {MIN_LIFETIME_S} to {MAX_LIFETIME_S}.",
            param="output_expires_after.seconds",
        )
    return _window_s(new.completion_window), int(default_days * _DAY_S) if lifetime_s is None else lifetime_s


def _window_s(text: str) -> int:
    found = _WINDOW.fullmatch(text)
    seconds = int(found[1]) * _UNIT_S[found[2]] if found else 0
    if not _SHORTEST_S <= seconds <= _LONGEST_S:
        raise InvalidRequest(
            f"completion_window is {text[:40]!r}; it must be 10m to 7d, in minutes (m), hours (h) or days (d).",
            param="completion_window",
        )
    return seconds


def _check_metadata(metadata: Mapping[str, Any] | None) -> None:
    if metadata is None:
        return
    if len(metadata) > _MOST_PAIRS:
        raise InvalidRequest(f"metadata has {len(metadata)} keys; the limit is {_MOST_PAIRS}.", param="metadata")
    for key, value in metadata.items():
        if not 1 <= len(key) <= _MOST_KEY:
            raise InvalidRequest(
                f"A key of metadata has {len(key)} characters; it must have 1 to {_MOST_KEY}.", param="metadata"
            )
        if len(value) > _MOST_VALUE:
            raise InvalidRequest(
                f"metadata.{key} has {len(value)} characters; the limit is {_MOST_VALUE}.", param="metadata"
            )
        _check_text(key, value)


def _check_text(key: str, value: str) -> None:
    """Refuse what PostgreSQL cannot store."""
    try:
        storable = "\0" not in f"{key}{value}" and bool(f"{key}{value}x".encode())
    except UnicodeEncodeError:
        storable = False
    if not storable:
        raise InvalidRequest("metadata has a NUL or an unpaired surrogate; it must be Unicode text.", param="metadata")


def _check_limit(limit: int) -> None:
    if not 1 <= limit <= MAX_LIMIT:
        raise InvalidRequest(f"limit is {limit}; it must be 1 to {MAX_LIMIT}.", param="limit")
