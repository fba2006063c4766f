"""Tenant quotas: adapters, versions, bytes, rank, pinned slots.

Lowering a quota removes nothing. It only refuses additions beyond it. The check runs in the transaction that adds and
that holds the lock of the tenant's row, so concurrent uploads cannot pass together.
"""

from dataclasses import asdict, dataclass, fields, replace

from sqlalchemy.ext.asyncio import AsyncConnection

from app.database import quotas
from app.domain.access import Tenant
from app.domain.errors import QuotaExceeded
from app.domain.quotas import UNLIMITED, Quota, Usage

FIELDS = tuple(field.name for field in fields(Quota))


@dataclass(frozen=True, slots=True)
class Breach:
    """One limit that a change would exceed.

    Attributes:
        found: the tenant's total after the change.
    """

    field: str
    found: int
    allowed: int


def limits_of(quota: Quota) -> dict[str, int | None]:
    """Return the quota as JSON."""
    return asdict(quota)


def breaches(quota: Quota, used: Usage, adding: Usage) -> list[Breach]:
    """Return every limit that ``adding`` exceeds. Limits to which it adds nothing are not checked.

    Ranks are compared for each version, not summed.
    """
    exceeded = []
    for name in FIELDS:
        allowed, more = getattr(quota, name), getattr(adding, name)
        total = more if name == "rank" else getattr(used, name) + more
        if allowed is not None and more and total > allowed:
            exceeded.append(Breach(name, total, allowed))
    return exceeded


def check_quota(quota: Quota, used: Usage, adding: Usage) -> None:
    """Refuse a change that exceeds the quota, and name every exceeded limit.

    Raises:
        QuotaExceeded
    """
    exceeded = breaches(quota, used, adding)
    if exceeded:
        words = ", ".join(f"{breach.field} would be {breach.found} (limit {breach.allowed})" for breach in exceeded)
        message = f"The tenant's quota would be exceeded: {words}. Use less, or ask the platform team for more."
        raise QuotaExceeded(message, param=exceeded[0].field)


async def enforce_quota(connection: AsyncConnection, tenant: Tenant, adapter_id: int, *, size: int, rank: int) -> None:
    """Refuse a new version that exceeds the quota.

    Call it after the row of the version's adapter exists and before the version's row is inserted.

    Args:
        tenant: tenant whose row this transaction has locked (``find_tenant``), which makes the check exact.
        size: bytes of both files.

    Raises:
        QuotaExceeded
    """
    if tenant.quota == UNLIMITED:
        return
    used, adding = await quotas.usage(connection, tenant.id), Usage(versions=1, bytes=size, rank=rank)
    if await quotas.is_new(connection, adapter_id):
        # This transaction inserted the adapter's row, so it is already counted.
        used, adding = replace(used, adapters=used.adapters - 1), replace(adding, adapters=1)
    check_quota(tenant.quota, used, adding)


async def check_room(connection: AsyncConnection, tenant: Tenant, adapter: str) -> None:
    """Cheap check before an upload's bytes are read: refuse if no version could be published under the name.

    An existing adapter passes even if the quota is full. The upload may repeat one of its versions, and the answer is
    then that version.

    Raises:
        QuotaExceeded
    """
    if tenant.quota == UNLIMITED or await quotas.has_adapter(connection, tenant.id, adapter):
        return
    adding = Usage(adapters=1, versions=1, bytes=1, rank=1)
    check_quota(tenant.quota, await quotas.usage(connection, tenant.id), adding)
