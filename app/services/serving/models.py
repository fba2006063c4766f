"""Model names: the names that a caller may use in ``model``, for the base, its own adapters and shared adapters."""

import time
from dataclasses import dataclass

from adapters.errors import InvalidName
from adapters.identity import DEFAULT_ALIAS, ModelName, parse_model_name
from app.domain.access import Caller
from app.domain.adapters import ResolvedVersion
from app.domain.errors import Forbidden, NotFound
from app.services.catalog.adapters import AdapterService
from app.services.catalog.shares import SharingService

_PAGE = 200
_SHOWN_ALIASES = 10


@dataclass(frozen=True, slots=True)
class Model:
    """One entry of the list of models.

    Attributes:
        created: Unix time in seconds when the adapter was created; for the base, when this process started.
        owner: the tenant's slug; ``tenora`` for the base.
        root: version that the name resolves to now, or the base itself.
        parent: the base's name; None for the base.
    """

    id: str
    created: int
    owner: str
    root: str
    parent: str | None


class ModelService:
    """Use cases of OpenAI's list of models."""

    def __init__(self, adapters: AdapterService, sharing: SharingService, *, base_name: str) -> None:
        self._adapters, self._sharing, self._base_name = adapters, sharing, base_name
        self._started = int(time.time())

    async def list_models(self, caller: Caller) -> list[Model]:
        """List the base, then the tenant's adapters with a default version, then such adapters that are shared with it.

        Raises:
            Forbidden, RegistryUnavailable
        """
        _, slug = tenant_of(caller)
        models = [self._base(), *await self._own(slug), *await self._shared(slug)]
        return [model for model in models if caller.restrictions.allows_model(model.id)]

    async def get_model(self, caller: Caller, name: str) -> Model:
        """Return one model, by any name that ``model`` accepts.

        Raises:
            NotFound, Forbidden, AdapterQuarantined, AdapterRetired, AdapterNotReady, WrongBase, RegistryUnavailable
        """
        if name == self._base_name:
            allow(caller, name)
            return self._base()
        version = await resolve_name(self._adapters, caller, name)
        adapter = await self._adapters.get_adapter(version.owner, version.adapter)
        created = int(adapter.created_at.timestamp())
        return Model(name, created, version.owner, written(version, caller), self._base_name)

    async def _own(self, slug: str) -> list[Model]:
        models: list[Model] = []
        cursor = None
        while True:
            page = await self._adapters.list_adapters(slug, limit=_PAGE, cursor=cursor)
            for adapter in page.data:
                number = next(iter(adapter.aliases.get(DEFAULT_ALIAS, ())), None)
                if number is not None:
                    created, root = int(adapter.created_at.timestamp()), f"{adapter.name}@{number}"
                    models.append(Model(adapter.name, created, slug, root, self._base_name))
            cursor = page.next_cursor
            if cursor is None:
                return models

    async def _shared(self, slug: str) -> list[Model]:
        models: list[Model] = []
        cursor = None
        while True:
            page = await self._sharing.list_shared(slug, limit=_PAGE, cursor=cursor)
            for adapter in page.data:
                number = next(iter(adapter.aliases.get(DEFAULT_ALIAS, ())), None)
                if number is not None:
                    name, created = f"{adapter.owner}/{adapter.name}", int(adapter.created_at.timestamp())
                    models.append(Model(name, created, adapter.owner, f"{name}@{number}", self._base_name))
            cursor = page.next_cursor
            if cursor is None:
                return models

    def _base(self) -> Model:
        return Model(self._base_name, self._started, "tenora", self._base_name, None)


async def resolve_name(adapters: AdapterService, caller: Caller, name: str, user: str | None = None) -> ResolvedVersion:
    """Resolve a name as the caller wrote it to a version.

    Raises: as ``AdapterService.resolve``, and Forbidden.
    """
    tenant_id, slug = tenant_of(caller)
    try:
        parsed = parse_model_name(name)
    except InvalidName:
        # A name outside the grammar cannot name any model.
        raise NotFound(f"There is no model {name[:80]!r}.", param="model") from None
    own = parsed.owner is None or parsed.owner == slug
    allow(caller, parsed.adapter if own else f"{parsed.owner}/{parsed.adapter}")
    try:
        return await adapters.resolve(tenant_id, parsed, user)
    except NotFound as error:
        names = await _other_names(adapters, tenant_id, parsed) if own else ""
        raise NotFound(f"{error.message}{names}", param=error.param, foreign=not own) from None


async def _other_names(adapters: AdapterService, tenant_id: int, name: ModelName) -> str:
    """List other names of the caller's own adapter for an error message. Empty if it has no alias or does not exist."""
    if name.alias is None:
        return ""
    aliases = await adapters.alias_names(tenant_id, name.adapter, limit=_SHOWN_ALIASES + 1)
    if not aliases:
        return ""
    listed = ", ".join(f"{name.adapter}:{alias}" for alias in aliases[:_SHOWN_ALIASES])
    more = " and others" if len(aliases) > _SHOWN_ALIASES else ""
    return f" The adapter {name.adapter!r} has no alias {name.alias!r}. Its aliases are {listed}{more}."


def allow(caller: Caller, name: str) -> None:
    """Check that the caller's key may use this name, whether or not a model has it.

    Raises:
        Forbidden
    """
    if not caller.restrictions.allows_model(name):
        raise Forbidden(f"This key is restricted to certain adapters and may not use {name[:80]!r}.")


def written(version: ResolvedVersion, caller: Caller) -> str:
    """Format a version's name: ``pricing@3``, or ``retail/pricing@3`` of another tenant."""
    owner = "" if version.owner == caller.tenant_slug else f"{version.owner}/"
    return f"{owner}{version.adapter}@{version.number}"


def tenant_of(caller: Caller) -> tuple[int, str]:
    """Return the caller's tenant id and slug. A platform key has neither, and no prefix-cache salt.

    Raises:
        Forbidden: the caller has a platform key.
    """
    if caller.tenant_id is None or caller.tenant_slug is None:
        raise Forbidden("This is a platform key; this route needs a tenant's key.")
    return caller.tenant_id, caller.tenant_slug
