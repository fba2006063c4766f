"""Inference service: take one request from a parsed body to the engine's answer."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from adapters.identity import VersionKey
from app.domain.access import Caller
from app.domain.adapters import ResolvedVersion
from app.domain.errors import (
    AdapterLoadFailed,
    AdapterQuarantined,
    ContextLengthExceeded,
    InvalidRequest,
    UnsupportedField,
)
from app.domain.limits.limiter import RateLimitStatus
from app.domain.load_phases import LoadPhases
from app.engine.port import Endpoint, EngineRequest, EventStream, Inference
from app.observability.tracing import stage
from app.services.bodies import field_checks, lorax, lorax_answers
from app.services.bodies.openai import chat_body, completion_body, ignored
from app.services.catalog.adapters import AdapterService
from app.services.common.in_flight import InFlightLookups
from app.services.limits.service import LimitService
from app.services.placement.prefetch.prefetching import Prefetcher
from app.services.prompts.chat import ChatPrompts
from app.services.prompts.defaults import apply_defaults, lorax_generation
from app.services.prompts.tokens import PromptTokens
from app.services.rollout.outcomes import Outcomes, RequestTraits
from app.services.serving.adapter_traffic import Traffic
from app.services.serving.models import allow, resolve_name, tenant_of, written
from app.services.usage.meter import Meter
from app.settings import Settings

_CHECKS = {Endpoint.COMPLETIONS: completion_body, Endpoint.CHAT: chat_body}


@dataclass(frozen=True, slots=True)
class Served:
    """An answer and the version that produced it.

    Attributes:
        answer: a whole answer, or its event stream.
        version: ``pricing@3``, or ``retail/pricing@3`` of another tenant; None for the base model.
        load: phases of the adapter load that the request waited for; None if the adapter had a slot.
        rate_limits: the caller's rate limit status.
        ignored: names of request fields that were ignored, possibly repeated.
    """

    answer: dict[str, Any] | EventStream[str]
    version: str | None
    load: LoadPhases | None = None
    rate_limits: RateLimitStatus | None = None
    ignored: Iterable[str] = ()


@dataclass(frozen=True, slots=True)
class _Target:
    name: str
    key: VersionKey | None
    version: str | None
    defaults: Mapping[str, Any]
    resolved: ResolvedVersion | None = None

    @property
    def version_id(self) -> int | None:
        return None if self.key is None else self.key.version_id


class InferenceService:
    """Use cases of a tenant's key with the scope ``inference``. Prompts and answers are never logged."""

    def __init__(
        self,
        engine: Inference,
        adapters: AdapterService,
        prompts: ChatPrompts,
        tokens: PromptTokens,
        settings: Settings,
        *,
        base_name: str,
        outcomes: Outcomes,
        in_flight: InFlightLookups,
        traffic: Traffic,
        prefetcher: Prefetcher,
        limiting: LimitService,
        meter: Meter,
    ) -> None:
        self._in_flight, self._traffic, self._prefetcher = in_flight, traffic, prefetcher
        self._outcomes, self._limiting, self._meter = outcomes, limiting, meter
        self._engine, self._adapters, self._base_name = engine, adapters, base_name
        self._prompts, self._tokens = prompts, tokens
        self._limits, self._head = settings.limits, settings.engine.lora_head
        self._default_tokens = min(self._limits.max_new_tokens, tokens.context)

    async def complete(
        self,
        caller: Caller,
        request_id: str,
        endpoint: Endpoint,
        body: dict[str, Any],
        *,
        deadline_s: float | None = None,
    ) -> Served:
        """Answer a body of an OpenAI route; with events if the body says ``stream``.

        Args:
            deadline_s: seconds within which the first token must be ready.

        Raises:
            InvalidRequest, UnsupportedField, NotFound, Forbidden, AdapterQuarantined, RegistryUnavailable,
            EngineUnavailable
            Busy: the server is overloaded, or the deadline cannot be met.
            QueueFull: the tenant has reached its limit of waiting requests.
            LimitExceeded, BudgetExceeded: the request would exceed a limit of the tenant, its key or the adapter.
            adapters.errors.StorageError: the version's bytes could not be read.
        """
        checked = _CHECKS[endpoint](body, self._limits)
        if checked.get("echo") and checked.get("logprobs") is not None:
            self._check_prompt_logprobs("echo")
        with self._in_flight.lookup() as lookup:
            with stage("resolve"):
                target = await self._target(caller, self._requested_name(body), body.get("user"))
            lookup.resolved(target.version_id)
            filled = apply_defaults(endpoint, checked, target.defaults, longest=self._tokens.context)
            prompt = await self._prompt(caller, filled, target) if endpoint is Endpoint.CHAT else None
            request = _request(caller, request_id, endpoint, filled, target, prompt=prompt, deadline_s=deadline_s)
            return replace(await self._answer(caller, request, target, body), ignored=ignored(body))

    def _check_prompt_logprobs(self, field: str) -> None:
        """Refuse logprobs of the prompt on a server with adapters of the head.

        vLLM computes them for more rows than it has adapter indices for.

        Raises:
            UnsupportedField
        """
        if self._head:
            raise UnsupportedField(
                f"{field} asks for logprobs of the prompt, which this server does not have: it serves adapters of "
                "lm_head (TENORA_ENGINE__LORA_HEAD). Ask for logprobs of the answer only.",
                param=field,
            )

    async def generate(
        self,
        caller: Caller,
        request_id: str,
        body: dict[str, Any],
        *,
        stream: bool | None,
        deadline_s: float | None = None,
    ) -> Served:
        """Answer a LoRAX body in LoRAX's format.

        Args:
            stream: whether to answer with events; None: the body decides.
            deadline_s: seconds within which the first token must be ready.

        Raises: as :meth:`complete`.
        """
        generation = lorax.generation(body, self._limits, default_tokens=self._default_tokens, stream=stream)
        if generation.prefill:
            self._check_prompt_logprobs("parameters.decoder_input_details")
        with self._in_flight.lookup() as lookup:
            with stage("resolve"):
                target = await self._target(caller, generation.adapter_id)
            lookup.resolved(target.version_id)
            if target.defaults:
                generation = self._filled(body, target, stream)
            request = _request(caller, request_id, Endpoint.COMPLETIONS, generation.body, target, deadline_s=deadline_s)
            try:
                served = replace(await self._answer(caller, request, target, body), ignored=lorax.ignored(body))
            except (ContextLengthExceeded, InvalidRequest) as error:
                raise lorax.in_lorax_words(error) from None
        answer, special, texts = served.answer, self._tokens.special_ids, self._tokens.texts
        if isinstance(answer, dict):
            return replace(served, answer=lorax_answers.whole(generation, answer, special=special, texts=texts))
        return replace(served, answer=lorax_answers.LoraxEvents(generation, answer, special=special, texts=texts))

    def _requested_name(self, body: dict[str, Any]) -> str | None:
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

    async def _target(self, caller: Caller, name: str | None, user: str | None = None) -> _Target:
        if not name or name == self._base_name:
            tenant_of(caller)
            allow(caller, self._base_name)
            return _Target(self._base_name, None, None, {})
        version = await resolve_name(self._adapters, caller, name, user)
        return _Target(name, version.key, written(version, caller), version.defaults, version)

    async def _prompt(self, caller: Caller, body: Mapping[str, Any], target: _Target) -> str:
        _, slug = tenant_of(caller)
        return await self._prompts.render(body, target.defaults, owner=slug)

    def _filled(self, body: dict[str, Any], target: _Target, stream: bool | None) -> lorax.Generation:
        return lorax_generation(
            body,
            target.defaults,
            self._limits,
            default_tokens=self._default_tokens,
            stream=stream,
            longest=self._tokens.context,
        )

    async def _answer(self, caller: Caller, request: EngineRequest, target: _Target, body: Mapping[str, Any]) -> Served:
        """Check a request's limits, then run and meter it.

        Args:
            body: the body as the caller sent it.
        """
        if target.resolved:
            self._traffic.requested(target.resolved)
        if target.key:
            self._prefetcher.seen(target.key, request.tenant)
        with stage("limits"):
            self._limiting.refuse(caller, target.resolved)
            request = await self._tokens.tokenized(request)
            permit = await self._limiting.admit(caller, request, target.resolved)
        recipient_id = None if target.resolved and target.resolved.owner == caller.tenant_slug else caller.tenant_id
        call = self._engine.begin(request)
        work = self._outcomes.observed(target.resolved, call, RequestTraits.of(body, recipient_id))
        try:
            answer = await self._meter.metered(caller, call, work, permit=permit)
        except AdapterLoadFailed as error:
            await self._quarantine(error, target)
        return Served(answer, target.version, call.outcome.load, permit.rate_limits)

    async def _quarantine(self, error: AdapterLoadFailed, target: _Target) -> NoReturn:
        await self._adapters.quarantine(error.version_id, error.message)
        event = f"The version {target.version} failed to load and is quarantined."
        raise AdapterQuarantined(f"{event} Ask the platform team to restore it.", param="model") from error


def _request(
    caller: Caller,
    request_id: str,
    endpoint: Endpoint,
    body: dict[str, Any],
    target: _Target,
    *,
    prompt: str | None = None,
    deadline_s: float | None,
) -> EngineRequest:
    return EngineRequest(
        request_id,
        endpoint,
        body,
        target.name,
        target.key,
        caller.salt,
        prompt,
        tenant=caller.tenant_slug or "",
        weight=caller.weight,
        deadline_s=deadline_s,
    )
