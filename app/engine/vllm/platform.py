"""Platform of the installed vLLM build: CPU or GPU, and the memory that planning starts from."""

from vllm.platforms import current_platform

from app.planning.budget import Machine
from app.planning.machine import host_memory


def on_cpu() -> bool:
    """Return whether this build of vLLM runs on the CPU."""
    return bool(current_platform.is_cpu())


def device_name() -> str:
    """Return the name of the first GPU, as the driver reports it; ``cpu`` without one."""
    return str(current_platform.get_device_name())


def this_machine() -> Machine:
    """Return the memory available to an engine: of the first GPU, or of the machine or container."""
    if on_cpu():
        return Machine(host_memory(), cpu=True)
    return Machine(int(current_platform.get_device_total_memory()), cpu=False)
