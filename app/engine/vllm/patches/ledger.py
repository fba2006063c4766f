"""Ledger of everything in vLLM that Tenora patches, subclasses or writes to, and the switches of its optional parts.

A row is required if multi-tenancy, correctness or safety depends on it. The others only save time or memory, and
``TENORA_ENGINE__PATCHES`` switches them off, to compare with vLLM's own behaviour. Arguments and environment variables
of vLLM are configuration and have no row. This module imports nothing of vLLM.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

_NONE_FILED: Final = "none filed"
_OURS: Final = "none: Tenora's rule, not a defect of vLLM"
#: Key in ``VllmConfig.additional_config``, which vLLM passes to all of its processes.
_OFF = "tenora_patches_off"
_SETTING = "TENORA_ENGINE__PATCHES"


class Process(StrEnum):
    """Process that a patch runs in. With one device, the worker lives in the engine core's process."""

    SERVER = "server"
    CORE = "engine core"
    WORKER = "worker"


class InvalidPatches(ValueError):
    """``TENORA_ENGINE__PATCHES`` names a patch that does not exist or is required."""


@dataclass(frozen=True, slots=True)
class Patch:
    """One patch, with all names of vLLM that it changes.

    Attributes:
        name: switch in ``TENORA_ENGINE__PATCHES``.
        targets: dotted names in vLLM that are replaced, wrapped, subclassed, overridden or written to.
        processes: where it runs.
        module: file below ``app/engine/vllm/`` that holds it.
        why: effect of vLLM's own behaviour.
        upstream: issue or pull request, or the reason why there is none.
        remove_when: condition under which it can go.
        required: whether multi-tenancy, correctness or safety depends on it; if not, it can be switched off.
    """

    name: str
    targets: tuple[str, ...]
    processes: tuple[Process, ...]
    module: str
    why: str
    upstream: str
    remove_when: str
    required: bool


