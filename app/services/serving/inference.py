"""Inference service: take one request from a parsed body to the engine's answer."""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from app.domain.access import Caller
from app.domain.errors import (
    AdapterLoadFailed,
    AdapterQuarantined,
    ContextLengthExceeded,
    EngineUnavailable,
    InvalidRequest,
    TenoraError,
    UnsupportedField,
)
from app.domain.limits.limiter import RateLimitStatus
from app.domain.load_phases import LoadPhases
from app.engine.port import Endpoint, EngineCall, EngineRequest, EventStream, Inference
from app.observability.tracing import stage
from app.services.bodies import lorax, lorax_answers
from app.services.bodies.openai import chat_body, completion_body, ignored
from app.services.bodies.translated_events import ABORTED, AnswerFacts, TranslatedEvents, TranslatedRequest
from app.services.catalog.adapters import AdapterService
from app.services.common.in_flight import InFlightLookups
from app.services.limits.service import LimitService
from app.services.placement.prefetch.prefetching import Prefetcher
from app.services.prompts.chat import ChatPrompts
from app.services.prompts.defaults import apply_defaults, lorax_generation
from app.services.prompts.tokens import PromptTokens
from app.services.rollout.outcomes import Outcomes, RequestTraits
from app.services.serving.adapter_traffic import Traffic
from app.services.serving.models import tenant_of
from app.services.serving.targets import Target, Targets
from app.services.usage.meter import Meter
from app.settings import LimitSettings, Settings

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
        last_event: formats the end of a stream that an error ends; None: the error in the route's envelope.
    """

    answer: dict[str, Any] | EventStream[str]
    version: str | None
    load: LoadPhases | None = None
    rate_limits: RateLimitStatus | None = None
    ignored: Iterable[str] = ()
    last_event: Callable[[TenoraError], str] | None = None


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
        self._engine, self._adapters, self._targets = engine, adapters, Targets(adapters, base_name=base_name)
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
                target = await self._targets.of_body(caller, body)
            lookup.resolved(target.version_id)
            filled = apply_defaults(endpoint, checked, target.defaults, longest=self._tokens.context)
            prompt = await self._prompt(caller, filled, target) if endpoint is Endpoint.CHAT else None
            request = _request(caller, request_id, endpoint, filled, target, prompt=prompt, deadline_s=deadline_s)
            return replace(await self._answer(caller, request, target, body), ignored=ignored(body))

    async def translate(
        self,
        caller: Caller,
        request_id: str,
        body: dict[str, Any],
        translation: Callable[[dict[str, Any], LimitSettings], TranslatedRequest],
        *,
        deadline_s: float | None = None,
    ) -> Served:
        """Answer a body of an API that is translated to a chat, in that API's format.

        Args:
            translation: checks and translates the body.
            deadline_s: seconds within which the first token must be ready.

        Raises: as :meth:`complete`.
        """
        translated = translation(body, self._limits)
        with self._in_flight.lookup() as lookup:
            with stage("resolve"):
                target = await self._targets.of_body(caller, body)
            lookup.resolved(target.version_id)
            filled = apply_defaults(Endpoint.CHAT, translated.chat, target.defaults, longest=self._tokens.context)
            try:
                prompt = await self._prompt(caller, filled, target)
                request = _request(
                    caller, request_id, Endpoint.CHAT, filled, target, prompt=prompt, deadline_s=deadline_s
                )
                served, call = await self._run(caller, request, target, translated.chat)
            except (ContextLengthExceeded, InvalidRequest, UnsupportedField) as error:
                raise translated.renaming.error(error) from None
        return replace(_in_own_format(served, call, translated), ignored=translated.ignored)

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
                target = await self._targets.named(caller, generation.adapter_id)
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

    async def _prompt(self, caller: Caller, body: Mapping[str, Any], target: Target) -> str:
        _, slug = tenant_of(caller)
        return await self._prompts.render(body, target.defaults, owner=slug)

    def _filled(self, body: dict[str, Any], target: Target, stream: bool | None) -> lorax.Generation:
        return lorax_generation(
            body,
            target.defaults,
            self._limits,
            default_tokens=self._default_tokens,
            stream=stream,
            longest=self._tokens.context,
        )

    async def _answer(self, caller: Caller, request: EngineRequest, target: Target, body: Mapping[str, Any]) -> Served:
        served, _ = await self._run(caller, request, target, body)
        return served

    async def _run(
        self, caller: Caller, request: EngineRequest, target: Target, body: Mapping[str, Any]
    ) -> tuple[Served, EngineCall]:
        """Check a request's limits, then run and meter it.

        Args:
            body: the body before the version's defaults are applied.
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
        return Served(answer, target.version, call.outcome.load, permit.rate_limits), call

    async def _quarantine(self, error: AdapterLoadFailed, target: Target) -> NoReturn:
        await self._adapters.quarantine(error.version_id, error.message)
        event = f"The version {target.version} failed to load and is quarantined."
        raise AdapterQuarantined(f"{event} Ask the platform team to restore it.", param="model") from error


def _request(
    caller: Caller,
    request_id: str,
    endpoint: Endpoint,
    body: dict[str, Any],
    target: Target,
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


def _in_own_format(served: Served, call: EngineCall, translated: TranslatedRequest) -> Served:
    """Translate a chat's answer to the format of the API that the client speaks.

    Raises:
        EngineUnavailable: the engine stopped before the answer was complete.
    """
    request = call.request
    prompt_tokens = None if request.token_ids is None else sum(map(len, request.token_ids))
    facts = AnswerFacts(request.request_id, request.model, int(time.time()), prompt_tokens, lambda: call.outcome.usage)
    answer = served.answer
    if not isinstance(answer, dict):
        events = TranslatedEvents(answer, translated.writer(facts), translated.renaming)
        return replace(served, answer=events, last_event=events.last_event)
    if answer["choices"][0].get("finish_reason") in ABORTED:
        raise EngineUnavailable("The engine stopped while it answered. Try again later.", retry_after=1)
    return replace(served, answer=translated.whole(answer, facts))
