"""One inference request: from a parsed body to the engine's answer."""

import time
from dataclasses import dataclass
from typing import Any, NoReturn

from adapters.errors import InvalidName
from adapters.identity import DEFAULT_ALIAS, VersionKey, parse_model_name
from app.engine.base import Answer, Endpoint, Engine, EngineRequest
from app.errors import AdapterLoadFailed, AdapterQuarantined, Forbidden, InvalidRequest, NotFound
from app.registry import Caller, ResolvedVersion
from app.services.adapters import AdapterService
from app.services.bodies import checks, lorax, lorax_answers
from app.services.bodies.openai import chat_body, completion_body
from app.settings import Settings

_CHECKS = {Endpoint.COMPLETIONS: completion_body, Endpoint.CHAT: chat_body}
_PAGE = 200


@dataclass(frozen=True, slots=True)
class Served:
    """An answer and the version that gave it.

    Attributes:
        answer: a whole answer, or its events.
        version: ``pricing@3``; None for the base model.
    """

    answer: Answer
    version: str | None


@dataclass(frozen=True, slots=True)
class Model:
    """Something that a caller may name in ``model``.

    Attributes:
        created: when the adapter was made, or this process started; Unix time in seconds.
        owner: the tenant's slug; ``tenora`` for the base.
        root: the version that the name means now, or the base itself.
        parent: the base's name; None for the base.
    """

    id: str
    created: int
    owner: str
    root: str
    parent: str | None


@dataclass(frozen=True, slots=True)
class _Target:
    name: str
    key: VersionKey | None
    version: str | None


class InferenceService:
    """The use cases of a tenant's key with the scope ``inference``. Prompts and answers are never logged."""

    def __init__(self, engine: Engine, adapters: AdapterService, settings: Settings, *, base_name: str) -> None:
        self._engine, self._adapters, self._base_name = engine, adapters, base_name
        self._limits = settings.limits
        longest = settings.engine.max_model_len
        self._default_tokens = min(self._limits.max_new_tokens, longest or self._limits.max_new_tokens)
        self._started = int(time.time())

    async def complete(self, caller: Caller, request_id: str, endpoint: Endpoint, body: dict[str, Any]) -> Served:
        """Answer a body of one of OpenAI's routes; events if it says ``stream``.

        Raises:
            InvalidRequest, UnsupportedField, NotFound, Forbidden, AdapterQuarantined, RegistryUnavailable,
            EngineUnavailable
            adapters.errors.StorageError: the version's bytes could not be had.
        """
        checked = _CHECKS[endpoint](body, self._limits)
        target = await self._target(caller, self._asked(body))
        request = EngineRequest(request_id, endpoint, checked, target.name, target.key, caller.salt)
        return Served(await self._answer(request, target), target.version)

    async def generate(self, caller: Caller, request_id: str, body: dict[str, Any], *, stream: bool | None) -> Served:
        """Answer a LoRAX body in LoRAX's shape; ``stream`` is None where the body decides.

        Raises: as :meth:`complete`.
        """
        wanted = lorax.generation(body, self._limits, default_tokens=self._default_tokens, stream=stream)
        target = await self._target(caller, wanted.adapter_id)
        request = EngineRequest(request_id, Endpoint.COMPLETIONS, wanted.body, target.name, target.key, caller.salt)
        try:
            answer = await self._answer(request, target)
        except InvalidRequest as error:
            raise lorax.in_lorax_words(error) from None
        special, texts = self._engine.special_token_ids, self._engine.token_texts
        if isinstance(answer, dict):
            return Served(await lorax_answers.whole(wanted, answer, special=special, texts=texts), target.version)
        return Served(lorax_answers.LoraxEvents(wanted, answer, special=special, texts=texts), target.version)

    async def models(self, caller: Caller) -> list[Model]:
        """The base, and the tenant's adapters that have a default version.

        Raises:
            Forbidden, RegistryUnavailable
        """
        _, slug = _tenant(caller)
        models, cursor = [self._base()], None
        while True:
            page = await self._adapters.list_adapters(slug, limit=_PAGE, cursor=cursor)
            models += [
                self._model(adapter.name, int(adapter.created_at.timestamp()), slug, adapter.aliases[DEFAULT_ALIAS])
                for adapter in page.data
                if DEFAULT_ALIAS in adapter.aliases
            ]
            cursor = page.next_cursor
            if cursor is None:
                return models

    async def model(self, caller: Caller, name: str) -> Model:
        """One model, by any name that ``model`` takes.

        Raises:
            NotFound, Forbidden, AdapterQuarantined, RegistryUnavailable
        """
        if name == self._base_name:
            return self._base()
        _, slug = _tenant(caller)
        version = await self._resolve(caller, name)
        adapter = await self._adapters.get_adapter(slug, version.adapter)
        return self._model(name, int(adapter.created_at.timestamp()), slug, version.number, version.adapter)

    def _asked(self, body: dict[str, Any]) -> str | None:
        """The name in ``adapter_id`` or ``model``, which must agree unless ``model`` only names the base."""
        names = {}
        for field in ("adapter_id", "model"):
            value = body.get(field)
            names[field] = checks.text(value, field) if value is not None else ""
        adapter_id, model = names["adapter_id"], names["model"]
        if adapter_id and model not in ("", self._base_name, adapter_id):
            raise InvalidRequest(
                f"adapter_id: found {adapter_id[:80]!r} with model {model[:80]!r}, allowed the same name in both",
                param="adapter_id",
            )
        return adapter_id or model

    async def _target(self, caller: Caller, name: str | None) -> _Target:
        if not name or name == self._base_name:
            _tenant(caller)
            return _Target(self._base_name, None, None)
        version = await self._resolve(caller, name)
        return _Target(name, version.key, f"{version.adapter}@{version.number}")

    async def _resolve(self, caller: Caller, name: str) -> ResolvedVersion:
        tenant_id, _ = _tenant(caller)
        try:
            parsed = parse_model_name(name)
        except InvalidName:
            # A name outside the grammar is the name of nothing.
            raise NotFound(f"there is no model {name[:80]!r}", param="model") from None
        return await self._adapters.resolve(tenant_id, parsed)

    async def _answer(self, request: EngineRequest, target: _Target) -> Answer:
        try:
            return await self._engine.answer(request)
        except AdapterLoadFailed as error:
            await self._quarantine(error, target)

    async def _quarantine(self, error: AdapterLoadFailed, target: _Target) -> NoReturn:
        await self._adapters.quarantine(error.version_id, error.message)
        raise AdapterQuarantined(
            f"the version {target.version} failed to load and is not tried again", param="model"
        ) from error

    def _base(self) -> Model:
        return Model(self._base_name, self._started, "tenora", self._base_name, None)

    def _model(self, name: str, created: int, owner: str, number: int, adapter: str | None = None) -> Model:
        return Model(name, created, owner, f"{adapter or name}@{number}", self._base_name)


def _tenant(caller: Caller) -> tuple[int, str]:
    """The tenant's id and slug; a platform key has none, and no prefix-cache salt either."""
    if caller.tenant_id is None or caller.tenant_slug is None:
        raise Forbidden("the key is no tenant's")
    return caller.tenant_id, caller.tenant_slug
