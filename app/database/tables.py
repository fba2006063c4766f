"""Every table of the registry: importing this module makes ``metadata`` whole."""

from app.database.operation_tables import (
    canaries,
    canary_figures,
    deletion_nodes,
    deletions,
    idempotency,
    nodes,
    pins,
    shares,
    uploads,
)
from app.database.registry_tables import (
    adapters,
    alias_history,
    alias_targets,
    aliases,
    audit,
    audit_anchors,
    audit_seals,
    keys,
    tenants,
    version_labels,
    versions,
)
from app.database.schema import UtcDateTime, metadata
from app.database.usage_tables import limit_accounts, limit_grants, limit_reclaimed, prices, usage, usage_hours

__all__ = [
    "UtcDateTime",
    "adapters",
    "alias_history",
    "alias_targets",
    "aliases",
    "audit",
    "audit_anchors",
    "audit_seals",
    "canaries",
    "canary_figures",
    "deletion_nodes",
    "deletions",
    "idempotency",
    "keys",
    "limit_accounts",
    "limit_grants",
    "limit_reclaimed",
    "metadata",
    "nodes",
    "pins",
    "prices",
    "shares",
    "tenants",
    "uploads",
    "usage",
    "usage_hours",
    "version_labels",
    "versions",
]
