"""Durations of this process's recent cold loads."""

import math
from collections import deque
from dataclasses import dataclass

from app.engine.port import EngineEvent


@dataclass(frozen=True, slots=True)
class LoadSeconds:
    """Seconds of loads, by phase (see :class:`app.domain.load_phases.LoadPhases`) and in total."""

    fetch: float
    stage: float
    wait: float
    copy: float
    total: float


@dataclass(frozen=True, slots=True)
class LoadTimes:
    """Distribution of load durations.

    Attributes:
        loads: number of loads.
        p50, p99: nearest-rank percentiles, computed separately for each phase; None without loads.
    """

    loads: int
    p50: LoadSeconds | None
    p99: LoadSeconds | None


class RecentLoads:
    """Ring buffer of the last ``keep`` loads. Feed it by ``engine.subscribe(loads.note)``."""

    def __init__(self, keep: int = 1000) -> None:
        self._loads: deque[tuple[float, ...]] = deque(maxlen=keep)

    def note(self, event: EngineEvent) -> None:
        if phases := event.phases:
            seconds = (phases.fetch_s, phases.stage_s, phases.wait_s, phases.copy_s)
            self._loads.append((*seconds, sum(seconds)))

    def times(self) -> LoadTimes:
        if not self._loads:
            return LoadTimes(0, None, None)
        columns = [sorted(column) for column in zip(*self._loads, strict=True)]
        p50, p99 = (LoadSeconds(*(_percentile(column, share) for column in columns)) for share in (0.5, 0.99))
        return LoadTimes(len(self._loads), p50, p99)


def _percentile(ordered: list[float], share: float) -> float:
    """Nearest-rank percentile: the smallest value such that at least this share of all values is not above it."""
    return ordered[math.ceil(share * len(ordered)) - 1]
