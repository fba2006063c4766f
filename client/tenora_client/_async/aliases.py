"""Aliases of adapters: promote, split, roll back, canaries, shares."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from tenora_client._async.resource import AsyncResource
from tenora_client.paths import adapters_path
from tenora_client.types import Alias, AliasChange, AliasReport, Canary, Share

DEFAULT = "default"


class AsyncAliases(AsyncResource):
    """Aliases, which are movable names of versions, and shares with other tenants.

    Changes accept ``if_revision``: they happen only if the alias still has this revision, else Conflict is raised.
    """

    def aliases(self, adapter: str, *, tenant: str | None = None) -> AsyncIterator[Alias]:
        """Yield the aliases of an adapter."""
        return self._session.items(Alias, adapters_path(tenant, adapter, "aliases"))

    async def alias(self, adapter: str, alias: str = DEFAULT, *, tenant: str | None = None) -> AliasReport:
        """Fetch an alias with its canary."""
        return await self._session.get(AliasReport, _path(tenant, adapter, alias))

    async def promote(
        self,
        adapter: str,
        number: int,
        alias: str = DEFAULT,
        *,
        if_revision: int | None = None,
        tenant: str | None = None,
    ) -> AliasReport:
        """Point an alias at a version, with all its traffic. The alias is made if it does not exist."""
        path, body = _path(tenant, adapter, alias), {"version": number}
        return await self._session.change(AliasReport, "PUT", path, body, headers=_condition(if_revision))

    async def split(
        self,
        adapter: str,
        weights: Mapping[int, int],
        alias: str = DEFAULT,
        *,
        if_revision: int | None = None,
        tenant: str | None = None,
    ) -> AliasReport:
        """Split the traffic of an alias over versions, such as ``{1: 95, 2: 5}``."""
        body = {"weights": {str(number): weight for number, weight in weights.items()}}
        path = _path(tenant, adapter, alias)
        return await self._session.change(AliasReport, "PUT", path, body, headers=_condition(if_revision))

    async def rollback(
        self, adapter: str, alias: str = DEFAULT, *, if_revision: int | None = None, tenant: str | None = None
    ) -> AliasReport:
        """Return an alias to its previous target. A second call undoes the first."""
        path = _path(tenant, adapter, alias, "rollback")
        return await self._session.change(AliasReport, "POST", path, headers=_condition(if_revision))

    async def delete_alias(
        self, adapter: str, alias: str, *, if_revision: int | None = None, tenant: str | None = None
    ) -> None:
        """Delete an alias."""
        await self._session.send("DELETE", _path(tenant, adapter, alias), headers=_condition(if_revision))

    def history(self, adapter: str, alias: str = DEFAULT, *, tenant: str | None = None) -> AsyncIterator[AliasChange]:
        """Yield the changes of an alias, newest first."""
        return self._session.items(AliasChange, _path(tenant, adapter, alias, "history"))

    async def start_canary(
        self,
        adapter: str,
        number: int,
        alias: str = DEFAULT,
        *,
        steps: Sequence[tuple[int, int]] | None = None,
        policy: Mapping[str, Any] | None = None,
        if_revision: int | None = None,
        tenant: str | None = None,
    ) -> Canary:
        """Move an alias to a version step by step, and back if the version does worse.

        Args:
            steps: percent and seconds of each step, such as ``[(5, 600), (50, 600)]``; None: the server's.
            policy: further fields of the policy, such as ``{"max_error_rate": 0.01}``.
        """
        full = dict(policy or {})
        if steps is not None:
            full["steps"] = [{"weight": weight, "seconds": seconds} for weight, seconds in steps]
        path, body = _path(tenant, adapter, alias, "canary"), {"version": number, "policy": full}
        return await self._session.change(Canary, "PUT", path, body, headers=_condition(if_revision))

    async def canary(self, adapter: str, alias: str = DEFAULT, *, tenant: str | None = None) -> Canary:
        """Fetch the running canary of an alias, or its last one."""
        return await self._session.get(Canary, _path(tenant, adapter, alias, "canary"))

    async def cancel_canary(
        self, adapter: str, alias: str = DEFAULT, *, if_revision: int | None = None, tenant: str | None = None
    ) -> Canary:
        """Stop a canary, and give all traffic back to the previous version."""
        path = _path(tenant, adapter, alias, "canary")
        return await self._session.change(Canary, "DELETE", path, headers=_condition(if_revision))

    def shares(self, adapter: str, *, tenant: str | None = None) -> AsyncIterator[Share]:
        """Yield the tenants that an adapter is shared with."""
        return self._session.items(Share, adapters_path(tenant, adapter, "shares"))

    async def share(self, adapter: str, recipient: str, *, tenant: str | None = None) -> Share:
        """Let another tenant read an adapter and infer with it."""
        return await self._session.change(Share, "PUT", adapters_path(tenant, adapter, "shares", recipient))

    async def unshare(self, adapter: str, recipient: str, *, tenant: str | None = None) -> None:
        """End a share."""
        await self._session.send("DELETE", adapters_path(tenant, adapter, "shares", recipient))


def _path(tenant: str | None, adapter: str, alias: str, *segments: str) -> str:
    return adapters_path(tenant, adapter, "aliases", alias, *segments)


def _condition(revision: int | None) -> dict[str, str]:
    return {} if revision is None else {"if-match": f'"{revision}"'}
