"""Namespaces ``tenants``, for platform keys, and ``keys``."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from tenora_client._async.resource import AsyncResource
from tenora_client.paths import path_of
from tenora_client.types import Key, NewKey, Tenant, TenantUsage

#: Limits by name, such as ``{"tokens_per_minute": 10_000}``. None lifts a limit.
Limits = Mapping[str, "int | str | None"]


class AsyncTenants(AsyncResource):
    """Tenants of the server.

    Raises (every method):
        Refused: the server answered with an error.
        ConnectionFailed: the server did not answer.
        VersionMismatch: the server lacks the route, or its answer has another form.
    """

    def list(self) -> AsyncIterator[Tenant]:
        """Yield all tenants."""
        return self._session.items(Tenant, path_of("admin", "tenants"))

    async def show(self, tenant: str) -> TenantUsage:
        """Fetch a tenant, with its quota and what it keeps."""
        return await self._session.get(TenantUsage, path_of("admin", "tenants", tenant))

    async def create(self, tenant: str, *, name: str | None = None, weight: float | None = None) -> Tenant:
        """Create a tenant.

        Args:
            tenant: its slug.
            name: display name; None: the slug.
            weight: weight of its share of the engine.
        """
        body = _given(slug=tenant, name=name, weight=weight)
        return await self._session.change(Tenant, "POST", path_of("admin", "tenants"), body)

    async def update(
        self,
        tenant: str,
        *,
        name: str | None = None,
        disabled: bool | None = None,
        weight: float | None = None,
        quota: Mapping[str, int | None] | None = None,
        limits: Limits | None = None,
    ) -> Tenant:
        """Change a tenant. None keeps a value; inside ``quota`` and ``limits``, None lifts a bound."""
        body = _given(name=name, disabled=disabled, weight=weight, quota=quota, limits=limits)
        return await self._session.change(Tenant, "PATCH", path_of("admin", "tenants", tenant), body)

    async def delete(self, tenant: str) -> None:
        """Delete a tenant without adapters."""
        await self._session.send("DELETE", path_of("admin", "tenants", tenant))


class AsyncKeys(AsyncResource):
    """API keys of a tenant, or where ``tenant`` is None, those of the platform or of the calling key's tenant.

    A tenant's key with the scope ``keys:write`` lists, creates and revokes its tenant's keys. Restrictions and rotation
    need a platform key.

    Raises (every method):
        Refused: the server answered with an error.
        ConnectionFailed: the server did not answer.
        VersionMismatch: the server lacks the route, or its answer has another form.
    """

    async def list(self, tenant: str | None = None) -> AsyncIterator[Key]:
        """Yield keys, also expired and revoked ones."""
        async for key in self._session.items(Key, await self._path(tenant)):
            yield key

    async def create(
        self,
        name: str,
        *,
        tenant: str | None = None,
        scopes: Sequence[str] | None = None,
        expires_in_s: int | None = None,
        adapters: Sequence[str] | None = None,
        addresses: Sequence[str] | None = None,
        limits: Limits | None = None,
        owner: str | None = None,
    ) -> NewKey:
        """Create a key. Its text is in ``key`` of the answer, and is shown only once.

        Args:
            owner: label of the person or application that uses the key.
        """
        body = _given(name=name, scopes=scopes, expires_in_s=expires_in_s, owner=owner)
        body.update(_given(adapters=adapters, addresses=addresses, limits=limits))
        return await self._session.change(NewKey, "POST", await self._path(tenant), body)

    async def restrict(self, key_id: str, restrictions: Mapping[str, Any], *, tenant: str | None = None) -> Key:
        """Set or lift restrictions of a key, or change its owner.

        Args:
            restrictions: ``adapters``, ``addresses``, ``limits`` and ``owner``. None lifts one, an absent one stays.
        """
        return await self._session.change(Key, "PATCH", _keys(tenant, key_id), restrictions)

    async def rotate(self, key_id: str, *, grace_s: int | None = None, tenant: str | None = None) -> NewKey:
        """Replace a key. The old one works for the grace period."""
        return await self._session.change(NewKey, "POST", _keys(tenant, key_id, "rotate"), _given(grace_s=grace_s))

    async def revoke(self, key_id: str, *, tenant: str | None = None) -> None:
        """Revoke a key. It stops working within a second."""
        await self._session.send("DELETE", await self._path(tenant, key_id))

    async def _path(self, tenant: str | None, *segments: str) -> str:
        own = tenant is None and not await self._session.is_platform()
        return path_of("v1", "keys", *segments) if own else _keys(tenant, *segments)


def _keys(tenant: str | None, *segments: str) -> str:
    owner = ("admin",) if tenant is None else ("admin", "tenants", tenant)
    return path_of(*owner, "keys", *segments)


def _given(**fields: Any) -> dict[str, Any]:
    """Keep the fields that are not None. Sequences become lists, which JSON has."""
    return {
        name: list(value) if isinstance(value, (tuple, frozenset, set)) else value
        for name, value in fields.items()
        if value is not None
    }
