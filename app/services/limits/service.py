"""Usage limits: admit requests against the limits of tenant, key and adapter, and settle them when they end."""

import math
import secrets
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, fields
from http import HTTPStatus

from adapters.errors import AdapterError
from app.domain.access import Caller
from app.domain.adapters import ResolvedVersion
from app.domain.errors import BudgetExceeded, InvalidRequest, Limited, LimitExceeded, TenoraError, row_of
from app.domain.limits.limiter import LimitBreach, RateLimitStatus, Reservation, Subject, subjects_of
from app.domain.limits.limits import COSTS, Limits, TokenBound
from app.domain.limits.minute_window import SPAN_S
from app.domain.limits.remaining import Left
from app.domain.money import Price, amount_text
from app.engine.port import EngineRequest
from app.services.limits.accounts import Accounts, Decision
from app.services.limits.prices import PriceService

#: Seconds between two maintenance passes over the accounts.
EVERY_S = 5.0
_BUDGETS = frozenset({"tokens_per_day", "tokens_per_month"}) | COSTS
_MINUTES = frozenset({"requests_per_minute", "tokens_per_minute"})
_TOKENS = _BUDGETS | {"tokens_per_minute", "tokens_per_request"}
_NEVER_FITS = "This request can never fit. Ask for fewer tokens."
_WAIT = "Wait for the time in Retry-After."


@dataclass(frozen=True, slots=True)
class Permit:
    """Admission of one request: its reservation, its caller's rate-limit status and the price of its tokens.

    Attributes:
        request_id: id of the reservation; that of the request, unless it is a line of a batch.
    """

    request_id: str
    reservation: Reservation
    rate_limits: RateLimitStatus
    price: Price


class LimitService:
    """Limits of all callers.

    Args:
        most_tokens: returns the most tokens that a request can use. Called where a limit counts tokens.

    Attributes:
        accounts: accounts on which usage is counted.
        prices: prices of requests.
        refused: number of refused requests, by the name of the limit.
    """

    def __init__(
        self, most_tokens: Callable[[EngineRequest], TokenBound], accounts: Accounts, prices: PriceService
    ) -> None:
        self._most_tokens, self.accounts, self.prices = most_tokens, accounts, prices
        self.refused = dict.fromkeys((field.name for field in fields(Limits)), 0)
        #: Ids of requests that have begun and that no account has counted yet.
        self._uncounted: set[str] = set()

    @asynccontextmanager
    async def counted(self, caller: Caller, request_id: str) -> AsyncGenerator[None]:
        """Count a request that fails before :meth:`admit` counts it: an invalid body is a request too.

        Raises:
            LimitExceeded: the request exceeds the request rate; replaces the original error.
        """
        self._uncounted.add(request_id)
        try:
            yield
        except (TenoraError, AdapterError) as error:
            row = row_of(error)
            if request_id in self._uncounted and row and row.status < HTTPStatus.INTERNAL_SERVER_ERROR:
                await self._count(caller, request_id, error)
            raise
        finally:
            self._uncounted.discard(request_id)

    def refuse(self, caller: Caller, version: ResolvedVersion | None = None) -> None:
        """Early refusal: refuse a request before any work, if it is known that no requests are left.

        Args:
            version: version that the request names; None: the base model, or not known yet.

        Raises:
            LimitExceeded
        """
        if refused := self.accounts.refusal(_limits(caller, version)):
            self._reservation_of(refused, shared=_shared(caller, version))

    async def admit(
        self, caller: Caller, request: EngineRequest, version: ResolvedVersion | None = None, *, batch: bool = False
    ) -> Permit:
        """Reserve the most that a request can use, under all its limits or none.

        :meth:`settle` returns the unused part.

        Args:
            version: version that the request names; None for the base model.
            batch: whether the request is a line of a batch. It has another price, counts against budgets of days and
                months only, and no such budget is too small for it: that may change while the batch waits.

        Raises:
            LimitExceeded, BudgetExceeded
            InvalidRequest: the request can use more than any one request may.
            RegistryUnavailable
        """
        limits, price = _limits(caller, version), self.prices.of(version)
        if batch:
            price = price.of_batch
        counted = any(limit.counts_tokens for limit in limits.values())
        most = self._most_tokens(request) if counted else TokenBound(0, 0)
        cost = price.most(most.prompt, most.output)
        tokens = most.prompt + most.output
        # Several servers may run a line, one after the other: each attempt has a reservation.
        identity = secrets.token_hex(16) if batch else request.request_id
        decision = await self.accounts.take(identity, limits, tokens, cost, rated=not batch)
        try:
            reservation = self._reservation_of(decision, shared=_shared(caller, version))
        except InvalidRequest as error:
            if not batch:
                raise
            status = decision.rate_limits
            raise BudgetExceeded(error.message, param=_name(decision), retry_after=None, rate_limits=status) from None
        self._uncounted.discard(request.request_id)
        return Permit(identity, reservation, decision.rate_limits, price)

    def check_size(self, caller: Caller, bound: TokenBound, version: ResolvedVersion | None = None) -> None:
        """Refuse a request that can use more tokens than any one request may; reserve nothing.

        Args:
            version: version that the request names; None for the base model.

        Raises:
            InvalidRequest
        """
        tokens = bound.prompt + bound.output
        for subject, limits in _limits(caller, version).items():
            allowed = limits.tokens_per_request
            if allowed is not None and tokens > allowed:
                breach = LimitBreach(subject, "tokens_per_request", tokens, allowed, None)
                raise _refusal(breach, RateLimitStatus(None, None), shared=_shared(caller, version))

    @asynccontextmanager
    async def without_tokens(
        self, caller: Caller, request_id: str, version: ResolvedVersion | None = None
    ) -> AsyncGenerator[RateLimitStatus]:
        """Count a request that uses no tokens, under its limits of requests, for the duration of the block.

        Args:
            version: version that the request names; None for the base model.

        Raises:
            LimitExceeded, RegistryUnavailable
        """
        limits = {subject: limit.of_requests for subject, limit in _limits(caller, version).items()}
        decision = await self.accounts.take(request_id, limits, 0)
        reservation = self._reservation_of(decision, shared=_shared(caller, version))
        self._uncounted.discard(request_id)
        try:
            yield decision.rate_limits
        finally:
            self.accounts.settle(request_id, reservation, 0)

    async def left(self, caller: Caller) -> dict[str, list[Left]]:
        """Return the remaining allowance of the caller's tenant and key, under ``tenant`` and ``key``.

        Raises:
            RegistryUnavailable
        """
        remaining = await self.accounts.left(_limits(caller, None))
        return {subject[0]: left for subject, left in remaining.items()}

    def settle(self, permit: Permit, tokens: int, cost: int = 0) -> None:
        """Settle a finished request. Call it once for each permit.

        Args:
            tokens: number of tokens used.
            cost: cost in picos (see :mod:`app.domain.money`).
        """
        self.accounts.settle(permit.request_id, permit.reservation, tokens, cost)

    def settle_with_record(self, permit: Permit, tokens: int, cost: int) -> None:
        """Settle an answered line of a batch whose record is durable on this server. Call it instead of ``settle``."""
        self.accounts.settle_with_record(permit.request_id, permit.reservation, tokens, cost)

    async def _count(self, caller: Caller, request_id: str, error: Exception) -> None:
        limits = {subject: limit.of_requests for subject, limit in _limits(caller, None).items()}
        if isinstance(error, Limited) or not any(limit.as_json for limit in limits.values()):
            return
        reservation = self._reservation_of(await self.accounts.take(request_id, limits, 0))
        self.accounts.settle(request_id, reservation, 0)

    def _reservation_of(self, decision: Decision, *, shared: bool = False) -> Reservation:
        if isinstance(decision.outcome, LimitBreach):
            self.refused[decision.outcome.name] += 1
            raise _refusal(decision.outcome, decision.rate_limits, shared=shared)
        return decision.outcome


