"""Known harmless warnings of vLLM and torch, each with its source, its exact text and the reason why it is hidden.

Only these texts are hidden. No level and no logger is, so an unknown warning is always shown.
"""

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Harmless:
    """One hidden warning.

    Attributes:
        source: logger of a log line, end of the path in a line of torch, or category of a Python warning.
        pattern: regular expression of the whole text.
        reason: why it does not matter here.
    """

    source: str
    pattern: str
    reason: str


_NO_TRITON = "Triton compiles kernels for GPUs. A CPU engine runs without it."
_ALLOCATOR = "Tenora preloads torch's OpenMP library, and trims glibc's memory by itself."
_BINDING = "vLLM's CPU worker binds its threads and its memory by itself, as intended."

HARMLESS = (
    Harmless("torch/_library/triton.py", r"Triton not available, find_triton_kernels = \[\]", _NO_TRITON),
    Harmless("vllm.platforms.cpu", r"Triton is not installed\. triton-cpu is expected on x86 CPUs\.", _NO_TRITON),
    Harmless("vllm.config.vllm", r"Model Runner V2 requires Triton; using the V1 model runner instead\.", _NO_TRITON),
    Harmless(
        "vllm.platforms.cpu",
        r"Reset SSM cache type to float32 for accelerated GDN mamba backend '\w+'\.",
        "A Llama has no state-space layers.",
    ),
    Harmless("vllm.v1.worker.cpu_worker", r"libtcmalloc is not found in LD_PRELOAD\. .*", _ALLOCATOR),
    Harmless("vllm.v1.worker.cpu_worker", r"libiomp is not found in LD_PRELOAD\. .*", _ALLOCATOR),
    Harmless(
        "vllm.v1.worker.cpu_worker",
        r"CPU backend doesn't allow to use `torch\.set_num_threads` after the thread binding, skip it\.",
        _BINDING,
    ),
    Harmless("utils.cpp", r"Warning: NUMA binding: Using MEMBIND policy for memory allocation on .*", _BINDING),
    Harmless(
        "vllm.config.scheduler",
        r"Using custom scheduler class app\.engine\.vllm\.scheduler\.composition\.scheduler\. .*",
        "The scheduler is Tenora's. Contract tests hold it to the pinned vLLM.",
    ),
    Harmless(
        "vllm.config.vllm",
        r"Inductor compilation was disabled by user settings, optimizations settings that are only active during "
        r"inductor compilation will be ignored\.",
        "Without a compiler or a GPU, vLLM itself chooses this setting.",
    ),
    Harmless(
        "vllm.model_executor.models.utils",
        r"Attempted to load weight \S+ with dtype torch\.(b?float16|float32) into parameter with dtype "
        r"torch\.(b?float16|float32)",
        "The base's weights are cast to the engine's dtype, as TENORA_ENGINE__DTYPE says.",
    ),
    Harmless(
        "vllm.config.model",
        r"Default vLLM sampling parameters have been overridden by the model's `generation_config\.json`: .*",
        "The base's own defaults are meant to apply, and the advice in the text is for vLLM's own server.",
    ),
    Harmless(
        "vllm.v1.engine.input_processor",
        r"vLLM has deprecated support for supporting different tokenizers for different LoRAs\. .*",
        "All adapters use the base's tokenizer.",
    ),
    Harmless(
        "FutureWarning",
        r"`torch\.distributed\.reduce_op` is deprecated, please use `torch\.distributed\.ReduceOp` instead",
        "vLLM inspects torch's names at import and uses none of them.",
    ),
)

_COMPILED = tuple((entry.source, re.compile(entry.pattern, re.DOTALL)) for entry in HARMLESS)


def is_harmless(source: str, text: str) -> bool:
    """Return whether a line's source and text are those of a known harmless warning."""
    return any(source.endswith(known) and pattern.fullmatch(text) for known, pattern in _COMPILED)
