"""vLLM's metrics without a label for the running adapters."""

from typing import Any

from vllm.v1.metrics.loggers import PrometheusStatLogger


class EngineStatistics(PrometheusStatLogger):  # type: ignore[misc]  # vLLM has no stubs
    """:class:`PrometheusStatLogger` that does not list the running adapters.

    That list is a label: each combination of adapters would be kept forever.
    """

    def __init__(self, vllm_config: Any, engine_indexes: list[int] | None = None) -> None:
        super().__init__(vllm_config, engine_indexes)
        self.gauge_lora_info = None
