"""Resource limits (rlimits) for child processes that read untrusted bytes: see :mod:`adapters.sandbox`."""

import os
import resource

_NICENESS = 10
_OPEN_FILES = 32


def confine(*, cpu_seconds: int, address_bytes: int, file_bytes: int, open_files: int = _OPEN_FILES) -> None:
    """Lower this process's priority and set its resource limits permanently.

    Args:
        cpu_seconds: CPU time, in seconds.
        address_bytes: address space, in bytes.
        file_bytes: size of the largest file that it may write, in bytes; 0 if it may write none.
        open_files: number of open file descriptors.
    """
    os.nice(_NICENESS)
    for limit, value in (
        (resource.RLIMIT_AS, address_bytes),
        (resource.RLIMIT_CPU, cpu_seconds),
        (resource.RLIMIT_FSIZE, file_bytes),
        (resource.RLIMIT_NOFILE, open_files),
        (resource.RLIMIT_CORE, 0),
    ):
        # The hard limit is one above the soft one. At the hard CPU limit the kernel sends SIGKILL, which would hide the
        # cause. At the soft limit it sends SIGXCPU.
        ceiling, hard = value + 1, resource.getrlimit(limit)[1]
        if hard != resource.RLIM_INFINITY:
            ceiling = min(ceiling, hard)
        resource.setrlimit(limit, (min(value, ceiling), ceiling))
