"""Canaries: start, show and cancel them. :mod:`app.services.rollout.runner` advances them and rolls them back."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection

from app.database import audit, canaries
from app.database.adapters import set_targets
from app.database.session import Database
from app.domain.adapters import Adapter
from app.domain.aliases import Alias
from app.domain.canaries import Canary, CanaryState
from app.domain.canary_policy import Figures, Policy, Verdict, check_policy, judge, total_of
from app.domain.clock import Clock, utc_now
from app.domain.errors import Conflict, NotFound
from app.domain.histogram import LatencyHistogram
from app.domain.pages import Page
from app.domain.searches import EVERYTHING, Search
from app.services.common.lookups import adapter_or_404, tenant_or_404
from app.services.common.preconditions import Precondition
from app.services.common.validation import DEFAULT_LIMIT, checked_limit, checked_search, page_of, read_position
from app.services.rollout.alias_lookups import alias_or_404, ready_versions, written


@dataclass(frozen=True, slots=True)
class CanaryReport:
    """A canary with its figures and the verdict on them.

    Attributes:
        baseline, candidate: figures of the current step, or of the step in which the canary ended.
        verdict: None for an ended canary; then ``canary.reason`` says why it ended.
    """

    canary: Canary
    baseline: Figures
    candidate: Figures
    verdict: Verdict | None


@dataclass(frozen=True, slots=True)
class RunningReport:
    """A running canary with the slugs of its tenant and adapter."""

    tenant: str
    adapter: str
    report: CanaryReport

    @property
    def name(self) -> str:
        return f"{self.tenant}/{self.adapter}:{self.report.canary.alias}"


@dataclass(frozen=True, slots=True)
class Change:
    """Actor, time and adapter of an alias change. ``tenant`` and ``adapter`` are slugs."""

    tenant: str
    adapter: str
    actor: str
    at: datetime


class CanaryService:
    """Use cases of canaries. ``tenant``, ``adapter`` and ``alias`` are names, and ``actor`` is a key's id.

    Every method can raise NotFound and RegistryUnavailable.
    """

    def __init__(self, database: Database, *, base_digest: str, clock: Clock = utc_now) -> None:
        self._database, self._base_digest, self._clock = database, base_digest, clock

    async def start(
        self,
        tenant: str,
        adapter: str,
        alias: str,
        number: int,
        policy: Policy,
        *,
        precondition: Precondition,
        actor: str,
    ) -> CanaryReport:
        """Start to move an alias from its single target to another version.

        Raises:
            InvalidRequest, PreconditionFailed, WrongBase
            Conflict: a canary is running, the alias splits its traffic or points at that version already, or a version
                is not ready.
        """
        check_policy(policy)
        async with self._database.write() as connection:
            adapter_row = await adapter_or_404(connection, await tenant_or_404(connection, tenant, lock=True), adapter)
            current = await alias_or_404(connection, adapter_row, alias)
            precondition.check(current.revision)
            baseline = _single_target(current, number)
            ids = await ready_versions(connection, adapter_row, self._base_digest, (baseline, number))
            change = Change(tenant, adapter, actor, self._clock())
            canary = await _begin(connection, adapter_row, alias, ids[baseline], ids[number], policy, change)
            after = {"canary": canary.id, "version": number, "policy": policy.to_json()}
            await record(connection, "canary.start", alias, change, {"targets": written(current.targets)}, after)
        return report_of(canary, {}, change.at)

    async def get(self, tenant: str, adapter: str, alias: str) -> CanaryReport:
        """Return the running canary of an alias, or else the last one.

        Raises:
            NotFound: also if the alias never had a canary.
        """
        async with self._database.read() as connection:
            adapter_row = await adapter_or_404(connection, await tenant_or_404(connection, tenant), adapter)
            await alias_or_404(connection, adapter_row, alias)
            report = await newest_report(connection, adapter_row.id, alias, self._clock())
        if report is None:
            raise NotFound(f"The alias {alias!r} never had a canary.", param="alias")
        return report

    async def running(
        self,
        tenant: str | None,
        *,
        search: Search = EVERYTHING,
        limit: int = DEFAULT_LIMIT,
        cursor: str | None = None,
    ) -> Page[RunningReport]:
        """List the running canaries of a tenant, or of all tenants with None, the oldest first unless sorted.

        Raises:
            InvalidRequest
        """
        checked_limit(limit)
        after = read_position(cursor, checked_search(search))
        async with self._database.read() as connection:
            owner = None if tenant is None else (await tenant_or_404(connection, tenant)).id
            rows = await canaries.running_canaries(
                connection, tenant_id=owner, after=after, limit=limit + 1, search=search
            )
            figures = await canaries.figures_of(connection, [row.canary.id for row in rows[:limit]])
        now = self._clock()
        reports = [
            RunningReport(row.tenant, row.adapter, report_of(row.canary, figures.get(row.canary.id, {}), now))
            for row in rows
        ]
        return page_of(
            reports, limit, lambda running: running.name if search.sort.by_name else running.report.canary.id
        )

    async def cancel(
        self, tenant: str, adapter: str, alias: str, *, precondition: Precondition, actor: str
    ) -> CanaryReport:
        """Cancel a running canary and return all traffic to the baseline.

        Raises:
            PreconditionFailed
            Conflict: no canary is running.
        """
        async with self._database.write() as connection:
            adapter_row = await adapter_or_404(connection, await tenant_or_404(connection, tenant, lock=True), adapter)
            current = await alias_or_404(connection, adapter_row, alias)
            precondition.check(current.revision)
            now = self._clock()
            report = await newest_report(connection, adapter_row.id, alias, now)
            if current.canary_id is None or report is None:
                raise Conflict(f"The alias {alias!r} has no running canary.")
            reason = reason_of(report, now, code="cancelled", message="The canary was cancelled.")
            change = Change(tenant, adapter, actor, now)
            await end(connection, report.canary, CanaryState.CANCELLED, reason, change)
            ended = await _newest(connection, adapter_row.id, alias)
        return CanaryReport(ended, report.baseline, report.candidate, None)


async def newest_report(connection: AsyncConnection, adapter_id: int, alias: str, now: datetime) -> CanaryReport | None:
    """Report on the running canary of an alias, or else on the last one. Return None if there never was one."""
    canary = await canaries.newest_canary(connection, adapter_id, alias)
    if canary is None:
        return None
    return report_of(canary, await canaries.read_figures(connection, canary.id), now)


def report_of(canary: Canary, figures: canaries.NodeCounts, now: datetime) -> CanaryReport:
    """Sum the nodes' figures of the canary's step, and judge the canary if it is running."""
    policy = Policy.from_json(canary.policy)
    whole = policy.steps[canary.step].weight == 100
    # While the candidate gets all traffic, the baseline gets none. Its figures of all steps count then.
    revisions = {revision for revision, _ in figures} if whole else {canary.revision}
    baseline = total_of([_sum(figures, revision, canary.baseline_id) for revision in revisions])
    candidate = _sum(figures, canary.revision, canary.candidate_id)
    if canary.state is not CanaryState.RUNNING:
        return CanaryReport(canary, baseline, candidate, None)
    verdict = judge(policy, canary.step, elapsed_s(canary, now), baseline, candidate)
    return CanaryReport(canary, baseline, candidate, verdict)


def elapsed_s(canary: Canary, now: datetime) -> float:
    """Return the age of the current step in seconds."""
    return max(0.0, (now - canary.step_started_at).total_seconds())


def reason_of(report: CanaryReport, now: datetime, *, code: str, message: str) -> dict[str, Any]:
    """Build the JSON reason for a canary's advance or end, with the figures."""
    canary = report.canary
    return {
        "code": code,
        "message": message,
        "step": canary.step,
        "elapsed_s": round(elapsed_s(canary, now), 3),
        "baseline": {"version": canary.baseline, **report.baseline.summary()},
        "candidate": {"version": canary.candidate, **report.candidate.summary()},
    }


