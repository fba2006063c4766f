"""Imports of the fork server, shared by all engines forked from it; see app/engine/vllm/worker/fork_server.py.

Nothing here may start a thread or open a device: a forked process would have neither.
"""

import gc

import vllm.v1.engine.core
from vllm.platforms import current_platform
from vllm.utils.system_utils import set_process_title

# On a GPU import no more than vLLM's own server before it forks: models and kernels may open the card at import.
if current_platform.is_cpu():
    import vllm.model_executor.models.llama
    import vllm.v1.worker.cpu_model_runner
    import vllm.v1.worker.cpu_worker  # noqa: F401

    import app.engine.vllm.scheduler.composition
    import app.engine.vllm.worker.extension
    import app.engine.vllm.worker.in_core_executor  # noqa: F401

set_process_title("forkserver", prefix="tenora")
# Keep the pages of these objects shared: a collection would write to every one of them.
gc.collect()
gc.freeze()
