"""vLLM's own metrics, written down now and then.

vLLM's server writes some forty of them after every step, in the thread that answers requests. Here what the steps say
is added up, and written when a second has passed, there are many tokens, or somebody asks. Every counter and every
histogram of requests and tokens ends up the same.
"""

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from typing import Any

from vllm.v1.engine import EngineCoreOutput
from vllm.v1.metrics.loggers import PrometheusStatLogger
from vllm.v1.metrics.stats import IterationStats, MultiModalCacheStats, SchedulerStats

from app.engine.vllm.scheduler.output_batching import SELDOM

_PERIOD_S = 1.0
#: Observations of tokens that are written at once: a third of a millisecond.
_TOKENS = 1024


class TokenStatistics(IterationStats):  # type: ignore[misc]  # vLLM has no stubs
    """What a message of the engine says of tokens; of several of one sequence, each took its share of the time.

    vLLM would count them as one that took all of it. See :mod:`app.engine.vllm.scheduler.output_batching`.
    """

    inter_token_latencies_iter: list[float]

    def update_from_output(self, output: EngineCoreOutput, *args: Any, **kwargs: Any) -> None:
        latencies = self.inter_token_latencies_iter
        before = len(latencies)
        super().update_from_output(output, *args, **kwargs)
        tokens = len(output.new_token_ids)
        if tokens > 1 and len(latencies) > before:
            latencies[-1:] = [latencies[-1] / tokens] * tokens


class EngineStatistics(PrometheusStatLogger):  # type: ignore[misc]  # vLLM has no stubs
    """A :class:`PrometheusStatLogger` that is slow to write, and never lists the adapters that run.

    That list is a label: each combination of adapters would be kept for ever. And a histogram of tokens per step
    (``vllm:iteration_tokens_total``) has no meaning here.
    """

    def __init__(self, vllm_config: Any, engine_indexes: list[int] | None = None) -> None:
        super().__init__(vllm_config, engine_indexes)
        self.gauge_lora_info = None
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
        """Add one step's statistics; there is one engine, and a base of text has no multi-modal cache."""
        if scheduler_stats is not None:
            if self._scheduler is not None:
                _add(scheduler_stats.prefix_cache_stats, self._scheduler.prefix_cache_stats)
            self._scheduler = scheduler_stats  # the rest says how things are now
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
        """Write down what has been added up."""
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
    """Counts are added, observations are put behind those that are there; times stay."""
    for name, found in vars(more).items():
        if found and isinstance(found, int):
            setattr(to, name, getattr(to, name) + found)
        elif found and isinstance(found, list):
            getattr(to, name).extend(found)


def _observe(histogram: Any, values: Sequence[float]) -> None:
    """What ``observe`` does for each value, in a sixth of the time: prometheus_client has no word for many at once."""
    histogram._sum.inc(sum(values))
    for bucket, count in Counter(bisect_left(histogram._upper_bounds, value) for value in values).items():
        histogram._buckets[bucket].inc(count)