_REQUIRED_ROWS = (
    Patch(
        "kv_zeroing",
        (
            "vllm.v1.kv_cache_interface.KVCacheConfig.needs_kv_cache_zeroing",
            "vllm.v1.core.sched.scheduler.Scheduler",
        ),
        (Process.CORE, Process.WORKER),
        "scheduler/kv_zeroing.py",
        "NaN of one adapter stays in KV cache blocks and reaches the next request that gets them. Blocks are zeroed "
        "before each use",
        _NONE_FILED,
        "vLLM clears blocks, or attention ignores NaN behind a sequence's end",
        required=True,
    ),
    Patch(
        "cpu_lora",
        (
            "vllm.lora.punica_wrapper.punica_cpu.PunicaWrapperCPU.update_metadata",
            "vllm.lora.punica_wrapper.punica_cpu.PunicaWrapperCPU.add_lora_linear",
            "vllm.lora.punica_wrapper.punica_cpu.PunicaWrapperCPU.add_lora_logits",
            "vllm.lora.model_manager.LoRAModelManager.punica_wrapper_mapping",
            "vllm.lora.layers.base_linear.BaseLinearLayerWithLoRA.lora_b_stacked",
        ),
        (Process.WORKER,),
        "worker/cpu_lora.py",
        "On a CPU, vLLM gives the last slot's adapter to requests without one, and copies matrices for every token "
        "([decision 19](decisions/0019-three-ways-of-lora-products-on-a-cpu.md))",
        "vllm#48421, fixed in 0.33",
        "vLLM's CPU path multiplies by slot",
        required=True,
    ),
    Patch(
        "hopper_kernels",
        ("vllm.lora.ops.triton_ops.utils.load_lora_op_config",),
        (Process.SERVER,),
        "hopper.py",
        "`lora_expand` is miscompiled for compute capability 9.0. A configuration file replaces vLLM's default",
        "triton#9433, vllm#48590, vllm#52568",
        "vLLM 0.33, which uses one stage",
        required=True,
    ),
    Patch(
        "seeded_sampling",
        (
            "vllm.v1.worker.gpu_model_runner.GPUModelRunner._sample",
            "vllm.v1.worker.gpu_model_runner.GPUModelRunner._bookkeeping_sync",
        ),
        (Process.WORKER,),
        "worker/seeded_sampling.py",
        "A seeded request whose prompt is read in parts kills a CPU engine, as CPU generators have no offset",
        _NONE_FILED,
        "the contract test no longer finds `gen.set_offset`",
        required=True,
    ),
    Patch(
        "amx_init",
        ("vllm.v1.worker.cpu_worker.CPUWorker",),
        (Process.WORKER,),
        "worker/extension.py",
        "A one-token prompt as the very first request dies of SIGILL on a CPU with AMX",
        _NONE_FILED,
        "vLLM initialises AMX itself",
        required=True,
    ),
    Patch(
        "output_log",
        ("vllm.v1.engine.output_processor.OutputProcessor.process_outputs",),
        (Process.SERVER,),
        "output_log.py",
        "NaN and exact token counts of each sequence are in no answer",
        _OURS,
        "answers carry them",
        required=True,
    ),
    Patch(
        "adapter_names",
        ("vllm.entrypoints.openai.models.serving.OpenAIServingModels.lora_requests",),
        (Process.SERVER,),
        "instance.py",
        "vLLM's own route to add an adapter reads its files and knows no tenant. A name is added when a version has a "
        "slot",
        _OURS,
        "vLLM takes the adapter with each request",
        required=True,
    ),
    Patch(
        "adapter_labels",
        ("vllm.v1.metrics.loggers.PrometheusStatLogger.gauge_lora_info",),
        (Process.SERVER,),
        "patches/stats_logger.py",
        "The running adapters are a label of a metric: each combination is kept forever, and it names adapters",
        _NONE_FILED,
        "the label is gone",
        required=True,
    ),
    Patch(
        "stream_nulls",
        (
            "vllm.entrypoints.openai.completion.serving.CompletionStreamResponse",
            "vllm.entrypoints.openai.completion.protocol.CompletionStreamResponse.model_dump_json",
            "vllm.entrypoints.openai.chat_completion.serving.ChatCompletionStreamResponse",
            "vllm.entrypoints.openai.chat_completion.protocol.ChatCompletionStreamResponse.model_dump_json",
        ),
        (Process.SERVER,),
        "patches/stream_nulls.py",
        "Events have null fields that OpenAI does not have. Some clients send them back or reject them",
        _NONE_FILED,
        "vLLM omits its own null fields",
        required=True,
    ),
    Patch(
        "stager",
        (
            "vllm.lora.lora_model.LoRAModel.from_lora_tensors",
            "vllm.lora.lora_model.LoRAModel.get_lora",
            "vllm.lora.worker_manager.LRUCacheWorkerLoRAManager._lora_model_cls",
            "vllm.lora.model_manager.LoRAModelManager.lora_index_to_id",
            "vllm.lora.model_manager.LoRAModelManager._registered_adapters",
            "vllm.lora.model_manager.LoRAModelManager._active_adapters",
        ),
        (Process.WORKER,),
        "worker/stager.py",
        "`add_lora` reads, casts and copies inside the loop of steps, and vLLM's LRU drops adapters in use. A thread "
        "stages, and copies of at most 8 ms run between steps "
        "([decision 16](decisions/0016-stage-during-steps-copy-between-them.md))",
        _NONE_FILED,
        "vLLM loads in the background and leaves slots and eviction to its caller",
        required=True,
    ),
    Patch(
        "full_names",
        ("vllm.lora.peft_helper.PEFTHelper._match_pattern",),
        (Process.WORKER,),
        "worker/stager.py",
        "Patterns that are full module names are compiled and matched, which takes minutes for a large model. They "
        "are looked up",
        _NONE_FILED,
        "vLLM looks names up",
        required=True,
    ),
    Patch(
        "kernel_check",
        (
            "vllm.lora.model_manager.LoRAModelManager._last_mapping",
            "vllm.lora.model_manager.LoRAModelManager._last_slot_layout",
        ),
        (Process.WORKER,),
        "worker/kernel_check.py",
        "The check sets adapters of rows by itself, so vLLM must forget which ones it set last",
        _OURS,
        "vLLM checks its kernels",
        required=True,
    ),
    Patch(
        "preemption",
        (
            "vllm.v1.core.sched.scheduler.Scheduler.schedule",
            "vllm.v1.core.sched.scheduler.Scheduler.finish_requests",
            "vllm.v1.core.sched.scheduler.Scheduler.get_request_counts",
            "vllm.v1.core.sched.scheduler.Scheduler.running",
            "vllm.v1.request.Request.priority",
        ),
        (Process.CORE,),
        "scheduler/preemption.py",
        "vLLM never preempts a running request because places in the batch are short. On a CPU a preempted request "
        "keeps its KV cache while there is room",
        _NONE_FILED,
        "vLLM preempts by priority when the batch is full",
        required=True,
    ),
    Patch(
        "sequence_gate",
        (
            "vllm.v1.engine.async_llm.AsyncLLM.add_request",
            "vllm.v1.engine.core_client.AsyncMPClient.add_request_async",
            "vllm.v1.engine.EngineCoreRequest.priority",
        ),
        (Process.SERVER,),
        "sequence_gate.py",
        "All sequences of a request enter the engine at once. They enter one by one "
        "([decision 15](decisions/0015-gate-before-vllm.md))",
        _OURS,
        "vLLM can hold sequences of a request back",
        required=True,
    ),
    Patch(
        "scheduler_class",
        ("vllm.config.scheduler.SchedulerConfig.scheduler_cls",),
        (Process.SERVER, Process.CORE),
        "scheduler/composition.py",
        "Composes the scheduler of the parts of this ledger that apply",
        _OURS,
        "no part is left",
        required=True,
    ),
    Patch(
        "fork_server",
        ("vllm.v1.engine.utils.get_mp_context",),
        (Process.SERVER,),
        "worker/fork_server.py",
        "Engines inherit connections, locks and secrets of the server, signals to its process group end them, and a "
        "start takes seconds longer ([decision 17](decisions/0017-fork-server-for-engines.md))",
        _NONE_FILED,
        "vLLM starts from a preloaded process",
        required=True,
    ),
    Patch(
        "parent_watch",
        ("vllm.v1.engine.core.EngineCoreProc",),
        (Process.CORE,),
        "worker/parent_watch.py",
        "An engine whose server was killed waits forever and keeps its memory. It ends with the server",
        _NONE_FILED,
        "vLLM's core watches its parent",
        required=True,
    ),
)

