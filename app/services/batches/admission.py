"""Admission of batches: a node leases them, validates their lines, and lets them run or fail."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from functools import partial

from sqlalchemy.ext.asyncio import AsyncConnection

from adapters.errors import StorageError
from adapters.fair_semaphore import FairSemaphore, Permit
from app.database import batch_chunks, batches, files, keys
from app.database.batches import Waiting, quote_values
from app.database.keys import KeyOwner
from app.database.session import Database
from app.domain.access import Caller
from app.domain.batch_forecast import lines_per_s
from app.domain.batches import Batch, BatchState, Problem, Quote
from app.domain.clock import Clock, utc_now
from app.domain.errors import Busy, FileLost, NotFound, RegistryUnavailable, row_of
from app.services.batches.budgets import budget_problems
from app.services.batches.causes import KEY_REVOKED, TENANT_DELETED, TENANT_DISABLED
from app.services.batches.resolution import BatchNames
from app.services.batches.validation import Validation, Validator
from app.services.common.batch_states import SERVER, cancel, change_state
from app.services.common.lookups import tenant_or_404
from app.services.files.contents import FileContents
from app.services.limits.service import LimitService
from app.services.serving.targets import Targets
from app.settings import BatchSettings

logger = logging.getLogger(__name__)

#: Seconds between two looks for batches to validate.
EVERY_S = 0.5

#: Batches that one node validates at the same time, each of another tenant. They take turns.
_AT_ONCE = 4
#: Seconds until a validation that failed for a fault of the server is tried again.
_RETRY_S = 5.0
#: Renewals of a lease while it lasts.
_RENEWALS = 3
#: Tenants whose last turn is remembered; the turn of any other is the longest ago.
_MOST_TURNS = 1000
#: Batches from which a tenant's rate is known.
_RECENT = 20


class LeaseLost(Exception):
    """The batch is not in validation any more, or another node validates it."""


class BatchAdmission:
    """Admits the batches of one registry, together with the other nodes.

    A crash at any point leaves the batch in validation, and a node begins again: nothing is written before the end.

    Args:
        node: id of this node.
        refused: called with the caller and the sentence of a refusal that belongs into the audit trail.
        monotonic: clock in seconds.
    """

    def __init__(
        self,
        database: Database,
        contents: FileContents,
        validator: Validator,
        targets: Targets,
        limits: LimitService,
        settings: BatchSettings,
        *,
        node: str,
        refused: Callable[[Caller, str], None],
        clock: Clock = utc_now,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._monotonic = monotonic
        self._database, self._contents, self._validator, self._targets = database, contents, validator, targets
        self._limits, self._settings, self._node, self._refused, self._clock = limits, settings, node, refused, clock
        self._turns = FairSemaphore(1)
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._not_before: dict[str, float] = {}
        #: Tenants by their last turn, the latest last.
        self._last_turns: dict[int, None] = {}

    async def advance(self) -> None:
        """Start to validate the batches that wait for it, at most one of each tenant at a time.

        The tenant whose last turn is the longest ago goes first, so none waits for the backlogs of the others.

        Raises:
            RegistryUnavailable
        """
        if len(self._tasks) >= _AT_ONCE:
            return
        now = self._monotonic()
        self._not_before = {identity: at for identity, at in self._not_before.items() if at > now}
        async with self._database.read() as connection:
            waiting = await batches.leasable(
                connection, BatchState.VALIDATING, node=self._node, now=self._clock(), without=self._not_before.keys()
            )
        turns = {tenant_id: turn for turn, tenant_id in enumerate(self._last_turns, 1)}
        for batch in sorted(waiting, key=lambda batch: turns.get(batch.tenant_id, 0)):
            if len(self._tasks) >= _AT_ONCE:
                return
            if batch.tenant_id not in self._tasks:
                self._start(batch)

    def _start(self, batch: Batch) -> None:
        self._last_turns.pop(batch.tenant_id, None)
        self._last_turns[batch.tenant_id] = None
        if len(self._last_turns) > _MOST_TURNS:
            del self._last_turns[next(iter(self._last_turns))]
        task = asyncio.create_task(self._run(batch), name=f"validation of {batch.id}")
        self._tasks[batch.tenant_id] = task
        task.add_done_callback(partial(self._ended, batch.tenant_id))

    def _ended(self, tenant_id: int, _: "asyncio.Task[None]") -> None:
        self._tasks.pop(tenant_id, None)

    async def close(self) -> None:
        """Cancel the validations of this node. Other nodes, or its next start, begin them again."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def idle(self) -> None:
        """Wait until the validations that have started have ended."""
        await asyncio.gather(*self._tasks.values())

    async def _run(self, batch: Batch) -> None:
        try:
            await self._admit(batch)
        except LeaseLost:
            return
        except (RegistryUnavailable, Busy, StorageError, OSError) as error:
            logger.warning("The validation of %s is tried again: %s", batch.id, error)
        except Exception:
            logger.exception("The validation of %s failed and is tried again.", batch.id)
        else:
            return
        self._not_before[batch.id] = self._monotonic() + _RETRY_S

    async def _admit(self, batch: Batch) -> None:
        await self._lease(batch)
        async with self._database.read() as connection:
            owner = await keys.find_owner(connection, batch.created_by)
        if not await self._may_run(batch, owner) or owner is None:
            return
        caller = owner.caller
        try:
            validation = await self._validated(batch, caller)
        except (NotFound, FileLost) as error:
            row = row_of(error)
            await self._fail(batch, caller, [Problem(row.code if row else "file_lost", error.message)])
            return
        problems = validation.problems or await self._budget_problems(batch, caller, validation)
        if problems:
            await self._fail(batch, caller, problems)
        else:
            await self._begin(batch, caller, validation)

    async def _may_run(self, batch: Batch, owner: KeyOwner | None) -> bool:
        """Cancel, expire or block a batch that may not run; return whether it may."""
        now = self._clock()
        if owner is None or owner.deleted or owner.revoked:
            reason = KEY_REVOKED if owner is not None and not owner.deleted else TENANT_DELETED
            async with self._database.write() as connection:
                locked = await batches.find_batch(connection, batch.id, lock=True)
                if locked is not None:
                    slug = "" if owner is None else owner.caller.tenant_slug or ""
                    await cancel(connection, locked, tenant=slug, at=now, actor=SERVER, reason=reason)
            return False
        if batch.expires_at <= now:
            async with self._database.write() as connection:
                slug = owner.caller.tenant_slug or ""
                await change_state(connection, batch, BatchState.EXPIRED, tenant=slug, at=now, node=self._node)
            return False
        cause = TENANT_DISABLED if owner.disabled else None
        if cause != batch.blocked:
            async with self._database.write() as connection:
                await batches.set_blocked(connection, batch.id, cause)
        if cause is not None:
            self._not_before[batch.id] = self._monotonic() + _RETRY_S
        return cause is None

    async def _validated(self, batch: Batch, caller: Caller) -> Validation:
        async with self._database.read() as connection:
            file = await files.find_file(connection, batch.tenant_id, batch.input_file_id)
        if file is None:
            raise NotFound(f"There is no file {batch.input_file_id!r}.", param="input_file_id")
        names = BatchNames(
            self._targets, default=batch.options.model, refused=lambda message: self._refused(caller, message)
        )
        turn, share = _Turn(self._turns), caller.tenant_slug or ""
        renewed = self._monotonic()

        async def between() -> None:
            nonlocal renewed
            await turn.next(share)
            if self._monotonic() - renewed > self._settings.node_lost_s / _RENEWALS:
                await self._lease(batch)
                renewed = self._monotonic()

        try:
            async with self._contents.open(file) as path:
                return await self._validator.validate(batch, caller, path, names, between=between)
        finally:
            turn.end()

    async def _budget_problems(self, batch: Batch, caller: Caller, validation: Validation) -> list[Problem]:
        return await budget_problems(
            self._limits.accounts,
            caller,
            validation.total,
            validation.uses(),
            now=self._clock(),
            until=batch.expires_at,
        )

    async def _begin(self, batch: Batch, caller: Caller, validation: Validation) -> None:
        slug, now = caller.tenant_slug or "", self._clock()
        async with self._database.write() as connection:
            # The lock makes the count of waiting lines exact.
            await tenant_or_404(connection, slug, lock=True)
            waiting = await batches.waiting_of(connection, batch.tenant_id)
            if waiting.lines + validation.lines > self._settings.waiting_lines:
                problem = self._too_many_waiting(waiting, validation.lines)
                await self._set_failed(connection, batch, slug, [problem])
                return
            quote = Quote(
                lines=validation.lines,
                prompt_tokens=validation.total.prompt_tokens,
                most_output_tokens=validation.total.output_tokens,
                most_cost=validation.total.cost,
                expected_s=await self._expected_s(connection, batch.tenant_id, waiting.lines + validation.lines, now),
            )
            changed = await change_state(
                connection,
                batch,
                BatchState.IN_PROGRESS,
                tenant=slug,
                at=now,
                node=self._node,
                values={"total": validation.lines, "quote": quote_values(quote), "blocked": None},
                shown={"lines": validation.lines},
            )
            if changed:
                await batch_chunks.insert_chunks(connection, validation.chunks(batch.id))

    async def _expected_s(self, connection: AsyncConnection, tenant_id: int, lines: int, now: datetime) -> float | None:
        """Estimate the seconds to the end of all waiting lines from the tenant's last batch that had results."""
        recent = await batches.list_batches(connection, tenant_id=tenant_id, limit=_RECENT)
        rate = next((rate for _, batch in recent if (rate := lines_per_s(batch, now))), None)
        return None if rate is None else round(lines / rate, 1)

    async def _fail(self, batch: Batch, caller: Caller, problems: Sequence[Problem]) -> None:
        async with self._database.write() as connection:
            await self._set_failed(connection, batch, caller.tenant_slug or "", problems)

    async def _set_failed(
        self, connection: AsyncConnection, batch: Batch, tenant: str, problems: Sequence[Problem]
    ) -> None:
        await change_state(
            connection,
            batch,
            BatchState.FAILED,
            tenant=tenant,
            at=self._clock(),
            node=self._node,
            values={"errors": [asdict(problem) for problem in problems], "blocked": None},
            shown={"errors": len(problems), "first": problems[0].code},
        )

    def _too_many_waiting(self, waiting: Waiting, lines: int) -> Problem:
        message = (
            f"The batch has {lines} lines, and {waiting.lines} lines of other batches of this tenant wait. Together "
            f"they may be {self._settings.waiting_lines}. Create the batch again when others have ended."
        )
        return Problem("too_many_waiting_lines", message)

    async def _lease(self, batch: Batch) -> None:
        """Take or renew the lease.

        Raises:
            LeaseLost
        """
        now = self._clock()
        until = now + timedelta(seconds=self._settings.node_lost_s)
        async with self._database.write() as connection:
            if not await batches.lease(
                connection, batch.id, BatchState.VALIDATING, node=self._node, now=now, until=until
            ):
                raise LeaseLost


class _Turn:
    """The place of one validation among those of other tenants."""

    def __init__(self, semaphore: FairSemaphore) -> None:
        self._semaphore = semaphore
        self._permit: Permit | None = None

    async def next(self, share: str) -> None:
        """Let the others have their turn, and wait for the next one."""
        self.end()
        self._permit = self._semaphore.enter(share)
        await self._permit.granted.wait()

    def end(self) -> None:
        if self._permit is not None:
            self._semaphore.leave(self._permit)
            self._permit = None
