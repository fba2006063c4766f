"""Authentication and scopes as dependencies. None of them holds a database connection while a route runs."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import cache
from typing import Annotated

from fastapi import Depends, Path, Request

from app.api.session_cookie import token_of
from app.domain.access import Caller, Scope
from app.domain.errors import Forbidden, NotFound
from app.observability.context import note_caller
from app.wiring.gateway import Gateway


async def gateway_of(request: Request) -> Gateway:
    """Return the gateway, which lives as long as the process."""
    gateway: Gateway = request.state.gateway
    return gateway


GatewayDep = Annotated[Gateway, Depends(gateway_of)]


async def authenticate(request: Request) -> Caller:
    """Authenticate the request's API key, or the console's session, and return its caller.

    Raises:
        Unauthenticated: the key is missing or invalid, or the session has ended.
        Forbidden: the key is not allowed from the client's address.
        RegistryUnavailable: the key cannot be looked up.
    """
    key = _key(request)
    token = token_of(request) if key is None else None
    if token is None:
        return await authenticate_key(request)
    gateway = await gateway_of(request)
    return _checked(request, await gateway.sessions.authenticate(token))


async def authenticate_key(request: Request) -> Caller:
    """Authenticate the request's API key; a session does not count.

    Raises: as :func:`authenticate`.
    """
    gateway = await gateway_of(request)
    return _checked(request, await gateway.keys.authenticate(_key(request)))


def _checked(request: Request, caller: Caller) -> Caller:
    """Note the caller of the request, and check that the key may be used from the client's address."""
    note_caller(caller.tenant_slug, caller.key_id)
    request.state.caller = caller
    host = request.client.host if request.client else None
    if not caller.restrictions.allows_address(host):
        raise Forbidden(
            f"This key may not be used from {host}. Call from its networks, or ask an administrator to add yours."
        )
    return caller


#: Header with the slug of the tenant that an operator acts as; for inference only.
ACT_AS = "x-tenora-tenant"

#: Scope that each dependency requires, for the OpenAPI document.
SCOPES: dict[Callable[..., object], Scope] = {}


@cache
def require(scope: Scope) -> Callable[[Request], Awaitable[Caller]]:
    """Build a dependency that returns the caller and requires a scope.

    The result is cached, so FastAPI resolves the same dependency once a request. The scope ``admin`` includes
    ``metrics``.

    Raises:
        Unauthenticated, Forbidden, RegistryUnavailable
    """

    sufficient = {Scope.METRICS, Scope.ADMIN} if scope is Scope.METRICS else {scope}

    async def dependency(request: Request) -> Caller:
        caller = await authenticate(request)
        if scope is Scope.INFERENCE and ACT_AS in request.headers:
            return await _acting(request, caller)
        if caller.scopes.isdisjoint(sufficient):
            raise _lacking(caller, scope)
        if Scope.ADMIN in caller.scopes:
            _note_use(request, caller)
        return caller

    SCOPES[dependency] = scope
    return dependency


async def _acting(request: Request, operator: Caller) -> Caller:
    """Return a caller of the tenant that the header names, for an operator's request.

    Raises:
        Forbidden, NotFound, Conflict, RegistryUnavailable
    """
    gateway = await gateway_of(request)
    tenant, route = request.headers[ACT_AS], f"{request.method} {request.scope['route'].path}"
    caller = await gateway.acting.act(operator, tenant, request=route, request_id=request.state.request_id)
    note_caller(caller.tenant_slug, caller.key_id)
    request.state.caller = caller
    return caller


#: Caller of a route for platform keys.
Admin = Annotated[Caller, Depends(require(Scope.ADMIN))]

inference_caller = require(Scope.INFERENCE)

#: Caller of a route for a tenant's applications.
InferenceCaller = Annotated[Caller, Depends(inference_caller)]


@dataclass(frozen=True, slots=True)
class Owner:
    """The tenant whose adapters a request concerns, and the caller."""

    caller: Caller
    tenant: str


def require_owner(scope: Scope, *others: Scope) -> Callable[[Request], Awaitable[Owner]]:
    """Build a dependency for adapter routes that authorizes access to a tenant's adapters.

    - Under ``/admin/tenants/{tenant}``: a platform key, or a key of that tenant with the scope. A key of another
      tenant gets a 404, as for a tenant that does not exist.
    - Elsewhere: a tenant's key with the scope, for its own tenant.

    Args:
        others: scopes that are accepted instead of ``scope``.

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
            raise NotFound(f"There is no tenant {tenant[:80]!r}.", param="tenant", foreign=True)
        if tenant is None or caller.scopes.isdisjoint({scope, *others}):
            raise _lacking(caller, scope, hint=" The same route under /admin/tenants/TENANT accepts a platform key.")
        return Owner(caller, tenant)

    SCOPES[dependency] = scope
    return dependency


@cache
def require_tenant(scope: Scope) -> Callable[[Request], Awaitable[Owner]]:
    """Build a dependency for a tenant's own routes, which requires a tenant's key with a scope.

    Raises:
        Unauthenticated, Forbidden, RegistryUnavailable
    """

    async def dependency(request: Request) -> Owner:
        caller = await authenticate(request)
        if caller.tenant_slug is None or scope not in caller.scopes:
            raise _lacking(caller, scope)
        return Owner(caller, caller.tenant_slug)

    SCOPES[dependency] = scope
    return dependency


#: Owner of files and batches.
BatchOwner = Annotated[Owner, Depends(require_tenant(Scope.BATCH))]


async def tenant_in_path(tenant: Annotated[str, Path(description="Slug of the tenant")]) -> str:
    """Declare the path parameter that ``require_owner`` reads, for the OpenAPI document."""
    return tenant


def _lacking(caller: Caller, scope: Scope, *, hint: str = "") -> Forbidden:
    """Build the refusal of a key without a scope.

    Args:
        hint: sentence for an administrator's key that lacks it because it belongs to no tenant.
    """
    if Scope.ADMIN not in caller.scopes:
        return Forbidden(f"The key lacks the scope {scope.value}.")
    return Forbidden(f"This is a platform key; this route needs a tenant's key with the scope {scope.value}.{hint}")


def _note_use(request: Request, caller: Caller) -> None:
    gateway: Gateway = request.state.gateway
    gateway.audit.access_log.used(caller, f"{request.method} {request.scope['route'].path}")


def _key(request: Request) -> str | None:
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else request.headers.get("x-api-key")