_OPTIONAL_ROWS = (
    Patch(
        "prefill_chunking",
        (
            "vllm.v1.core.sched.scheduler.Scheduler.schedule",
            "vllm.v1.core.sched.scheduler.Scheduler.update_from_output",
            "vllm.v1.core.sched.scheduler.Scheduler.max_num_scheduled_tokens",
            "vllm.config.scheduler.SchedulerConfig.long_prefill_token_threshold",
        ),
        (Process.CORE,),
        "scheduler/prefill_chunking.py",
        "On a CPU, a full step of prompt tokens can stall every stream for seconds "
        "([decision 21](decisions/0021-prefill-chunks-by-measured-cost.md))",
        _NONE_FILED,
        "vLLM bounds steps by time",
        required=False,
    ),
    Patch(
        "in_core_executor",
        (
            "vllm.config.parallel.ParallelConfig.distributed_executor_backend",
            "vllm.v1.executor.uniproc_executor.UniProcExecutor._init_executor",
        ),
        (Process.SERVER, Process.CORE),
        "worker/in_core_executor.py",
        "Core and CPU worker poll shared memory without a pause "
        "([decision 18](decisions/0018-cpu-worker-in-the-core-process.md))",
        _NONE_FILED,
        "vLLM runs one CPU worker in the core",
        required=False,
    ),
    Patch(
        "zmq_wakeups",
        ("vllm.distributed.device_communicators.shm_broadcast.SpinCondition.record_read",),
        (Process.CORE, Process.WORKER),
        "patches/zmq_wakeups.py",
        "Unread wake-ups accumulate in a busy engine with separate worker processes "
        "([decision 23](decisions/0023-memory-of-long-running-engine-processes.md))",
        "libzmq issue 3171",
        "vLLM reads the socket",
        required=False,
    ),
    Patch(
        "malloc_trim",
        ("vllm.lora.worker_manager.LRUCacheWorkerLoRAManager._load_adapter",),
        (Process.WORKER,),
        "worker/malloc_trim.py",
        "Adapters that come and go fragment the memory of a worker "
        "([decision 23](decisions/0023-memory-of-long-running-engine-processes.md))",
        "none: behaviour of glibc",
        "`MALLOC_ARENA_MAX` does as well",
        required=False,
    ),
    Patch(
        "heap_freeze",
        ("vllm.v1.worker.cpu_worker.CPUWorker",),
        (Process.WORKER,),
        "worker/extension.py",
        "Loads of adapters trigger full garbage collections, which stop the steps. vLLM freezes the heap in GPU "
        "workers only ([decision 23](decisions/0023-memory-of-long-running-engine-processes.md))",
        _NONE_FILED,
        "vLLM freezes the heap of every worker",
        required=False,
    ),
)

#: All patches, required ones first.
LEDGER: tuple[Patch, ...] = (*_REQUIRED_ROWS, *_OPTIONAL_ROWS)
#: Names of the patches that can be switched off.
OPTIONAL = frozenset(patch.name for patch in LEDGER if not patch.required)


def switched_off(setting: str) -> frozenset[str]:
    """Return the patches that a value of ``TENORA_ENGINE__PATCHES`` switches off.

    Args:
        setting: ``all``, ``none``, or names with a minus sign before each, separated by commas.

    Raises:
        InvalidPatches
    """
    if setting == "all":
        return frozenset()
    if setting == "none":
        return OPTIONAL
    entries = [entry.strip() for entry in setting.split(",")]
    required = {f"-{patch.name}" for patch in LEDGER if patch.required}
    allowed = ", ".join(f"-{name}" for name in sorted(OPTIONAL))
    for entry in entries:
        if entry in required:
            raise InvalidPatches(
                f"{_SETTING} has {entry}, but the server cannot run without this patch. Remove it, or use: {allowed}."
            )
        if entry[:1] != "-" or entry[1:] not in OPTIONAL:
            raise InvalidPatches(
                f"{_SETTING} has {entry!r}, which is no patch that can be switched off. Use all, none, or a "
                f"comma-separated list of: {allowed}."
            )
    return frozenset(entry[1:] for entry in entries)


def additional_config(off: frozenset[str]) -> dict[str, Any] | None:
    """Return vLLM's ``additional_config`` that tells its processes what is off; None if nothing is."""
    return {_OFF: sorted(off)} if off else None


def applied(config: Mapping[str, Any]) -> frozenset[str]:
    """Return the optional patches that apply.

    Args:
        config: ``VllmConfig.additional_config``.
    """
    return OPTIONAL - frozenset(config.get(_OFF, ()))
