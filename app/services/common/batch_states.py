"""State changes of batches, each with its row in the audit trail, from which the event feed is made."""

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection

from app.database import audit, batches
from app.domain.batches import Batch, BatchState, Cause

#: Actor of changes that no key asked for.
SERVER = "server"
_CANCELLED = "batch.cancel"


async def change_state(
    connection: AsyncConnection,
    batch: Batch,
    state: BatchState,
    *,
    tenant: str,
    at: datetime,
    expected: Collection[BatchState] | None = None,
    node: str | None = None,
    values: Mapping[str, Any] | None = None,
    shown: Mapping[str, Any] | None = None,
    actor: str = SERVER,
    action: str | None = None,
) -> bool:
    """Change the state of a batch by compare-and-set; False if it is in no expected state.

    Args:
        tenant: slug of the batch's tenant.
        expected: states in which the change applies; None: the state of ``batch``.
        node: change it only if this node holds the lease; None: regardless of the lease.
        values: further columns of the batch.
        shown: further fields of the audit row, without prompts or answers.
        action: action of the audit row; None: ``batch.`` and the state.
    """
    states = [batch.state] if expected is None else expected
    if not await batches.set_state(connection, batch.id, state, expected=states, at=at, node=node, values=values):
        return False
    await audit.record(
        connection,
        at=at,
        actor=actor,
        action=action or f"batch.{state.value}",
        tenant=tenant,
        subject=batch.id,
        before={"status": batch.state.value},
        after={"status": state.value, **(shown or {})},
    )
    return True


async def cancel(
    connection: AsyncConnection,
    batch: Batch,
    *,
    tenant: str,
    at: datetime,
    actor: str,
    reason: Cause | None = None,
) -> BatchState | None:
    """Cancel a batch that is validated or runs; None if it is neither.

    A batch that is validated has no lines yet, so it is cancelled at once.

    Args:
        batch: read with its row locked in this transaction.
        reason: why the server cancels it; None: its tenant asked for it.

    Returns:
        The new state.
    """
    if batch.state not in (BatchState.VALIDATING, BatchState.IN_PROGRESS):
        return None
    new = BatchState.CANCELLED if batch.state is BatchState.VALIDATING else BatchState.CANCELLING
    values: dict[str, Any] = {"blocked": None, "cancelling_at": at}
    shown = {}
    if reason is not None:
        values["reason"] = {"code": reason.code, "message": reason.message}
        shown["reason"] = reason.code
    changed = await change_state(
        connection, batch, new, tenant=tenant, at=at, values=values, shown=shown, actor=actor, action=_CANCELLED
    )
    return new if changed else None


async def cancel_of_key(connection: AsyncConnection, key_id: str, *, tenant: str, at: datetime, actor: str) -> int:
    """Cancel the unfinished batches of a key that was revoked; return their number."""
    reason = Cause("key_revoked", f"The key {key_id} that created the batch was revoked.")
    cancelled = [
        await cancel(connection, batch, tenant=tenant, at=at, actor=actor, reason=reason)
        for batch in await batches.unfinished_of_key(connection, key_id)
    ]
    return sum(state is not None for state in cancelled)
