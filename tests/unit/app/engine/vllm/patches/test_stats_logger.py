"""Statistics are those of vLLM, without the running adapters."""

import json
import random

import pytest
from prometheus_client import REGISTRY
from vllm.config import VllmConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.v1.engine import FinishReason
from vllm.v1.metrics.loggers import PrometheusStatLogger
from vllm.v1.metrics.stats import (
    FinishedRequestStats,
    IterationStats,
    PrefixCacheStats,
    SchedulerStats,
)

from app.engine.vllm.patches.stats_logger import EngineStatistics
from tests.support.base_configs import TOY

#: Metrics that are not exported; see app/wiring/engine_metrics.py.
HIDDEN = {"vllm:lora_requests_info", "vllm:iteration_tokens_total"}


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> VllmConfig:
    folder = tmp_path_factory.mktemp("base")
    (folder / "config.json").write_text(json.dumps(TOY))
    arguments = EngineArgs(str(folder), enable_lora=True, max_model_len=256, skip_tokenizer_init=True)
    return arguments.create_engine_config()


def steps(count: int) -> list[tuple[SchedulerStats, IterationStats]]:
    """Build the same statistics on each call, because a logger may keep the objects."""
    chance = random.Random(7)
    return [(scheduler(chance), iteration(chance)) for _ in range(count)]


def scheduler(chance: random.Random) -> SchedulerStats:
    return SchedulerStats(
        num_running_reqs=chance.randint(0, 64),
        kv_cache_usage=chance.random(),
        prefix_cache_stats=PrefixCacheStats(queries=chance.randint(0, 100), hits=chance.randint(0, 50)),
        running_lora_adapters={str(chance.randint(1, 99)): 1},
    )


def iteration(chance: random.Random) -> IterationStats:
    found = IterationStats()
    found.num_generation_tokens = chance.randint(0, 64)
    found.num_preempted_reqs = chance.randint(0, 1)
    found.prompt_token_stats.computed = found.prompt_token_stats.total = chance.randint(0, 9)
    found.inter_token_latencies_iter = [chance.randint(1, 99) / 1024 for _ in range(chance.randint(0, 20))]
    found.time_to_first_tokens_iter = [chance.randint(1, 99) / 1024 for _ in range(chance.randint(0, 3))]
    if chance.random() < 0.2:
        found.finished_requests = [FinishedRequestStats(FinishReason.STOP, num_prompt_tokens=9, e2e_latency=0.5)]
    return found


def shown() -> dict[tuple[str, str], float]:
    return {
        (sample.name, str(sample.labels)): sample.value
        for metric in REGISTRY.collect()
        if metric.name.startswith("vllm:") and metric.name not in HIDDEN
        for sample in metric.samples
        if not sample.name.endswith("_created")
    }


def told(logger: PrometheusStatLogger, count: int) -> dict[tuple[str, str], float]:
    for scheduler_stats, iteration_stats in steps(count):
        logger.record(scheduler_stats, iteration_stats)
    return shown()


@pytest.mark.parametrize("count", [1, 200])
def test_all_that_is_shown_is_what_vllm_itself_would_show(config: VllmConfig, count: int) -> None:
    expected = told(PrometheusStatLogger(config), count)
    found = told(EngineStatistics(config), count)
    assert len(expected) > 100
    assert found == expected


def test_adapters_that_run_leave_no_label_behind(config: VllmConfig) -> None:
    told(EngineStatistics(config), 200)
    named = [metric for metric in REGISTRY.collect() if metric.name == "vllm:lora_requests_info"]
    assert [metric.samples for metric in named] == [[]]