async def enter_step(connection: AsyncConnection, canary: Canary, change: Change) -> None:
    """Set the alias's weights to those of the canary's step."""
    weight = Policy.from_json(canary.policy).steps[canary.step].weight
    shares = {canary.candidate_id: weight, canary.baseline_id: 100 - weight}
    revision = await set_targets(
        connection,
        canary.adapter_id,
        canary.alias,
        {version_id: share for version_id, share in shares.items() if share},
        at=change.at,
        actor=change.actor,
        action="canary",
        reason=f"Step {canary.step + 1}: {weight}% of the traffic to version {canary.candidate}.",
        canary_id=canary.id,
    )
    await canaries.set_revision(connection, canary.id, revision)


async def end(
    connection: AsyncConnection, canary: Canary, state: CanaryState, reason: Mapping[str, Any], change: Change
) -> bool:
    """End a canary and move the alias to the winning version. The caller has locked the tenant's row.

    Returns:
        False if the canary has changed since it was read; then nothing is written.
    """
    if not await canaries.end_canary(connection, canary, state, reason=reason, at=change.at):
        return False
    winner, number = canary.baseline_id, canary.baseline
    if state is CanaryState.PROMOTED:
        winner, number = canary.candidate_id, canary.candidate
    action, verb = _ENDS[state]
    await set_targets(
        connection,
        canary.adapter_id,
        canary.alias,
        {winner: 100},
        at=change.at,
        actor=change.actor,
        action=action,
        reason=str(reason["message"]),
    )
    after = {"canary": canary.id, "targets": written({number: 100}), **reason}
    await record(connection, f"canary.{verb}", canary.alias, change, {"step": canary.step}, after)
    return True


