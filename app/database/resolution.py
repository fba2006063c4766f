"""Resolution of a model name for a tenant: the one query of every inference request."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, Select, bindparam, select

from adapters.identity import ModelName, VersionKey
from app.database.tables import adapters, alias_targets, aliases, shares, tenants, versions
from app.domain.adapters import ResolvedVersion, VersionState
from app.domain.limits.limits import Limits


@dataclass(frozen=True, slots=True)
class Candidate:
    """A version to which a name may resolve, in any state.

    Attributes:
        weight: weight of its traffic in the alias; 1 if the caller gave a version number.
        base_name, base_digest: base that it was checked against; None if not recorded.
        lora_head: True if it adapts the head.
    """

    version: ResolvedVersion
    weight: int
    state: VersionState
    state_reason: str | None
    base_name: str | None
    base_digest: str | None
    lora_head: bool


_VERSION = (
    versions.c.id,
    versions.c.adapter_id,
    versions.c.number,
    versions.c.state,
    versions.c.state_reason,
    versions.c.config_digest,
    versions.c.weights_digest,
    versions.c.config_bytes,
    versions.c.weights_bytes,
    versions.c.base_name,
    versions.c.base_digest,
    versions.c.lora_head,
    versions.c.defaults,
    adapters.c.limits,
    tenants.c.slug.label("owner"),
)
_ADAPTER = (
    adapters.c.slug == bindparam("slug"),
    adapters.c.deleted_at.is_(None),
    versions.c.state.not_in([VersionState.DELETED]),
)
_OWN = (adapters.c.tenant_id == bindparam("tenant_id"), *_ADAPTER)
_SHARED = (
    tenants.c.slug == bindparam("owner"),
    tenants.c.deleted_at.is_(None),
    tenants.c.disabled.is_(False),
    (adapters.c.tenant_id == bindparam("tenant_id"))
    | (
        select(shares.c.adapter_id)
        .where(shares.c.adapter_id == adapters.c.id, shares.c.tenant_id == bindparam("tenant_id"))
        .exists()
        # Recipients must not see versions that never were ready, nor the reasons.
        & versions.c.state.not_in([VersionState.VALIDATING, VersionState.REJECTED])
    ),
    *_ADAPTER,
)
_BY_NUMBER: Select[Any] = (
    select(*_VERSION)
    .join_from(versions, adapters, versions.c.adapter_id == adapters.c.id)
    .join(tenants, adapters.c.tenant_id == tenants.c.id)
    .where(versions.c.number == bindparam("number"))
)
_BY_ALIAS: Select[Any] = (
    select(*_VERSION, alias_targets.c.weight, aliases.c.revision, aliases.c.canary_id)
    .join_from(aliases, adapters, aliases.c.adapter_id == adapters.c.id)
    .join(tenants, adapters.c.tenant_id == tenants.c.id)
    .join(
        alias_targets, (alias_targets.c.adapter_id == aliases.c.adapter_id) & (alias_targets.c.alias == aliases.c.name)
    )
    .join(versions, alias_targets.c.version_id == versions.c.id)
    .where(aliases.c.name == bindparam("alias"))
    .order_by(versions.c.number.desc())
)
_STATEMENTS = {
    (by_alias, shared): statement.where(*(_SHARED if shared else _OWN))
    for by_alias, statement in ((True, _BY_ALIAS), (False, _BY_NUMBER))
    for shared in (True, False)
}


def resolve(connection: Connection, tenant_id: int, name: ModelName) -> list[Candidate]:
    """Return the versions to which a name may resolve for this tenant, newest first; one query.

    For ``Database.lookup``.
    """
    parameters: dict[str, object] = {"tenant_id": tenant_id, "slug": name.adapter}
    parameters |= {"number": name.number} if name.alias is None else {"alias": name.alias}
    if name.owner is not None:
        parameters["owner"] = name.owner
    statement = _STATEMENTS[name.alias is not None, name.owner is not None]
    return [_candidate(row, name) for row in connection.execute(statement, parameters)]


def alias_names(connection: Connection, tenant_id: int, slug: str, limit: int) -> list[str]:
    """List the aliases of the tenant's own adapter, by name; empty if there is no such adapter.

    For ``Database.lookup``.
    """
    statement = (
        select(aliases.c.name)
        .join(adapters, aliases.c.adapter_id == adapters.c.id)
        .where(adapters.c.tenant_id == tenant_id, adapters.c.slug == slug, adapters.c.deleted_at.is_(None))
        .order_by(aliases.c.name)
        .limit(limit)
    )
    return list(connection.execute(statement).scalars())


def _candidate(row: Row[Any], name: ModelName) -> Candidate:
    by_alias = name.alias is not None
    version = ResolvedVersion(
        key=VersionKey(row.id, row.config_digest, row.weights_digest, row.config_bytes, row.weights_bytes),
        adapter=name.adapter,
        number=row.number,
        owner=row.owner,
        alias=name.alias,
        revision=row.revision if by_alias else None,
        canary_id=row.canary_id if by_alias else None,
        defaults=row.defaults,
        adapter_id=row.adapter_id,
        limits=Limits.of(row.limits),
    )
    return Candidate(
        version=version,
        weight=row.weight if by_alias else 1,
        state=VersionState(row.state),
        state_reason=row.state_reason,
        base_name=row.base_name,
        base_digest=row.base_digest,
        lora_head=row.lora_head,
    )
