"""Moves canaries on, or back. Every server runs one; the registry sees to it that each move is made once."""

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection

from app.database import canaries
from app.database.cached_query import CachedQuery
from app.database.session import Database
from app.domain.adapters import VersionState
from app.domain.canaries import Canary, CanaryState
from app.domain.canary_policy import Decision, Figures, Policy, Verdict, find_breach
from app.domain.clock import Clock, utc_now
from app.domain.errors import RegistryUnavailable
from app.services.common.lookups import tenant_or_404
from app.services.rollout.canaries import CanaryReport, Change, end, enter_step, reason_of, record, report_of
from app.services.rollout.outcomes import Outcomes

logger = logging.getLogger(__name__)

_ACTOR = "canary"

#: A long step's good past must not hide that the candidate has begun to fail: its last minute is judged by itself too.
_RECENT_S = 60.0


class CanaryRunner:
    """One node's part in all running canaries: writes down what it counted, judges the sum, acts.

    Everything that it acts on is in the registry, so a server that comes back goes on where any other stopped. Two that
    act at once compare and set the canary's revision: the second finds it changed and does nothing.

    Args:
        node: this server's id.
    """

    def __init__(
        self,
        database: Database,
        outcomes: Outcomes,
        node: str,
        *,
        clock: Clock = utc_now,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._database, self._outcomes, self._node = database, outcomes, node
        self._clock, self._monotonic = clock, monotonic
        # One that runs is judged by figures, which have no row in the trail.
        self._running = CachedQuery(database, _look, kept=lambda found: not found[0])
        #: (canary, revision) -> (moment, baseline's figures, candidate's figures) of the last minute.
        self._seen: dict[tuple[int, int], deque[tuple[float, Figures, Figures]]] = {}

    async def tick(self) -> None:
        """To be called about twice a second.

        Raises:
            RegistryUnavailable
        """
        await self.flush()
        running, figures = await self._running()
        present = {(each.canary.id, each.canary.revision) for each in running}
        self._seen = {key: seen for key, seen in self._seen.items() if key in present}
        for each in running:
            report = report_of(each.canary, figures.get(each.canary.id, {}), self._clock())
            verdict = self._judge(each, report)
            if verdict.decision is not Decision.WAIT and await self._act(each, report, verdict):
                alias = f"{each.tenant}/{each.adapter}:{each.canary.alias}"
                logger.warning("canary on %s: %s: %s", alias, verdict.decision.value, verdict.message)

    async def flush(self) -> None:
        """Write down what this node has counted since the last time.

        Raises:
            RegistryUnavailable: the figures are kept for the next time.
        """
        taken = self._outcomes.take()
        if not taken:
            return
        now = self._clock()
        try:
            async with self._database.write() as connection:
                for window, found in taken.items():
                    counts = canaries.Counts(found.requests, found.errors, found.empties, found.ttft.counts)
                    key = (window.canary_id, window.revision, window.version_id)
                    if window.recipient_id is None:
                        await canaries.add_figures(connection, *key, self._node, counts, at=now)
                    else:
                        await canaries.add_sample(connection, *key, window.recipient_id, counts, at=now)
        except RegistryUnavailable:
            self._outcomes.put_back(taken)
            raise

    def _judge(self, running: canaries.RunningCanary, report: CanaryReport) -> Verdict:
        state = running.candidate_state
        if state is not VersionState.READY:
            message = f"the version {running.adapter}@{running.canary.candidate} is {state.value}"
            if running.candidate_reason:
                message = f"{message}: {running.candidate_reason}"
            return Verdict(Decision.BREACH, message, f"version_{state.value}")
        return self._recent_breach(report) or report.verdict or Verdict(Decision.WAIT, "it has ended")

    def _recent_breach(self, report: CanaryReport) -> Verdict | None:
        """A breach within the last minute, or in the whole step."""
        canary, policy = report.canary, Policy.from_json(report.canary.policy)
        if report.verdict is not None and report.verdict.decision is Decision.BREACH:
            return report.verdict
        now = self._monotonic()
        seen = self._seen.setdefault((canary.id, canary.revision), deque())
        while len(seen) > 1 and now - seen[0][0] > _RECENT_S:
            seen.popleft()
        seen.append((now, report.baseline, report.candidate))
        _, baseline, candidate = seen[0]
        # With all the traffic on the candidate the baseline has no last minute.
        usual = report.baseline if report.baseline == baseline else report.baseline - baseline
        return find_breach(policy, usual, report.candidate - candidate)

    async def _act(self, running: canaries.RunningCanary, report: CanaryReport, verdict: Verdict) -> bool:
        """Move the canary as the verdict says; False if another node, or somebody, was quicker."""
        canary, now = running.canary, self._clock()
        reason = reason_of(report, now, code=verdict.code or verdict.decision.value, message=verdict.message)
        change = Change(running.tenant, running.adapter, _ACTOR, now)
        async with self._database.write() as connection:
            await tenant_or_404(connection, running.tenant, lock=True)
            if verdict.decision is Decision.ADVANCE:
                return await _advance(connection, canary, reason, change)
            state = CanaryState.PROMOTED if verdict.decision is Decision.PROMOTE else CanaryState.ROLLED_BACK
            return await end(connection, canary, state, reason, change)


async def _look(connection: AsyncConnection) -> tuple[list[canaries.RunningCanary], Mapping[int, canaries.NodeCounts]]:
    """The running canaries, and the figures of each."""
    running = await canaries.running_canaries(connection)
    return running, await canaries.running_figures(connection) if running else {}


async def _advance(connection: AsyncConnection, canary: Canary, reason: Mapping[str, Any], change: Change) -> bool:
    step = canary.step + 1
    if not await canaries.claim_canary(connection, canary, step=step, at=change.at):
        return False
    await enter_step(connection, replace(canary, step=step), change)
    after = {"canary": canary.id, **reason, "step": step}
    await record(connection, "canary.advance", canary.alias, change, {"step": canary.step}, after)
    return True
