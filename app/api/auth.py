"""Who calls, and what their key allows. Nothing here holds a database connection while a route runs."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import cache
from typing import Annotated

from fastapi import Depends, Path, Request

from app.domain.access import Caller, Scope
from app.domain.errors import Forbidden, NotFound
from app.observability.context import note_caller
from app.wiring.container import Container


async def process_of(request: Request) -> Container:
    """What lives as long as this process."""
    process: Container = request.state.process
    return process


ProcessDep = Annotated[Container, Depends(process_of)]


async def authenticate(request: Request) -> Caller:
    """The owner of the request's key.

    Raises:
        Unauthenticated: none, or one that does not work.
        Forbidden: it does not work from where the call comes from.
        RegistryUnavailable
    """
    process = await process_of(request)
    caller = await process.keys.authenticate(_key(request))
    note_caller(caller.tenant_slug, caller.key_id)
    request.state.caller = caller
    host = request.client.host if request.client else None
    if not caller.restrictions.allows_address(host):
        raise Forbidden(f"the key does not work from {host}")
    return caller


@cache
def require(scope: Scope) -> Callable[[Request], Awaitable[Caller]]:
    """A dependency: the caller, whose key must hold the scope. The same one each time: FastAPI asks it once a request.

    A key with ``admin`` reads metrics too.

    Raises:
        Unauthenticated, Forbidden, RegistryUnavailable
    """

    enough = {Scope.METRICS, Scope.ADMIN} if scope is Scope.METRICS else {scope}

    async def dependency(request: Request) -> Caller:
        caller = await authenticate(request)
        if caller.scopes.isdisjoint(enough):
            raise Forbidden(f"the key lacks the scope {scope.value}")
        if Scope.ADMIN in caller.scopes:
            _note_use(request, caller)
        return caller

    return dependency


#: The caller of a route for platform keys.
Admin = Annotated[Caller, Depends(require(Scope.ADMIN))]

inference_caller = require(Scope.INFERENCE)

#: The caller of a route for a tenant's applications.
InferenceCaller = Annotated[Caller, Depends(inference_caller)]


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose adapters a request is about, and who asks."""

    caller: Caller
    tenant: str


def require_owner(scope: Scope) -> Callable[[Request], Awaitable[Owner]]:
    """A dependency of routes on adapters, wherever they are mounted.

    Under ``/admin/tenants/{tenant}``: a platform key, or that tenant's own key with the scope; another tenant's
    gets the 404 of a tenant that does not exist. Elsewhere: a tenant's key with the scope, about itself.

    Raises:
        Unauthenticated, Forbidden, NotFound, RegistryUnavailable
    """

    async def dependency(request: Request) -> Owner:
        caller = await authenticate(request)
        tenant: str | None = request.path_params.get("tenant", caller.tenant_slug)
        if tenant is not None and Scope.ADMIN in caller.scopes:
            _note_use(request, caller)
            return Owner(caller, tenant)
        if tenant is not None and tenant != caller.tenant_slug:
            raise NotFound(f"there is no tenant {tenant[:80]!r}", param="tenant", foreign=True)
        if tenant is None or scope not in caller.scopes:
            raise Forbidden(f"the key lacks the scope {scope.value}")
        return Owner(caller, tenant)

    return dependency


async def tenant_in_path(tenant: Annotated[str, Path(description="the tenant's slug")]) -> str:
    """Documents the path parameter that ``require_owner`` reads."""
    return tenant


def _note_use(request: Request, caller: Caller) -> None:
    process: Container = request.state.process
    process.audit.accesses.used(caller, f"{request.method} {request.scope['route'].path}")


def _key(request: Request) -> str | None:
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else request.headers.get("x-api-key")
