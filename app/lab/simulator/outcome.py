"""Results of a simulation as plain data and as a table."""

from array import array
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from rich.table import Table

from adapters.residency import Residency
from app.lab.simulator.simulation import Simulation
from app.lab.simulator.watch import Wait


@dataclass(frozen=True, slots=True)
class Spread:
    """Count, mean and percentiles of a sample."""

    count: int
    mean: float
    p50: float
    p99: float
    max: float

    @classmethod
    def of(cls, values: "array[float]", scale: float = 1.0) -> "Spread":
        if not values:
            return cls(0, 0.0, 0.0, 0.0, 0.0)
        numbers = scale * np.asarray(values)
        p50, p99, most = np.percentile(numbers, [50, 99, 100]).tolist()
        return cls(len(values), float(numbers.mean()), p50, p99, most)


@dataclass(frozen=True, slots=True)
class Tier:
    """Counters of one tier."""

    hits: int
    misses: int
    evictions: int

    @classmethod
    def of(cls, plan: Residency) -> "Tier":
        return cls(plan.hits, plan.misses, plan.evictions)

    @property
    def hit_rate(self) -> float:
        return self.hits / max(1, self.hits + self.misses)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Results of one simulation.

    Attributes:
        refused: number of requests by scope of the refusal.
        cancelled: number of requests whose clients disconnected before the end of the answer.
        simulated_s: simulated seconds until the end of the last answer.
        wall_s: real seconds of the run.
        busy: fraction of the time in which the engine computed or copied.
        most_waiting: maximum queue length.
        ttft_s: seconds to the first token by class of tenant.
        waits: number of waits of an adapter that ended with a slot.
        violated: number of waits beyond their bound.
        violations: first of these waits.
        delayed: number of waits beyond their bound only because the window was full.
        longest_wait: longest wait.
        closest_wait: wait that used the largest part of its bound.
        jain: Jain's index over the backlogged tenants of each span with at least two of them.
        host, slots: counters of each tier. A waiting version or an admitted request counts as one look-up.
        decision_us: sampled CPU microseconds of scheduler calls in this run.
    """

    requests: int
    served: int
    cancelled: int
    refused: dict[str, int]
    simulated_s: float
    wall_s: float
    requests_per_s: float
    output_tokens_per_s: float
    steps: int
    busy: float
    most_waiting: int
    ttft_s: dict[str, Spread]
    waits: int
    violated: int
    delayed: int
    violations: tuple[Wait, ...]
    longest_wait: Wait | None
    closest_wait: Wait | None
    jain: Spread
    jain_least: float | None
    host: Tier
    slots: Tier
    decision_us: Spread

    @classmethod
    def of(cls, simulation: Simulation, wall_s: float) -> "Outcome":
        """Collect the results of a completed simulation."""
        engine, watch, indexes = simulation.engine, simulation.watch, simulation.fairness.indexes
        return cls(
            requests=simulation.workload.requests,
            served=simulation.served,
            cancelled=simulation.cancelled,
            refused=dict(simulation.refused),
            simulated_s=engine.now,
            wall_s=wall_s,
            requests_per_s=simulation.served / engine.now,
            output_tokens_per_s=simulation.output_tokens / engine.now,
            steps=engine.steps,
            busy=engine.busy_s / engine.now,
            most_waiting=simulation.most_waiting,
            ttft_s={name: Spread.of(values) for name, values in simulation.ttft_s.items() if values},
            waits=watch.judged,
            violated=watch.violated,
            delayed=watch.delayed,
            violations=tuple(watch.violations),
            longest_wait=watch.longest,
            closest_wait=watch.closest,
            jain=Spread.of(array("d", indexes)),
            jain_least=min(indexes, default=None),
            host=Tier.of(simulation.host),
            slots=Tier.of(simulation.slots),
            decision_us=Spread.of(simulation.decision_s, 1e6),
        )


def table(outcome: Outcome) -> Table:
    """Table of the results for people."""
    result = Table("", "", title=f"{outcome.requests:,} requests simulated", title_justify="left", show_header=False)
    for label, value in _rows(outcome):
        result.add_row(label, value)
    return result


def _rows(outcome: Outcome) -> Iterator[tuple[str, str]]:
    refused = ", ".join(f"{scope} {count:,}" for scope, count in sorted(outcome.refused.items())) or "none"
    yield "served, cancelled", f"{outcome.served:,}, {outcome.cancelled:,}"
    yield "refused", refused
    yield "throughput", f"{outcome.requests_per_s:.1f} requests/s, {outcome.output_tokens_per_s:.0f} output tokens/s"
    yield "simulated", f"{outcome.simulated_s:,.0f} s in {outcome.wall_s:,.1f} s, engine busy {outcome.busy:.0%}"
    yield "longest queue", f"{outcome.most_waiting:,} requests"
    for name, ttft in outcome.ttft_s.items():
        yield f"TTFT of {name}", f"p50 {ttft.p50:.2f} s, p99 {ttft.p99:.2f} s, longest {ttft.max:.2f} s"
    yield "adapters that waited", f"{outcome.waits:,}"
    for label, wait in (("longest wait", outcome.longest_wait), ("closest to its bound", outcome.closest_wait)):
        if wait:
            bound = f"{wait.rounds} x (T + {wait.drain_s:.2f} s) = {wait.bound_s:.2f} s"
            yield label, f"{wait.seconds:.2f} s; bound {bound}"
    yield "beyond the bound", f"{outcome.violated:,}; for a full window only, {outcome.delayed:,} more"
    if outcome.jain_least is not None:
        jain = outcome.jain
        yield "Jain's index", f"mean {jain.mean:.3f}, least {outcome.jain_least:.3f} of {jain.count:,} spans"
    for name, tier in (("host memory", outcome.host), ("slots", outcome.slots)):
        yield f"hit rate, {name}", f"{tier.hit_rate:.1%} of {tier.hits + tier.misses:,}; {tier.evictions:,} evictions"
    cost = outcome.decision_us
    yield "a decision", f"p50 {cost.p50:.1f} us, mean {cost.mean:.1f} us, p99 {cost.p99:.1f} us"
