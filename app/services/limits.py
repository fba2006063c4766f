"""What a tenant and its key may use: asked before a request runs, settled when it has ended.

The accounts are this server's own, in memory, and made anew from the usage records when it starts. What has ended by
then counts to the token; what was running when a server died was never whole and is given back.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from app.clock import Clock, utc_now
from app.database import usage as stored
from app.database.session import Database
from app.engine.base import Engine, EngineRequest
from app.errors import BudgetExceeded, InvalidRequest, Limited, LimitExceeded
from app.limits.limiter import Exceeded, Grant, Limiter, Standing, Subject
from app.limits.limits import Limits
from app.limits.window import SPAN_S
from app.registry import Caller
from app.usage import UsageRecord

_BUDGETS = frozenset({"tokens_per_day", "tokens_per_month"})
_TOKENS = _BUDGETS | {"tokens_per_minute", "tokens_per_request"}


@dataclass(frozen=True, slots=True)
class Permit:
    """What one request took, and where its caller stands after that."""

    grant: Grant
    standing: Standing


class LimitService:
    """The accounts of this server."""

    def __init__(
        self,
        database: Database,
        engine: Engine,
        *,
        clock: Clock = utc_now,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._database, self._engine, self._clock, self._monotonic = database, engine, clock, monotonic
        self._limiter = Limiter()

    async def restore(self) -> None:
        """Count what was used before this process began; once, before the first request.

        Raises:
            RegistryUnavailable
        """
        now, at = self._monotonic(), self._clock()
        async with self._database.read() as connection:
            budgets = await stored.month_totals(connection, at)
            recent = await stored.records_since(connection, at, seconds=SPAN_S)
        for tenant_id, key_id, tokens_of_day, tokens_of_month in budgets:
            for subject in _subjects(tenant_id, key_id):
                self._limiter.restore(
                    subject, tokens_of_day=tokens_of_day, tokens_of_month=tokens_of_month, now=now, at=at
                )
        for record in recent:
            # A clock that was put back must not count them for longer than a minute.
            came = min(now, now - (at - record.at).total_seconds())
            for subject in _subjects(record.tenant_id, record.key_id):
                self._limiter.restore_request(subject, _tokens(record), came, at)

    async def admit(self, caller: Caller, request: EngineRequest) -> Permit:
        """Take what a request can use; :meth:`settle` gives back what it did not. All of its limits, or none.

        Raises:
            LimitExceeded, BudgetExceeded
            InvalidRequest: it can use more than one request may.
            EngineUnavailable
        """
        limits = _limits(caller)
        # Only who has a limit of tokens waits for them to be counted beforehand.
        counted = any(one.counts_tokens for one in limits.values())
        tokens = await self._engine.most_tokens(request) if counted else 0
        now, at = self._monotonic(), self._clock()
        try:
            grant = self._limiter.take(limits, tokens, now, at)
        except Exceeded as exceeded:
            raise _refusal(exceeded, self._limiter.standing(limits, now, at)) from None
        return Permit(grant, self._limiter.standing(limits, now, at))

    def settle(self, permit: Permit, tokens: int) -> None:
        """The request has ended, and used so many tokens. Once per permit."""
        self._limiter.settle(permit.grant, tokens, self._monotonic(), self._clock())


def _limits(caller: Caller) -> dict[Subject, Limits]:
    return dict(
        zip(_subjects(caller.tenant_id or 0, caller.key_id), (caller.tenant_limits, caller.limits), strict=True)
    )


def _subjects(tenant_id: int, key_id: str) -> tuple[Subject, Subject]:
    return ("tenant", str(tenant_id)), ("key", key_id)


def _tokens(record: UsageRecord) -> int:
    return record.prompt_tokens + record.output_tokens


def _refusal(exceeded: Exceeded, standing: Standing) -> Limited | InvalidRequest:
    whose = f"allowed {exceeded.allowed} of this {exceeded.subject[0]}"
    text = f"{exceeded.name}: found {exceeded.found} with this request, {whose}"
    if exceeded.retry_after_s is None and exceeded.name in _TOKENS:
        return InvalidRequest(f"{text}: it never fits; ask for fewer tokens", param="max_tokens")
    kind = BudgetExceeded if exceeded.name in _BUDGETS else LimitExceeded
    # A limit of 0 is no matter of time: whoever set it may change it.
    retry_after = math.ceil(SPAN_S if exceeded.retry_after_s is None else max(1, exceeded.retry_after_s))
    return kind(text, param=exceeded.name, retry_after=retry_after, standing=standing)
