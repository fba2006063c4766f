"""Simulation of a fleet: several engine nodes behind gateways with a routing policy."""

import random
from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, partial

import numpy as np

from app.lab.simulator.job import Job
from app.lab.simulator.machine import Machine
from app.lab.simulator.node import Node
from app.lab.simulator.policies import Observation, Policy
from app.lab.simulator.traces import Trace
from app.lab.simulator.workload import Arrival
from app.scheduling.admission import Admission
from app.scheduling.replica_report import ReplicaReport

#: Requests between two calls of ``progress``.
_REPORTED = 2_000


@dataclass(frozen=True, slots=True)
class FleetOutcome:
    """Results of one simulation.

    Attributes:
        copies: copies of adapters into slots.
        stages: loads from disk to host memory.
        fetches: loads from the blob store.
        loading_s: seconds of all these for adapters of mean size.
        warm: share of adapter requests that caused no copy.
        imbalance: largest number of requests of a replica over the mean.
        ttft_p50_s, ttft_p99_s, ttft_max_s: seconds to the first token.
        simulated_s: seconds until the last answer.
    """

    requests: int
    served: int
    refused: int
    copies: int
    stages: int
    fetches: int
    loading_s: float
    warm: float
    imbalance: float
    ttft_p50_s: float
    ttft_p99_s: float
    ttft_max_s: float
    requests_per_s: float
    simulated_s: float


class FleetSimulation:
    """Run a trace from the first arrival to the last answer.

    Each request comes to a random gateway, and its answer ends there. Gateways learn the replicas' states at the
    interval of their policy.

    Args:
        policies: policy of each gateway.
    """

    def __init__(self, trace: Trace, machine: Machine, replicas: int, policies: list[Policy]) -> None:
        self._trace, self._machine, self._policies = trace, machine, policies
        self._ttft_s = array("d")
        #: End of each request in flight: its gateway's policy is notified.
        self._ends: dict[Job, Callable[[], None]] = {}
        self._sent: dict[str, int] = {}
        self._nodes = {f"replica-{number}": self._node() for number in range(replicas)}
        self._random = random.Random(trace.seed)  # noqa: S311 - a simulation, no secret
        self._requests = self._adapter_requests = self._refused = 0

    def run(self, progress: Callable[[int], None] = lambda _: None) -> FleetOutcome:
        """Process all requests.

        Args:
            progress: occasional callback with the number of requests that have arrived.

        Raises:
            BrokenPromise: a scheduler admitted a request that cannot run, or left requests waiting forever.
        """
        due = [0.0] * len(self._policies)
        for arrival in self._trace.arrivals():
            while (at := min(due)) <= arrival.at:
                self._advance(at)
                gateway = due.index(at)
                self._policies[gateway].observe(self._observations(), at)
                due[gateway] = at + self._policies[gateway].interval_s
            self._advance(arrival.at)
            self._arrive(arrival)
            if not self._requests % _REPORTED:
                progress(self._requests)
        for node in self._nodes.values():
            node.drain()
        progress(self._requests)
        return self._outcome()

    def _node(self) -> Node:
        machine = self._machine
        scheduler = Admission(
            slots=machine.slots, window=machine.window, max_age_s=machine.max_age_s, bounds=machine.bounds
        )
        return Node(self._trace, machine, scheduler, answered=self._answered, ended=self._end)

    def _advance(self, until: float) -> None:
        for node in self._nodes.values():
            node.advance(until)

    def _arrive(self, arrival: Arrival) -> None:
        policy = self._random.choice(self._policies)
        route = policy.route(_digest(arrival.version_id) if arrival.version_id else None, arrival)
        self._requests += 1
        self._adapter_requests += arrival.version_id > 0
        self._sent[route.node_id] = self._sent.get(route.node_id, 0) + 1
        job = self._nodes[route.node_id].arrive(arrival)
        if job is None:
            self._refused += 1
            policy.finish(route)
        else:
            self._ends[job] = partial(policy.finish, route)

    def _answered(self, job: Job) -> None:
        self._ttft_s.append(job.first_at - job.arrival.at)

    def _end(self, job: Job) -> None:
        self._ends.pop(job)()

    def _observations(self) -> list[Observation]:
        return [self._observe(node_id, node) for node_id, node in self._nodes.items()]

    def _observe(self, node_id: str, node: Node) -> Observation:
        machine = self._machine
        copy_s, stage_s, fetch_s = self._costs()
        report = ReplicaReport(
            node_id,
            machine.slots,
            in_flight=node.in_flight + node.waiting,
            queued_tokens=node.scheduler.queued_tokens,
            tokens_per_s=node.scheduler.tokens_per_s,
            resident=_digests(node.slots.residents),
            staged=_digests(node.host.loaded_ids),
            on_disk=_digests(node.on_disk),
            copy_s=copy_s,
            stage_s=stage_s,
            fetch_s=fetch_s,
        )
        return Observation(
            report,
            waiting=node.waiting,
            running=min(1.0, node.in_flight / machine.window),
            running_versions=_digests(node.watch.running),
            waiting_versions=_digests(node.waiting_versions),
        )

    def _costs(self) -> tuple[float, float, float]:
        """Seconds of a copy into a slot, a load from disk and a fetch, for an adapter of mean size."""
        costs, ranks = self._machine.costs, self._trace.ranks
        size = self._machine.bytes_per_rank * sum(ranks) / len(ranks)
        return costs.copy_s + costs.copy_s_per_byte * size, costs.stage_s_per_byte * size, costs.fetch_s

    def _outcome(self) -> FleetOutcome:
        nodes, ttft = self._nodes.values(), np.asarray(self._ttft_s)
        p50, p99, most = np.percentile(ttft, [50, 99, 100]).tolist() if len(ttft) else (0.0, 0.0, 0.0)
        copies, stages = sum(node.copies for node in nodes), sum(node.host.misses for node in nodes)
        fetches, seconds = sum(node.fetched for node in nodes), max(node.engine.now for node in nodes)
        copy_s, stage_s, fetch_s = self._costs()
        return FleetOutcome(
            requests=self._requests,
            served=len(ttft),
            refused=self._refused,
            copies=copies,
            stages=stages,
            fetches=fetches,
            loading_s=copies * copy_s + stages * stage_s + fetches * fetch_s,
            warm=1 - copies / max(1, self._adapter_requests),
            imbalance=max(self._sent.values(), default=0) * len(nodes) / max(1, self._requests),
            ttft_p50_s=p50,
            ttft_p99_s=p99,
            ttft_max_s=most,
            requests_per_s=len(ttft) / seconds,
            simulated_s=seconds,
        )


@cache
def _digest(version_id: int) -> str:
    return f"{version_id:016x}"


def _digests(version_ids: Iterable[int]) -> frozenset[str]:
    return frozenset(map(_digest, version_ids))
