"""Autoscaling policy of the engine replicas. It runs in Ray's controller, and needs nothing of Ray."""

from collections.abc import Mapping
from typing import Any, Protocol

#: Name of a replica's load among its autoscaling metrics.
LOAD = "requests"


class Config(Protocol):
    """Ray's autoscaling configuration, as this module uses it."""

    def get_target_ongoing_requests(self) -> float: ...


class Context(Protocol):
    """Ray's view of the deployment, as this module uses it. Loads are means over Ray's look-back period."""

    @property
    def current_num_replicas(self) -> int: ...

    @property
    def target_num_replicas(self) -> int: ...

    @property
    def aggregated_metrics(self) -> Mapping[str, Mapping[Any, float]] | None: ...

    @property
    def total_queued_requests(self) -> float: ...

    @property
    def config(self) -> Config: ...


def wanted_replicas(context: Context) -> tuple[float, dict[str, Any]]:
    """Return the number of replicas that the load needs. Ray applies the delays and the bounds.

    Ray's default policy counts calls at its handles. The gateways' questions about the state are such calls, so a fleet
    would never be idle. Here, the load is what the replicas have measured (:class:`app.ray.load_meter.LoadMeter`), and
    the calls that wait for a replica. While a replica has not reported yet, the number does not shrink.
    """
    if context.current_num_replicas == 0:
        # Ray itself starts one replica if a call waits.
        return context.target_num_replicas, {}
    loads = (context.aggregated_metrics or {}).get(LOAD, {})
    load = sum(loads.values()) + context.total_queued_requests
    wanted = load / context.config.get_target_ongoing_requests()
    return (max(wanted, context.target_num_replicas) if len(loads) < context.current_num_replicas else wanted), {}
