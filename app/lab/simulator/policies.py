"""Routing policies of a simulated gateway: Tenora's rule and its rivals."""

import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Protocol

from app.lab.simulator.workload import Arrival
from app.scheduling.replica_report import ReplicaReport
from app.scheduling.routing import Route, Router
from app.scheduling.token_counters import cost_of


@dataclass(frozen=True, slots=True)
class Observation:
    """State of a replica, as a gateway learns it.

    Attributes:
        report: report to Tenora's gateways.
        waiting: number of waiting requests.
        running: number of running requests, as a fraction of the window.
        running_versions, waiting_versions: versions with such requests.
    """

    report: ReplicaReport
    waiting: int
    running: float
    running_versions: AbstractSet[str]
    waiting_versions: AbstractSet[str]


class Policy(Protocol):
    """Policy of one gateway.

    Attributes:
        interval_s: seconds between two observations.
    """

    interval_s: float

    def observe(self, observations: Sequence[Observation], now: float) -> None: ...

    def route(self, version: str | None, arrival: Arrival) -> Route: ...

    def finish(self, route: Route) -> None: ...


class Tenora:
    """Routing rule of :class:`app.scheduling.routing.Router`, from reports of each second."""

    interval_s = 1.0

    def __init__(self, seed: int) -> None:  # noqa: ARG002 - the rule draws no numbers
        self._router = Router()

    def observe(self, observations: Sequence[Observation], now: float) -> None:
        for observation in observations:
            self._router.report(observation.report, now)

    def route(self, version: str | None, arrival: Arrival) -> Route:
        tokens = cost_of(arrival.prompt_tokens, arrival.output_tokens)
        return self._router.route(version, now=arrival.at, tokens=tokens)

    def finish(self, route: Route) -> None:
        self._router.finish(route)


class _Rival:
    """Rival with exact counts of its requests in flight."""

    interval_s = 1.0

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)  # noqa: S311 - a simulation, no secret
        self._replicas: Sequence[Observation] = ()
        self._loads: Counter[str] = Counter()

    def observe(self, observations: Sequence[Observation], now: float) -> None:  # noqa: ARG002 - rivals keep no times
        self._replicas = observations

    def finish(self, route: Route) -> None:
        self._loads[route.node_id] -= 1

    def _send(self, node_id: str, version: str | None) -> Route:
        self._loads[node_id] += 1
        return Route(node_id, version, None)

    def _nodes(self) -> list[str]:
        return [observation.report.node_id for observation in self._replicas]

    def _least_loaded(self, node_ids: Iterable[str]) -> str:
        return min(node_ids, key=lambda node_id: (self._loads[node_id], self._random.random()))


class RoundRobin(_Rival):
    """Replicas in turn."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._turns = itertools.count()

    def route(self, version: str | None, arrival: Arrival) -> Route:  # noqa: ARG002 - the policy ignores it
        nodes = self._nodes()
        return self._send(nodes[next(self._turns) % len(nodes)], version)


class LeastLoaded(_Rival):
    """Fewest requests in flight, ties at random."""

    def route(self, version: str | None, arrival: Arrival) -> Route:  # noqa: ARG002 - the policy ignores it
        return self._send(self._least_loaded(self._nodes()), version)


class PowerOfTwo(_Rival):
    """Ray Serve's ``PowerOfTwoChoicesRequestRouter`` with model multiplexing.

    Candidates are the replicas that report the model. Without any, they are the replicas with the fewest models. The
    less loaded of two random candidates wins. Replicas push their models every 0.1 s. Requests for a model that no
    replica reports yet wait in Ray until the first one's load ends. Here they follow the first one at once, which is
    better for Ray.
    """

    interval_s = 0.1

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._loading: dict[str, str] = {}

    def observe(self, observations: Sequence[Observation], now: float) -> None:
        super().observe(observations, now)
        for observation in observations:
            for version in observation.report.resident:
                self._loading.pop(version, None)

    def route(self, version: str | None, arrival: Arrival) -> Route:  # noqa: ARG002 - the policy ignores it
        if version is None:
            return self._send(self._two(self._nodes()), version)
        having = [one.report.node_id for one in self._replicas if version in one.report.resident]
        if having:
            return self._send(self._two(having), version)
        if version not in self._loading:
            fewest = min(len(one.report.resident) for one in self._replicas)
            self._loading[version] = self._two(
                [one.report.node_id for one in self._replicas if len(one.report.resident) == fewest]
            )
        return self._send(self._loading[version], version)

    def _two(self, node_ids: Sequence[str]) -> str:
        return self._least_loaded(self._random.sample(node_ids, min(2, len(node_ids))))


class LlmD(_Rival):
    """Scorers of llm-d and the Gateway API Inference Extension for LoRA: the largest sum of three scores wins.

    - LoRA affinity: 1 for a replica that runs a request of the adapter, 0.8 for one with room for another adapter,
      0.6 where a request of it waits, else 0. Only adapters with requests count, not the contents of slots.
    - Queue: 1 for the shortest queue to 0 for the longest.
    - Running requests, in place of the KV cache's utilization: 1 for an idle replica to 0 for a full one.

    Metrics are read every 0.05 s. Ties are broken at random.
    """

    interval_s = 0.05

    def route(self, version: str | None, arrival: Arrival) -> Route:  # noqa: ARG002 - the policy ignores it
        waiting = [one.waiting for one in self._replicas]
        shortest, longest = min(waiting), max(waiting)

        def score(one: Observation) -> float:
            queue = (longest - one.waiting) / (longest - shortest) if longest > shortest else 1.0
            return queue + 1 - one.running + (_affinity(one, version) if version else 0.0)

        best = max(self._replicas, key=lambda one: (score(one), self._random.random()))
        return self._send(best.report.node_id, version)


def _affinity(one: Observation, version: str) -> float:
    if version in one.running_versions:
        return 1.0
    if len(one.running_versions | one.waiting_versions) < one.report.slots:
        return 0.8
    return 0.6 if version in one.waiting_versions else 0.0


#: Policies by name. Each is made with a seed.
POLICIES: Mapping[str, Callable[[int], Policy]] = {
    "tenora": Tenora,
    "round robin": RoundRobin,
    "least loaded": LeastLoaded,
    "power of two": PowerOfTwo,
    "llm-d": LlmD,
}
