"""Inference service: take one request from a parsed body to the engine's answer."""

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NoReturn

from app.domain.access import Caller
from app.domain.batches import LineResult
from app.domain.errors import AdapterLoadFailed, AdapterQuarantined
from app.engine.port import Endpoint, EngineCall, Inference
from app.observability.tracing import stage
from app.services.catalog.adapters import AdapterService
from app.services.common.in_flight import InFlightLookups
from app.services.limits.service import LimitService
from app.services.placement.prefetch.prefetching import Prefetcher
from app.services.prompts.chat import ChatPrompts
from app.services.prompts.tokens import PromptTokens
from app.services.rollout.outcomes import Outcomes, RequestTraits
from app.services.serving.adapter_traffic import Traffic
from app.services.serving.checked_bodies import BodyChecks, CheckedBody, Translation
from app.services.serving.lanes import ExactName, Lane, VersionGone
from app.services.serving.preparation import RENAMED, Preparation, Prepared, Terms
from app.services.serving.served import Served
from app.services.serving.targets import Target, Targets
from app.services.usage.meter import Meter
from app.settings import Settings


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
        self._checks, self._preparation = BodyChecks(settings, tokens), Preparation(prompts, tokens)
        #: Time, by ``time.monotonic``, at which the last request that is not a line went to the engine. Refused ones do
        #: not count: they would slow down other tenants' batches at no cost.
        self.requested_at = float("-inf")

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
        checked = self._checks.openai(endpoint, body)
        return await self.answer(caller, checked, Terms(request_id, deadline_s))

    async def translate(
        self,
        caller: Caller,
        request_id: str,
        body: dict[str, Any],
        translation: Translation,
        *,
        deadline_s: float | None = None,
    ) -> Served:
        """Answer a body of an API that is translated to a chat, in that API's format.

        Args:
            translation: checks and translates the body.
            deadline_s: seconds within which the first token must be ready.

        Raises: as :meth:`complete`.
        """
        checked = self._checks.translated(body, translation)
        return await self.answer(caller, checked, Terms(request_id, deadline_s))

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
        checked = self._checks.lorax(body, stream=stream)
        return await self.answer(caller, checked, Terms(request_id, deadline_s))

    async def answer(self, caller: Caller, body: CheckedBody, terms: Terms) -> Served:
        """Answer a checked body.

        Raises: as :meth:`complete`.
        """
        with self._in_flight.lookup() as lookup:

            def resolved(target: Target) -> None:
                lookup.resolved(target.version_id)
                self._limiting.refuse(caller, target.resolved)

            prepared = await self._preparation.prepare(caller, body, terms, self._targets, resolved=resolved)
            try:
                served, call = await self._run(caller, prepared, body.sent)
            except RENAMED as error:
                raise body.renamed(error) from None
        return replace(prepared.in_own_format(served, call), ignored=body.ignored)

    async def answer_line(self, caller: Caller, request_id: str, body: CheckedBody, lane: Lane) -> LineResult:
        """Answer a line of a batch, and make its result and its usage durable together.

        A line counts against budgets of days and months, and against no other limit.

        Raises:
            VersionGone: the line's name resolves to another version.
            Exception: as :meth:`complete`; then the line has no usage and costs nothing.
        """
        with self._in_flight.lookup() as lookup:

            def resolved(target: Target) -> None:
                lookup.resolved(target.version_id)
                if target.version_id != lane.version_id:
                    raise VersionGone(f"The model {target.name!r} names another version now.")

            terms = lane.terms(caller, request_id)
            resolver = ExactName(self._targets, lane.model)
            prepared = await self._preparation.prepare(caller, body, terms, resolver, resolved=resolved)
            target, request = prepared.target, prepared.request
            permit = await self._limiting.admit(caller, request, target.resolved, batch=True)
            if target.resolved:
                self._traffic.requested(target.resolved)
            call = self._engine.begin(request)

            def result_of(answer: dict[str, Any]) -> LineResult:
                served = prepared.in_own_format(Served(answer, target.version), call)
                if not isinstance(served.answer, dict):
                    raise TypeError("A line of a batch has no event stream.")
                return lane.result(served.answer, target.version)

            try:
                return await self._meter.metered_line(caller, call, permit=permit, result_of=result_of)
            except AdapterLoadFailed as error:
                await self._quarantine(error, target)
            except RENAMED as error:
                raise body.renamed(error) from None

    async def _run(self, caller: Caller, prepared: Prepared, sent: Mapping[str, Any]) -> tuple[Served, EngineCall]:
        """Check a request's limits, then run and meter it.

        Args:
            sent: the body before the version's defaults are applied.
        """
        target, request = prepared.target, prepared.request
        if target.resolved:
            self._traffic.requested(target.resolved)
        if target.key:
            self._prefetcher.seen(target.key, caller.tenant_slug or "")
        with stage("limits"):
            permit = await self._limiting.admit(caller, request, target.resolved)
        self.requested_at = time.monotonic()
        recipient_id = None if target.resolved and target.resolved.owner == caller.tenant_slug else caller.tenant_id
        call = self._engine.begin(request)
        work = self._outcomes.observed(target.resolved, call, RequestTraits.of(sent, recipient_id))
        try:
            answer = await self._meter.metered(caller, call, work, permit=permit)
        except AdapterLoadFailed as error:
            await self._quarantine(error, target)
        return Served(answer, target.version, call.outcome.load, permit.rate_limits), call

    async def _quarantine(self, error: AdapterLoadFailed, target: Target) -> NoReturn:
        await self._adapters.quarantine(error.version_id, error.message)
        event = f"The version {target.version} failed to load and is quarantined."
        raise AdapterQuarantined(f"{event} Ask the platform team to restore it.", param="model") from error
