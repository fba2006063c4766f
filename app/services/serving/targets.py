"""Targets of requests: resolve the name in a body to the base or to one version."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from adapters.identity import VersionKey
from app.domain.access import Caller
from app.domain.adapters import ResolvedVersion
from app.domain.errors import InvalidRequest
from app.services.bodies import field_checks
from app.services.catalog.adapters import AdapterService
from app.services.serving.models import allow, resolve_name, tenant_of, written


@dataclass(frozen=True, slots=True)
class Target:
    """The base or a version.

    Attributes:
        name: its name as the caller wrote it.
        key: identity of the version for the engine; None for the base.
        version: ``pricing@3``, or ``retail/pricing@3`` of another tenant; None for the base.
        defaults: the version's values for fields that a request omits.
        resolved: the version; None for the base.
    """

    name: str
    key: VersionKey | None
    version: str | None
    defaults: Mapping[str, Any]
    resolved: ResolvedVersion | None = None

    @property
    def version_id(self) -> int | None:
        return None if self.key is None else self.key.version_id


class Resolver(Protocol):
    """Resolver of the model names in requests."""

    async def of_body(self, caller: Caller, body: Mapping[str, Any]) -> Target:
        """Resolve the name in ``adapter_id`` or ``model``. ``user`` selects a version of a split alias.

        Raises:
            InvalidRequest: the two fields disagree, or one is no text.
            Exception: as :meth:`named`.
        """

    async def named(self, caller: Caller, name: str | None, user: str | None = None) -> Target:
        """Resolve a name; None or an empty name is the base's.

        Raises:
            NotFound, Forbidden, AdapterQuarantined, AdapterRetired, AdapterNotReady, WrongBase, RegistryUnavailable
        """


class Targets:
    """Resolver of model names in the registry, see :class:`Resolver`."""

    def __init__(self, adapters: AdapterService, *, base_name: str) -> None:
        self._adapters, self._base_name = adapters, base_name

    async def of_body(self, caller: Caller, body: Mapping[str, Any]) -> Target:
        return await self.named(caller, self.requested_name(body), body.get("user"))

    async def named(self, caller: Caller, name: str | None, user: str | None = None) -> Target:
        if not name or name == self._base_name:
            tenant_of(caller)
            allow(caller, self._base_name)
            return Target(self._base_name, None, None, {})
        version = await resolve_name(self._adapters, caller, name, user)
        return Target(name, version.key, written(version, caller), version.defaults, version)

    def requested_name(self, body: Mapping[str, Any]) -> str | None:
        """Return the name in ``adapter_id`` or ``model``. Both must agree, unless ``model`` only names the base."""
        names = {}
        for field in ("adapter_id", "model"):
            value = body.get(field)
            names[field] = field_checks.text(value, field) if value is not None else ""
        adapter_id, model = names["adapter_id"], names["model"]
        if adapter_id and model not in ("", self._base_name, adapter_id):
            raise InvalidRequest(
                f"adapter_id is {adapter_id[:80]!r}, but model is {model[:80]!r}. Send the same name in both.",
                param="adapter_id",
            )
        return adapter_id or model
