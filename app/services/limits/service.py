"""What a tenant and its key may use: asked before a request runs, settled when it has ended."""

import math
from dataclasses import dataclass, fields

from app.engine.base import Engine, EngineRequest
from app.errors import BudgetExceeded, InvalidRequest, Limited, LimitExceeded
from app.limits.limiter import Exceeded, Grant, Standing, subjects_of
from app.limits.limits import Limits
from app.limits.window import SPAN_S
from app.registry import Caller
from app.services.limits.accounts import Accounts

#: Seconds between two times that accounts are tended.
EVERY_S = 5.0
_BUDGETS = frozenset({"tokens_per_day", "tokens_per_month"})
_TOKENS = _BUDGETS | {"tokens_per_minute", "tokens_per_request"}


@dataclass(frozen=True, slots=True)
class Permit:
    """What one request took, and where its caller stands after that."""

    request_id: str
    grant: Grant
    standing: Standing


class LimitService:
    """The limits of all callers.

    Attributes:
        accounts: what they are counted on.
        refused: requests by the name of the limit that was in their way.
    """

    def __init__(self, engine: Engine, accounts: Accounts) -> None:
        self._engine, self.accounts = engine, accounts
        self.refused = dict.fromkeys((field.name for field in fields(Limits)), 0)

    async def admit(self, caller: Caller, request: EngineRequest) -> Permit:
        """Take what a request can use; :meth:`settle` gives back what it did not. All of its limits, or none.

        Raises:
            LimitExceeded, BudgetExceeded
            InvalidRequest: it can use more than one request may.
            EngineUnavailable, RegistryUnavailable
        """
        own = (caller.limits, caller.restrictions.limits)
        limits = dict(zip(subjects_of(caller.tenant_id or 0, caller.key_id), own, strict=True))
        # Only who has a limit of tokens waits for them to be counted beforehand.
        counted = any(one.counts_tokens for one in own)
        tokens = await self._engine.most_tokens(request) if counted else 0
        decision = await self.accounts.take(request.request_id, limits, tokens)
        if isinstance(decision.outcome, Exceeded):
            self.refused[decision.outcome.name] += 1
            raise _refusal(decision.outcome, decision.standing)
        return Permit(request.request_id, decision.outcome, decision.standing)

    def settle(self, permit: Permit, tokens: int) -> None:
        """The request has ended, and used so many tokens. Once per permit."""
        self.accounts.settle(permit.request_id, permit.grant, tokens)


def _refusal(exceeded: Exceeded, standing: Standing) -> Limited | InvalidRequest:
    whose = f"allowed {exceeded.allowed} of this {exceeded.subject[0]}"
    text = f"{exceeded.name}: found {exceeded.found} with this request, {whose}"
    if exceeded.retry_after_s is None and exceeded.name in _TOKENS:
        return InvalidRequest(f"{text}: it never fits; ask for fewer tokens", param="max_tokens")
    kind = BudgetExceeded if exceeded.name in _BUDGETS else LimitExceeded
    # A limit of 0 is no matter of time: whoever set it may change it.
    retry_after = math.ceil(SPAN_S if exceeded.retry_after_s is None else max(1, exceeded.retry_after_s))
    return kind(text, param=exceeded.name, retry_after=retry_after, standing=standing)
