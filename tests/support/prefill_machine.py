"""vLLM's real scheduler on a simulated machine."""

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from vllm.config import VllmConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.lora.request import LoRARequest
from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

from app.engine.vllm.scheduler.prefill_chunking import BoundedSteps
from tests.support.base_configs import TOY

#: Cost in seconds on the machine below: per step, per token and per adapter.
STEP_S, TOKEN_S, ADAPTER_S = 0.01, 0.001, 0.008


BLOCK, MOST_TOKENS, PROMPT = 16, 2048, 1500


def engine_config(folder: Path, **arguments: Any) -> VllmConfig:
    (folder / "config.json").write_text(json.dumps(TOY | {"max_position_embeddings": 2048}))
    return EngineArgs(
        str(folder),
        enable_lora=True,
        max_model_len=2048,
        max_num_batched_tokens=MOST_TOKENS,
        enable_prefix_caching=False,
        skip_tokenizer_init=True,
        **arguments,
    ).create_engine_config()


class Machine:
    """vLLM's scheduler with a simulated machine whose steps have an exact cost.

    Attributes:
        steps: tokens by request id, for each step.
        slow: factor on the duration of a step.
    """

    def __init__(
        self,
        config: VllmConfig,
        clock: list[float],
        scheduler: Callable[..., Scheduler] = BoundedSteps,
        blocks: int = 4096,
    ) -> None:
        spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=8, dtype=torch.float32)
        config.cache_config.num_gpu_blocks = blocks
        self.scheduler = scheduler(
            vllm_config=config,
            kv_cache_config=KVCacheConfig(blocks, [], [KVCacheGroupSpec(["layer"], spec)]),
            structured_output_manager=StructuredOutputManager(config),
            block_size=BLOCK,
        )
        self.steps: list[dict[str, int]] = []
        self.slow = 1.0
        self._clock, self._names = clock, itertools.count()

    def send(
        self,
        prompt_tokens: int,
        output_tokens: int = 10_000,
        adapter: int | None = None,
        *,
        priority: int = 0,
        prompt_logprobs: int | None = None,
    ) -> str:
        name = str(next(self._names))
        sampling = SamplingParams(max_tokens=output_tokens, ignore_eos=True, prompt_logprobs=prompt_logprobs)
        lora = None if adapter is None else LoRARequest(str(adapter), adapter, "somewhere")
        prompt = list(range(prompt_tokens))
        self.scheduler.add_request(Request(name, prompt, sampling, None, lora_request=lora, priority=priority))
        return name

    def step(self, times: int = 1) -> None:
        for _ in range(times):
            wanted = self.scheduler.schedule()
            self.steps.append(dict(wanted.num_scheduled_tokens))
            used = {self.scheduler.requests[name].lora_request for name in wanted.num_scheduled_tokens} - {None}
            cost = STEP_S + TOKEN_S * wanted.total_num_scheduled_tokens + ADAPTER_S * len(used)
            self._clock[0] += self.slow * cost
            self.scheduler.update_from_output(wanted, self._output(wanted))

    def _output(self, wanted: SchedulerOutput) -> ModelRunnerOutput:
        names = list(wanted.num_scheduled_tokens)
        done = [not self.scheduler.requests[name].is_prefill_chunk for name in names]
        return ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: at for at, name in enumerate(names)},
            sampled_token_ids=[[7] if one else [] for one in done],
        )
