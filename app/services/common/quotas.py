"""How much one tenant may keep: adapters, versions, bytes, rank, pinned slots.

A quota that is lowered takes nothing away: only what would add to a full one is refused. The decision is made in
the transaction that adds, which holds the tenant's row, so that uploads at the same time cannot pass together.
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
    """One limit that a change would go beyond.

    Attributes:
        found: what the tenant would have with it.
    """

    field: str
    found: int
    allowed: int


def limits_of(quota: Quota) -> dict[str, int | None]:
    """The quota as JSON."""
    return asdict(quota)


def breaches(quota: Quota, used: Usage, adding: Usage) -> list[Breach]:
    """Every limit that ``adding`` goes beyond; one that it adds nothing to is not asked about.

    A rank is each version's own: it is compared, not summed.
    """
    found = []
    for name in FIELDS:
        allowed, more = getattr(quota, name), getattr(adding, name)
        total = more if name == "rank" else getattr(used, name) + more
        if allowed is not None and more and total > allowed:
            found.append(Breach(name, total, allowed))
    return found


def check_quota(quota: Quota, used: Usage, adding: Usage) -> None:
    """Refuse what goes beyond the quota, with every limit that is to blame.

    Raises:
        QuotaExceeded
    """
    found = breaches(quota, used, adding)
    if found:
        words = "; ".join(f"{breach.field}: found {breach.found}, allowed {breach.allowed}" for breach in found)
        raise QuotaExceeded(f"the tenant's quota would be exceeded: {words}", param=found[0].field)


async def enforce_quota(connection: AsyncConnection, tenant: Tenant, adapter_id: int, *, size: int, rank: int) -> None:
    """Whether one more version fits; to be asked after its adapter's row is there and before its own is.

    Args:
        tenant: its row must be locked by this transaction (``find_tenant``), which makes the answer exact.
        size: bytes of both files.

    Raises:
        QuotaExceeded
    """
    if tenant.quota == UNLIMITED:
        return
    used, adding = await quotas.usage(connection, tenant.id), Usage(versions=1, bytes=size, rank=rank)
    if await quotas.is_new(connection, adapter_id):
        # Its row, made by this transaction, is counted already.
        used, adding = replace(used, adapters=used.adapters - 1), replace(adding, adapters=1)
    check_quota(tenant.quota, used, adding)


async def check_room(connection: AsyncConnection, tenant: Tenant, adapter: str) -> None:
    """A cheap look before an upload's bytes are read: whether nothing could be published under that name.

    An adapter that exists is let through even by a full quota: the bytes may be those of one of its versions,
    whose answer is that version.

    Raises:
        QuotaExceeded
    """
    if tenant.quota == UNLIMITED or await quotas.has_adapter(connection, tenant.id, adapter):
        return
    adding = Usage(adapters=1, versions=1, bytes=1, rank=1)
    check_quota(tenant.quota, await quotas.usage(connection, tenant.id), adding)
