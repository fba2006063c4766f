"""Blobs in the store and in disk caches that the registry still references."""

import re
from collections.abc import Collection, Iterator
from typing import Any

from sqlalchemy import or_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from adapters.identity import VersionKey
from app.database.files import needed_by_files, used_by_files
from app.database.tables import adapters, tenants, uploads, versions
from app.domain.adapters import VersionState

#: States of versions whose bytes are no longer needed.
BYTELESS = (VersionState.DELETED, VersionState.REJECTED)
_NEEDED = versions.c.state.not_in(BYTELESS)
#: Digests of the files that the engine reads, and of the uploaded files where these differ.
_BLOBS = (
    versions.c.config_digest,
    versions.c.weights_digest,
    versions.c.uploaded_config_digest,
    versions.c.uploaded_weights_digest,
)
_DIGEST = re.compile("[0-9a-f]{64}", re.ASCII)
_AT_ONCE = 500


async def used_blobs(connection: AsyncConnection, digests: Collection[str]) -> set[str]:
    """Return those blobs (SHA-256, hex) that a version, a file, a part of an upload or a batch needs."""
    return await used_by_versions(connection, digests) | await used_by_files(connection, digests)


async def used_by_versions(connection: AsyncConnection, digests: Collection[str]) -> set[str]:
    """Return those blobs (SHA-256, hex) that a version of any tenant needs."""
    used: set[str] = set()
    ordered = sorted(digests)
    for start in range(0, len(ordered), _AT_ONCE):
        batch = ordered[start : start + _AT_ONCE]
        statement = select(*_BLOBS).where(_NEEDED, or_(*(column.in_(batch) for column in _BLOBS)))
        used.update(digest for row in await connection.execute(statement) for digest in row)
    return used & set(digests)


async def held_by_uploads(connection: AsyncConnection) -> set[str]:
    """Return the blobs that an upload in progress references."""
    statement = select(uploads.c.files).where(uploads.c.state.in_(["open", "finishing"]))
    return {digest for files in await connection.scalars(statement) for digest in _digests(files)}


async def needed_contents(connection: AsyncConnection, digests: Collection[str] | None = None) -> set[str]:
    """Return content digests (over both files, hex) of versions of any tenant: those in ``digests``, or all.

    A version has the digest of its upload and the digest of its normal form.
    """
    contents: set[str] = set()
    for column in (versions.c.digest, versions.c.normal_digest):
        statement = select(column).where(_NEEDED, column.is_not(None))
        if digests is not None:
            statement = statement.where(column.in_(list(digests)))
        contents.update(await connection.scalars(statement))
    return contents


async def names_of_needed(
    connection: AsyncConnection, keys: Collection[VersionKey]
) -> dict[VersionKey, tuple[str, str]]:
    """Map the versions whose bytes are needed to their tenant's slug and their name (``pricing@3``)."""
    names: dict[VersionKey, tuple[str, str]] = {}
    keys_by_identity = {(key.version_id, key.digest): key for key in keys}
    ids = sorted(key.version_id for key in keys)
    for start in range(0, len(ids), _AT_ONCE):
        statement = (
            select(versions.c.id, versions.c.digest, tenants.c.slug, adapters.c.slug, versions.c.number)
            .join_from(versions, adapters, versions.c.adapter_id == adapters.c.id)
            .join(tenants, adapters.c.tenant_id == tenants.c.id)
            .where(_NEEDED, versions.c.id.in_(ids[start : start + _AT_ONCE]))
        )
        for identity, digest, tenant, adapter, number in await connection.execute(statement):
            if key := keys_by_identity.get((identity, digest)):
                names[key] = (tenant, f"{adapter}@{number}")
    return names


async def needed_blobs(connection: AsyncConnection) -> dict[str, list[tuple[str, str]]]:
    """Map each blob that is needed to the tenants and names of what needs it.

    These are names of versions (``pricing@3``), and ids of files, parts and batches.
    """
    statement = (
        select(*_BLOBS, versions.c.number, adapters.c.slug, tenants.c.slug)
        .join_from(versions, adapters, versions.c.adapter_id == adapters.c.id)
        .join(tenants, adapters.c.tenant_id == tenants.c.id)
        .where(_NEEDED)
        .order_by(versions.c.id)
    )
    needed: dict[str, list[tuple[str, str]]] = {}
    for *digests, number, adapter, tenant in await connection.execute(statement):
        for digest in filter(None, digests):
            needed.setdefault(digest, []).append((tenant, f"{adapter}@{number}"))
    return needed | await needed_by_files(connection)


def _digests(files: Any) -> Iterator[str]:
    """Yield every digest in an upload's description of its files, at any depth."""
    match files:
        case str() if _DIGEST.fullmatch(files):
            yield files
        case dict():
            for value in files.values():
                yield from _digests(value)
        case list():
            for value in files:
                yield from _digests(value)
