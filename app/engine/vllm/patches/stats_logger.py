"""vLLM's metrics without a label for the running adapters, and with buffered writes.

vLLM's server updates some forty metrics after every step, in the thread that answers requests. With buffered writes the
statistics of steps are accumulated. They are written after a second, after many tokens, or on request. Every counter
and every histogram of requests and tokens gets the same values.
See docs/decisions/0022-less-work-per-token-in-the-api-process.md.
"""

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from typing import Any

from vllm.v1.metrics.loggers import PrometheusStatLogger
from vllm.v1.metrics.stats import IterationStats, MultiModalCacheStats, SchedulerStats

from app.engine.vllm.scheduler.output_batching import SELDOM

_PERIOD_S = 1.0
#: Token observations that trigger a write.
_TOKENS = 1024


class EngineStatistics(PrometheusStatLogger):  # type: ignore[misc]  # vLLM has no stubs
    """:class:`PrometheusStatLogger` that does not list the running adapters.

    That list is a label: each combination of adapters would be kept forever.
    """

    def __init__(self, vllm_config: Any, engine_indexes: list[int] | None = None) -> None:
        super().__init__(vllm_config, engine_indexes)
        self.gauge_lora_info = None


class BufferedStatistics(EngineStatistics):
    """:class:`EngineStatistics` with buffered writes.

    A histogram of tokens per step (``vllm:iteration_tokens_total``) has no meaning here.
    """

    def __init__(self, vllm_config: Any, engine_indexes: list[int] | None = None) -> None:
        super().__init__(vllm_config, engine_indexes)
        self._scheduler: SchedulerStats | None = None
        self._iterations: IterationStats | None = None
        self._written = 0.0

    def record(
        self,
        scheduler_stats: SchedulerStats | None,
        iteration_stats: IterationStats | None,
        mm_cache_stats: MultiModalCacheStats | None = None,  # noqa: ARG002
        engine_idx: int = 0,  # noqa: ARG002
    ) -> None:
        """Accumulate one step's statistics. There is one engine, and a base of text has no multi-modal cache."""
        if scheduler_stats is not None:
            if self._scheduler is not None:
                _add(scheduler_stats.prefix_cache_stats, self._scheduler.prefix_cache_stats)
            self._scheduler = scheduler_stats  # all other fields are current values
        if iteration_stats is not None:
            self._iterations = _merged(self._iterations, iteration_stats)
        if self._is_due():
            self.write()

    def _is_due(self) -> bool:
        if time.monotonic() - self._written >= _PERIOD_S:
            return True
        if self._iterations is not None and len(self._iterations.inter_token_latencies_iter) >= _TOKENS:
            return True
        return any(getattr(self._scheduler, name, None) for name in SELDOM)

    def write(self) -> None:
        """Write the accumulated statistics."""
        scheduler, self._scheduler = self._scheduler, None
        iterations, self._iterations = self._iterations, None
        self._written = time.monotonic()
        if iterations is not None:
            latencies, iterations.inter_token_latencies_iter = iterations.inter_token_latencies_iter, []
            _observe(self.histogram_inter_token_latency[0], latencies)
        super().record(scheduler, iterations)


def _merged(earlier: IterationStats | None, later: IterationStats) -> IterationStats:
    if earlier is None:
        return later
    _add(earlier, later)
    _add(earlier.prompt_token_stats, later.prompt_token_stats)
    return earlier


def _add(to: object, more: object) -> None:
    """Add counters and append observations. Times stay."""
    for name, value in vars(more).items():
        if value and isinstance(value, int):
            setattr(to, name, getattr(to, name) + value)
        elif value and isinstance(value, list):
            getattr(to, name).extend(value)


def _observe(histogram: Any, values: Sequence[float]) -> None:
    """Observe all values at once, which prometheus_client has no method for; faster than one ``observe`` for each."""
    histogram._sum.inc(sum(values))
    for bucket, count in Counter(bisect_left(histogram._upper_bounds, value) for value in values).items():
        histogram._buckets[bucket].inc(count)