def _name(decision: Decision) -> str:
    return decision.outcome.name if isinstance(decision.outcome, LimitBreach) else ""


def _limits(caller: Caller, version: ResolvedVersion | None) -> dict[Subject, Limits]:
    subjects = subjects_of(caller.tenant_id or 0, caller.key_id, version.adapter_id if version else None)
    own = (caller.limits, caller.restrictions.limits)
    return dict(zip(subjects, (*own, version.limits) if version else own, strict=True))


def _shared(caller: Caller, version: ResolvedVersion | None) -> bool:
    return version is not None and version.owner != caller.tenant_slug


def _refusal(breach: LimitBreach, rate_limits: RateLimitStatus, *, shared: bool) -> Limited | InvalidRequest:
    if shared and breach.subject[0] == "adapter":
        return _refusal_of_owner(breach, rate_limits)
    found, allowed = breach.found, breach.allowed
    numbers = (amount_text(found), amount_text(allowed)) if breach.name in COSTS else (found, allowed)
    limit = f"the limit of this {breach.subject[0]} is {numbers[1]}"
    text = f"{breach.name} would be {numbers[0]} with this request; {limit}."
    if breach.retry_after_s is None and breach.name in _TOKENS:
        return InvalidRequest(f"{text} {_NEVER_FITS}", param="max_tokens")
    kind = _kind(breach)
    # A limit of 0 does not reset with time, but it may be changed.
    retry_after = math.ceil(SPAN_S if breach.retry_after_s is None else max(1, breach.retry_after_s))
    return kind(f"{text} {_WAIT}", param=breach.name, retry_after=retry_after, rate_limits=rate_limits)


def _refusal_of_owner(breach: LimitBreach, rate_limits: RateLimitStatus) -> Limited | InvalidRequest:
    """Build the refusal for a tenant with a shared adapter. Figures are left out: they would reveal others' usage."""
    text = f"{breach.name} would be above the limit that the adapter's owner has set."
    if breach.retry_after_s is None and breach.name in _TOKENS:
        return InvalidRequest(f"{text} {_NEVER_FITS}", param="max_tokens")
    # The reset of a minute depends on other callers' requests. All other resets are the same for every caller.
    wait_s = None if breach.name in _MINUTES else breach.retry_after_s
    retry_after = math.ceil(SPAN_S if wait_s is None else wait_s)
    return _kind(breach)(f"{text} {_WAIT}", param=breach.name, retry_after=retry_after, rate_limits=rate_limits)


def _kind(breach: LimitBreach) -> type[Limited]:
    return BudgetExceeded if breach.name in _BUDGETS else LimitExceeded
