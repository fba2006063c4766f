"""Simulation of the unmodified scheduler and residency plans over one simulated engine."""

from array import array
from collections.abc import Callable

import numpy as np

from app.lab.simulator.job import Job
from app.lab.simulator.machine import Machine, Scheduler
from app.lab.simulator.node import Node
from app.lab.simulator.workload import Workload

#: Number of ordinary tenants in the class ``largest``.
_LARGEST = 10

#: Requests between two calls of ``progress``.
_REPORTED = 2_000


class Simulation(Node):
    """Run from the first arrival to the last answer.

    Attributes:
        ttft_s: seconds from arrival to first token of each served request, by class of tenant.
    """

    def __init__(self, workload: Workload, machine: Machine, scheduler: Scheduler) -> None:
        super().__init__(workload, machine, scheduler, answered=self._record)
        self.workload = workload
        self._classes = _classes(workload)
        self.ttft_s: dict[str, array[float]] = {name: array("d") for name in sorted(set(self._classes))}

    def run(self, progress: Callable[[int], None] = lambda _: None) -> None:
        """Process all requests.

        Args:
            progress: occasional callback with the number of requests that have arrived.

        Raises:
            BrokenPromise: the scheduler admitted a request that cannot run, or left requests waiting forever.
        """
        for arrived, arrival in enumerate(self.workload.arrivals(), start=1):
            self.advance(arrival.at)
            self.arrive(arrival)
            if not arrived % _REPORTED:
                progress(arrived)
        self.drain()
        progress(self.workload.requests)

    def _record(self, job: Job) -> None:
        self.ttft_s[self._classes[job.arrival.tenant]].append(job.first_at - job.arrival.at)


def _classes(workload: Workload) -> list[str]:
    """Report class of each tenant."""
    largest = set(np.argsort(workload.rates[: workload.tenants])[-_LARGEST:].tolist())
    ordinary = ["largest" if tenant in largest else "others" for tenant in range(workload.tenants)]
    return [*ordinary, "hostile", "collector"]
