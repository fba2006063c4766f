"""Version descriptions: update labels, card, training-run link and defaults. A version's bytes never change."""

import hashlib
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection

from app.database import audit, versions
from app.database.session import Database
from app.domain.adapters import Adapter, Version
from app.domain.clock import Clock, utc_now
from app.domain.errors import UnsupportedField
from app.services.catalog.labels import checked_card, checked_labels, checked_training_run
from app.services.common.lookups import adapter_or_404, tenant_or_404, version_or_404
from app.services.prompts.chat import ChatPrompts
from app.services.prompts.defaults import checked_defaults, replaced_defaults
from app.settings import LimitSettings


class DescriptionService:
    """Description service. ``tenant`` and ``adapter`` are slugs; ``actor`` is a key's id."""

    def __init__(
        self, database: Database, prompts: ChatPrompts, limits: LimitSettings, *, clock: Clock = utc_now
    ) -> None:
        self._database, self._prompts, self._limits, self._clock = database, prompts, limits, clock

    async def describe(
        self, tenant: str, adapter: str, number: int, changes: Mapping[str, Any], *, admin: bool, actor: str
    ) -> Version:
        """Update the given fields, each as a whole.

        New defaults apply to requests that are resolved after the update.

        Args:
            changes: any of ``labels``, ``card``, ``training_run`` and ``defaults``.
            admin: whether the request uses a platform key, which may set a chat template.

        Raises:
            NotFound, InvalidRequest, UnsupportedField, Forbidden, Busy, RegistryUnavailable
        """
        async with self._database.read() as connection:
            adapter_row = await adapter_or_404(connection, await tenant_or_404(connection, tenant), adapter)
            current = await version_or_404(connection, adapter_row, number)
        checked = self._checked(changes, current, admin=admin)
        await self._prompts.check(checked.get("defaults", {}), owner=tenant)
        async with self._database.write() as connection:
            adapter_row = await adapter_or_404(connection, await tenant_or_404(connection, tenant, lock=True), adapter)
            old = await version_or_404(connection, adapter_row, number)
            await apply_description(connection, adapter_row, old, checked, admin=admin, actor=actor, at=self._clock())
            return await version_or_404(connection, adapter_row, number)

    def _checked(self, changes: Mapping[str, Any], current: Version, *, admin: bool) -> dict[str, Any]:
        def defaults(raw: object) -> dict[str, Any]:
            # A tenant that changes another default sends the administrator's template back unchanged.
            template = raw.get("chat_template") if isinstance(raw, Mapping) else None
            kept = template is not None and template == current.defaults.get("chat_template")
            return dict(checked_defaults(raw, limits=self._limits, admin=admin or kept))

        checks = {
            "labels": checked_labels,
            "card": checked_card,
            "training_run": checked_training_run,
            "defaults": defaults,
        }
        for field in changes:
            if field not in checks:
                message = f"A description has no field {field[:80]!r}. Its fields are {', '.join(checks)}."
                raise UnsupportedField(message, param=field[:80])
        return {field: checks[field](raw) for field, raw in changes.items()}


async def apply_description(
    connection: AsyncConnection,
    adapter: Adapter,
    version: Version,
    checked: Mapping[str, Any],
    *,
    admin: bool,
    actor: str,
    at: datetime,
) -> None:
    """Update checked fields of a version, with an audit row if any differs. The tenant's row must be locked.

    Args:
        checked: any of ``labels``, ``card``, ``training_run`` and ``defaults``.
        admin: whether the request uses a platform key, which may set a chat template.
    """
    before = _described(version)
    after = before | dict(checked)
    if "defaults" in checked:
        after["defaults"] = replaced_defaults(before["defaults"], checked["defaults"], admin=admin)
    if after == before:
        return
    await _write(connection, version.key.version_id, after)
    await audit.record(
        connection,
        at=at,
        actor=actor,
        action="version.describe",
        tenant=adapter.tenant,
        subject=f"{adapter.name}@{version.number}",
        before=_differences(before, after),
        after=_differences(after, before),
    )


async def _write(connection: AsyncConnection, version_id: int, after: Mapping[str, Any]) -> None:
    fields = {field: after[field] for field in ("card", "training_run", "defaults")}
    await versions.set_labels(connection, version_id, after["labels"])
    await versions.describe_version(connection, version_id, **fields)


def _described(version: Version) -> dict[str, Any]:
    return {
        "labels": dict(version.labels),
        "card": version.card,
        "training_run": version.provenance.training_run,
        "defaults": dict(version.defaults),
    }


def _differences(description: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of ``description`` that differ from ``other``. A card is reduced to its size and digest."""
    changed = {field: value for field, value in description.items() if value != other[field]}
    if "card" in changed:
        content = changed["card"].encode()
        changed["card"] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    return changed
