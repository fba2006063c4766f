"""Budgets against a batch's quote: what tenant, key and the tenant's adapters leave until the end of its window."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from app.domain.access import Caller
from app.domain.adapters import ResolvedVersion
from app.domain.batches import Problem
from app.domain.errors import ROWS, BudgetExceeded
from app.domain.limits.limiter import Subject, subjects_of
from app.domain.limits.limits import COSTS, Limits
from app.domain.limits.periods import day_of, month_of
from app.domain.limits.remaining import Left
from app.domain.money import amount_text
from app.services.limits.accounts import Accounts

_DAYS = ("tokens_per_day", "cost_per_day")
_ADVICE = "Set a smaller max_tokens, send fewer lines, or choose a longer completion_window."


@dataclass(frozen=True, slots=True)
class Amounts:
    """Most tokens and cost (picos) of some lines."""

    prompt_tokens: int = 0
    output_tokens: int = 0
    cost: int = 0

    def plus(self, prompt_tokens: int, output_tokens: int, cost: int) -> "Amounts":
        return Amounts(self.prompt_tokens + prompt_tokens, self.output_tokens + output_tokens, self.cost + cost)

    def of(self, limit: str) -> int:
        return self.cost if limit in COSTS else self.prompt_tokens + self.output_tokens


@dataclass(frozen=True, slots=True)
class AdapterUse:
    """Lines on versions of one adapter."""

    version: ResolvedVersion
    amounts: Amounts


async def budget_problems(
    accounts: Accounts, caller: Caller, total: Amounts, uses: Iterable[AdapterUse], *, now: datetime, until: datetime
) -> list[Problem]:
    """Return a problem for each budget that the batch can exceed before ``until``, although it is spread over days.

    Budgets of shared adapters are not compared: a comparison would reveal the usage of their owner and of others, to a
    caller that uses nothing. A line that exceeds one is refused when it runs, as a request is, and blocks the batch.

    Raises:
        RegistryUnavailable
    """
    tenant, key = subjects_of(caller.tenant_id or 0, caller.key_id, None)
    wanted: dict[Subject, Amounts] = {tenant: total, key: total}
    limits = {tenant: caller.limits, key: caller.restrictions.limits}
    for use in uses:
        if use.version.owner != caller.tenant_slug:
            continue
        *_, adapter = subjects_of(caller.tenant_id or 0, caller.key_id, use.version.adapter_id)
        wanted[adapter], limits[adapter] = use.amounts, use.version.limits
    budgets = {subject: budget for subject, limit in limits.items() if (budget := _budgets(limit)).as_json}
    problems = []
    for subject, lefts in (await _left(accounts, budgets)).items():
        for left in lefts:
            most, rest = wanted[subject].of(left.name), _until(left, now, until)
            if most > rest:
                problems.append(_problem(subject, left.name, most, rest))
    return problems


async def _left(accounts: Accounts, budgets: Mapping[Subject, Limits]) -> dict[Subject, list[Left]]:
    return await accounts.left(budgets) if budgets else {}


def _budgets(limits: Limits) -> Limits:
    return replace(
        limits, requests_per_minute=None, tokens_per_minute=None, concurrent_requests=None, tokens_per_request=None
    )


def _until(left: Left, now: datetime, until: datetime) -> int:
    """Return the allowance from now to then: the rest of this period, and all of those that begin by then."""
    period_of = day_of if left.name in _DAYS else month_of
    return left.remaining + left.allowed * (period_of(until.astimezone(UTC)) - period_of(now.astimezone(UTC)))


def _problem(subject: Subject, name: str, most: int, rest: int) -> Problem:
    shown = (amount_text(most), amount_text(rest)) if name in COSTS else (most, rest)
    unit = "cost" if name in COSTS else "use"
    tokens = "" if name in COSTS else " tokens"
    message = (
        f"The batch can {unit} up to {shown[0]}{tokens}, and {name} of this {subject[0]} leaves {shown[1]} "
        f"until the end of its window. {_ADVICE}"
    )
    return Problem(ROWS[BudgetExceeded].code, message, param=name)
