"""Preparation of requests: resolve the model, render the prompt, and count its tokens. No engine is needed."""

from collections.abc import Callable
from dataclasses import dataclass

from app.domain.access import Caller
from app.domain.errors import ContextLengthExceeded, InvalidRequest, UnsupportedField
from app.engine.port import Endpoint, EngineCall, EngineRequest
from app.observability.tracing import stage
from app.services.prompts.chat import ChatPrompts
from app.services.prompts.tokens import PromptTokens
from app.services.serving.checked_bodies import CheckedBody
from app.services.serving.models import tenant_of
from app.services.serving.served import Served
from app.services.serving.targets import Resolver, Target

#: Errors whose fields have the names of a chat or of the engine.
RENAMED = (ContextLengthExceeded, InvalidRequest, UnsupportedField)


@dataclass(frozen=True, slots=True)
class Terms:
    """Terms under which a request runs.

    Attributes:
        request_id: unique id, made by the server.
        deadline_s: seconds within which the first token must be ready; None: no deadline.
        lane: name of the share in the engine's queue; None: the caller's tenant.
        weight: weight of that share; None: the tenant's weight.
    """

    request_id: str
    deadline_s: float | None = None
    lane: str | None = None
    weight: float | None = None


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request that the engine can run.

    Attributes:
        request: with the tokens of its prompts, unless only the engine can count them.
        in_own_format: translates the answer to the format of the route.
    """

    target: Target
    request: EngineRequest
    in_own_format: Callable[[Served, EngineCall], Served]


class Preparation:
    """The steps that a request and a line of a batch have in common."""

    def __init__(self, prompts: ChatPrompts, tokens: PromptTokens) -> None:
        self._prompts, self._tokens = prompts, tokens

    async def prepare(
        self,
        caller: Caller,
        body: CheckedBody,
        terms: Terms,
        resolver: Resolver,
        *,
        resolved: Callable[[Target], None] = lambda _: None,
    ) -> Prepared:
        """Prepare a checked body.

        Args:
            resolved: callback after the resolution of the model, before further work; it may refuse the request.

        Raises:
            NotFound, Forbidden, AdapterQuarantined, AdapterRetired, AdapterNotReady, WrongBase: of the named model.
            InvalidRequest, UnsupportedField, ContextLengthExceeded: of the prompt.
            Busy: too many long prompts are waiting, or a template worker failed.
            RegistryUnavailable
            Exception: any error of ``resolved``.
        """
        with stage("resolve"):
            target = await body.target(caller, resolver)
        resolved(target)
        try:
            filled = body.filled(target)
            request = EngineRequest(
                terms.request_id,
                body.endpoint,
                filled.fields,
                target.name,
                target.key,
                caller.salt,
                await self._prompt(caller, filled.fields, target) if body.endpoint is Endpoint.CHAT else None,
                tenant=terms.lane or caller.tenant_slug or "",
                weight=caller.weight if terms.weight is None else terms.weight,
                deadline_s=terms.deadline_s,
            )
            return Prepared(target, await self._tokens.tokenized(request), filled.in_own_format)
        except RENAMED as error:
            raise body.renamed(error) from None

    async def _prompt(self, caller: Caller, fields: dict[str, object], target: Target) -> str:
        _, slug = tenant_of(caller)
        return await self._prompts.render(fields, target.defaults, owner=slug)
