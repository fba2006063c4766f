"""What a child process that reads hostile bytes does to itself first: see :mod:`adapters.sandbox`."""

import os
import resource

_NICENESS = 10
_OPEN_FILES = 32


def confine(*, cpu_seconds: int, address_bytes: int, file_bytes: int, open_files: int = _OPEN_FILES) -> None:
    """Limit this process for good, and let others go first.

    Args:
        file_bytes: size of the largest file it may write; 0: none.
    """
    os.nice(_NICENESS)
    for limit, value in (
        (resource.RLIMIT_AS, address_bytes),
        (resource.RLIMIT_CPU, cpu_seconds),
        (resource.RLIMIT_FSIZE, file_bytes),
        (resource.RLIMIT_NOFILE, open_files),
        (resource.RLIMIT_CORE, 0),
    ):
        # One above the soft limit: at the hard one, CPU time would end in a SIGKILL that looks like any other.
        ceiling, hard = value + 1, resource.getrlimit(limit)[1]
        if hard != resource.RLIM_INFINITY:
            ceiling = min(ceiling, hard)
        resource.setrlimit(limit, (min(value, ceiling), ceiling))
