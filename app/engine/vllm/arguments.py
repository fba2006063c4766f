"""Engine settings as arguments of vLLM's command line, which vLLM's own server accepts too."""

import json
from pathlib import Path

from adapters.geometry import HEAD_MODULE, LINEAR_MODULES
from app.engine.vllm.patches.ledger import additional_config, switched_off
from app.planning.budget import CPU_KV_CACHE_BYTES
from app.settings import EngineSettings, Settings

#: Small models emit blanks forever where a grammar allows it. llguidance builds its automaton lazily, so a hostile
#: schema costs no compile time up front.
_STRUCTURED_OUTPUTS = {"backend": "guidance", "disable_any_whitespace": True}

#: Dtypes that vLLM's LoRA kernels on a GPU do not support. "auto" never selects them there.
_NOT_ON_GPU = frozenset({"float", "float32"})
#: Arguments that would change prompts. The gateway renders and tokenizes them with the base's own files.
_GATEWAY = frozenset(
    {
        "chat_template",
        "chat_template_content_format",
        "default_chat_template_kwargs",
        "tokenizer",
        "tokenizer_mode",
        "tokenizer_revision",
    }
)
WORKER_EXTENSION = "app.engine.vllm.worker.extension.WorkerExtension"


class InvalidEngineArgument(ValueError):
    """Setting that the engine cannot have: an argument that Tenora sets itself, or a dtype unsupported on a GPU."""


def engine_arguments(
    settings: Settings, base: Path, *, served_name: str, cpu: bool, slots: int, context: int | None = None
) -> list[str]:
    """Build vLLM's arguments for this base on a CPU or a GPU.

    Args:
        slots: number of LoRA slots. The setting itself may be ``auto``.
        context: longest sequence, by which the gateway refuses prompts; None: the setting, else vLLM's choice.

    Raises:
        InvalidEngineArgument
        InvalidPatches
    """
    engine = settings.engine
    if not cpu and engine.dtype in _NOT_ON_GPU:
        # vLLM would load and compile the base, and then die of an assertion without a message.
        raise InvalidEngineArgument(
            f"TENORA_ENGINE__DTYPE is {engine.dtype}, but adapters on a GPU need auto, bfloat16 or float16."
        )
    values: dict[str, object] = {
        "model": str(base),
        "served_model_name": served_name,
        "enable_lora": True,
        "max_loras": slots,
        # Tenora plans and fills host memory. vLLM must know only of adapters that have a slot.
        "max_cpu_loras": slots,
        "max_lora_rank": engine.max_lora_rank,
        # Modules that validation admits. With the head among them, logprobs of prompts are refused: vLLM computes them
        # for more rows than it knows adapters of, and a CPU worker dies of it.
        "lora_target_modules": (*LINEAR_MODULES, HEAD_MODULE) if engine.lora_head else LINEAR_MODULES,
        "max_logprobs": settings.limits.logprobs,
        "dtype": engine.dtype,
        "tensor_parallel_size": engine.tensor_parallel_size,
        "worker_extension_cls": WORKER_EXTENSION,
        "scheduler_cls": None,  # set at the start; see app/engine/vllm/scheduler/composition.py
        "additional_config": additional_config(switched_off(engine.patches)),
        "scheduling_policy": "priority",  # see app/engine/vllm/scheduler/preemption.py
        "enable_auto_tool_choice": True,
        # Safe, as the allow-list of fields removes a client's template. The server sends prompts that it rendered.
        "trust_request_chat_template": True,
        "tool_call_parser": engine.tool_call_parser or _tool_call_parser(base),
        "revision": settings.base_model_revision,
        "max_model_len": context or engine.max_model_len,
        "quantization": engine.quantization,
        "kv_cache_memory_bytes": engine.kv_cache_bytes or (CPU_KV_CACHE_BYTES if cpu else None),
    }
    return [*_flags(values), *_extra_flags(engine, taken=set(values))]


def _tool_call_parser(base: Path) -> str:
    """Choose Llama 3's format if the tokenizer has its token, else the format that needs no token."""
    tokenizer = base / "tokenizer.json"
    has_token = tokenizer.is_file() and "<|python_tag|>" in tokenizer.read_text(encoding="utf-8")
    return "llama3_json" if has_token else "pythonic"


def _extra_flags(engine: EngineSettings, *, taken: set[str]) -> list[str]:
    extra = {name.lstrip("-").replace("-", "_"): value for name, value in engine.extra_args.items()}
    clash = sorted((taken | _GATEWAY) & set(extra))
    if clash:
        raise InvalidEngineArgument(
            f"TENORA_ENGINE__EXTRA_ARGS has {', '.join(clash)}, which Tenora sets itself. "
            "Use only vLLM arguments that have no setting."
        )
    return _flags({"structured_outputs_config": _STRUCTURED_OUTPUTS} | extra)


def _flags(values: dict[str, object]) -> list[str]:
    flags: list[str] = []
    for name, value in values.items():
        flag = f"--{name.replace('_', '-')}"
        if value is None:
            continue
        if value is True:
            flags.append(flag)
        elif value is False:
            flags.append(f"--no-{flag[2:]}")
        elif isinstance(value, tuple):
            flags += [flag, *value]
        else:
            flags += [flag, json.dumps(value) if isinstance(value, dict | list) else str(value)]
    return flags
