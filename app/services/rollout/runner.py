"""Canary runner: advances canaries or rolls them back.

Every server runs one. The registry's compare-and-set ensures that each move is made once.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection

from app.database import canaries
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

#: Window in seconds that is judged separately: a long healthy step must not hide a candidate that begins to fail.
_RECENT_S = 60.0


class CanaryRunner:
    """One node's part in all running canaries: flush its counts, judge the sums, act.

    All state that it acts on is in the registry, so any server can continue where another stopped. If two servers act
    at the same time, both compare and set the canary's revision. The second finds it changed and does nothing.

    Args:
        node: id of this server.
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
        #: (canary, revision) -> (time, baseline's figures, candidate's figures) of the last minute.
        self._windows: dict[tuple[int, int], deque[tuple[float, Figures, Figures]]] = {}

    async def tick(self) -> None:
        """Run one round. Call this about twice a second.

        Raises:
            RegistryUnavailable
        """
        await self.flush()
        async with self._database.read() as connection:
            running = await canaries.running_canaries(connection)
            figures = await canaries.running_figures(connection) if running else {}
        present = {(entry.canary.id, entry.canary.revision) for entry in running}
        self._windows = {key: window for key, window in self._windows.items() if key in present}
        for entry in running:
            report = report_of(entry.canary, figures.get(entry.canary.id, {}), self._clock())
            verdict = self._judge(entry, report)
            if verdict.decision is not Decision.WAIT and await self._act(entry, report, verdict):
                alias = f"{entry.tenant}/{entry.adapter}:{entry.canary.alias}"
                logger.warning("Canary on %s: %s. %s", alias, verdict.decision.value, verdict.message)

    async def flush(self) -> None:
        """Write this node's counts to the registry.

        Raises:
            RegistryUnavailable: the counts are kept for the next call.
        """
        taken = self._outcomes.take()
        if not taken:
            return
        now = self._clock()
        try:
            async with self._database.write() as connection:
                for window, counted in taken.items():
                    counts = canaries.Counts(counted.requests, counted.errors, counted.empties, counted.ttft.counts)
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
            reason = f": {running.candidate_reason.rstrip('.')}" if running.candidate_reason else ""
            message = f"The version {running.adapter}@{running.canary.candidate} is {state.value}{reason}."
            return Verdict(Decision.BREACH, message, f"version_{state.value}")
        return self._recent_breach(report) or report.verdict or Verdict(Decision.WAIT, "The canary has ended.")

    def _recent_breach(self, report: CanaryReport) -> Verdict | None:
        """Return a breach within the last minute or within the whole step."""
        canary, policy = report.canary, Policy.from_json(report.canary.policy)
        if report.verdict is not None and report.verdict.decision is Decision.BREACH:
            return report.verdict
        now = self._monotonic()
        window = self._windows.setdefault((canary.id, canary.revision), deque())
        while len(window) > 1 and now - window[0][0] > _RECENT_S:
            window.popleft()
        window.append((now, report.baseline, report.candidate))
        _, baseline, candidate = window[0]
        # While the candidate gets all traffic, the baseline has no recent figures. All of its figures count then.
        usual = report.baseline if report.baseline == baseline else report.baseline - baseline
        return find_breach(policy, usual, report.candidate - candidate)

    async def _act(self, running: canaries.RunningCanary, report: CanaryReport, verdict: Verdict) -> bool:
        """Move the canary as the verdict says. Return False if another change came first."""
        canary, now = running.canary, self._clock()
        reason = reason_of(report, now, code=verdict.code or verdict.decision.value, message=verdict.message)
        change = Change(running.tenant, running.adapter, _ACTOR, now)
        async with self._database.write() as connection:
            await tenant_or_404(connection, running.tenant, lock=True)
            if verdict.decision is Decision.ADVANCE:
                return await _advance(connection, canary, reason, change)
            state = CanaryState.PROMOTED if verdict.decision is Decision.PROMOTE else CanaryState.ROLLED_BACK
            return await end(connection, canary, state, reason, change)


async def _advance(connection: AsyncConnection, canary: Canary, reason: Mapping[str, Any], change: Change) -> bool:
    step = canary.step + 1
    if not await canaries.claim_canary(connection, canary, step=step, at=change.at):
        return False
    await enter_step(connection, replace(canary, step=step), change)
    after = {"canary": canary.id, **reason, "step": step}
    await record(connection, "canary.advance", canary.alias, change, {"step": canary.step}, after)
    return True
