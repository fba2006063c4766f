"""Paths of the API, with quoted segments."""

from __future__ import annotations

from urllib.parse import quote


def path_of(*segments: str) -> str:
    """Build a path from segments: ``path_of("admin", "tenants", name)``."""
    return "/" + "/".join(quote(segment, safe="@:") for segment in segments)


def tenant_path(tenant: str | None, *segments: str) -> str:
    """Build a path below a tenant. None means the tenant of the key."""
    return path_of(*(("v1",) if tenant is None else ("admin", "tenants", tenant)), *segments)


def adapters_path(tenant: str | None, *segments: str) -> str:
    """Build a path below a tenant's adapters. None means the tenant of the key."""
    return tenant_path(tenant, "adapters", *segments)
