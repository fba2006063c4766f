"""Measure an engine's memory: ``python -m tests.support.engine_memory BASE``.

Starts an engine with Tenora's arguments, prints its allocations and exits. It runs as a separate process, since an
engine in the test's process would outlive the test.
"""

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

from vllm.engine.arg_utils import EngineArgs
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.model_executor.layers.linear import LinearBase
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.v1.engine.llm_engine import LLMEngine

from app.engine.vllm.arguments import engine_arguments
from app.engine.vllm.platform import this_machine
from app.planning.machine import resolve_slots
from app.settings import Settings


class Memory:
    """Mixin for vLLM's worker."""

    def tenora_memory(self) -> dict[str, int]:
        runner = self.model_runner  # type: ignore[attr-defined]
        wrapped = runner.lora_manager._adapter_manager.modules.values()
        stacks = [stack for layer in wrapped for stack in (layer.lora_a_stacked, layer.lora_b_stacked)]
        return {
            "weights": sum(map(bytes_of, runner.model.parameters())) + packed_bytes(runner.model),
            "slots": sum(bytes_of(tensor) for stack in stacks for tensor in stack),
            "kv_cache": sum(map(bytes_of, runner.kv_caches)),
            "blocks": self.cache_config.num_gpu_blocks,  # type: ignore[attr-defined]
        }


def bytes_of(tensor: Any) -> int:
    return int(tensor.numel() * tensor.element_size())


def packed_bytes(model: Any) -> int:
    """Return the bytes of weights repacked by a CPU's kernels.

    The layer's parameter is then empty and only its sizes remain.
    """
    layers = [layer for layer in model.modules() if isinstance(layer, LinearBase) and not layer.weight.numel()]
    return sum(
        layer.input_size_per_partition * layer.output_size_per_partition * layer.weight.element_size()
        for layer in layers
    )


def main() -> None:
    base = Path(sys.argv[1])
    settings = Settings()
    slots = resolve_slots(settings, base, this_machine)
    arguments = engine_arguments(settings, base, served_name="base", cpu=True, slots=slots)
    args = EngineArgs.from_cli_args(make_arg_parser(FlexibleArgumentParser()).parse_args(arguments))
    extension = "tests.support.engine_memory.Memory"  # by name: this module runs as __main__
    engine = LLMEngine.from_engine_args(dataclasses.replace(args, worker_extension_cls=extension))
    [memory] = engine.collective_rpc("tenora_memory")
    print(json.dumps(memory))  # noqa: T201
    engine.engine_core.shutdown()


if __name__ == "__main__":
    main()