async def record(
    connection: AsyncConnection,
    action: str,
    alias: str,
    change: Change,
    before: Mapping[str, Any] | None,
    after: Mapping[str, Any] | None,
) -> None:
    """Write the audit row of a change."""
    await audit.record(
        connection,
        at=change.at,
        actor=change.actor,
        action=action,
        tenant=change.tenant,
        subject=f"{change.adapter}:{alias}",
        before=before,
        after=after,
    )


async def _begin(
    connection: AsyncConnection,
    adapter: Adapter,
    alias: str,
    baseline_id: int,
    candidate_id: int,
    policy: Policy,
    change: Change,
) -> Canary:
    await canaries.insert_canary(
        connection,
        adapter.id,
        alias,
        baseline_id=baseline_id,
        candidate_id=candidate_id,
        policy=policy.to_json(),
        at=change.at,
        actor=change.actor,
    )
    await enter_step(connection, await _newest(connection, adapter.id, alias), change)
    return await _newest(connection, adapter.id, alias)


_ENDS = {
    CanaryState.PROMOTED: ("promote", "promote"),
    CanaryState.ROLLED_BACK: ("canary-rollback", "rollback"),
    CanaryState.CANCELLED: ("canary-cancel", "cancel"),
}


def _single_target(alias: Alias, number: int) -> int:
    """Return the baseline, the only version that the alias points at.

    Raises:
        Conflict: a canary is running, the alias splits its traffic, or it points at version ``number`` already.
    """
    if alias.canary_id is not None:
        raise Conflict(f"A canary already runs on the alias {alias.name!r}. Cancel it first.")
    if len(alias.targets) > 1:
        raise Conflict(f"The alias {alias.name!r} splits its traffic. First move it to the version to compare with.")
    (baseline,) = alias.targets
    if baseline == number:
        raise Conflict(f"The alias {alias.name!r} already points at version {number}.", param="version")
    return baseline


async def _newest(connection: AsyncConnection, adapter_id: int, alias: str) -> Canary:
    canary = await canaries.newest_canary(connection, adapter_id, alias)
    if canary is None:
        raise NotFound(f"The alias {alias!r} never had a canary.", param="alias")
    return canary


def _sum(figures: canaries.NodeCounts, revision: int, version_id: int) -> Figures:
    return total_of(
        [
            Figures(counts.requests, counts.errors, counts.empties, LatencyHistogram(counts.ttft))
            for counts in figures.get((revision, version_id), ())
        ]
    )
