"""Operators who act as a tenant: a platform key infers with a tenant's adapters, limits and share of the engine.

Each request writes an audit row before it runs. Its usage record has the tenant, and the platform key's id.
"""

from dataclasses import replace

from app.database import audit, tenants
from app.database.session import Database
from app.domain.access import Caller, Scope
from app.domain.clock import Clock, utc_now
from app.domain.errors import Conflict, Forbidden
from app.services.common.lookups import tenant_or_404


class ActingService:
    """Turns a platform key's caller into one of a tenant.

    Raises (every method):
        RegistryUnavailable
    """

    def __init__(self, database: Database, *, clock: Clock = utc_now) -> None:
        self._database, self._clock = database, clock

    async def act(self, operator: Caller, tenant: str, *, request: str, request_id: str) -> Caller:
        """Return a caller of the tenant with the scope ``inference`` only, and write the audit row.

        Args:
            request: method and route, for the audit trail.

        Raises:
            Forbidden: the operator's key is no administrator's. The tenant is not looked up then.
            NotFound: there is no such tenant.
            Conflict: the tenant is disabled.
        """
        if Scope.ADMIN not in operator.scopes:
            raise Forbidden("Only a platform key with the scope admin acts as a tenant. Leave the header out.")
        async with self._database.write() as connection:
            row = await tenant_or_404(connection, tenant)
            if row.disabled:
                raise Conflict(f"The tenant {tenant!r} is disabled. Enable it first.")
            salt = await tenants.salt_of(connection, row.id)
            await audit.record(
                connection,
                at=self._clock(),
                actor=operator.key_id,
                action="tenant.act",
                tenant=tenant,
                subject=tenant,
                after={"request": request, "request_id": request_id},
            )
        return replace(
            operator,
            tenant_id=row.id,
            tenant_slug=row.slug,
            scopes=frozenset({Scope.INFERENCE}),
            salt=salt,
            weight=row.weight,
            limits=row.limits,
        )
